#include "client/blockctl/load/histogram.h"

#include <gtest/gtest.h>

namespace blockd::blockctl {
namespace {

TEST(HistogramTest, PercentilesAreWithinOnePercent) {
  Histogram histogram;
  for (int i = 1; i <= 1000; ++i) histogram.Add(i * 1e-3);
  EXPECT_NEAR(histogram.Percentile(0.5), 0.5, 0.005);
  EXPECT_NEAR(histogram.Percentile(0.9), 0.9, 0.009);
  EXPECT_NEAR(histogram.Percentile(0.99), 0.99, 0.01);
  EXPECT_NEAR(histogram.Percentile(0.999), 0.999, 0.01);
  EXPECT_EQ(histogram.Percentile(1), 1.0);
  EXPECT_NEAR(histogram.mean(), 0.5005, 1e-9);
}

TEST(HistogramTest, TheTailIsTheRightOne) {
  Histogram histogram;
  for (int i = 0; i < 99; ++i) histogram.Add(1e-3);
  histogram.Add(1.0);
  EXPECT_NEAR(histogram.Percentile(0.99), 1e-3, 1e-5);
  EXPECT_EQ(histogram.Percentile(0.999), 1.0);
}

TEST(HistogramTest, NothingAddedIsZero) {
  EXPECT_EQ(Histogram().Percentile(0.5), 0);
  EXPECT_EQ(Histogram().mean(), 0);
}

TEST(HistogramTest, ExtremesDoNotEscape) {
  Histogram histogram;
  histogram.Add(0);
  histogram.Add(1e9);
  EXPECT_LE(histogram.Percentile(0.5), 2e-9);
  EXPECT_EQ(histogram.max(), 1e9);
}

TEST(HistogramTest, MergedIsAsIfAddedTogether) {
  Histogram a, b, both;
  for (int i = 1; i < 100; ++i) {
    (i % 3 == 0 ? a : b).Add(i);
    both.Add(i);
  }
  a.Merge(b);
  EXPECT_EQ(a.count(), both.count());
  for (const double part : {0.1, 0.5, 0.9, 1.0})
    EXPECT_EQ(a.Percentile(part), both.Percentile(part));
}

TEST(HistogramTest, TheMeanAndTheLargestAreOfAllEvenMerged) {
  Histogram a, b;
  a.Add(1);
  b.Add(2);
  b.Add(6);
  a.Merge(b);
  EXPECT_EQ(a.count(), 3);
  EXPECT_EQ(a.mean(), 3);
  EXPECT_EQ(a.max(), 6);
  b.Merge(Histogram());
  EXPECT_EQ(b.count(), 2);
  EXPECT_EQ(b.max(), 6);
}

TEST(HistogramTest, APercentileOfFewIsOneOfThem) {
  Histogram histogram;
  histogram.Add(1);
  histogram.Add(100);
  EXPECT_NEAR(histogram.Percentile(0.01), 1, 0.01);
  EXPECT_NEAR(histogram.Percentile(0.5), 1, 0.01);
  EXPECT_EQ(histogram.Percentile(0.51), 100);
  Histogram once;
  once.Add(1.0);
  EXPECT_EQ(once.Percentile(0.5), 1.0);  // never above the largest
}

}  // namespace
}  // namespace blockd::blockctl
