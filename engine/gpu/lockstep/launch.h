// Starts the kernels of this folder. Each function returns the first error of its launches and the
// kernel's name. None waits, allocates or copies.
#ifndef BLOCKD_ENGINE_GPU_LOCKSTEP_LAUNCH_H_
#define BLOCKD_ENGINE_GPU_LOCKSTEP_LAUNCH_H_

#include <atomic>
#include <cstdint>

#include "engine/gpu/arch/launch_result.h"
#include "engine/gpu/device_limits.h"
#include "engine/gpu/plan/factor_args.h"
#include "engine/gpu/plan/solve_args.h"

namespace blockd::gpu::lockstep {

// Set what the kernels need of the device; once, before all else. early: as FactorContext::early.
LaunchResult PrepareFactor(const DeviceLimits& limits, bool* early);
LaunchResult PrepareSolve(const DeviceLimits& limits);

// Eliminates one level. Work is on `stream`, some of it beside the rest on `side`, which `stream`
// has waited for in the end.
struct FactorContext {
  int tile = 0;             // rows: 64 or 128
  int64_t parallelism = 0;  // multiprocessors
  bool early = false;       // kernels may be started before the one before has ended
  Stream stream = nullptr, side = nullptr;
  Event fork = nullptr, join = nullptr;
  const std::atomic<bool>* stop = nullptr;
};
template <typename T>
LaunchResult Eliminate(const EliminateArgs& args, const FactorContext& context);
// Makes all later work on `after` wait for the work that is on `before` now.
inline LaunchResult Order(Stream before, Event event, Stream after) {
  const Error recorded = BLOCKD_GPU(EventRecord)(event, before);
  return {recorded != kSuccess ? recorded : BLOCKD_GPU(StreamWaitEvent)(after, event, 0),
          "EliminateLockstep order"};
}

template <typename T>
LaunchResult Substitute(const SolveArgs& args, const DeviceLimits& limits, Stream stream);

}  // namespace blockd::gpu::lockstep

#endif  // BLOCKD_ENGINE_GPU_LOCKSTEP_LAUNCH_H_
