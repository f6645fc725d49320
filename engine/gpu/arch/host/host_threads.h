// The threads of a thread block, on the host: fibers of one thread, which take turns where they
// wait for one another, so that hundreds of them cost little; or, for sanitizers, which follow
// neither fibers nor what goes on between them, threads.
#ifndef BLOCKD_ENGINE_GPU_ARCH_HOST_HOST_THREADS_H_
#define BLOCKD_ENGINE_GPU_ARCH_HOST_HOST_THREADS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define BLOCKD_HOST_THREADS 1
#include <barrier>
#else
#include <ucontext.h>
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

// Of a thread that looks again and again for what another does.
inline void PauseHostThread() { std::this_thread::yield(); }

#else

class HostBarrier;

// One at a time.
class HostFibers {
 public:
  static void Run(int count, const std::function<void()>& body) {
    static HostFibers fibers;
    fibers.RunAll(count, body);
  }
  // Lets the others go on; comes back when it is its turn again and, if there is a barrier, that
  // has been passed.
  static void Yield(const HostBarrier* barrier, int64_t generation) {
    HostFibers& all = *current_;
    Fiber& mine = all.fibers_[all.running_];
    mine.barrier = barrier;
    mine.generation = generation;
    swapcontext(&mine.context, &all.scheduler_);
  }

 private:
  static constexpr size_t kStackBytes = size_t{256} << 10;
  struct Fiber {
    ucontext_t context;
    std::unique_ptr<std::byte[]> stack;
    bool done = true;
    const HostBarrier* barrier = nullptr;  // that it waits at, since when
    int64_t generation = 0;
  };

  static void Main() {
    HostFibers& all = *current_;
    (*all.body_)();
    all.fibers_[all.running_].done = true;
    swapcontext(&all.fibers_[all.running_].context, &all.scheduler_);
  }

  void RunAll(int count, const std::function<void()>& body);

  static inline HostFibers* current_ = nullptr;
  std::vector<Fiber> fibers_;
  ucontext_t scheduler_;
  const std::function<void()>* body_ = nullptr;
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
  current_ = this;
  body_ = &body;
  if (fibers_.size() < static_cast<size_t>(count)) fibers_.resize(count);
  for (int t = 0; t < count; ++t) {
    Fiber& fiber = fibers_[t];
    if (fiber.stack == nullptr) fiber.stack.reset(new std::byte[kStackBytes]);
    fiber.done = false;
    fiber.barrier = nullptr;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, &HostFibers::Main, 0);
  }
  for (int left = count; left > 0;) {
    for (int t = 0; t < count; ++t) {
      Fiber& fiber = fibers_[t];
      if (fiber.done) continue;
      if (fiber.barrier != nullptr && fiber.barrier->generation() == fiber.generation) continue;
      running_ = t;
      threadIdx.x = t;
      swapcontext(&scheduler_, &fiber.context);
      if (fiber.done) --left;
    }
  }
}

inline void RunHostThreads(int count, const std::function<void()>& body) {
  HostFibers::Run(count, body);
}
inline void PauseHostThread() { HostFibers::Yield(nullptr, 0); }

#endif

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_ARCH_HOST_HOST_THREADS_H_
