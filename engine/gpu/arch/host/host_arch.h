// The functions of arch.h for a thread block that consists of the host's threads, so that kernels'
// code is tested, and checked by the thread sanitizer, where there is no GPU. Operations that are
// asynchronous on a GPU are done at once here. With BLOCKD_GPU_LIKE_AMD wavefronts and products are
// AMD's, else NVIDIA's.
#ifndef BLOCKD_ENGINE_GPU_ARCH_HOST_HOST_ARCH_H_
#define BLOCKD_ENGINE_GPU_ARCH_HOST_HOST_ARCH_H_

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

#include "engine/gpu/arch/host/host_threads.h"
#include "engine/gpu/arch/host_device.h"

// Names that the compilers for GPUs define themselves.
#define __device__
#define __host__
#define __noinline__
struct TwoWords {
  uint32_t x, y;
};
struct FourWords {
  uint32_t x, y, z, w;
};
using uint2 = TwoWords;
using uint4 = FourWords;
struct alignas(8) TwoFloats {
  float x, y;
};
struct alignas(16) FourFloats {
  float x, y, z, w;
};
struct alignas(16) TwoDoubles {
  double x, y;
};
using float2 = TwoFloats;
using float4 = FourFloats;
using double2 = TwoDoubles;
struct dim3 {  // NOLINT(readability-identifier-naming)
  unsigned x, y, z;
  explicit dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
// Index and sizes of the thread block that this thread of the host runs.
inline thread_local dim3 blockIdx, blockDim, gridDim;

namespace blockd::gpu {

inline void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "device code: %s\n", what);
  std::abort();
}

inline constexpr bool kHasWarpgroups = kMayHaveWarpgroups;

// One at a time, of a thread of the host.
class HostThreadBlock {
 public:
  // Shared memory begins as NaNs.
  HostThreadBlock(int threads, size_t shared_bytes)
      : threads_(threads), shared_(shared_bytes / sizeof(double) + 2 * kAlignment) {
    for (double& scalar : shared_) scalar = std::numeric_limits<double>::quiet_NaN();
    for (int w = 0; w < threads / kWarp; ++w) {
      warps_.push_back(std::make_unique<Warp>());
    }
    Require(current_ == nullptr, "two thread blocks at a time");
    current_ = this;
  }
  ~HostThreadBlock() { current_ = nullptr; }
  HostThreadBlock(const HostThreadBlock&) = delete;

  // Calls body(thread) in each of its threads.
  template <typename Body>
  void Run(const Body& body) {
    RunHostThreads(threads_, [&body] { body(threadIdx.x); });
  }

  std::byte* shared() {
    void* p = shared_.data();
    size_t space = shared_.size() * sizeof(double);
    return static_cast<std::byte*>(
        std::align(kAlignment, space - kAlignment * sizeof(double), p, space));
  }

  // Values that the lanes of a warp tell one another. They go to two places in turn: all lanes have
  // read the last ones before any lane writes to the same place again.
  struct Lane {
    double a[4], b[2];
    uint64_t bits;
  };
  struct Warp {
    HostBarrier barrier{kWarp};
    Lane lanes[2][kWarp];
    bool turns[kWarp] = {};
  };
  static HostThreadBlock& Current() { return *current_; }
  static Warp& MyWarp() { return *current_->warps_[threadIdx.x / kWarp]; }
  int threads() const { return threads_; }

  // Barrier `number`, always of as many threads.
  void Sync(int number, int threads) {
    std::unique_lock lock(mutex_);
    Barrier& barrier = barriers_[number];
    if (barrier.threads == 0) {
      barrier.threads = threads;
      barrier.barrier = std::make_unique<HostBarrier>(threads);
    }
    lock.unlock();
    Require(barrier.threads == threads, "a barrier of other threads than before");
    barrier.barrier->arrive_and_wait();
  }

 private:
  static constexpr size_t kAlignment = 128;
  struct Barrier {
    int threads = 0;
    std::unique_ptr<HostBarrier> barrier;
  };

  static inline BLOCKD_OF_THREAD_BLOCK HostThreadBlock* current_ = nullptr;
  const int threads_;
  std::vector<double> shared_;
  std::vector<std::unique_ptr<Warp>> warps_;
  std::mutex mutex_;
  Barrier barriers_[16];
};

