#include "client/blockctl/load/histogram.h"

#include <algorithm>
#include <cmath>

namespace blockd::blockctl {
namespace {

constexpr double kLeast = 1e-9;
constexpr double kMost = 3600;
constexpr double kRatio = 1.01;

int BucketOf(double seconds) {
  const double clamped = std::clamp(seconds, kLeast, kMost);
  return static_cast<int>(std::log(clamped / kLeast) / std::log(kRatio));
}

}  // namespace

Histogram::Histogram() : buckets_(BucketOf(kMost) + 1) {}

void Histogram::Add(double seconds) {
  ++buckets_[BucketOf(seconds)];
  ++count_;
  sum_ += seconds;
  max_ = std::max(max_, seconds);
}

void Histogram::Merge(const Histogram& other) {
  for (size_t i = 0; i < buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
  sum_ += other.sum_;
  max_ = std::max(max_, other.max_);
}

double Histogram::Percentile(double part) const {
  if (count_ == 0) return 0;
  const auto rank = std::max<int64_t>(
      1, static_cast<int64_t>(std::ceil(part * static_cast<double>(count_) - 1e-9)));
  if (rank >= count_) return max_;
  int64_t seen = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    seen += buckets_[i];
    if (seen >= rank) {
      const double middle = kLeast * std::pow(kRatio, static_cast<double>(i) + 0.5);
      return std::min(middle, max_);
    }
  }
  return max_;
}

}  // namespace blockd::blockctl
