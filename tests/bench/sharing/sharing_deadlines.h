// Requests that arrive at a rate, whatever the server does, each with a deadline of 2 to 200 ms:
// which of them a server meets that knows the deadlines, one that does not, and the best order.
#ifndef BLOCKD_TESTS_BENCH_SHARING_SHARING_DEADLINES_H_
#define BLOCKD_TESTS_BENCH_SHARING_SHARING_DEADLINES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "blockd/client/solver_client.h"
#include "engine/problems/problems.h"

namespace blockd::bench {

enum class Outcome {
  kMet,
  kLate,     // answered after its deadline
  kRefused,  // DeadlineUnreachable
  kExpired,  // ended by its deadline, in the queue or under way
  kFailed,   // anything else
};
inline constexpr int kOutcomes = 5;
const char* NameOf(Outcome outcome);

// Times in seconds since the loop began.
struct DeadlineCall {
  size_t system = 0;
  double arrival = 0, sent = 0, due = 0, ended = 0;
  double queued = 0, served = 0;  // as the server says, seconds; of answered ones
  Outcome outcome = Outcome::kFailed;
};

// Asks as the tenant "victim". Thread-compatible.
class DeadlineCaller {
 public:
  // Systems of blocks of 128 and of several lengths, so that solves take various times.
  explicit DeadlineCaller(const std::string& target);

  // Answers a second while several are always waiting.
  double Capacity(double seconds);
  // `told`: the server is told of the deadlines, in the class REALTIME; else only this program
  // knows them. Equal seeds ask for the same, at the same times.
  std::vector<DeadlineCall> OpenLoop(double rate, double seconds, bool told, uint64_t seed);

 private:
  client::SolverClient client_;
  std::vector<problems::Problem> problems_;
  std::vector<client::FactorHandle> handles_;
};

// The same requests twice; parts of all of them.
struct DeadlineParts {
  double by_arrival = 0;  // missed by the server that is not told
  double told = 0;        // missed by the one that is
  double refused = 0;     // of told
  double late = 0;        // of told: answered late, or expired
  double best = 0;        // missed by the best order, simulated with measured service times
};

// Measures both, `told_first` or last. Says on standard error how each missed request ended, and
// whether the simulation would have met it. `calls`: a file, to which every request is appended as
// comma-separated values; empty: none.
DeadlineParts MeasureDeadlines(DeadlineCaller& caller, double rate, double seconds, bool told_first,
                               uint64_t seed, const std::string& calls);

}  // namespace blockd::bench

#endif  // BLOCKD_TESTS_BENCH_SHARING_SHARING_DEADLINES_H_
