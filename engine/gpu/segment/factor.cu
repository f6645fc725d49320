// Blocks of up to 64 rows, of FP32 128: a thread block takes one segment from its first block to
// its last, with D, C and W in shared memory. One launch does many levels: a segment waits for
// those of the level before that touch its blocks. Thread blocks take their segments by a ticket,
// level after level, so that nobody waits for one that has not begun.
#include <new>

#include "engine/gpu/launch.h"
#include "engine/gpu/segment/matrix_segment.h"
#include "engine/gpu/segment/warpgroup_segment.h"

namespace blockd::gpu {
namespace {

// Thread blocks that share a multiprocessor, if registers allow: one multiplies while another waits
// for its pivots.
template <int kTile>
inline constexpr int kResident = kTile == 128  ? 1
                                 : kTile == 64 ? 2
                                 : kTile == 32 ? 4
                                               : 8;

// Whether there are devices where warpgroups make the products.
template <typename T, int kTile>
inline constexpr bool kMayHaveGroups = kMayHaveWarpgroups&& std::is_same_v<T, float>&& kTile == 64;

template <typename T, int kTile, bool kFull, bool kGroups>
using SegmentOf =
    std::conditional_t<kGroups, WarpgroupSegment<T, kTile, kFull>, MatrixSegment<T, kTile, kFull>>;

// The same for all devices, as the host asks for it.
template <typename T, int kTile>
inline constexpr int kSharedScalars =
    SegmentOf<T, kTile, true, kMayHaveGroups<T, kTile>>::kSharedScalars;

template <typename T, int kTile, bool kFull>
__global__ void __launch_bounds__(kWarpsOf<kTile>* kWarp, kResident<kTile>)
    EliminateSmallKernel(const BLOCKD_KERNEL_ARGUMENT EliminateSmallArgs args) {
  constexpr int kWarps = kWarpsOf<kTile>;
  // Of thread blocks of two warps, which have half of the schedulers, those that invert are to be
  // on all.
  constexpr bool kTurned = kWarps == 2;
  extern __shared__ __align__(16) double shared[];
  __shared__ Outcome outcome;
  alignas(Place) __shared__ unsigned char place[sizeof(Place)];
  if (threadIdx.x == 0) {
    outcome.failed = -1;
    outcome.first = kNobody;
    outcome.value = 0;
    outcome.first_warp = WarpPlace() / 4 % kWarps;
    const unsigned ticket = atomicAdd(args.ticket, 1u);
    if (ticket + 1 == gridDim.x) *args.ticket = 0;  // the last one
    new (place) Place(args, ticket);
  }
  __syncthreads();
  int thread = static_cast<int>(threadIdx.x);
  if (kTurned) thread = (thread + (kWarps - outcome.first_warp) * kWarp) % (kWarps * kWarp);
  SegmentOf<T, kTile, kFull, kHasWarpgroups && kMayHaveGroups<T, kTile>> segment(
      args, *reinterpret_cast<const Place*>(place), reinterpret_cast<T*>(shared), &outcome, thread);
  segment.Run();
}

template <typename T, int kTile>
LaunchResult Launch(const EliminateSmallArgs& args, Stream stream) {
  const bool full = args.levels[0].shape.n == kTile;
  const auto kernel =
      full ? EliminateSmallKernel<T, kTile, true> : EliminateSmallKernel<T, kTile, false>;
  int64_t segments = 0;
  for (int level = 0; level < args.num_levels; ++level) {
    segments += args.levels[level].shape.segments();
  }
  kernel<<<static_cast<unsigned>(segments * args.num_systems), kWarpsOf<kTile> * kWarp,
           kSharedScalars<T, kTile> * sizeof(T), stream>>>(args);
  return {BLOCKD_GPU(GetLastError)(), "EliminateSmall"};
}

template <typename T, int kTile>
Error Allow(int64_t most_shared) {
  constexpr int64_t kBytes = kSharedScalars<T, kTile> * int64_t{sizeof(T)};
  if (kBytes > most_shared) return kSuccess;
  const Error error = AllowShared(EliminateSmallKernel<T, kTile, true>, kBytes);
  return error != kSuccess ? error : AllowShared(EliminateSmallKernel<T, kTile, false>, kBytes);
}

// Shared memory that the kernels declare besides, with room to align it.
constexpr int64_t kDeclared = sizeof(Place) + sizeof(Outcome) + 128;

}  // namespace

int64_t LargestSmallBlock(bool is_float, int64_t most_shared) {
  const auto fits = [&](int64_t scalars, int64_t bytes) {
    return scalars * bytes + kDeclared <= most_shared;
  };
  if (is_float) {
    if (fits(kSharedScalars<float, 128>, 4)) return 128;
    return fits(kSharedScalars<float, 64>, 4) ? 64 : 32;
  }
  if (fits(kSharedScalars<double, 64>, 8)) return 64;
  return fits(kSharedScalars<double, 32>, 8) ? 32 : 16;
}

int64_t SmallResident(bool is_float, int64_t n, int64_t shared_bytes) {
  const auto resident = [&](int64_t most, int64_t floats, int64_t doubles) {
    const int64_t fit = shared_bytes / (is_float ? floats * 4 : doubles * 8);
    return fit < 1 ? 1 : fit < most ? fit : most;
  };
  if (n > 64) return resident(kResident<128>, kSharedScalars<float, 128>, 1);
  if (n > 32) {
    return resident(kResident<64>, kSharedScalars<float, 64>, kSharedScalars<double, 64>);
  }
  if (n > 16) {
    return resident(kResident<32>, kSharedScalars<float, 32>, kSharedScalars<double, 32>);
  }
  return resident(kResident<16>, kSharedScalars<float, 16>, kSharedScalars<double, 16>);
}

LaunchResult PrepareSmall(int64_t most_shared) {
  for (const Error error : {Allow<double, 16>(most_shared), Allow<double, 32>(most_shared),
                            Allow<double, 64>(most_shared), Allow<float, 16>(most_shared),
                            Allow<float, 32>(most_shared), Allow<float, 64>(most_shared),
                            Allow<float, 128>(most_shared)}) {
    if (error != kSuccess) return {error, "EliminateSmall"};
  }
  return {};
}

template <typename T>
LaunchResult EliminateSmall(const EliminateSmallArgs& args, Stream stream) {
  const int64_t n = args.levels[0].shape.n;
  if (n <= 16) return Launch<T, 16>(args, stream);
  if (n <= 32) return Launch<T, 32>(args, stream);
  if constexpr (std::is_same_v<T, float>) {
    if (n > 64) return Launch<T, 128>(args, stream);
  }
  return Launch<T, 64>(args, stream);
}

template LaunchResult EliminateSmall<double>(const EliminateSmallArgs&, Stream);
template LaunchResult EliminateSmall<float>(const EliminateSmallArgs&, Stream);

}  // namespace blockd::gpu
