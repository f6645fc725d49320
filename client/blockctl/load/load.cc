#include "client/blockctl/load/load.h"

#include <algorithm>
#include <deque>
#include <random>
#include <thread>
#include <utility>

#include "absl/synchronization/blocking_counter.h"
#include "absl/time/clock.h"

namespace blockd::blockctl {
namespace {

// The schedule that the callers share: when things happen, and the next arrival.
class Schedule {
 public:
  Schedule(const LoadOptions& options, const std::atomic<bool>& stop)
      : rate_(options.rate),
        start_(absl::Now()),
        measured_(start_ + options.warmup),
        end_(measured_ + options.duration),
        stop_(stop) {}

  // Waits for the next arrival and says when it was due; false when the time is over.
  bool Next(absl::Time* due) {
    if (rate_ <= 0) {
      *due = absl::Now();
      return *due < end_ && !stop_;
    }
    *due = start_ + absl::Seconds(static_cast<double>(next_.fetch_add(1)) / rate_);
    if (*due >= end_) return false;
    while (!stop_) {
      const absl::Time now = absl::Now();
      if (now >= end_) return false;
      if (now >= *due) {
        started_.fetch_add(1);
        return true;
      }
      absl::SleepFor(std::min(*due - now, absl::Milliseconds(50)));
    }
    return false;
  }

  absl::Time measured() const { return measured_; }
  absl::Time end() const { return end_; }
  int64_t NotStarted(absl::Time now) const {
    if (rate_ <= 0) return 0;
    const double due = absl::ToDoubleSeconds(std::min(now, end_) - start_) * rate_;
    return std::max<int64_t>(0, static_cast<int64_t>(due) - started_);
  }

 private:
  const double rate_;
  const absl::Time start_, measured_, end_;
  const std::atomic<bool>& stop_;
  std::atomic<int64_t> next_{0};
  std::atomic<int64_t> started_{0};
};

void Record(const absl::StatusOr<v1::Cost>& cost, double seconds, OperationReport& report) {
  if (!cost.ok()) {
    ++report.failed[cost.status().code()];
    if (report.first_error.ok()) report.first_error = cost.status();
    return;
  }
  ++report.succeeded;
  report.latency.Add(seconds);
  report.queue.Add(cost->queue_seconds());
  report.upload.Add(cost->upload_seconds());
  report.compute.Add(cost->compute_seconds());
  report.download.Add(cost->download_seconds());
  report.batch_requests += static_cast<double>(cost->batch_requests());  // a sum, for now
}

void Merge(const OperationReport& from, OperationReport& to) {
  to.succeeded += from.succeeded;
  for (const auto& [code, count] : from.failed) to.failed[code] += count;
  if (to.first_error.ok()) to.first_error = from.first_error;
  to.latency.Merge(from.latency);
  to.queue.Merge(from.queue);
  to.upload.Merge(from.upload);
  to.compute.Merge(from.compute);
  to.download.Merge(from.download);
  to.batch_requests += from.batch_requests;
}

// One of the callers: its requests one after another, and what became of them.
class Caller {
 public:
  Caller(int number, const LoadOptions& options, Schedule& schedule)
      : schedule_(schedule),
        random_(options.seed + number),
        choose_(options.weights.begin(), options.weights.end()),
        reports_(options.weights.size()) {}

  // Waits until the next request is due and says what it is; -1 when the time is over.
  int Next() { return schedule_.Next(&due_) ? operation_ = choose_(random_) : -1; }
  void End(const absl::StatusOr<v1::Cost>& cost) {
    const absl::Time now = absl::Now();
    if (due_ < schedule_.measured()) return;
    Record(cost, absl::ToDoubleSeconds(now - due_), reports_[operation_]);
  }
  const std::vector<OperationReport>& reports() const { return reports_; }

 private:
  Schedule& schedule_;
  std::mt19937_64 random_;
  std::discrete_distribution<int> choose_;
  std::vector<OperationReport> reports_;
  absl::Time due_;
  int operation_ = 0;
};

std::vector<Caller> MakeCallers(const LoadOptions& options, Schedule& schedule) {
  std::vector<Caller> callers;
  for (int k = 0; k < options.callers; ++k) callers.emplace_back(k, options, schedule);
  return callers;
}

LoadReport ReportOf(const std::vector<Caller>& callers, const LoadOptions& options,
                    const Schedule& schedule) {
  LoadReport report;
  const absl::Time now = absl::Now();
  // Calls that began in time are awaited, and the time that this takes counts.
  report.seconds = std::max(absl::ToDoubleSeconds(now - schedule.measured()), 1e-9);
  report.not_started = schedule.NotStarted(now);
  report.operations.resize(options.weights.size());
  for (const Caller& caller : callers) {
    for (size_t k = 0; k < report.operations.size(); ++k) {
      Merge(caller.reports()[k], report.operations[k]);
    }
  }
  for (OperationReport& operation : report.operations) {
    if (operation.succeeded > 0) {
      operation.batch_requests /= static_cast<double>(operation.succeeded);
    }
  }
  return report;
}

// A caller without a thread.
class AsyncCaller {
 public:
  AsyncCaller(int number, Caller& caller, const StartRequest& start, absl::BlockingCounter& left)
      : number_(number), caller_(caller), start_(start), left_(left) {}

  // Until a request is under way, whose end goes on, or the time is over.
  void Go() {
    for (int operation; (operation = caller_.Next()) >= 0;) {
      parts_ = 0;
      start_(number_, operation, [this](const absl::StatusOr<v1::Cost>& cost) {
        caller_.End(cost);
        if (IsSecond()) Go();
      });
      if (!IsSecond()) return;
    }
    left_.DecrementCount();
  }

 private:
  // True for the later of the start's return and the request's end, which may come in either order,
  // on two threads.
  bool IsSecond() { return parts_.fetch_add(1) == 1; }

  const int number_;
  Caller& caller_;
  const StartRequest& start_;
  absl::BlockingCounter& left_;
  std::atomic<int> parts_ = 0;
};

}  // namespace

LoadReport RunLoad(const LoadOptions& options,
                   const std::function<absl::StatusOr<v1::Cost>(int caller, int operation)>& call,
                   const std::atomic<bool>& stop) {
  Schedule schedule(options, stop);
  std::vector<Caller> callers = MakeCallers(options, schedule);
  std::vector<std::thread> threads;
  for (int k = 0; k < options.callers; ++k) {
    threads.emplace_back([&call, &caller = callers[k], k] {
      for (int operation; (operation = caller.Next()) >= 0;) caller.End(call(k, operation));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ReportOf(callers, options, schedule);
}

LoadReport RunAsyncLoad(const LoadOptions& options, const StartRequest& start,
                        const std::atomic<bool>& stop) {
  Schedule schedule(options, stop);
  std::vector<Caller> callers = MakeCallers(options, schedule);
  absl::BlockingCounter left(options.callers);
  std::deque<AsyncCaller> all;
  for (int k = 0; k < options.callers; ++k) all.emplace_back(k, callers[k], start, left);
  for (AsyncCaller& caller : all) caller.Go();
  left.Wait();
  return ReportOf(callers, options, schedule);
}

}  // namespace blockd::blockctl
