// A few threads that share loops whose turns do not depend on one another: the steps of models.
//
// The thread that runs a loop works along, so that a loop never waits for another to end. Threads
// help the loop that came first. Nothing here feeds a device. Thread-safe.
#ifndef BLOCKD_ENGINE_STEP_POOL_H_
#define BLOCKD_ENGINE_STEP_POOL_H_

#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"

namespace blockd {

class StepPool {
 public:
  // >= 1, one caller of Run included. BLAS uses no threads of its own from then on, in the whole
  // process: its sums would depend on them.
  explicit StepPool(int threads);
  ~StepPool();  // after the last Run
  StepPool(const StepPool&) = delete;
  StepPool& operator=(const StepPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls `turn` once for each i in [0, turns), in any order, several at once, each by another
  // worker of [0, threads()) of this loop; returns when all are done. What one of them throws is
  // thrown here.
  using Turn = absl::FunctionRef<void(int64_t i, int worker)>;
  void Run(int64_t turns, Turn turn) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Loop;

  void Work() ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes turns until there are none left; then nobody else need look at the loop.
  void TakeTurns(Loop& loop, int worker) ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Mutex mutex_;
  absl::CondVar begun_, left_;                        // a loop, or the stop; somebody left one
  std::vector<Loop*> loops_ ABSL_GUARDED_BY(mutex_);  // that have turns left, the first first
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> workers_;
};

}  // namespace blockd

#endif  // BLOCKD_ENGINE_STEP_POOL_H_
