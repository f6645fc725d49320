#include "tests/bench/sharing/sharing_caller.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "absl/time/clock.h"
#include "tests/bench/must.h"

namespace blockd::bench {
namespace {

using std::chrono::duration;
using std::chrono::steady_clock;

double Since(steady_clock::time_point start) {
  return duration<double>(steady_clock::now() - start).count();
}

}  // namespace

client::SolverClient ConnectVictim(const std::string& target) {
  client::ClientOptions options;
  options.caller = "victim";
  options.share_connection = false;
  client::SolverClient client = Must(client::SolverClient::Connect(target, options));
  if (!client.WaitUntilConnected(absl::Seconds(30))) Die("no server at " + target);
  return client;
}

client::FactorHandle FactorProblem(const client::SolverClient& client,
                                   const problems::Problem& problem) {
  const auto view = client::MakeSystemView(problem.num_blocks, problem.block_size,
                                           problem.diagonal.data(), problem.coupling.data());
  return Must(client.Factor(view)).handle;
}

void CheckResidual(const problems::Problem& problem, const std::vector<double>& x) {
  const double error = problems::BackwardError(problem, x, problem.rhs, 1);
  if (!(error <= 4 * static_cast<double>(problem.block_size) * 0x1p-52)) Die("a wrong solution");
}

SmallCaller::SmallCaller(const std::string& target, absl::Duration gap)
    : gap_(gap),
      problem_(problems::Mpc(64, 16, 1)),
      client_(ConnectVictim(target)),
      handle_(FactorProblem(client_, problem_)),
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

}  // namespace blockd::bench
