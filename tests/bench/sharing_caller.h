// The caller whose times count: one who solves with a small system of its own, as the tenant
// "victim", and compares the bits of every answer.
#ifndef BLOCKD_TESTS_BENCH_SHARING_CALLER_H_
#define BLOCKD_TESTS_BENCH_SHARING_CALLER_H_

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

// Requests that arrive at a rate, whatever the server does, each with a deadline of 2 to 200 ms.
struct Deadlines {
  int64_t asked = 0, missed = 0;
  double missed_part() const { return static_cast<double>(missed) / static_cast<double>(asked); }
};

class DeadlineCaller {
 public:
  // Systems of blocks of 128 and of several lengths, so that solves take various times.
  explicit DeadlineCaller(const std::string& target);

  // Answers a second while several are always waiting.
  double Capacity(double seconds);
  // `told`: the server is told of the deadlines, in the class REALTIME; else only this program
  // knows them. Equal seeds ask for the same, at the same times.
  Deadlines OpenLoop(double rate, double seconds, bool told, uint64_t seed);

 private:
  client::SolverClient client_;
  std::vector<problems::Problem> problems_;
  std::vector<client::FactorHandle> handles_;
};

}  // namespace blockd::bench

#endif  // BLOCKD_TESTS_BENCH_SHARING_CALLER_H_
