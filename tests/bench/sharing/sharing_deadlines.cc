#include "tests/bench/sharing/sharing_deadlines.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "blockd/client/errors.h"
#include "tests/bench/bench_table.h"
#include "tests/bench/must.h"
#include "tests/bench/sharing/deadline_simulation.h"
#include "tests/bench/sharing/sharing_caller.h"

namespace blockd::bench {
namespace {

constexpr double kLeastDeadline = 2e-3, kMostDeadline = 200e-3;  // seconds

void SleepUntil(double time) {
  const double left = time - Now();
  if (left > 0) absl::SleepFor(absl::Seconds(left));
}

Outcome OutcomeOf(const absl::Status& status, bool in_time) {
  if (status.ok()) return in_time ? Outcome::kMet : Outcome::kLate;
  if (client::GetDeadlineUnreachable(status)) return Outcome::kRefused;
  return absl::IsDeadlineExceeded(status) ? Outcome::kExpired : Outcome::kFailed;
}

// The time that an undelayed, answered request spends outside the server's queue and device.
double LatencyOf(const std::vector<DeadlineCall>& calls) {
  Samples outside;
  for (const DeadlineCall& call : calls) {
    if (call.outcome != Outcome::kMet && call.outcome != Outcome::kLate) continue;
    outside.seconds.push_back(call.ended - call.sent - call.queued - call.served);
  }
  return std::max(outside.median(), 0.0);
}

// The requests as a device met them that served them in the order of arrival, one at a time.
std::vector<TimedRequest> TimedRequestsOf(const std::vector<DeadlineCall>& calls) {
  const double latency = LatencyOf(calls);
  std::vector<double> ready, done;
  for (const DeadlineCall& call : calls) {
    ready.push_back(call.sent + latency);
    done.push_back(call.ended);
  }
  const std::vector<double> service = ServiceTimes(ready, done);
  std::vector<TimedRequest> requests;
  for (size_t i = 0; i < calls.size(); ++i)
    requests.push_back({ready[i], calls[i].due, service[i]});
  return requests;
}

double MissedPart(const std::vector<bool>& in_time) {
  return 1 - static_cast<double>(std::count(in_time.begin(), in_time.end(), true)) /
                 static_cast<double>(in_time.size());
}

// Requests by how they ended, and those among them that the simulation met.
struct Tally {
  std::array<int64_t, kOutcomes> all{}, met_in_simulation{};
  Tally(const std::vector<DeadlineCall>& calls, const std::vector<bool>& simulated) {
    for (size_t i = 0; i < calls.size(); ++i) {
      const auto at = static_cast<size_t>(calls[i].outcome);
      ++all[at];
      met_in_simulation[at] += simulated[i] ? 1 : 0;
    }
  }
  int64_t of(Outcome outcome) const { return all[static_cast<size_t>(outcome)]; }
};

void Append(const std::string& path, const std::vector<DeadlineCall>& calls, bool told,
            const std::vector<TimedRequest>& simulated, const std::vector<bool>& in_time) {
  std::FILE* const file = std::fopen(path.c_str(), "a");
  if (file == nullptr) Die("cannot write " + path);
  std::fprintf(file,
               "told,system,arrival,sent,due,ended,queued,served,outcome,simulated_service,"
               "simulated_in_time\n");
  for (size_t i = 0; i < calls.size(); ++i) {
    const DeadlineCall& call = calls[i];
    std::fprintf(file, "%d,%zu,%.6f,%.6f,%.6f,%.6f,%.6f,%.6f,%s,%.6f,%d\n", told ? 1 : 0,
                 call.system, call.arrival, call.sent, call.due, call.ended, call.queued,
                 call.served, NameOf(call.outcome), simulated[i].service, in_time[i] ? 1 : 0);
  }
  std::fclose(file);
}

}  // namespace

const char* NameOf(Outcome outcome) {
  constexpr const char* kNames[kOutcomes] = {"met", "late", "refused", "expired", "failed"};
  return kNames[static_cast<size_t>(outcome)];
}

DeadlineCaller::DeadlineCaller(const std::string& target) : client_(ConnectVictim(target)) {
  for (const int64_t num_blocks : {8, 16, 24, 32, 48, 64}) {
    problems_.push_back(problems::Mpc(num_blocks, 128, 1));
    handles_.push_back(FactorProblem(client_, problems_.back()));
    std::vector<double> x(problems_.back().rows());
    Must(client_.Solve(handles_.back(), problems_.back().rhs, x));
    CheckResidual(problems_.back(), x);
  }
}

double DeadlineCaller::Capacity(double seconds) {
  std::atomic<bool> stop{false};
  std::atomic<int64_t> answered{0};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      std::vector<double> x(problems_.back().rows());
      while (!stop) {
        const size_t which = random() % problems_.size();
        Must(client_.Solve(handles_[which], problems_[which].rhs,
                           std::span(x).first(problems_[which].rows())));
        ++answered;
      }
    });
  }
  absl::SleepFor(absl::Seconds(seconds / 4));
  const int64_t before = answered;
  const double start = Now();
  absl::SleepFor(absl::Seconds(seconds));
  const double rate = static_cast<double>(answered - before) / (Now() - start);
  stop = true;
  for (std::thread& thread : threads) thread.join();
  return rate;
}