inline int Lane() { return threadIdx.x % kWarp; }
inline int WarpPlace() { return 0; }
inline void HoldMemory() {}
inline int WarpIndex() { return threadIdx.x / kWarp; }
inline void SyncWarp() { HostThreadBlock::MyWarp().barrier.arrive_and_wait(); }
template <int kBarrier, int kWarps>
void SyncPart() {
  HostThreadBlock& block = HostThreadBlock::Current();
  block.Sync(kBarrier, kBarrier == 0 ? block.threads() : kWarps * kWarp);
}

// Sets what this lane tells the others, and calls body(lanes) when all have.
template <typename Set, typename Body>
void AmongLanes(const Set& set, const Body& body) {
  HostThreadBlock::Warp& warp = HostThreadBlock::MyWarp();
  bool& turn = warp.turns[Lane()];
  HostThreadBlock::Lane(&lanes)[kWarp] = warp.lanes[turn];
  turn = !turn;
  set(lanes[Lane()]);
  warp.barrier.arrive_and_wait();
  body(lanes);
}

template <int kLanes, typename T>
T SumOfLanes(T value) {
  T sum = 0;
  AmongLanes([&](auto& lane) { lane.a[0] = value; },
             [&](const auto& lanes) {
               const int first = Lane() / kLanes * kLanes;
               for (int i = first; i < first + kLanes; ++i) sum += static_cast<T>(lanes[i].a[0]);
             });
  return sum;
}

template <typename T>
T SumsOfLanes(const T (&sums)[8]) {
  T mine = 0;
  for (int c = 0; c < 8; ++c) {
    const T sum = SumOfLanes<kWarp>(sums[c]);
    if (Lane() % 8 == c) mine = sum;
  }
  return mine;
}

template <typename T>
void Renew(T&) {}

template <typename T>
void CopyAsync(T* shared, const T* global) {
  *shared = *global;
}
inline void CopyAsync16(void* shared, const void* global, int valid = 16) {
  Require(reinterpret_cast<uintptr_t>(shared) % 16 == 0, "a copy to where is no vector");
  Require(reinterpret_cast<uintptr_t>(global) % 16 == 0, "a copy from where is no vector");
  std::memset(shared, 0, 16);
  std::memcpy(shared, global, valid);
}
inline void CopyWait() {}
inline void CopyCommit() {}
template <int kGroups>
void CopyWaitBut() {}
inline void Prefetch(const void*) {}

inline void LoadMatrices(uint32_t (&words)[4], const uint32_t* row) {
  Require(reinterpret_cast<uintptr_t>(row) % 16 == 0, "a matrix's row where is no vector");
  AmongLanes([&](auto& lane) { lane.bits = reinterpret_cast<uintptr_t>(row); },
             [&](const auto& lanes) {
               for (int i = 0; i < 4; ++i) {
                 const uint64_t from = lanes[8 * i + Lane() / 4].bits;
                 words[i] = reinterpret_cast<const uint32_t*>(from)[Lane() % 4];
               }
             });
}

inline void SyncToSignal() { SyncPart<0, 0>(); }
inline void RaiseFlag(uint32_t* flag, uint32_t epoch) {
  std::atomic_ref(*flag).store(epoch, std::memory_order_release);
}
template <typename Word>
inline void TellHost(Word* to, const Word& word) {
  static_assert(sizeof(Word) == 8);
  uint64_t bits;
  std::memcpy(&bits, &word, sizeof(bits));
  std::atomic_ref(*reinterpret_cast<uint64_t*>(to)).store(bits, std::memory_order_relaxed);
}
inline void __threadfence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void SyncToTellHost() { SyncPart<0, 0>(); }
inline bool IsLastToTellHost(unsigned* count, unsigned all) {
  std::atomic_ref counted(*count);
  if (counted.fetch_add(1) + 1 != all) return false;
  counted.store(0);
  return true;
}
inline bool IsLast(unsigned* count, unsigned all) { return IsLastToTellHost(count, all); }
inline uint64_t DeviceNanoseconds() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                               std::chrono::nanoseconds(1));
}
inline bool IsRaised(const uint32_t* flag, uint32_t epoch) {
  const bool raised =
      std::atomic_ref(*const_cast<uint32_t*>(flag)).load(std::memory_order_acquire) == epoch;
  if (!raised) PauseHostThread();
  return raised;
}
inline void Signal(unsigned* count, unsigned by = 1) { std::atomic_ref(*count).fetch_add(by); }
inline bool HasReached(const unsigned* count, unsigned target) {
  const bool reached = std::atomic_ref(*const_cast<unsigned*>(count)).load() >= target;
  if (!reached) PauseHostThread();
  return reached;
}
inline void AwaitPrevious() {}
inline void LetNextStart() {}
template <typename T>
T LoadFresh(const T* p) {
  return *p;
}

