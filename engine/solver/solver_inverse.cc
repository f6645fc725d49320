// Solver::SelectedInverse: blocks of inv(A) of a factorization.
#include <utility>

#include "absl/strings/str_cat.h"
#include "blockd/engine/solver.h"
#include "engine/solver/stopwatch.h"

namespace blockd {
namespace {

int64_t BlockBytes(const Shape& shape) {
  return shape.block_size * shape.block_size * ScalarBytes(shape.scalar);
}

}  // namespace

absl::Status CheckInverseRange(const InverseItem& item) {
  const int64_t blocks = item.factorization->shape().num_blocks;
  if (item.first_block >= 0 && item.num_blocks >= 1 && item.first_block < blocks &&
      item.num_blocks <= blocks - item.first_block) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrCat("blocks ", item.first_block, " to ", item.first_block,
                                            "+", item.num_blocks, " of a system of ", blocks));
}

int64_t InverseDiagonalBytes(const Shape& shape, InverseParts parts, int64_t blocks) {
  return blocks * (parts == InverseParts::kDiagonalEntries
                       ? shape.block_size * ScalarBytes(shape.scalar)
                       : BlockBytes(shape));
}

int64_t InverseCouplingBytes(const Shape& shape, InverseParts parts, int64_t blocks) {
  return parts == InverseParts::kWithCouplings ? (blocks - 1) * BlockBytes(shape) : 0;
}

int64_t InverseItem::diagonal_bytes() const {
  return InverseDiagonalBytes(factorization->shape(), parts, num_blocks);
}

int64_t InverseItem::coupling_bytes() const {
  return InverseCouplingBytes(factorization->shape(), parts, num_blocks);
}

absl::Status Solver::Invert(const InverseItem& item, Track track, void* diagonal, void* coupling) {
  const EliminationPlan& plan = item.factorization->plan();
  absl::StatusOr<DeviceBuffer> scratch = backend_->pool().Allocate(
      backend_->InverseScratchBytes(plan, item.first_block, item.num_blocks));
  if (!scratch.ok()) return scratch.status();
  InverseRequest request;
  request.plan = &plan;
  request.factor = item.factorization->data();
  absl::Status status;
  DeviceBuffer inverted;
  if (item.factorization->substitutes()) {
    absl::StatusOr<DeviceBuffer> buffer = backend_->pool().Allocate(plan.factor_bytes());
    if (!buffer.ok()) return buffer.status();
    inverted = *std::move(buffer);
    status = backend_->InvertTriangles(track, plan, request.factor, inverted.data());
    request.factor = inverted.data();
  }
  request.parts = item.parts;
  request.first_block = item.first_block;
  request.num_blocks = item.num_blocks;
  request.diagonal = diagonal;
  request.coupling = coupling;
  request.scratch = scratch->data();
  request.stop = item.cancelled;
  if (status.ok()) {
    status =
        backend_->SelectedInverse(track, request, [&item] { return !IsCancelled(item.cancelled); });
  }
  // Nothing may use this memory any more when it goes back to the pool.
  absl::Status synchronized = backend_->Synchronize(track);
  if (status.ok()) status = std::move(synchronized);
  if (status.ok() && IsCancelled(item.cancelled)) {
    status = absl::CancelledError("cancelled while inverting");
  }
  return status;
}

absl::StatusOr<InverseBlocks> Solver::InvertOnDevice(const InverseItem& item,
                                                     const InverseOutput& output, Track track) {
  const int64_t diagonal = MemoryPool::Rounded(item.diagonal_bytes());
  absl::StatusOr<DeviceBuffer> buffer = backend_->pool().Allocate(diagonal + item.coupling_bytes());
  if (!buffer.ok()) return buffer.status();
  InverseBlocks blocks;
  blocks.buffer = *std::move(buffer);
  blocks.diagonal = blocks.buffer.data();
  if (item.coupling_bytes() > 0) blocks.coupling = blocks.buffer.data() + diagonal;
  absl::Status status = Invert(item, track, blocks.diagonal, blocks.coupling);
  if (status.ok()) status = AddBorderTo(item, track, blocks.diagonal, blocks.coupling, output);
  if (!status.ok()) return status;
  return blocks;
}

absl::StatusOr<InverseBlocks> Solver::SelectedInverseOnDevice(const InverseItem& item,
                                                              Track track) {
  absl::Status status = CheckInverseRange(item);
  if (!status.ok()) return status;
  absl::MutexLock lock(&TrackMutex(track));
  return InvertOnDevice(item, {}, track);
}

absl::Status Solver::SelectedInverse(const InverseItem& item, const InverseOutput& output,
                                     Track track, Phases* phases) {
  absl::Status status = CheckInverseRange(item);
  if (!status.ok()) return status;
  absl::MutexLock lock(&TrackMutex(track));
  Stopwatch watch;
  Phases spent;
  if (backend_->reads_host_memory()) {
    status = Invert(item, track, output.diagonal, output.coupling);
    if (status.ok()) status = AddBorderTo(item, track, output.diagonal, output.coupling, output);
    spent.compute_seconds = watch.Lap();
  } else {
    absl::StatusOr<InverseBlocks> blocks = InvertOnDevice(item, output, track);
    spent.compute_seconds = watch.Lap();
    status = blocks.status();
    if (status.ok()) {
      status = backend_->Download(track, output.diagonal, blocks->diagonal, item.diagonal_bytes());
    }
    if (status.ok() && blocks->coupling != nullptr) {
      status = backend_->Download(track, output.coupling, blocks->coupling, item.coupling_bytes());
    }
    absl::Status synchronized = backend_->Synchronize(track);
    if (status.ok()) status = std::move(synchronized);
    spent.download_seconds = watch.Lap();
  }
  if (phases) *phases = spent;
  return status;
}

}  // namespace blockd
