// A few threads that share the tasks of one parallel loop at a time.
//
// Run is called by one thread at a time, which works along. Workers spin for a moment after a loop,
// so that the next one starts at once, and then sleep. So does the caller, a little later, while it
// waits for the workers' last tasks.
#ifndef BLOCKD_ENGINE_CPU_THREADS_THREAD_POOL_H_
#define BLOCKD_ENGINE_CPU_THREADS_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"

namespace blockd {

class ThreadPool {
 public:
  explicit ThreadPool(int32_t threads);  // >= 1, the caller of Run included
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;

  int32_t threads() const { return static_cast<int32_t>(workers_.size()) + 1; }
  // How many of them have tasks now.
  const std::atomic<int32_t>& working() const { return working_; }
  // Calls task(i, thread) once for each i in [0, tasks), thread in [0, threads()); returns when all
  // are done. Which thread takes which task is not determined.
  void Run(int64_t tasks, absl::FunctionRef<void(int64_t task, int32_t thread)> task);

 private:
  using Task = absl::FunctionRef<void(int64_t, int32_t)>;
  void Work(int32_t thread);
  void TakeTasks(int32_t thread);

  std::atomic<int64_t> generation_{0};  // one more for each loop
  std::atomic<int64_t> next_{0};        // the first task that nobody has taken
  std::atomic<int32_t> busy_{0};        // workers that have not left the loop yet
  std::atomic<int32_t> working_{0};
  std::atomic<bool> stop_{false};
  int64_t tasks_ = 0;
  const Task* task_ = nullptr;
  absl::Mutex mutex_;  // guards going to sleep
  absl::CondVar wake_;
  absl::CondVar left_;  // the last worker has left the loop
  int32_t sleeping_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::thread> workers_;
};

}  // namespace blockd

#endif  // BLOCKD_ENGINE_CPU_THREADS_THREAD_POOL_H_
