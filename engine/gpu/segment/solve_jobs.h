// Device code: which walks a solve's thread blocks have, one after the other. A thread block takes
// tickets, pass after pass.
#ifndef BLOCKD_ENGINE_GPU_SEGMENT_SOLVE_JOBS_H_
#define BLOCKD_ENGINE_GPU_SEGMENT_SOLVE_JOBS_H_

#include "engine/gpu/plan/solve_part.h"

namespace blockd::gpu::segment {

// The next ticket is taken while a walk ends; one thread, of the last warp, which has little to do
// then, takes all of them. 32 bits of it tell which one it is: passes have fewer.
struct Tickets {
  const SolveArgs& args;
  const bool taker = threadIdx.x + 1 == blockDim.x;
  unsigned next = 0;
  __device__ void Take() {
    if (taker) next = static_cast<unsigned>(TakeTicket(args));
  }
};

// A walk and what it waits for. In shared memory: registers are short.
template <typename T>
struct Job {
  Part<T> part;
  bool forward;
  unsigned* done;
  const unsigned* before;  // null: nothing
  unsigned target;
};

// 32 bits divide several times faster.
__device__ inline int64_t Divide(int64_t a, int64_t b) {
  if (((a | b) >> 32) != 0) return a / b;
  return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
}

// Finds the job of a ticket; tickets must rise. In shared memory: registers are short.
struct JobOrder {
  int64_t passed;  // tickets of the passes before
  int32_t pass;

  // False: there is none.
  template <typename T>
  __device__ bool At(const SolveArgs& args, unsigned low, int panel_columns, Job<T>* job) {
    const int64_t units = args.num_systems * args.num_panels;
    const int64_t ticket = passed + (low - static_cast<unsigned>(passed));
    int32_t p = pass;
    int64_t within = ticket - passed, segments = 0;
    for (; p < args.end_pass; ++p) {
      segments = args.levels[args.level_of(p)].shape.segments();
      if (within < segments * units) break;
      within -= segments * units;
    }
    pass = p;
    passed = ticket - within;
    if (p >= args.end_pass) return false;
    const SolveLevel& level = args.levels[args.level_of(p)];
    const int64_t unit = Divide(within, segments), system = Divide(unit, args.num_panels);
    job->part = Part<T>(args, level, system, level.shape.launched(within - unit * segments),
                        args.first_panel + unit - system * args.num_panels, panel_columns);
    const PassCounter counter = {args.counters + unit * 2 * args.num_levels};
    job->forward = args.is_forward(p);
    job->done = counter.Of(p);
    job->before = counter.Before(args, p);
    if (job->before != nullptr) job->target = PassCounter::Target(args, p);
    return true;
  }
};

inline int64_t Minimum(int64_t a, int64_t b) { return a < b ? a : b; }

// Walks of the pass that has most.
inline int64_t MostAtOnce(const SolveArgs& args) {
  int64_t most = 0;
  for (int32_t level = 0; level < args.num_levels; ++level) {
    const int64_t segments = args.levels[level].shape.segments();
    if (segments > most) most = segments;
  }
  return most * args.num_systems * args.num_panels;
}

}  // namespace blockd::gpu::segment

#endif  // BLOCKD_ENGINE_GPU_SEGMENT_SOLVE_JOBS_H_
