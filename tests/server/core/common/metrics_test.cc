#include "server/core/common/metrics.h"

#include <gtest/gtest.h>

#include <limits>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/core/common/errors.h"

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
  Metrics metrics_{BuildInfo{"1.2.3", "cpu", "a processor", "solver-7"}};
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

TEST_F(MetricsTest, EveryLabelHasItsPlace) {
  const std::vector<std::pair<EvictionReason, std::string>> evictions = {
      {EvictionReason::kMemory, "memory"},
      {EvictionReason::kFragmentation, "fragmentation"},
      {EvictionReason::kIdle, "idle"},
      {EvictionReason::kReleased, "released"},
      {EvictionReason::kFailedRefactor, "failed_refactor"},
      {EvictionReason::kAdmin, "admin"},
      {EvictionReason::kDeviceFailed, "device_failed"}};
  for (size_t i = 0; i < evictions.size(); ++i) {
    for (size_t times = 0; times <= i; ++times) metrics_.RecordEviction(evictions[i].first);
    EXPECT_TRUE(Has("blockd_evictions_total{reason=\"" + evictions[i].second + "\"} " +
                    std::to_string(i + 1)));
  }
  for (int reason = 0; reason < kMissReasons; ++reason) {
    for (int times = 0; times <= reason; ++times) metrics_.RecordMiss(reason);
    const std::string name(ToString(static_cast<NotFoundReason>(reason)));
    EXPECT_TRUE(
        Has("blockd_cache_misses_total{reason=\"" + name + "\"} " + std::to_string(reason + 1)));
  }
  metrics_.RecordMiss(-1);
  metrics_.RecordMiss(kMissReasons);
  const std::vector<std::string> methods = {"Factor",
                                            "FactorStream",
                                            "Solve",
                                            "SolveStream",
                                            "SolveMany",
                                            "FactorSolve",
                                            "FactorSolveMany",
                                            "SelectedInverse",
                                            "Sample",
                                            "Smooth",
                                            "Release",
                                            "GetFactorization",
                                            "ListFactorizations",
                                            "GetServerInfo",
                                            "GetPlan",
                                            "Admin"};
  ASSERT_EQ(methods.size(), static_cast<size_t>(kMethods));
  for (int m = 0; m < kMethods; ++m) {
    const std::string& method = methods[static_cast<size_t>(m)];
    EXPECT_EQ(MethodName(static_cast<Method>(m)), method);
    metrics_.RecordRequest(static_cast<Method>(m), absl::StatusCode::kUnavailable,
                           absl::Seconds(m));
    EXPECT_TRUE(Has("blockd_requests_total{method=\"" + method + "\",status=\"UNAVAILABLE\"} 1"));
    EXPECT_TRUE(Has("blockd_request_seconds_sum{method=\"" + method + "\",phase=\"total\"} " +
                    std::to_string(m)));
  }
  const std::vector<std::string> kinds = {"factor", "solve", "factor_solve", "inverse", "smooth"};
  for (int kind = 0; kind < kWorkKinds; ++kind) {
    metrics_.RecordBatch(static_cast<WorkKind>(kind), 1, 2, kind + 5);
    const std::string label = "{kind=\"" + kinds[static_cast<size_t>(kind)] + "\"}";
    EXPECT_TRUE(Has("blockd_flops_total" + label + " " + std::to_string(kind + 5)));
    EXPECT_TRUE(Has("blockd_batch_requests_sum" + label + " 1"));
    EXPECT_TRUE(Has("blockd_batch_items_sum" + label + " 2"));
  }
}

