// Blocks of up to 64 rows, of FP32 128: a thread block takes one segment from its first block to
// its last, with D, C and W in shared memory. One launch does many levels: a segment waits for
// those of the level before that touch its blocks. Thread blocks take their segments by a ticket,
// level after level, so that nobody waits for one that has not begun.
#include <new>

#include "engine/gpu/segment/launch.h"
#include "engine/gpu/segment/matrix_segment.h"
#include "engine/gpu/segment/sizes.h"
#include "engine/gpu/segment/tiny_segment.h"
#include "engine/gpu/segment/warpgroup_segment.h"

namespace blockd::gpu::segment {
namespace {

// True if there are devices where warpgroups make the products.
template <typename T, int kTile>
inline constexpr bool kMayHaveGroups = kMayHaveWarpgroups&& std::is_same_v<T, float>&& kTile == 64;

template <typename T, int kTile, bool kFull, bool kGroups>
struct Segments {
  using Type = MatrixSegment<T, kTile, kFull>;
};
template <typename T, int kTile, bool kFull>
struct Segments<T, kTile, kFull, true> {
  using Type = WarpgroupSegment<T, kTile, kFull>;
};
template <typename T, bool kFull>
struct Segments<T, 4, kFull, false> {
  using Type = TinySegment<T, kFull>;
};
template <typename T, int kTile, bool kFull, bool kGroups>
using SegmentOf = typename Segments<T, kTile, kFull, kGroups>::Type;

// The same for all devices, as the host asks for it.
template <typename T, int kTile>
inline constexpr int kSharedScalars =
    SegmentOf<T, kTile, true, kMayHaveGroups<T, kTile>>::kSharedScalars;
template <typename T, int kTile>
inline constexpr int64_t kSharedBytes = kSharedScalars<T, kTile>* int64_t{sizeof(T)};

template <typename T, int kTile, bool kFull>
__global__ void BLOCKD_LAUNCH_BOUNDS(kWarpsOf<kTile>* kWarp, FactorResident(kTile))
    EliminateSegmentsKernel(const BLOCKD_KERNEL_ARGUMENT EliminateSegmentsArgs given) {
  const EliminateSegmentsArgs& args = InPlace(given);
  constexpr int kWarps = kWarpsOf<kTile>;
  // A thread block of two warps has half of the schedulers. Its warps are numbered so that those
  // that invert, of all thread blocks, are spread over all schedulers.
  constexpr bool kTurned = kWarps == 2;
  BLOCKD_DYNAMIC_SHARED(double, shared, 16);
  __shared__ Outcome outcome;
  alignas(Assignment) __shared__ unsigned char assignment[sizeof(Assignment)];
  if (threadIdx.x == 0) {
    outcome.failed = -1;
    outcome.first = kNobody;
    outcome.value = 0;
    outcome.growth = 0;
    outcome.first_warp = WarpPlace() / 4 % kWarps;
    const unsigned ticket = atomicAdd(args.ticket, 1u);
    if (ticket + 1 == gridDim.x) *args.ticket = 0;  // the last one
    new (assignment) Assignment(args, ticket, sizeof(T));
  }
  __syncthreads();
  int thread = static_cast<int>(threadIdx.x);
  if (kTurned) thread = (thread + (kWarps - outcome.first_warp) * kWarp) % (kWarps * kWarp);
  SegmentOf<T, kTile, kFull, kHasWarpgroups && kMayHaveGroups<T, kTile>> segment(
      args, *reinterpret_cast<const Assignment*>(assignment), reinterpret_cast<T*>(shared),
      &outcome, thread);
  segment.Run();
}

template <typename T, int kTile>
LaunchResult Launch(const EliminateSegmentsArgs& args, Stream stream) {
  const bool full = args.levels[0].shape.n == kTile;
  const auto kernel =
      full ? EliminateSegmentsKernel<T, kTile, true> : EliminateSegmentsKernel<T, kTile, false>;
  int64_t segments = 0;
  for (int level = 0; level < args.num_levels; ++level) {
    segments += args.levels[level].shape.segments();
  }
  return {LaunchKernel(kernel, dim3(static_cast<unsigned>(segments * args.num_systems)),
                       kWarpsOf<kTile> * kWarp, kSharedBytes<T, kTile>, stream, false, args),
          "EliminateSegments"};
}

template <typename T, int kTile>
Error Allow(const DeviceLimits& limits) {
  constexpr int64_t kBytes = kSharedBytes<T, kTile>;
  static_assert(kBytes == FactorSharedBytes(std::is_same_v<T, float>, kTile));
  static_assert(sizeof(Assignment) + sizeof(Outcome) + 128 <= kFactorDeclaredBytes);
  if (kBytes > limits.block_shared_bytes) return kSuccess;
  const Error error = AllowShared(EliminateSegmentsKernel<T, kTile, true>, kBytes);
  return error != kSuccess ? error : AllowShared(EliminateSegmentsKernel<T, kTile, false>, kBytes);
}

}  // namespace

LaunchResult PrepareFactor(const DeviceLimits& limits) {
  for (const Error error :
       {Allow<double, 4>(limits), Allow<double, 16>(limits), Allow<double, 32>(limits),
        Allow<double, 64>(limits), Allow<float, 4>(limits), Allow<float, 16>(limits),
        Allow<float, 32>(limits), Allow<float, 64>(limits), Allow<float, 128>(limits)}) {
    if (error != kSuccess) return {error, "EliminateSegments"};
  }
  return {};
}

template <typename T>
LaunchResult Eliminate(const EliminateSegmentsArgs& args, Stream stream) {
  const int tile = TileOf(args.levels[0].shape.n);
  if (tile == 4) return Launch<T, 4>(args, stream);
  if (tile == 16) return Launch<T, 16>(args, stream);
  if (tile == 32) return Launch<T, 32>(args, stream);
  if constexpr (std::is_same_v<T, float>) {
    if (tile == 128) return Launch<T, 128>(args, stream);
  }
  return Launch<T, 64>(args, stream);
}

template LaunchResult Eliminate<double>(const EliminateSegmentsArgs&, Stream);
template LaunchResult Eliminate<float>(const EliminateSegmentsArgs&, Stream);

}  // namespace blockd::gpu::segment
