#include "engine/gpu/factor_calls.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "engine/gpu/plan/plan_args.h"

namespace blockd::gpu {
namespace {

// Systems whose failures kernels write where the host reads them.
constexpr int64_t kMostPinned = Device::kResultBytes / int64_t{sizeof(FirstFailure)};

std::byte* At(void* memory, int64_t offset) { return static_cast<std::byte*>(memory) + offset; }

// Where in the system a failure is.
double GrowthOf(int64_t word) {
  const float square = std::bit_cast<float>(static_cast<uint32_t>(word - kGrowthWord));
  constexpr double kRounding = 1 + 1e-5;  // of the sums: what is said is no less than what is
  return std::max(1.0, std::sqrt(static_cast<double>(square))) * kRounding;
}

PivotFailure Locate(const EliminationPlan& plan, const FirstFailure& failure) {
  int64_t level = 0, segment = failure.position - 1;
  while (segment >= static_cast<int64_t>(plan.levels()[level].segments.size())) {
    segment -= static_cast<int64_t>(plan.levels()[level++].segments.size());
  }
  const int64_t n = plan.shape().block_size, at = failure.value - 1;
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
  absl::Status status = device_.AwaitUploads();
  if (status.ok()) status = ClearFailures(batch, scratch);
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
  return ReadFailures(batch, scratch);
}

absl::Status FactorCalls::ClearFailures(const FactorBatch& batch, const FactorScratch& scratch) {
  if (scratch.found_bytes == 0) {
    // No kernel writes to it now: calls end with the device idle.
    std::memset(device_.results(), 0, batch.systems.size() * sizeof(FirstFailure));
    return absl::OkStatus();
  }
  return ToStatus(
      BLOCKD_GPU(MemsetAsync)(At(batch.scratch, scratch.found_offset), 0,
                              static_cast<size_t>(scratch.found_bytes), device_.stream()),
      "clearing the failures");
}

absl::Status FactorCalls::ClearWhatNobodyWrites(const FactorBatch& batch,
                                                const FactorScratch& scratch) {
  const EliminationPlan& plan = *batch.plan;
  const auto clear = [&](void* at, int64_t bytes) {
    return ToStatus(BLOCKD_GPU(MemsetAsync)(at, 0, static_cast<size_t>(bytes), device_.stream()),
                    "clearing for an open plan");
  };
  absl::Status status = clear(batch.scratch, scratch.found_offset);
  for (const FactorSystem& system : batch.systems) {
    if (!status.ok() || plan.chain_scalars() == 0) break;
    status = clear(system.chains, plan.chain_scalars() * ScalarBytes(plan.shape().scalar));
  }
  return status;
}

absl::Status FactorCalls::SetTable(const FactorBatch& batch, const FactorScratch& scratch,
                                   int64_t first, int64_t count) {
  void* const found =
      scratch.found_bytes == 0 ? device_.results() : At(batch.scratch, scratch.found_offset);
  entries_.clear();
  for (int64_t s = first; s < first + count; ++s) {
    const FactorSystem& system = batch.systems[s];
    FactorEntry entry = EntryOf(system.matrix, system.factor, system.chains);
    entry.info = static_cast<int64_t*>(batch.scratch) + s * scratch.segments;
    entry.found = static_cast<FirstFailure*>(found) + s;
    const int64_t place = (s - first) % scratch.needs.systems_at_once;
    entry.scratch = At(batch.scratch, scratch.blocks_offset + place * scratch.needs.scratch_bytes);
    entries_.push_back(entry);
  }
  return table_.Set(entries_);
}

absl::StatusOr<std::vector<FactorReport>> FactorCalls::ReadFailures(const FactorBatch& batch,
                                                                    const FactorScratch& scratch) {
  const size_t systems = batch.systems.size();
  const FirstFailure* found = static_cast<const FirstFailure*>(device_.results());
  std::vector<FirstFailure> downloaded;
  absl::Status status;
  if (scratch.found_bytes == 0) {
    status = device_.AwaitKernels();
  } else {
    downloaded.resize(systems);
    found = downloaded.data();
    status = device_.Download(downloaded.data(), At(batch.scratch, scratch.found_offset),
                              scratch.found_bytes);
  }
  if (!status.ok()) return status;
  std::vector<FactorReport> reports(systems);
  for (size_t s = 0; s < systems; ++s) {
    if (found[s].position > 0) {
      reports[s].failure = Locate(*batch.plan, found[s]);
    } else if (found[s].value > kGrowthWord) {
      reports[s].growth = GrowthOf(found[s].value);
    }
  }
  return reports;
}

}  // namespace blockd::gpu