TEST_F(MetricsTest, EachTenantIsALabel) {
  metrics_.SetSampler([] {
    GaugeSample sample;
    sample.tenants = {{.name = "a", .used = {1, 2, 3, 4, 5}, .counts = {6, 7, 8'500'000'000}},
                      {.name = "other"}};
    return sample;
  });
  EXPECT_TRUE(Has("blockd_tenant_device_bytes{tenant=\"a\"} 1"));
  EXPECT_TRUE(Has("blockd_tenant_pinned_bytes{tenant=\"a\"} 2"));
  EXPECT_TRUE(Has("blockd_tenant_handles{tenant=\"a\"} 3"));
  EXPECT_TRUE(Has("blockd_tenant_host_bytes{tenant=\"a\"} 4"));
  EXPECT_TRUE(Has("blockd_tenant_queue_slots{tenant=\"a\"} 5"));
  EXPECT_TRUE(Has("blockd_tenant_requests_total{tenant=\"a\"} 6"));
  EXPECT_TRUE(Has("blockd_tenant_over_quota_total{tenant=\"a\"} 7"));
  EXPECT_TRUE(Has("blockd_tenant_device_seconds_total{tenant=\"a\"} 8.5"));
  EXPECT_TRUE(Has("blockd_tenant_device_bytes{tenant=\"other\"} 0"));
  EXPECT_TRUE(Has("# TYPE blockd_tenant_requests_total counter"));
  EXPECT_TRUE(Has("# TYPE blockd_tenant_handles gauge"));
}

TEST_F(MetricsTest, TimesHaveThreeBucketsADecade) {
  metrics_.RecordRequest(Method::kSolve, absl::StatusCode::kOk, absl::Microseconds(15));
  metrics_.RecordRequest(Method::kSolve, absl::StatusCode::kOk, absl::Seconds(99));
  metrics_.RecordRequest(Method::kSolve, absl::StatusCode::kOk, absl::Seconds(101));
  const auto bucket = [this](const std::string& bound) {
    const std::string name =
        "blockd_request_seconds_bucket{method=\"Solve\",phase=\"total\",le=\"" + bound + "\"} ";
    for (int count = 0; count <= 3; ++count) {
      if (Has(name + std::to_string(count))) return count;
    }
    return -1;
  };
  EXPECT_EQ(bucket("1e-05"), 0);
  EXPECT_EQ(bucket("2e-05"), 1);
  EXPECT_EQ(bucket("50"), 1);
  EXPECT_EQ(bucket("100"), 2);
  EXPECT_EQ(bucket("+Inf"), 3);
}

TEST_F(MetricsTest, EveryStatusHasItsName) {
  using absl::StatusCode;
  const std::vector<std::pair<StatusCode, std::string>> names = {
      {StatusCode::kOk, "OK"},
      {StatusCode::kCancelled, "CANCELLED"},
      {StatusCode::kInvalidArgument, "INVALID_ARGUMENT"},
      {StatusCode::kDeadlineExceeded, "DEADLINE_EXCEEDED"},
      {StatusCode::kNotFound, "NOT_FOUND"},
      {StatusCode::kAlreadyExists, "ALREADY_EXISTS"},
      {StatusCode::kPermissionDenied, "PERMISSION_DENIED"},
      {StatusCode::kResourceExhausted, "RESOURCE_EXHAUSTED"},
      {StatusCode::kFailedPrecondition, "FAILED_PRECONDITION"},
      {StatusCode::kAborted, "ABORTED"},
      {StatusCode::kOutOfRange, "OUT_OF_RANGE"},
      {StatusCode::kUnimplemented, "UNIMPLEMENTED"},
      {StatusCode::kInternal, "INTERNAL"},
      {StatusCode::kUnavailable, "UNAVAILABLE"},
      {StatusCode::kDataLoss, "DATA_LOSS"},
      {StatusCode::kUnauthenticated, "UNAUTHENTICATED"}};
  for (const auto& [code, name] : names) {
    metrics_.RecordRequest(Method::kGetPlan, code, absl::ZeroDuration());
    EXPECT_TRUE(Has("blockd_requests_total{method=\"GetPlan\",status=\"" + name + "\"} 1")) << name;
  }
  metrics_.RecordRequest(Method::kGetPlan, static_cast<StatusCode>(99), absl::ZeroDuration());
  EXPECT_TRUE(Has("blockd_requests_total{method=\"GetPlan\",status=\"UNKNOWN\"} 1"));
}

TEST_F(MetricsTest, EveryGaugeShowsItsOwnField) {
  const std::vector<std::pair<int64_t GaugeSample::*, std::string>> gauges = {
      {&GaugeSample::factorizations, "factorizations"},
      {&GaugeSample::factorization_bytes, "factorization_bytes"},
      {&GaugeSample::pinned_factorizations, "pinned_factorizations"},
      {&GaugeSample::budget_bytes, "budget_bytes"},
      {&GaugeSample::budget_reserved_bytes, "budget_reserved_bytes"},
      {&GaugeSample::budget_peak_reserved_bytes, "budget_peak_reserved_bytes"},
      {&GaugeSample::budget_evictable_bytes, "budget_evictable_bytes"},
      {&GaugeSample::pool_bytes, "pool_bytes"},
      {&GaugeSample::pool_used_bytes, "pool_used_bytes"},
      {&GaugeSample::pool_peak_used_bytes, "pool_peak_used_bytes"},
      {&GaugeSample::pool_free_bytes, "pool_free_bytes"},
      {&GaugeSample::pool_largest_free_bytes, "pool_largest_free_bytes"},
      {&GaugeSample::device_memory_bytes, "device_memory_bytes"}};
  metrics_.SetSampler([&gauges] {
    GaugeSample sample;
    for (size_t i = 0; i < gauges.size(); ++i) {
      sample.*gauges[i].first = static_cast<int64_t>(100 + i);
    }
    for (int kind = 0; kind < kWorkKinds; ++kind) sample.queued[kind] = 10 + kind;
    sample.healthy = false;
    return sample;
  });
  for (size_t i = 0; i < gauges.size(); ++i) {
    EXPECT_TRUE(Has("blockd_" + gauges[i].second + " " + std::to_string(100 + i)));
  }
  EXPECT_TRUE(Has("blockd_queue_requests{kind=\"factor\"} 10"));
  EXPECT_TRUE(Has("blockd_queue_requests{kind=\"solve\"} 11"));
  EXPECT_TRUE(Has("blockd_queue_requests{kind=\"factor_solve\"} 12"));
  EXPECT_TRUE(Has("blockd_healthy 0"));
}

TEST_F(MetricsTest, AnErrorThatIsNoNumberDoesNotSpoilTheSum) {
  metrics_.RecordBackwardError(std::numeric_limits<double>::quiet_NaN());
  metrics_.RecordBackwardError(std::numeric_limits<double>::infinity());
  metrics_.RecordBackwardError(0);
  EXPECT_TRUE(Has("blockd_backward_error_count 3"));
  EXPECT_TRUE(Has("blockd_backward_error_sum 2"));
}

TEST_F(MetricsTest, SaysWhatWasBuilt) {
  EXPECT_TRUE(Has("blockd_build_info{backend=\"cpu\",device=\"a "
                  "processor\",server=\"solver-7\",version=\"1.2.3\"} 1") ||
              Has("blockd_build_info{version=\"1.2.3\",backend=\"cpu\",device=\"a "
                  "processor\",server=\"solver-7\"} 1"));
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
