#include "client/blockctl/load/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

namespace blockd::blockctl {
namespace {

using ::testing::ElementsAre;
using ::testing::Key;

const std::atomic<bool> kNeverStop{false};

v1::Cost CostOf(double queue_seconds, int64_t batch) {
  v1::Cost cost;
  cost.set_queue_seconds(queue_seconds);
  cost.set_batch_requests(batch);
  return cost;
}

TEST(LoadTest, AllCallersCallAndEverythingIsCounted) {
  std::atomic<bool> stop{false};
  absl::Mutex mutex;
  std::map<int, int64_t> calls;  // by caller
  const LoadReport report = RunLoad(
      {.callers = 4, .duration = absl::Hours(1), .warmup = {}},
      [&](int caller, int) -> absl::StatusOr<v1::Cost> {
        absl::MutexLock lock(&mutex);
        ++calls[caller];
        stop = calls.size() == 4;
        return CostOf(0.25, 3);
      },
      stop);
  EXPECT_THAT(calls, ElementsAre(Key(0), Key(1), Key(2), Key(3)));
  int64_t all = 0;
  for (const auto& [caller, count] : calls) all += count;
  ASSERT_EQ(report.operations.size(), 1);
  EXPECT_EQ(report.operations[0].succeeded, all);
  EXPECT_EQ(report.operations[0].latency.count(), all);
  EXPECT_NEAR(report.operations[0].queue.Percentile(0.5), 0.25, 0.0025);
  EXPECT_DOUBLE_EQ(report.operations[0].batch_requests, 3);
  EXPECT_EQ(report.not_started, 0);
}

TEST(LoadTest, EachPhaseIsItsOwnAndTheBatchIsAMean) {
  std::atomic<bool> stop{false};
  std::atomic<int> calls{0};
  const LoadReport report = RunLoad(
      {.duration = absl::Hours(1), .warmup = {}},
      [&](int, int) -> absl::StatusOr<v1::Cost> {
        v1::Cost cost = CostOf(1, ++calls);
        cost.set_upload_seconds(2);
        cost.set_compute_seconds(3);
        cost.set_download_seconds(4);
        stop = calls == 3;
        return cost;
      },
      stop);
  const OperationReport& operation = report.operations[0];
  ASSERT_EQ(operation.succeeded, 3);
  EXPECT_EQ(operation.queue.mean(), 1);
  EXPECT_EQ(operation.upload.mean(), 2);
  EXPECT_EQ(operation.compute.mean(), 3);
  EXPECT_EQ(operation.download.mean(), 4);
  EXPECT_EQ(operation.batch_requests, 2);  // of 1, 2 and 3
}

TEST(LoadTest, OperationsAreReportedApart) {
  std::atomic<bool> stop{false};
  std::atomic<int64_t> calls[3] = {0, 0, 0};
  const LoadReport report = RunLoad(
      {.callers = 2, .duration = absl::Hours(1), .warmup = {}, .weights = {1, 2, 4}},
      [&](int, int operation) -> absl::StatusOr<v1::Cost> {
        ++calls[operation];
        stop = calls[0] + calls[1] + calls[2] >= 7000;
        if (operation == 1) return absl::AbortedError("one");
        return CostOf(operation, 1);
      },
      stop);
  EXPECT_EQ(report.operations[0].succeeded, calls[0]);
  EXPECT_EQ(report.operations[2].succeeded, calls[2]);
  EXPECT_EQ(report.operations[1].succeeded, 0);
  EXPECT_EQ(report.operations[1].failed.at(absl::StatusCode::kAborted), calls[1]);
  EXPECT_EQ(report.operations[1].failed.size(), 1);
  EXPECT_TRUE(report.operations[0].first_error.ok());
  EXPECT_EQ(report.operations[2].queue.mean(), 2);
  EXPECT_GT(report.seconds, 0);
  // As the weights say: far outside of what the same seeds draw.
  const double part =
      static_cast<double>(calls[2]) / static_cast<double>(calls[0] + calls[1] + calls[2]);
  EXPECT_NEAR(part, 4.0 / 7, 0.05);
}

TEST(LoadTest, CallersChooseForThemselves) {
  std::atomic<bool> stop{false};
  absl::Mutex mutex;
  std::map<int, std::vector<int>> chosen;  // by caller
  RunLoad(
      {.callers = 2, .duration = absl::Hours(1), .warmup = {}, .weights = {1, 1}},
      [&](int caller, int operation) -> absl::StatusOr<v1::Cost> {
        absl::MutexLock lock(&mutex);
        chosen[caller].push_back(operation);
        stop = chosen[0].size() >= 64 && chosen[1].size() >= 64;
        return v1::Cost();
      },
      stop);
  for (auto& [caller, operations] : chosen) operations.resize(64);
  EXPECT_NE(chosen[0], chosen[1]);
}

TEST(LoadTest, FailuresAreCountedByCodeAndHaveNoLatency) {
  std::atomic<bool> stop{false};
  const LoadReport report = RunLoad(
      {.duration = absl::Hours(1), .warmup = {}},
      [&](int, int) -> absl::StatusOr<v1::Cost> {
        stop = true;
        return absl::UnavailableError("full");
      },
      stop);
  const OperationReport& operation = report.operations[0];
  EXPECT_EQ(operation.succeeded, 0);
  EXPECT_GT(operation.failed.at(absl::StatusCode::kUnavailable), 0);
  EXPECT_EQ(operation.first_error, absl::UnavailableError("full"));
  EXPECT_EQ(operation.latency.count(), 0);
}

TEST(LoadTest, OperationsWithoutWeightAreNotCalled) {
  std::atomic<bool> stop{false};
  int calls = 0;
  const LoadReport report = RunLoad(
      {.duration = absl::Hours(1), .warmup = {}, .weights = {0, 1, 0}},
      [&](int, int operation) -> absl::StatusOr<v1::Cost> {
        EXPECT_EQ(operation, 1);
        stop = ++calls == 100;
        return v1::Cost();
      },
      stop);
  EXPECT_EQ(report.operations[0].succeeded, 0);
  EXPECT_GT(report.operations[1].succeeded, 0);
}

TEST(LoadTest, AnOpenLoopCountsFromTheScheduledArrival) {
  // Every call takes 20 ms and 1000 are due a second: one caller falls behind, and says so.
  std::atomic<bool> stop{false};
  int calls = 0;
  const LoadReport report = RunLoad(
      {.callers = 1, .rate = 1000, .duration = absl::Hours(1), .warmup = {}},
      [&](int, int) -> absl::StatusOr<v1::Cost> {
        absl::SleepFor(absl::Milliseconds(20));
        stop = ++calls == 10;
        return v1::Cost();
      },
      stop);
  const OperationReport& operation = report.operations[0];
  ASSERT_EQ(operation.succeeded, 10);
  // The k-th call (from 0) was due at k ms and ended after at least (k + 1) * 20 ms.
  const double last = static_cast<double>(operation.succeeded - 1);
  EXPECT_GE(operation.latency.max(), (20 * (last + 1) - last) * 1e-3);
  // The tenth ended 200 ms after the start, or later.
  EXPECT_GE(report.not_started, 200 - 10);
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
  for (const double rate : {0.0, 1000.0}) {
    std::atomic<bool> stop{false};
    const LoadReport report = RunLoad(
        {.rate = rate, .duration = absl::Hours(1), .warmup = absl::Hours(1)},
        [&](int, int) -> absl::StatusOr<v1::Cost> {
          stop = true;
          return absl::AbortedError("not counted either");
        },
        stop);
    EXPECT_EQ(report.operations[0].succeeded, 0);
    EXPECT_TRUE(report.operations[0].failed.empty());
    EXPECT_LT(report.seconds, 1e-6);  // the measured time has not begun
  }
}

TEST(LoadTest, AnOpenLoopStartsNothingBeforeItIsDue) {
  // One arrival an hour: the first is due at once, the others not in this test's life.
  std::atomic<bool> stop{false};
  std::atomic<int> calls{0};
  const LoadReport report = RunLoad(
      {.callers = 3, .rate = 1.0 / 3600, .duration = absl::Hours(20), .warmup = {}},
      [&](int, int) -> absl::StatusOr<v1::Cost> {
        ++calls;
        absl::SleepFor(absl::Milliseconds(100));  // time for another caller to begin, if it would
        stop = true;
        return v1::Cost();
      },
      stop);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(report.operations[0].succeeded, 1);
  EXPECT_EQ(report.not_started, 0);
}

// An end within the start takes no stack, however many there are.
TEST(LoadTest, RequestsThatEndInTheirStartDoNotNest) {
  std::atomic<bool> stop{false};
  int started = 0, under_way = 0;
  const LoadReport report = RunAsyncLoad(
      {.duration = absl::Hours(1), .warmup = {}},
      [&](int caller, int, const auto& done) {
        EXPECT_EQ(caller, 0);
        EXPECT_EQ(under_way++, 0);
        stop = ++started == 500'000;
        done(CostOf(0.25, 3));
        --under_way;
      },
      stop);
  EXPECT_EQ(started, 500'000);
  EXPECT_EQ(report.operations[0].succeeded, 500'000);
  EXPECT_EQ(report.operations[0].batch_requests, 3);
}

TEST(LoadTest, RequestsEndOnAnyThread) {
  constexpr int kCallers = 8;
  std::atomic<bool> stop{false};
  std::atomic<int> under_way[kCallers] = {}, ends = 0;
  struct Request {
    int caller;
    std::function<void(const absl::StatusOr<v1::Cost>&)> done;
  };
  absl::Mutex mutex;
  std::vector<Request> requests;  // under the mutex
  bool over = false;              // too
  std::vector<std::thread> ending;
  for (int k = 0; k < 2; ++k) {
    ending.emplace_back([&, k] {
      const auto comes = [&] { return over || !requests.empty(); };
      for (;;) {
        Request request;
        {
          absl::MutexLock lock(&mutex);
          mutex.Await(absl::Condition(&comes));
          if (requests.empty()) return;
          request = std::move(requests.back());
          requests.pop_back();
        }
        --under_way[request.caller];
        stop = ++ends >= 2000;
        request.done(k == 0 ? absl::StatusOr<v1::Cost>(CostOf(1, 1)) : absl::AbortedError("no"));
      }
    });
  }
  const LoadReport report = RunAsyncLoad(
      {.callers = kCallers, .duration = absl::Hours(1), .warmup = {}},
      [&](int caller, int, auto done) {
        EXPECT_EQ(++under_way[caller], 1);
        absl::MutexLock lock(&mutex);
        requests.push_back({caller, std::move(done)});
      },
      stop);
  {
    absl::MutexLock lock(&mutex);
    EXPECT_TRUE(requests.empty());
    over = true;
  }
  for (std::thread& thread : ending) thread.join();
  int64_t counted = report.operations[0].succeeded;
  for (const auto& [code, count] : report.operations[0].failed) counted += count;
  EXPECT_GE(ends, 2000);
  EXPECT_EQ(counted, ends);
}

}  // namespace
}  // namespace blockd::blockctl
