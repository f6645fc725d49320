#include "client/blockctl/load.h"

#include <gtest/gtest.h>

#include <set>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

namespace blockd::blockctl {
namespace {

const std::atomic<bool> kNeverStop{false};

v1::Cost CostOf(double queue_seconds, int64_t batch) {
  v1::Cost cost;
  cost.set_queue_seconds(queue_seconds);
  cost.set_batch_requests(batch);
  return cost;
}

TEST(LoadTest, AllCallersCallAndEverythingIsCounted) {
  LoadOptions options{.callers = 4, .duration = absl::Milliseconds(50), .warmup = {}};
  std::atomic<int64_t> calls{0};
  absl::Mutex mutex;
  std::set<int> callers;
  const LoadReport report = RunLoad(
      options,
      [&](int caller, int) -> absl::StatusOr<v1::Cost> {
        absl::MutexLock lock(&mutex);
        callers.insert(caller);
        ++calls;
        return CostOf(0.25, 3);
      },
      kNeverStop);
  ASSERT_EQ(report.operations.size(), 1);
  EXPECT_EQ(report.operations[0].succeeded, calls);
  EXPECT_EQ(report.operations[0].latency.count(), calls);
  EXPECT_NEAR(report.operations[0].queue.Percentile(0.5), 0.25, 0.0025);
  EXPECT_DOUBLE_EQ(report.operations[0].batch_requests, 3);
  EXPECT_FALSE(callers.empty());
  EXPECT_EQ(report.not_started, 0);
}

TEST(LoadTest, FailuresAreCountedByCodeAndHaveNoLatency) {
  const LoadReport report = RunLoad(
      {.duration = absl::Milliseconds(20), .warmup = {}},
      [](int, int) -> absl::StatusOr<v1::Cost> { return absl::UnavailableError("full"); },
      kNeverStop);
  const OperationReport& operation = report.operations[0];
  EXPECT_EQ(operation.succeeded, 0);
  EXPECT_GT(operation.failed.at(absl::StatusCode::kUnavailable), 0);
  EXPECT_EQ(operation.first_error, absl::UnavailableError("full"));
  EXPECT_EQ(operation.latency.count(), 0);
}

TEST(LoadTest, OperationsWithoutWeightAreNotCalled) {
  const LoadReport report = RunLoad(
      {.duration = absl::Milliseconds(20), .warmup = {}, .weights = {0, 1, 0}},
      [](int, int operation) -> absl::StatusOr<v1::Cost> {
        EXPECT_EQ(operation, 1);
        return v1::Cost();
      },
      kNeverStop);
  EXPECT_EQ(report.operations[0].succeeded, 0);
  EXPECT_GT(report.operations[1].succeeded, 0);
}

TEST(LoadTest, AnOpenLoopCountsFromTheScheduledArrival) {
  // Every call takes 20 ms and 1000 are due a second: one caller falls behind, and says so.
  const LoadReport report = RunLoad(
      {.callers = 1, .rate = 1000, .duration = absl::Milliseconds(200), .warmup = {}},
      [](int, int) -> absl::StatusOr<v1::Cost> {
        absl::SleepFor(absl::Milliseconds(20));
        return v1::Cost();
      },
      kNeverStop);
  const OperationReport& operation = report.operations[0];
  ASSERT_GT(operation.succeeded, 1);
  // The k-th call (from 0) was due at k ms and ended after at least (k + 1) * 20 ms.
  const double last = static_cast<double>(operation.succeeded - 1);
  EXPECT_GE(operation.latency.max(), (20 * (last + 1) - last) * 1e-3);
  EXPECT_GT(report.not_started, 0);
}

TEST(LoadTest, StopEndsItAtOnce) {
  std::atomic<bool> stop{false};
  const LoadReport report = RunLoad(
      {.callers = 2, .duration = absl::Hours(1), .warmup = {}},
      [&](int, int) -> absl::StatusOr<v1::Cost> {
        stop = true;
        return v1::Cost();
      },
      stop);
  EXPECT_GE(report.operations[0].succeeded, 1);
}

TEST(LoadTest, TheWarmUpIsNotCounted) {
  std::atomic<bool> stop{false};
  const LoadReport report = RunLoad(
      {.duration = absl::Hours(1), .warmup = absl::Hours(1)},
      [&](int, int) -> absl::StatusOr<v1::Cost> {
        stop = true;
        return v1::Cost();
      },
      stop);
  EXPECT_EQ(report.operations[0].succeeded, 0);
}

}  // namespace
}  // namespace blockd::blockctl
