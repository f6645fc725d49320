// The threads of a thread block, on the host: fibers of one thread, which take turns where they
// wait for one another, so that hundreds of them cost little; or, for sanitizers, which follow
// neither fibers nor what goes on between them, threads.
#ifndef BLOCKD_ENGINE_GPU_ARCH_HOST_HOST_THREADS_H_
#define BLOCKD_ENGINE_GPU_ARCH_HOST_HOST_THREADS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define BLOCKD_HOST_THREADS 1
#include <barrier>
#else
#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#endif

// Storage class of variables that the threads of a thread block share. A thread of the host has one
// thread block at a time.
#if defined(BLOCKD_HOST_THREADS)
#define BLOCKD_OF_THREAD_BLOCK
#else
#define BLOCKD_OF_THREAD_BLOCK thread_local
#endif

struct ThreadIndex {
  unsigned x = 0;
};
inline thread_local ThreadIndex threadIdx;

namespace blockd::gpu {

#if defined(BLOCKD_HOST_THREADS)

using HostBarrier = std::barrier<>;

// Calls body() in each of `count` threads, whose numbers threadIdx has.
inline void RunHostThreads(int count, const std::function<void()>& body) {
  std::vector<std::thread> threads;
  for (int t = 0; t < count; ++t) {
    threads.emplace_back([&body, t] {
      threadIdx.x = t;
      body();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Called by a thread that looks again and again for what another one does.
inline void PauseHostThread() { std::this_thread::yield(); }

#else

class HostBarrier;

// The fibers of one thread of the host.
class HostFibers {
 public:
  static void Run(int count, const std::function<void()>& body) {
    static thread_local HostFibers fibers;
    current_ = &fibers;
    fibers.RunAll(count, body);
  }
  // Lets the others go on; comes back when it is its turn again and, if there is a barrier, that
  // has been passed.
  static void Yield(const HostBarrier* barrier, int64_t generation) {
    HostFibers& all = *current_;
    Fiber& mine = all.fibers_[all.running_];
    mine.barrier = barrier;
    mine.generation = generation;
    mine.scheduler = std::move(mine.scheduler).resume();
  }

 private:
  using Context = boost::context::fiber;
  struct Fiber {
    Context context, scheduler;
    bool done = true;
    const HostBarrier* barrier = nullptr;  // that it waits at, since when
    int64_t generation = 0;
  };

  void RunAll(int count, const std::function<void()>& body);

  static inline thread_local HostFibers* current_ = nullptr;
  boost::context::pooled_fixedsize_stack stacks_{size_t{128} << 10};
  std::vector<Fiber> fibers_;
  size_t running_ = 0;
};

class HostBarrier {
 public:
  explicit HostBarrier(int threads) : threads_(threads) {}
  void arrive_and_wait() {
    const int64_t mine = generation_;
    if (++arrived_ == threads_) {
      arrived_ = 0;
      ++generation_;
      return;
    }
    while (generation_ == mine) HostFibers::Yield(this, mine);
  }
  int64_t generation() const { return generation_; }

 private:
  const int threads_;
  int arrived_ = 0;
  int64_t generation_ = 0;
};

inline void HostFibers::RunAll(int count, const std::function<void()>& body) {
  if (fibers_.size() < static_cast<size_t>(count)) fibers_.resize(count);
  for (int t = 0; t < count; ++t) {
    Fiber& fiber = fibers_[t];
    fiber.done = false;
    fiber.barrier = nullptr;
    fiber.context = Context(std::allocator_arg, stacks_, [&fiber, &body](Context&& scheduler) {
      fiber.scheduler = std::move(scheduler);
      body();
      fiber.done = true;
      return std::move(fiber.scheduler);
    });
  }
  for (int left = count; left > 0;) {
    int waiting = 0, ran = 0;  // for what another thread block does
    for (int t = 0; t < count; ++t) {
      Fiber& fiber = fibers_[t];
      if (fiber.done) continue;
      if (fiber.barrier != nullptr && fiber.barrier->generation() == fiber.generation) continue;
      running_ = t;
      threadIdx.x = t;
      fiber.context = std::move(fiber.context).resume();
      ++ran;
      if (fiber.done) --left;
      if (!fiber.done && fiber.barrier == nullptr) ++waiting;
    }
    if (ran == waiting) std::this_thread::yield();
  }
}

inline void RunHostThreads(int count, const std::function<void()>& body) {
  HostFibers::Run(count, body);
}
inline void PauseHostThread() { HostFibers::Yield(nullptr, 0); }

#endif

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_ARCH_HOST_HOST_THREADS_H_
