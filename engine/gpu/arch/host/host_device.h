// A device that is the host: its multiprocessors are threads, which have a thread block each at a
// time, its memory is the host's, and what is put on a stream is done at once, or recorded as a
// graph.
#ifndef BLOCKD_ENGINE_GPU_ARCH_HOST_HOST_DEVICE_H_
#define BLOCKD_ENGINE_GPU_ARCH_HOST_HOST_DEVICE_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
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
  // multiprocessors are under way together.
  void Launch(int64_t blocks, const std::function<void(int64_t)>& run) {
    const std::lock_guard launch_lock(launch_mutex_);
    if (blocks == 1 || kMultiprocessors == 1) {
      for (int64_t b = 0; b < blocks; ++b) run(b);
      return;
    }
    std::unique_lock lock(mutex_);
    run_ = &run;
    next_ = 0, left_ = end_ = blocks;
    changed_.notify_all();
    changed_.wait(lock, [this] { return left_ == 0; });
    run_ = nullptr;
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

  void Serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stopped_ || next_ < end_; });
      if (stopped_) return;
      const int64_t block = next_++;
      const auto& run = *run_;
      lock.unlock();
      run(block);
      lock.lock();
      if (--left_ == 0) changed_.notify_all();
    }
  }

  std::mutex launch_mutex_, mutex_;
  std::condition_variable changed_;
  const std::function<void(int64_t)>* run_ = nullptr;
  int64_t next_ = 0, end_ = 0, left_ = 0;
  bool stopped_ = false;
  std::vector<std::thread> multiprocessors_;
};

// What a stream has been given while it was recorded, in order.
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
