// A device that is the host: its multiprocessors are threads, which have a thread block each at a
// time, its memory is the host's, and what is put on a stream is done at once, or recorded as a
// graph.
#ifndef BLOCKD_ENGINE_GPU_ARCH_HOST_HOST_DEVICE_H_
#define BLOCKD_ENGINE_GPU_ARCH_HOST_HOST_DEVICE_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/gpu/arch/host/host_threads.h"

namespace blockd::gpu {

class HostDevice {
 public:
#if defined(BLOCKD_HOST_THREADS)
  static constexpr int kMultiprocessors = 1;
#else
  static constexpr int kMultiprocessors = 3;
#endif

  static HostDevice& Get() {
    static HostDevice device;
    return device;
  }

  // Calls run(block) for all thread blocks of a launch, which begin in order. As many as there are
  // multiprocessors are under way together, of all launches that threads of the host make at a
  // time: first those of the highest priority, a smaller number. Of launches that are `together`,
  // whose thread blocks all run at the same time, one begins when the one before has ended.
  void Launch(int64_t blocks, bool together, int priority,
              const std::function<void(int64_t)>& run) {
    if (kMultiprocessors == 1) {
      const std::lock_guard launch_lock(launch_mutex_);
      for (int64_t b = 0; b < blocks; ++b) run(b);
      return;
    }
    if (blocks == 1) return run(0);
    std::unique_lock lock(mutex_);
    if (together) {
      changed_.wait(lock, [this] { return !runs_together_; });
      runs_together_ = true;
    }
    HostLaunch launch = {&run, blocks, blocks, priority};
    launches_.push_back(&launch);
    changed_.notify_all();
    changed_.wait(lock, [&launch] { return launch.left == 0; });
    launches_.remove(&launch);
    if (together) {
      runs_together_ = false;
      changed_.notify_all();
    }
  }

 private:
  HostDevice() {
    for (int m = 0; m < kMultiprocessors && kMultiprocessors > 1; ++m) {
      multiprocessors_.emplace_back([this] { Serve(); });
    }
  }
  ~HostDevice() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
      changed_.notify_all();
    }
    for (std::thread& thread : multiprocessors_) thread.join();
  }

  struct HostLaunch {
    const std::function<void(int64_t)>* run;
    int64_t blocks, left;
    int priority;
    int64_t next = 0;
  };

  // The one whose thread block begins next; null: none.
  HostLaunch* NextLaunch() const {
    HostLaunch* first = nullptr;
    for (HostLaunch* launch : launches_) {
      if (launch->next == launch->blocks) continue;
      if (first == nullptr || launch->priority < first->priority) first = launch;
    }
    return first;
  }

  void Serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      HostLaunch* launch = nullptr;
      changed_.wait(lock, [&] { return stopped_ || (launch = NextLaunch()) != nullptr; });
      if (stopped_) return;
      const int64_t block = launch->next++;
      lock.unlock();
      (*launch->run)(block);
      lock.lock();
      if (--launch->left == 0) changed_.notify_all();
    }
  }

  std::mutex launch_mutex_, mutex_;
  std::condition_variable changed_;
  std::list<HostLaunch*> launches_;
  bool runs_together_ = false, stopped_ = false;
  std::vector<std::thread> multiprocessors_;
};

// The work that a stream was given while it was recorded, in order.
using HostGraph = std::vector<std::function<void()>>;

// Does it, or records it if this thread records.
inline thread_local HostGraph* host_recording = nullptr;
inline void EnqueueOnHost(std::function<void()> work) {
  if (host_recording != nullptr) {
    host_recording->push_back(std::move(work));
  } else {
    work();
  }
}

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_ARCH_HOST_HOST_DEVICE_H_
