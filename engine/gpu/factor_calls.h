// Factorizations of a batch: its table of systems, its groups, and what became of each system.
#ifndef BLOCKD_ENGINE_GPU_FACTOR_CALLS_H_
#define BLOCKD_ENGINE_GPU_FACTOR_CALLS_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockd/engine/backend.h"
#include "engine/gpu/runner.h"
#include "engine/gpu/runtime/system_table.h"

namespace blockd::gpu {

// From one thread at a time.
class FactorCalls {
 public:
  // The device outlives it.
  explicit FactorCalls(Device& device) : device_(device) {}

  // Bytes of scratch that a batch has to be given.
  int64_t ScratchBytes(const EliminationPlan& plan, int64_t systems, const Runner& method) const;

  // As Backend::Factor, by a method.
  absl::StatusOr<std::vector<FactorReport>> Factor(const FactorBatch& batch, Runner& method,
                                                   absl::FunctionRef<bool()> wanted);

 private:
  FactorScratch ScratchOf(const EliminationPlan& plan, int64_t systems, const Runner& method) const;
  // Before the first launch: the host's memory for outcomes says that none is there.
  absl::Status ExpectOutcomes(int64_t systems);
  // An open plan has segments without interiors, which leave nothing on their separators and have
  // no pivot that could fail.
  absl::Status ClearWhatNobodyWrites(const FactorBatch& batch, const FactorScratch& scratch);
  // `count` systems from `first` on.
  absl::Status SetTable(const FactorBatch& batch, const FactorScratch& scratch, int64_t first,
                        int64_t count);
  absl::StatusOr<std::vector<FactorReport>> ReadOutcomes(const FactorBatch& batch,
                                                         const FactorScratch& scratch);

  Device& device_;
  SystemTable<FactorEntry> table_{device_, workspace::kFactorTable};
  std::vector<FactorEntry> entries_;  // kept for its memory
  bool expects_outcomes_ = false;     // kernels may still write some
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_FACTOR_CALLS_H_
