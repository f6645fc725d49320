#include "engine/gpu/factor_calls.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>

#include "engine/gpu/plan/plan_args.h"

namespace blockd::gpu {
namespace {

// Systems whose outcomes kernels write where the host reads them.
constexpr int64_t kMostPinned = Device::kResultBytes / int64_t{sizeof(SystemOutcome)};

std::byte* At(void* memory, int64_t offset) { return static_cast<std::byte*>(memory) + offset; }

// The bits of an outcome in memory that kernels write meanwhile.
uint64_t Bits(const SystemOutcome& outcome) {
  auto* const bits = reinterpret_cast<uint64_t*>(const_cast<SystemOutcome*>(&outcome));
  return std::atomic_ref(*bits).load(std::memory_order_relaxed);
}

double GrowthOf(uint32_t bits) {
  const auto square = static_cast<double>(std::bit_cast<float>(bits));
  constexpr double kRounding = 1 + 1e-5;  // of the sums: what is said is no less than what is
  return square <= 1 ? kRounding : std::sqrt(square) * kRounding;
}

// Where in the system a failure is: that of a segment, counted through all levels, whose word says
// which pivot.
PivotFailure Locate(const EliminationPlan& plan, int64_t segment, int64_t word) {
  int64_t level = 0;
  while (segment >= static_cast<int64_t>(plan.levels()[level].segments.size())) {
    segment -= static_cast<int64_t>(plan.levels()[level++].segments.size());
  }
  const int64_t n = plan.shape().block_size, at = FailureOf(word) - 1;
  const int64_t block = plan.levels()[level].segments[segment].block(at / n);
  return {plan.OriginalBlock(level, block), at % n};
}

}  // namespace

int64_t FactorCalls::ScratchBytes(const EliminationPlan& plan, int64_t systems,
                                  const Runner& method) const {
  return ScratchOf(plan, systems, method).bytes;
}

FactorScratch FactorCalls::ScratchOf(const EliminationPlan& plan, int64_t systems,
                                     const Runner& method) const {
  return {plan, systems, method.Needs(plan), kMostPinned};
}

absl::StatusOr<std::vector<FactorReport>> FactorCalls::Factor(const FactorBatch& batch,
                                                              Runner& method,
                                                              absl::FunctionRef<bool()> wanted) {
  const EliminationPlan& plan = *batch.plan;
  const auto systems = static_cast<int64_t>(batch.systems.size());
  const FactorScratch scratch = ScratchOf(plan, systems, method);
  absl::Status status = device_.Begin();
  if (status.ok() && scratch.outcomes_bytes == 0) status = ExpectOutcomes(systems);
  if (status.ok() && plan.is_open()) status = ClearWhatNobodyWrites(batch, scratch);
  for (int64_t first = 0; status.ok() && first < systems; first += scratch.needs.systems_a_launch) {
    if (!wanted()) return absl::CancelledError("cancelled while factoring");
    const int64_t count = std::min(scratch.needs.systems_a_launch, systems - first);
    status = SetTable(batch, scratch, first, count);
    if (status.ok()) {
      status = method.Factor({batch, scratch, table_.entries(), first, count}, wanted);
    }
  }
  if (!status.ok()) return status;
  return ReadOutcomes(batch, scratch);
}

absl::Status FactorCalls::ExpectOutcomes(int64_t systems) {
  // Outcomes of a call that ended early may still come.
  if (expects_outcomes_) {
    absl::Status status = device_.Synchronize();
    if (!status.ok()) return status;
  }
  expects_outcomes_ = true;
  std::fill_n(static_cast<SystemOutcome*>(device_.results()), systems,
              SystemOutcome{SystemOutcome::kNotYet, 0});
  return absl::OkStatus();
}

absl::Status FactorCalls::ClearWhatNobodyWrites(const FactorBatch& batch,
                                                const FactorScratch& scratch) {
  const EliminationPlan& plan = *batch.plan;
  const auto clear = [&](void* at, int64_t bytes) {
    return ToStatus(BLOCKD_GPU(MemsetAsync)(at, 0, static_cast<size_t>(bytes), device_.stream()),
                    "clearing for an open plan");
  };
  absl::Status status = clear(batch.scratch, scratch.outcomes_offset);
  const int64_t chain_bytes = plan.chain_scalars() * ScalarBytes(plan.shape().scalar);
  if (chain_bytes == 0) return status;
  // Chains that lie one behind the other are cleared as one, with the padding between them.
  std::byte* run = nullptr;
  int64_t bytes = 0;
  for (const FactorSystem& system : batch.systems) {
    auto* const chains = static_cast<std::byte*>(system.chains);
    if (run != nullptr && chains == run + MemoryPool::Rounded(bytes)) {
      bytes = MemoryPool::Rounded(bytes) + chain_bytes;
      continue;
    }
    if (status.ok() && run != nullptr) status = clear(run, bytes);
    run = chains;
    bytes = chain_bytes;
  }
  return status.ok() && run != nullptr ? clear(run, bytes) : status;
}

absl::Status FactorCalls::SetTable(const FactorBatch& batch, const FactorScratch& scratch,
                                   int64_t first, int64_t count) {
  void* const outcomes =
      scratch.outcomes_bytes == 0 ? device_.results() : At(batch.scratch, scratch.outcomes_offset);
  entries_.clear();
  for (int64_t s = first; s < first + count; ++s) {
    const FactorSystem& system = batch.systems[s];
    FactorEntry entry = EntryOf(system.matrix, system.factor, system.chains);
    entry.info = static_cast<int64_t*>(batch.scratch) + s * scratch.segments;
    entry.outcome = static_cast<SystemOutcome*>(outcomes) + s;
    const int64_t place = (s - first) % scratch.needs.systems_at_once;
    entry.scratch = At(batch.scratch, scratch.blocks_offset + place * scratch.needs.scratch_bytes);
    entries_.push_back(entry);
  }
  return table_.Set(entries_);
}

absl::StatusOr<std::vector<FactorReport>> FactorCalls::ReadOutcomes(const FactorBatch& batch,
                                                                    const FactorScratch& scratch) {
  const size_t systems = batch.systems.size();
  std::vector<SystemOutcome> outcomes(systems);
  absl::Status status;
  if (scratch.outcomes_bytes == 0) {
    const auto* const written = static_cast<const SystemOutcome*>(device_.results());
    size_t next = 0;
    status = device_.AwaitResults([&] {
      for (; next < systems; ++next) {
        outcomes[next] = std::bit_cast<SystemOutcome>(Bits(written[next]));
        if (outcomes[next].failed == SystemOutcome::kNotYet) return false;
      }
      return true;
    });
    expects_outcomes_ = !status.ok();
  } else {
    status = device_.Download(outcomes.data(), At(batch.scratch, scratch.outcomes_offset),
                              scratch.outcomes_bytes);
  }
  if (!status.ok()) return status;
  std::vector<FactorReport> reports(systems);
  for (size_t s = 0; s < systems; ++s) {
    if (outcomes[s].failed == SystemOutcome::kNotYet) break;  // it was stopped
    if (outcomes[s].failed == 0) {
      reports[s].growth = GrowthOf(outcomes[s].growth);
      continue;
    }
    const int64_t segment = outcomes[s].failed - 1;
    const int64_t at = static_cast<int64_t>(s) * scratch.segments + segment;
    int64_t word = 0;
    status = device_.Download(&word, static_cast<int64_t*>(batch.scratch) + at, sizeof(word));
    if (!status.ok()) return status;
    reports[s].failure = Locate(*batch.plan, segment, word);
  }
  return reports;
}

}  // namespace blockd::gpu
