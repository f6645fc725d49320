#include "server/core/metrics.h"

#include <gtest/gtest.h>

#include <sstream>
#include <thread>
#include <vector>

#include "server/core/errors.h"

namespace blockd::server {
namespace {

class MetricsTest : public testing::Test {
 protected:
  bool Has(const std::string& line) const {
    std::istringstream text(metrics_.Text());
    for (std::string found; std::getline(text, found);) {
      if (found == line) return true;
    }
    return false;
  }
  Metrics metrics_{BuildInfo{"1.2.3", "cpu", "a processor"}};
};

TEST_F(MetricsTest, CountsRequestsByMethodAndStatus) {
  metrics_.RecordRequest(Method::kSolve, absl::StatusCode::kOk, absl::Milliseconds(3));
  metrics_.RecordRequest(Method::kSolve, absl::StatusCode::kOk, absl::Milliseconds(3));
  metrics_.RecordRequest(Method::kFactorStream, absl::StatusCode::kNotFound, absl::Seconds(2));
  EXPECT_TRUE(Has("blockd_requests_total{method=\"Solve\",status=\"OK\"} 2"));
  EXPECT_TRUE(Has("blockd_requests_total{method=\"FactorStream\",status=\"NOT_FOUND\"} 1"));
  EXPECT_TRUE(
      Has("blockd_request_seconds_bucket{method=\"Solve\",phase=\"total\",le=\"0.005\"} 2"));
}

TEST_F(MetricsTest, ObservesPhasesOfMethodsThatCompute) {
  metrics_.RecordPhases(Method::kFactor,
                        {absl::Seconds(1), absl::Seconds(2), absl::Seconds(3), absl::Seconds(4)});
  EXPECT_TRUE(Has("blockd_request_seconds_sum{method=\"Factor\",phase=\"queue\"} 1"));
  EXPECT_TRUE(Has("blockd_request_seconds_sum{method=\"Factor\",phase=\"upload\"} 2"));
  EXPECT_TRUE(Has("blockd_request_seconds_sum{method=\"Factor\",phase=\"compute\"} 3"));
  EXPECT_TRUE(Has("blockd_request_seconds_sum{method=\"Factor\",phase=\"download\"} 4"));
  metrics_.RecordPhases(Method::kRelease, {});  // has no phases: nothing happens
}

TEST_F(MetricsTest, CountsWorkEvictionsAndMisses) {
  metrics_.RecordBatch(WorkKind::kSolve, 4, 16, 1000);
  metrics_.RecordDeviceBusy(absl::Milliseconds(500));
  metrics_.RecordEviction(EvictionReason::kIdle);
  metrics_.RecordHit();
  metrics_.RecordMiss(static_cast<int>(NotFoundReason::kFailedRefactor));
  metrics_.RecordNotPositiveDefinite();
  metrics_.RecordBackwardError(1e-16);
  EXPECT_TRUE(Has("blockd_batch_requests_sum{kind=\"solve\"} 4"));
  EXPECT_TRUE(Has("blockd_batch_items_sum{kind=\"solve\"} 16"));
  EXPECT_TRUE(Has("blockd_flops_total{kind=\"solve\"} 1000"));
  EXPECT_TRUE(Has("blockd_device_busy_seconds_total 0.5"));
  EXPECT_TRUE(Has("blockd_evictions_total{reason=\"idle\"} 1"));
  EXPECT_TRUE(Has("blockd_cache_hits_total 1"));
  EXPECT_TRUE(Has("blockd_cache_misses_total{reason=\"FAILED_REFACTOR\"} 1"));
  EXPECT_TRUE(Has("blockd_not_positive_definite_total 1"));
  EXPECT_TRUE(Has("blockd_backward_error_count 1"));
}

TEST_F(MetricsTest, SaysWhatWasBuilt) {
  EXPECT_NE(metrics_.Text().find("version=\"1.2.3\""), std::string::npos);
}

TEST_F(MetricsTest, SamplesGaugesAtAScrapeUntilTheSamplerGoes) {
  metrics_.SetSampler([calls = 0]() mutable {
    GaugeSample sample;
    sample.factorizations = ++calls;
    sample.pool_largest_free_bytes = 77;
    sample.queued[static_cast<int>(WorkKind::kFactor)] = 5;
    return sample;
  });
  EXPECT_TRUE(Has("blockd_factorizations 1"));
  EXPECT_TRUE(Has("blockd_factorizations 2"));
  EXPECT_TRUE(Has("blockd_pool_largest_free_bytes 77"));
  EXPECT_TRUE(Has("blockd_queue_requests{kind=\"factor\"} 5"));
  metrics_.SetSampler(nullptr);
  EXPECT_NE(metrics_.Text().find("blockd_healthy 1"), std::string::npos);
}

TEST_F(MetricsTest, RecordsFromManyThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this] {
      for (int i = 0; i < 500; ++i) {
        metrics_.RecordRequest(Method::kSolve, absl::StatusCode::kOk, absl::Microseconds(40));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Has("blockd_requests_total{method=\"Solve\",status=\"OK\"} 2000"));
}

}  // namespace
}  // namespace blockd::server