template <typename T, int kCount>
void LoadVectorFresh(T (&values)[kCount], const T* from) {
  static_assert(sizeof(values) == 16);
  Require(reinterpret_cast<uintptr_t>(from) % 16 == 0, "a load from where is no vector");
  std::memcpy(values, from, sizeof(values));
}
inline uint32_t Look(const float* p) {
  return std::atomic_ref(*reinterpret_cast<uint32_t*>(const_cast<float*>(p)))
      .load(std::memory_order_relaxed);
}
inline void Peek(uint32_t (&bits)[4], const float* p) {
  for (int i = 0; i < 4; ++i) bits[i] = Look(p + i);
  PauseHostThread();
}
inline uint32_t Peek(const float* p) {
  const uint32_t bits = Look(p);
  PauseHostThread();
  return bits;
}
inline void Show(float* p, uint32_t bits) {
  std::atomic_ref(*reinterpret_cast<uint32_t*>(p)).store(bits, std::memory_order_relaxed);
}
template <typename T>
T Shuffle(T value, int lane) {
  T other = value;
  AmongLanes([&](auto& mine) { std::memcpy(&mine.bits, &value, sizeof(T)); },
             [&](const auto& lanes) { std::memcpy(&other, &lanes[lane].bits, sizeof(T)); });
  return other;
}
inline bool AllLanes(bool value) {
  bool all = true;
  AmongLanes([&](auto& mine) { mine.bits = value ? 1 : 0; },
             [&](const auto& lanes) {
               for (const auto& lane : lanes) all = all && lane.bits != 0;
             });
  return all;
}

template <typename Real>
Real ReciprocalRoot(Real x) {
  return Real{1} / std::sqrt(x);
}
// As the hardware has it: what is no normal number is zero.
template <typename Real>
Real NormalOrZero(Real x) {
  return std::abs(x) < std::numeric_limits<Real>::min() ? Real{0} : x;
}
inline float Reciprocal(float x) { return NormalOrZero(1.0f / x); }
inline void GuessReciprocal(double x, double& guess, double& correction) {
  guess = NormalOrZero(1.0 / x);
  correction = std::fma(-x, guess, 1.0);
}
using std::fma;

}  // namespace blockd::gpu

inline void __syncthreads() { blockd::gpu::SyncPart<0, 0>(); }
inline float __uint_as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline uint32_t __float_as_uint(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline int __float_as_int(float value) { return static_cast<int>(__float_as_uint(value)); }
inline int64_t __double_as_longlong(double value) {
  int64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline double __longlong_as_double(long long bits) {
  double value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
template <typename T>
T __ldg(const T* p) {
  return *p;
}
template <typename T>
T atomicAdd(T* p, T by) {
  return std::atomic_ref(*p).fetch_add(by);
}
template <typename T>
void atomicMax(T* p, T value) {
  std::atomic_ref now(*p);
  for (T last = now.load(); last < value && !now.compare_exchange_weak(last, value);) {
  }
}
inline void NoteLargest(uint32_t* largest, float value) {
  atomicMax(largest, __float_as_uint(value));
}
inline void atomicMin(unsigned* p, unsigned value) {
  std::atomic_ref now(*p);
  unsigned before = now.load();
  while (value < before && !now.compare_exchange_weak(before, value)) {
  }
}

#endif  // BLOCKD_ENGINE_GPU_ARCH_HOST_HOST_ARCH_H_
