// Device code: threads that share work as 32, side by side in one warp, whatever a warp has.
#ifndef BLOCKD_ENGINE_GPU_ARCH_TEAM_H_
#define BLOCKD_ENGINE_GPU_ARCH_TEAM_H_

namespace blockd::gpu {

inline constexpr int kTeam = 32;

__device__ inline int Team() { return static_cast<int>(threadIdx.x) / kTeam; }
__device__ inline int TeamLane() { return static_cast<int>(threadIdx.x) & (kTeam - 1); }

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_ARCH_TEAM_H_
