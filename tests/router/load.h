// Controllers under way: callers that each solve at their own pace and check every answer.
#ifndef BLOCKD_TESTS_ROUTER_LOAD_H_
#define BLOCKD_TESTS_ROUTER_LOAD_H_

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "blockd/client/solver_client.h"

namespace blockd::test {

// Each caller has a matrix of its own, whose handle heals, and knows the solution of each of its
// right-hand sides. One in four sends through a session, one in four asynchronously. Thread-safe.
class Load {
 public:
  struct Failure {
    absl::Time began;  // the call
    std::string what;  // a status, or that the answer is wrong
  };

  // `rate`: solves a second of all callers together.
  Load(client::SolverClient client, int callers, double rate);
  ~Load();  // stops

  void Stop();
  int64_t solved() const { return solved_; }
  std::vector<Failure> failures() const;
  client::RestoreCounters restores() const;  // of all handles, after Stop

 private:
  void Run(int caller);
  void Fail(absl::Time began, const std::string& what);

  const client::SolverClient client_;
  const absl::Duration pause_;  // between two solves of a caller
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> solved_{0};
  mutable absl::Mutex mutex_;
  std::vector<Failure> failures_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_ROUTER_LOAD_H_
