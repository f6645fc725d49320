// Selected inverses of small blocks: a thread block walks through a segment, all that a step reads
// in shared memory. One launch does many levels, from the base on: a segment waits for those that
// leave its separators' blocks. Thread blocks take segments by a ticket, so that nobody waits for
// one that has not begun.
#include <new>

#include "engine/gpu/inverse/launch.h"
#include "engine/gpu/inverse/segment_walk.h"

namespace blockd::gpu::inverse {
namespace {

template <typename T, int kTile>
__global__ void BLOCKD_LAUNCH_BOUNDS((SegmentWalk<T, kTile>::kThreads),
                                     (WalkResident(std::is_same_v<T, float>, kTile)))
    InvertSegmentsKernel(const BLOCKD_KERNEL_ARGUMENT InvertSegmentsArgs given) {
  const InvertSegmentsArgs& args = InPlace(given);
  BLOCKD_DYNAMIC_SHARED(double, shared, 16);
  alignas(WalkAssignment) __shared__ unsigned char assignment[sizeof(WalkAssignment)];
  __shared__ int64_t taken;
  do {
    if (threadIdx.x == 0) {
      taken = atomicAdd(args.ticket, 1u);
      if (taken + 1 == args.tickets) *args.ticket = 0;  // nobody takes another one
      if (taken < args.segments) new (assignment) WalkAssignment(args, taken, sizeof(T));
    }
    __syncthreads();
    if (taken >= args.segments) return;
    SegmentWalk<T, kTile>(args, *reinterpret_cast<const WalkAssignment*>(assignment),
                          reinterpret_cast<T*>(shared))
        .Run();
    __syncthreads();
  } while (args.tickets > args.segments);
}

template <typename T, int kTile>
LaunchResult Launch(const InvertSegmentsArgs& args, Stream stream) {
  constexpr int64_t kBytes = WalkSharedBytes(std::is_same_v<T, float>, kTile);
  const int64_t going_on = args.tickets - args.segments;
  const int64_t thread_blocks = going_on > 0 ? going_on : args.segments;
  return {LaunchKernel(InvertSegmentsKernel<T, kTile>, dim3(static_cast<unsigned>(thread_blocks)),
                       SegmentWalk<T, kTile>::kThreads, kBytes, stream, false, args),
          "InvertSegments"};
}

template <typename T, int kTile>
LaunchResult Allow(const DeviceLimits& limits) {
  constexpr int64_t kBytes = WalkSharedBytes(std::is_same_v<T, float>, kTile);
  static_assert(kBytes == SegmentWalk<T, kTile>::kSharedScalars * sizeof(T));
  static_assert(sizeof(WalkAssignment) + sizeof(int64_t) <= kWalkDeclaredBytes);
  if (kBytes > limits.block_shared_bytes) return {};
  return {AllowShared(InvertSegmentsKernel<T, kTile>, kBytes), "InvertSegments"};
}

}  // namespace

LaunchResult PrepareSegments(const DeviceLimits& limits) {
  for (const LaunchResult& result :
       {Allow<double, 8>(limits), Allow<double, 16>(limits), Allow<double, 32>(limits),
        Allow<double, 64>(limits), Allow<float, 8>(limits), Allow<float, 16>(limits),
        Allow<float, 32>(limits), Allow<float, 64>(limits)}) {
    if (!result.ok()) return result;
  }
  return {};
}

template <typename T>
LaunchResult InvertSegments(const InvertSegmentsArgs& args, Stream stream) {
  const int tile = WalkTile(args.levels[0].shape.n);
  if (tile == 8) return Launch<T, 8>(args, stream);
  if (tile == 16) return Launch<T, 16>(args, stream);
  if (tile == 32) return Launch<T, 32>(args, stream);
  return Launch<T, 64>(args, stream);
}

template LaunchResult InvertSegments<double>(const InvertSegmentsArgs&, Stream);
template LaunchResult InvertSegments<float>(const InvertSegmentsArgs&, Stream);

}  // namespace blockd::gpu::inverse
