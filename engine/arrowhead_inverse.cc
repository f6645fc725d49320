// Solver::SelectedInverse of an arrowhead.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "blockd/engine/arrowhead.h"
#include "engine/arrowhead_steps.h"
#include "engine/border_cholesky.h"

namespace blockd {
namespace {

InverseItem ChainItem(const ArrowheadInverseItem& item) {
  InverseItem chain;
  chain.factorization = item.arrowhead->shared_chain();
  chain.parts = item.parts;
  chain.first_block = item.first_block;
  chain.num_blocks = item.num_blocks;
  chain.cancelled = item.cancelled;
  return chain;
}

// Z22 = inv(S) = M' M of M = inv(T), both triangles.
template <typename T>
void StoreCorner(int64_t p, const std::vector<double>& m, T* corner) {
  for (int64_t j = 0; j < p; ++j) {
    for (int64_t i = j; i < p; ++i) {
      double sum = 0;
      for (int64_t k = i; k < p; ++k) sum += m[k + i * p] * m[k + j * p];
      corner[i + j * p] = corner[j + i * p] = static_cast<T>(sum);
    }
  }
}

// Z of some blocks and the border: at most in place of the chains of the half solve.
int64_t BorderBlockBytes(const Shape& shape, int64_t border_rows, int64_t num_blocks) {
  return num_blocks * shape.block_size * border_rows * ScalarBytes(shape.scalar);
}

int64_t ScratchBytes(const EliminationPlan& plan, int64_t border_rows, int64_t num_blocks,
                     bool border) {
  return std::max(ColumnsWork::ChainBytes(plan, border_rows),
                  border ? BorderBlockBytes(plan.shape(), border_rows, num_blocks) : 0);
}

}  // namespace

int64_t Solver::ArrowheadInverseBytes(const EliminationPlan& plan, int64_t border_rows,
                                      InverseParts parts, int64_t first_block, int64_t num_blocks,
                                      bool border) const {
  if (num_blocks == 0) return 0;
  return InverseWorkspaceBytes(plan, parts, first_block, num_blocks) +
         ColumnsWork::Bytes(ColumnsWork::ColumnBytes(plan, border_rows),
                            ScratchBytes(plan, border_rows, num_blocks, border),
                            border_rows * border_rows);
}

// H = inv(L)' Y inv(T)'; Z(i,j) += H(i) H(j)'; Z(i,border) = -H(i) inv(T).
absl::Status Solver::AddBorderTo(const ArrowheadInverseItem& item, Track track, void* diagonal,
                                 void* coupling) {
  const Arrowhead& arrowhead = *item.arrowhead;
  const Factorization& chain = arrowhead.chain();
  const int64_t p = arrowhead.border_rows();
  absl::StatusOr<ColumnsWork> work = ColumnsWork::Take(
      backend_->pool(), ColumnsWork::ColumnBytes(chain.plan(), p),
      ScratchBytes(chain.plan(), p, item.num_blocks, item.border != nullptr), p * p);
  if (!work.ok()) return work.status();

  const std::vector<double> m = InvertCorner(p, arrowhead.corner());
  std::vector<double> factor(p * p);  // inv(T)', then -inv(T)
  for (int64_t j = 0; j < p; ++j) {
    for (int64_t i = 0; i < p; ++i) factor[j + i * p] = m[i + j * p];
  }
  const auto upload = [&] {
    const auto bytes = static_cast<int64_t>(factor.size() * sizeof(double));
    return backend_->Upload(track, work->doubles, factor.data(), bytes);
  };
  Shape blocks = arrowhead.shape();
  const int64_t before = BorderBlockBytes(blocks, p, item.first_block);
  blocks.num_blocks = item.num_blocks;
  const BorderColumns h{blocks, static_cast<const std::byte*>(work->columns) + before, p};
  Steps steps(item.cancelled, "inverting");
  steps.Run(upload);
  steps.Run([&] {
    return backend_->AddBorder(track, arrowhead.columns(), work->doubles, work->columns, p,
                               /*add=*/false);
  });
  steps.Run([&] {
    const SolveSystem system{chain.data(), work->columns, p, work->chains};
    return SolveHalf(*backend_, track, chain, system, SolvePart::kBackward, item.cancelled);
  });
  steps.Run([&] { return backend_->AddBorderSquares(track, h, item.parts, diagonal, coupling); });
  if (item.border != nullptr) {
    std::transform(m.begin(), m.end(), factor.begin(), [](double entry) { return -entry; });
    steps.Run(upload);
    steps.Run([&] {
      return backend_->AddBorder(track, h, work->doubles, work->chains, p, /*add=*/false);
    });
    steps.Run([&] {
      const HostColumns columns{item.border, work->chains, p, 0, p};
      return backend_->UnpackColumns(track, blocks, {&columns, 1});
    });
  }
  return steps.End(*backend_, track);
}

absl::Status Solver::SelectedInverse(const ArrowheadInverseItem& item, Track track) {
  const Arrowhead& arrowhead = *item.arrowhead;
  const InverseItem chain = ChainItem(item);
  const bool blocks = item.num_blocks != 0 || item.first_block != 0;
  absl::Status status = blocks ? CheckInverseRange(chain) : absl::OkStatus();
  if (!status.ok()) return status;
  absl::MutexLock lock(&TrackMutex(track));
  if (blocks && backend_->reads_host_memory()) {
    status = Invert(chain, track, item.diagonal, item.coupling);
    if (status.ok()) status = AddBorderTo(item, track, item.diagonal, item.coupling);
  } else if (blocks) {
    absl::StatusOr<InverseBlocks> z = InvertOnDevice(chain, track);
    if (!z.ok()) return z.status();
    status = AddBorderTo(item, track, z->diagonal, z->coupling);
    if (status.ok()) {
      status = backend_->Download(track, item.diagonal, z->diagonal, chain.diagonal_bytes());
    }
    if (status.ok() && z->coupling != nullptr) {
      status = backend_->Download(track, item.coupling, z->coupling, chain.coupling_bytes());
    }
    absl::Status synchronized = backend_->Synchronize(track);
    if (status.ok()) status = std::move(synchronized);
  }
  if (!status.ok() || item.corner == nullptr) return status;
  const int64_t p = arrowhead.border_rows();
  const std::vector<double> m = InvertCorner(p, arrowhead.corner());
  arrowhead.shape().scalar == Scalar::kFloat64
      ? StoreCorner(p, m, static_cast<double*>(item.corner))
      : StoreCorner(p, m, static_cast<float*>(item.corner));
  return status;
}

}  // namespace blockd
