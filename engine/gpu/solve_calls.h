// Solves of a batch: which launches they are cut into.
#ifndef BLOCKD_ENGINE_GPU_SOLVE_CALLS_H_
#define BLOCKD_ENGINE_GPU_SOLVE_CALLS_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "blockd/engine/backend.h"
#include "engine/gpu/runner.h"
#include "engine/gpu/runtime/system_table.h"

namespace blockd::gpu {

// From one thread at a time.
class SolveCalls {
 public:
  // All outlive it.
  SolveCalls(Device& device, const DeviceLimits& limits, Counters& counters)
      : device_(device), limits_(limits), counters_(counters) {}

  // As Backend::Solve, by a method. For as many systems and panels of columns at a time as there is
  // room to count for and as take some milliseconds; `wanted` is asked in between.
  absl::Status Solve(const SolveBatch& batch, Runner& method, absl::FunctionRef<bool()> wanted);

 private:
  // Half solves only: copies y of the levels' chains to its place in x (`down`), or back. scratch:
  // the last block's y is in, or goes to, the base's scratch too.
  absl::Status MoveBetweenLevels(const EliminationPlan& plan, bool down, bool scratch,
                                 const SolveArgs& args);
  // The systems of args, which are in the table. bytes: that a system and panel counts in.
  absl::Status SolvePanels(const SolveBatch& batch, Runner& method, int64_t bytes, SolveArgs& args,
                           absl::FunctionRef<bool()> wanted);

  Device& device_;
  const DeviceLimits& limits_;
  Counters& counters_;
  SystemTable<SolveEntry> table_{device_, workspace::kSolveTable};
  std::vector<SolveEntry> entries_;  // kept for its memory
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_SOLVE_CALLS_H_
