#include "tests/bench/sharing_caller.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "tests/bench/must.h"

namespace blockd::bench {
namespace {

using std::chrono::duration;
using std::chrono::steady_clock;

client::SolverClient Connect(const std::string& target) {
  client::ClientOptions options;
  options.caller = "victim";
  options.share_connection = false;
  client::SolverClient client = Must(client::SolverClient::Connect(target, options));
  if (!client.WaitUntilConnected(absl::Seconds(30))) Die("no server at " + target);
  return client;
}

client::FactorHandle Factor(const client::SolverClient& client, const problems::Problem& problem) {
  const auto view = client::MakeSystemView(problem.num_blocks, problem.block_size,
                                           problem.diagonal.data(), problem.coupling.data());
  return Must(client.Factor(view)).handle;
}

double Since(steady_clock::time_point start) {
  return duration<double>(steady_clock::now() - start).count();
}

void CheckResidual(const problems::Problem& problem, const std::vector<double>& x) {
  const double error = problems::BackwardError(problem, x, problem.rhs, 1);
  if (!(error <= 4 * static_cast<double>(problem.block_size) * 0x1p-52)) Die("a wrong solution");
}

}  // namespace

SmallCaller::SmallCaller(const std::string& target, absl::Duration gap)
    : gap_(gap),
      problem_(problems::Mpc(64, 16, 1)),
      client_(Connect(target)),
      handle_(Factor(client_, problem_)),
      session_(client_.OpenSession()),
      first_(problem_.rows()),
      x_(problem_.rows()) {
  Must(client_.Solve(handle_, problem_.rhs, first_));
  CheckResidual(problem_, first_);
}

void SmallCaller::Check() {
  if (x_ != first_) Die("an answer with other bits");
}

template <typename Call>
Samples SmallCaller::Loop(double seconds, Call call) {
  Samples samples;
  for (const auto begin = steady_clock::now(); Since(begin) < seconds;) {
    std::fill(x_.begin(), x_.end(), 0);
    const auto start = steady_clock::now();
    const absl::Status status = call();
    samples.seconds.push_back(Since(start));
    if (status.ok()) {
      Check();
    } else if (failures_++ == 0) {
      std::fprintf(stderr, "a call failed: %s\n", status.ToString().c_str());
    }
    absl::SleepFor(gap_);
  }
  return samples;
}

Samples SmallCaller::Unary(double seconds) {
  return Loop(seconds, [this] { return client_.Solve(handle_, problem_.rhs, x_).status(); });
}

Samples SmallCaller::Session(double seconds) {
  return Loop(seconds, [this] {
    const auto id = session_.Send(handle_, problem_.rhs, x_);
    return id.ok() ? session_.Await(*id).status() : id.status();
  });
}

DeadlineCaller::DeadlineCaller(const std::string& target) : client_(Connect(target)) {
  for (const int64_t num_blocks : {8, 16, 24, 32, 48, 64}) {
    problems_.push_back(problems::Mpc(num_blocks, 128, 1));
    handles_.push_back(Factor(client_, problems_.back()));
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
  const auto start = steady_clock::now();
  absl::SleepFor(absl::Seconds(seconds));
  const double rate = static_cast<double>(answered - before) / Since(start);
  stop = true;
  for (std::thread& thread : threads) thread.join();
  return rate;
}

Deadlines DeadlineCaller::OpenLoop(double rate, double seconds, bool told, uint64_t seed) {
  struct State {
    std::atomic<int64_t> in_time{0}, ended{0};
  } state;
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> gap(rate);
  std::uniform_real_distribution<double> logarithm(std::log(2e-3), std::log(200e-3));
  Deadlines result;
  const auto begin = steady_clock::now();
  for (double at = gap(random); at < seconds; at += gap(random), ++result.asked) {
    const size_t which = random() % problems_.size();
    const double deadline = std::exp(logarithm(random));
    client::SolveOptions options;
    options.priority = told ? client::Priority::kRealtime : client::Priority::kInteractive;
    options.timeout = told ? absl::Seconds(deadline) : absl::Seconds(30);
    std::this_thread::sleep_until(
        begin + std::chrono::duration_cast<steady_clock::duration>(duration<double>(at)));
    // What counts is when it was due, not when this thread came to it.
    const auto due =
        begin + std::chrono::duration_cast<steady_clock::duration>(duration<double>(at + deadline));
    auto x = std::make_shared<std::vector<double>>(problems_[which].rows());
    client_.SolveAsync(handles_[which], problems_[which].rhs, *x, options,
                       [&state, due, x](const absl::StatusOr<client::SolveResult>& solved) {
                         if (solved.ok() && steady_clock::now() <= due) ++state.in_time;
                         ++state.ended;
                       });
  }
  while (state.ended < result.asked) absl::SleepFor(absl::Milliseconds(1));
  result.missed = result.asked - state.in_time;
  return result;
}

}  // namespace blockd::bench
