// The caller whose times count: one who solves with a small system of its own, as the tenant
// "victim", and compares the bits of every answer.
#ifndef BLOCKD_TESTS_BENCH_SHARING_SHARING_CALLER_H_
#define BLOCKD_TESTS_BENCH_SHARING_SHARING_CALLER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "blockd/client/solver_client.h"
#include "engine/problems/problems.h"
#include "tests/bench/bench_table.h"

namespace blockd::bench {

// Thread-compatible.
class SmallCaller {
 public:
  SmallCaller(const std::string& target, absl::Duration gap);

  // Solves one after the other for so long, with `gap` between an answer and the next; the times
  // of all. A call that fails, after the client's own retries, is counted, and has the time that
  // it took.
  Samples Unary(double seconds);
  Samples Session(double seconds);
  int64_t failures() const { return failures_; }

  const client::SolverClient& client() const { return client_; }

 private:
  template <typename Call>
  Samples Loop(double seconds, Call call);
  void Check();

  const absl::Duration gap_;
  const problems::Problem problem_;
  client::SolverClient client_;
  client::FactorHandle handle_;
  client::SolveSession session_;
  std::vector<double> first_, x_;
  int64_t failures_ = 0;
};

// As the tenant "victim", over a connection of its own; waits for the server.
client::SolverClient ConnectVictim(const std::string& target);
client::FactorHandle FactorProblem(const client::SolverClient& client,
                                   const problems::Problem& problem);
// Ends the program where the backward error is more than it promises.
void CheckResidual(const problems::Problem& problem, const std::vector<double>& x);

}  // namespace blockd::bench

#endif  // BLOCKD_TESTS_BENCH_SHARING_SHARING_CALLER_H_
