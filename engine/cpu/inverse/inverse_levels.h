// Selected inverses on the CPU: the chains of all levels, base first, a task a segment.
#ifndef BLOCKD_ENGINE_CPU_INVERSE_INVERSE_LEVELS_H_
#define BLOCKD_ENGINE_CPU_INVERSE_INVERSE_LEVELS_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "blockd/engine/backend.h"
#include "engine/cpu/threads/pending_solves.h"
#include "engine/cpu/threads/thread_pool.h"

namespace blockd::cpu {

// For so many threads.
int64_t InverseScratchBytes(const EliminationPlan& plan, int64_t first_block, int64_t num_blocks,
                            int64_t threads);

// As Backend::SelectedInverse. solves: what it makes way for; null: nothing. From one thread at a
// time.
absl::Status InvertLevels(ThreadPool& threads, PendingSolves* solves, const InverseRequest& request,
                          absl::FunctionRef<bool()> wanted);

}  // namespace blockd::cpu

#endif  // BLOCKD_ENGINE_CPU_INVERSE_INVERSE_LEVELS_H_
