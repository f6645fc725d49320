#include "client/blockctl/load.h"

#include <algorithm>
#include <random>
#include <thread>
#include <utility>

#include "absl/time/clock.h"

namespace blockd::blockctl {
namespace {

// What the callers share: when things happen, and the next arrival.
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

}  // namespace

LoadReport RunLoad(const LoadOptions& options,
                   const std::function<absl::StatusOr<v1::Cost>(int caller, int operation)>& call,
                   const std::atomic<bool>& stop) {
  Schedule schedule(options, stop);
  const size_t operations = options.weights.size();
  std::vector<std::vector<OperationReport>> reports(options.callers,
                                                    std::vector<OperationReport>(operations));
  std::vector<std::thread> threads;
  for (int caller = 0; caller < options.callers; ++caller) {
    threads.emplace_back([&, caller] {
      std::mt19937_64 random(options.seed + caller);
      std::discrete_distribution<int> choose(options.weights.begin(), options.weights.end());
      absl::Time due;
      while (schedule.Next(&due)) {
        const int operation = choose(random);
        const absl::StatusOr<v1::Cost> cost = call(caller, operation);
        const absl::Time now = absl::Now();
        if (due < schedule.measured()) continue;
        Record(cost, absl::ToDoubleSeconds(now - due), reports[caller][operation]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  LoadReport report;
  const absl::Time now = absl::Now();
  // Calls that began in time are awaited, and the time that this takes counts.
  report.seconds = std::max(absl::ToDoubleSeconds(now - schedule.measured()), 1e-9);
  report.not_started = schedule.NotStarted(now);
  report.operations.resize(operations);
  for (const auto& of_caller : reports) {
    for (size_t k = 0; k < operations; ++k) Merge(of_caller[k], report.operations[k]);
  }
  for (OperationReport& operation : report.operations) {
    if (operation.succeeded > 0) {
      operation.batch_requests /= static_cast<double>(operation.succeeded);
    }
  }
  return report;
}

}  // namespace blockd::blockctl