std::vector<DeadlineCall> DeadlineCaller::OpenLoop(double rate, double seconds, bool told,
                                                   uint64_t seed) {
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> gap(rate);
  std::uniform_real_distribution<double> logarithm(std::log(kLeastDeadline),
                                                   std::log(kMostDeadline));
  std::vector<DeadlineCall> calls;
  for (double at = gap(random); at < seconds; at += gap(random)) {
    DeadlineCall& call = calls.emplace_back();
    call.system = random() % problems_.size();
    call.arrival = at;
    call.due = at + std::exp(logarithm(random));
  }
  std::atomic<size_t> ended{0};
  const double begin = Now();
  for (DeadlineCall& call : calls) {
    SleepUntil(begin + call.arrival);
    call.sent = Now() - begin;
    client::SolveOptions options;
    options.priority = told ? client::Priority::kRealtime : client::Priority::kInteractive;
    // The timeout ends when the request is due, however late this thread came to it.
    options.timeout =
        told ? absl::Seconds(std::max(call.due - call.sent, 1e-6)) : absl::Seconds(30);
    const problems::Problem& problem = problems_[call.system];
    auto x = std::make_shared<std::vector<double>>(problem.rows());
    client_.SolveAsync(handles_[call.system], problem.rhs, *x, options,
                       [&, x](const absl::StatusOr<client::SolveResult>& solved) {
                         call.ended = Now() - begin;
                         call.outcome = OutcomeOf(solved.status(), call.ended <= call.due);
                         if (solved.ok()) {
                           call.queued = solved->cost.queue_seconds();
                           call.served = solved->cost.upload_seconds() +
                                         solved->cost.compute_seconds() +
                                         solved->cost.download_seconds();
                         }
                         ++ended;
                       });
  }
  while (ended < calls.size()) absl::SleepFor(absl::Milliseconds(1));
  return calls;
}

DeadlineParts MeasureDeadlines(DeadlineCaller& caller, double rate, double seconds, bool told_first,
                               uint64_t seed, const std::string& calls) {
  std::vector<DeadlineCall> told, untold;
  for (const bool tell : {told_first, !told_first}) {
    (tell ? told : untold) = caller.OpenLoop(rate, seconds, tell, seed);
  }
  if (told.empty()) Die("no request came");
  const std::vector<TimedRequest> requests = TimedRequestsOf(untold);
  const std::vector<bool> by_arrival = DoneInTime(requests, Order::kArrival);
  const std::vector<bool> by_deadline = DoneInTime(requests, Order::kDeadline);
  const Tally of_untold(untold, by_arrival), of_told(told, by_deadline);
  const auto part = [all = static_cast<double>(told.size())](int64_t count) {
    return static_cast<double>(count) / all;
  };
  DeadlineParts parts;
  parts.by_arrival = 1 - part(of_untold.of(Outcome::kMet));
  parts.told = 1 - part(of_told.of(Outcome::kMet));
  parts.refused = part(of_told.of(Outcome::kRefused));
  parts.late = part(of_told.of(Outcome::kLate) + of_told.of(Outcome::kExpired));
  parts.best = LeastMissedPart(requests);

  std::string said = absl::StrFormat(
      "deadlines: %d at %.0f/s; by arrival missed %.2f%%, simulated %.2f%%; told missed %.2f%%, "
      "earliest deadline simulated %.2f%%, best order %.2f%%; told",
      told.size(), rate, 100 * parts.by_arrival, 100 * MissedPart(by_arrival), 100 * parts.told,
      100 * MissedPart(by_deadline), 100 * parts.best);
  for (const Outcome outcome :
       {Outcome::kRefused, Outcome::kExpired, Outcome::kLate, Outcome::kFailed}) {
    const auto at = static_cast<size_t>(outcome);
    absl::StrAppend(&said, outcome == Outcome::kRefused ? " " : ", ", of_told.all[at], " ",
                    NameOf(outcome), " (", of_told.met_in_simulation[at], " met in simulation)");
  }
  std::fprintf(stderr, "%s\n", said.c_str());
  if (!calls.empty()) {
    Append(calls, untold, false, requests, by_arrival);
    Append(calls, told, true, requests, by_deadline);
  }
  return parts;
}

}  // namespace blockd::bench
