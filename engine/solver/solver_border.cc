// Factor, Solve and SelectedInverse with a border of dense rows. Border, SolveItem and InverseItem
// have the formulas.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "blockd/engine/solver.h"
#include "engine/solver/border_cholesky.h"
#include "engine/solver/border_steps.h"
#include "engine/solver/factor_work.h"
#include "engine/solver/solve_group.h"

namespace blockd {
namespace {

double At(const void* scalars, Scalar scalar, int64_t i) {
  return scalar == Scalar::kFloat64 ? static_cast<const double*>(scalars)[i]
                                    : static_cast<const float*>(scalars)[i];
}

void Set(void* scalars, Scalar scalar, int64_t i, double value) {
  if (scalar == Scalar::kFloat64) {
    static_cast<double*>(scalars)[i] = value;
  } else {
    static_cast<float*>(scalars)[i] = static_cast<float>(value);
  }
}

int64_t BytesOf(const std::vector<double>& values) {
  return static_cast<int64_t>(values.size() * sizeof(double));
}

NotPositiveDefinite BadCorner(const Shape& shape, int64_t row) {
  return {.block = shape.num_blocks, .row = row, .minor = shape.rows() + row + 1};
}

// s = C - s, of which the lower triangle is left.
void SubtractFrom(const void* corner, Scalar scalar, int64_t p, std::vector<double>& s) {
  for (int64_t j = 0; j < p; ++j) {
    for (int64_t i = 0; i < p; ++i) {
      double& entry = s[i + j * p];
      entry = i < j ? 0 : At(corner, scalar, i + j * p) - entry;
    }
  }
}

double LogDeterminantOf(int64_t p, const std::vector<double>& t) {
  double sum = 0;
  for (int64_t i = 0; i < p; ++i) sum += std::log(t[i * (p + 1)]);
  return 2 * sum;
}

// A column of a group, in host memory: Nn rows of the chain, then p of the border.
struct BorderedColumn {
  const std::byte* rhs = nullptr;
  std::byte* solution = nullptr;
};

std::vector<BorderedColumn> GroupColumns(std::span<const SolveItem> items,
                                         std::span<const size_t> group) {
  std::vector<BorderedColumn> columns;
  for (const size_t i : group) {
    const Factorization& factorization = *items[i].factorization;
    const int64_t bytes = factorization.rows() * ScalarBytes(factorization.shape().scalar);
    for (int64_t c = 0; c < items[i].num_rhs; ++c) {
      columns.push_back({static_cast<const std::byte*>(items[i].rhs) + c * bytes,
                         static_cast<std::byte*>(items[i].solution) + c * bytes});
    }
  }
  return columns;
}

// The chain's part of each: below it stands the border's.
template <typename Member>
std::vector<HostColumns> ChainColumns(std::span<const BorderedColumn> columns, Member member,
                                      void* packed) {
  std::vector<HostColumns> chains;
  const auto count = std::ssize(columns);
  for (int64_t c = 0; c < count; ++c) {
    auto* const host = const_cast<std::byte*>(std::invoke(member, columns[c]));
    chains.push_back({host, packed, 1, c, count});
  }
  return chains;
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

// Bytes of the p x n blocks of a border.
int64_t BorderBlockBytes(const Shape& shape, int64_t border_rows, int64_t num_blocks) {
  return num_blocks * shape.block_size * border_rows * ScalarBytes(shape.scalar);
}

// Chains of the half solve; and in their place Z of some blocks and the border.
int64_t InverseChainBytes(const EliminationPlan& plan, int64_t border_rows, int64_t num_blocks) {
  return std::max(ColumnsWork::ChainBytes(plan, border_rows),
                  BorderBlockBytes(plan.shape(), border_rows, num_blocks));
}

}  // namespace

int64_t Solver::BorderWorkspaceBytes(const EliminationPlan& plan, int64_t border_rows) const {
  return border_rows == 0 ? 0
                          : ColumnsWork::Bytes(0, ColumnsWork::ChainBytes(plan, border_rows), 0);
}

absl::StatusOr<Border> Solver::FactorBorder(const EliminationPlan& plan, const FactorWork& work) {
  constexpr Track kTrack = Track::kFactor;
  const BlockTridiagonalView& matrix = work.matrix;
  const Shape& shape = plan.shape();
  const int64_t p = matrix.form.border_rows;
  if (p == 0) return Border();
  absl::StatusOr<DeviceBuffer> buffer = backend_->pool().Allocate(Border::Bytes(shape, p));
  if (!buffer.ok()) return buffer.status();
  absl::StatusOr<ColumnsWork> memory =
      ColumnsWork::Take(backend_->pool(), 0, ColumnsWork::ChainBytes(plan, p), 0);
  if (!memory.ok()) return memory.status();

  const std::atomic<bool>* const cancelled = work.item->cancelled;
  std::byte* const y = buffer->data();
  std::vector<double> s(p * p);
  std::vector<std::byte> corner(matrix.form.corner_bytes());
  Steps steps(cancelled, "factoring a border");
  // Y = inv(L) B'
  steps.Run([&] {
    const HostColumns all{const_cast<void*>(matrix.border), y, p, 0, p};
    return backend_->PackColumns(kTrack, shape, {&all, 1});
  });
  steps.Run([&] {
    const SolveSystem system{work.factor.data(), y, p, memory->chains, work.substitutes};
    return SolveHalf(*backend_, kTrack, plan, system, SolvePart::kForward, cancelled);
  });
  // S = C - Y' Y = T T'
  steps.Run(
      [&] { return backend_->Download(kTrack, corner.data(), matrix.corner, std::ssize(corner)); });
  steps.Run([&] { return backend_->MultiplyBorder(kTrack, {shape, y, p}, y, p, s.data()); });
  absl::Status status = steps.End(*backend_, kTrack);
  if (!status.ok()) return status;
  SubtractFrom(corner.data(), shape.scalar, p, s);
  if (const int64_t row = FactorCorner(p, s); row >= 0) {
    work.outcome->not_positive_definite = BadCorner(shape, row);
    return absl::InvalidArgumentError(
        absl::StrCat("the matrix is not positive definite: leading minor of order ",
                     work.outcome->not_positive_definite->minor, " (row ", row, " of the border)"));
  }
  status = backend_->Upload(kTrack, y + Border::CornerOffset(shape, p), s.data(), BytesOf(s));
  status.Update(backend_->Synchronize(kTrack));
  if (!status.ok()) return status;
  return Border(shape, p, LogDeterminantOf(p, s), *std::move(buffer));
}

absl::StatusOr<std::vector<double>> Solver::CornerOf(const Factorization& factorization,
                                                     Track track) {
  const Border& border = factorization.border();
  std::vector<double> t(border.rows() * border.rows());
  absl::Status status = backend_->Download(track, t.data(), border.corner(), BytesOf(t));
  status.Update(backend_->Synchronize(track));
  if (!status.ok()) return status;
  return t;
}

absl::Status Solver::SolveBordered(Track track, std::span<const SolveItem> items,
                                   const Group& group) {
  const Factorization& factorization = *group.factorization;
  const Shape& shape = factorization.shape();
  const int64_t p = group.border_rows(), d = group.columns;
  const SolvePart part = items[0].part;
  const std::vector<BorderedColumn> columns = GroupColumns(items, group.items);
  const BorderColumns y = ColumnsOf(factorization);
  const auto half = [&](SolvePart which) {
    const SolveSystem system = group.System(group.x);
    SolveBatch batch{&factorization.plan(), {&system, 1}};
    batch.part = which;
    if (items.size() == 1) batch.stop = items[0].cancelled;
    return backend_->Solve(track, batch, [&] { return AnyWanted(items, group.items); });
  };
  std::vector<double> x2(p * d), minus(p * d), t;
  // One that shares its pass goes on for the others.
  Steps steps(items.size() == 1 ? items[0].cancelled : nullptr, "solving");
  steps.Run([&] {
    absl::StatusOr<std::vector<double>> corner = CornerOf(factorization, track);
    absl::Status status = corner.status();
    if (status.ok()) t = *std::move(corner);
    return status;
  });
  steps.Run([&] {
    return backend_->PackColumns(track, shape,
                                 ChainColumns(columns, &BorderedColumn::rhs, group.x));
  });
  // y = inv(L) b1
  if (part != SolvePart::kBackward) {
    steps.Run([&] { return half(SolvePart::kForward); });
    steps.Run([&] { return backend_->MultiplyBorder(track, y, group.x, d, x2.data()); });
  }
  // inv(T) (b2 - Y' y), x2 = inv(T)' of that
  steps.Run([&] {
    for (int64_t c = 0; c < d; ++c) {
      double* const x = x2.data() + c * p;
      for (int64_t i = 0; i < p; ++i) {
        x[i] = At(columns[c].rhs, shape.scalar, shape.rows() + i) - x[i];
      }
      if (part != SolvePart::kBackward) SolveCorner(p, t, x);
      if (part != SolvePart::kForward) SolveCornerTransposed(p, t, x);
    }
    return absl::OkStatus();
  });
  // x1 = inv(L)' (y - Y x2)
  if (part != SolvePart::kForward) {
    steps.Run([&] {
      std::transform(x2.begin(), x2.end(), minus.begin(), [](double x) { return -x; });
      return backend_->Upload(track, group.border, minus.data(), BytesOf(minus));
    });
    steps.Run([&] {
      return backend_->AddBorder(track, y, static_cast<const double*>(group.border), group.x, d,
                                 /*add=*/true);
    });
    steps.Run([&] { return half(SolvePart::kBackward); });
  }
  steps.Run([&] {
    absl::Status stored = backend_->UnpackColumns(
        track, shape, ChainColumns(columns, &BorderedColumn::solution, group.x));
    for (int64_t c = 0; c < d; ++c) {
      for (int64_t i = 0; i < p; ++i) {
        Set(columns[c].solution, shape.scalar, shape.rows() + i, x2[i + c * p]);
      }
    }
    return stored;
  });
  return steps.End(*backend_, track);
}

// H = inv(L)' Y inv(T)'; Z(i,j) += H(i) H(j)'; Z(i,border) = -H(i) inv(T).
absl::Status Solver::AddBorderTo(const InverseItem& item, Track track, void* diagonal,
                                 void* coupling, const InverseOutput& output) {
  const Factorization& factorization = *item.factorization;
  const EliminationPlan& plan = factorization.plan();
  const int64_t p = factorization.border().rows();
  if (p == 0) return absl::OkStatus();
  absl::StatusOr<ColumnsWork> work =
      ColumnsWork::Take(backend_->pool(), ColumnsWork::ColumnBytes(plan, p),
                        InverseChainBytes(plan, p, item.num_blocks), p * p);
  if (!work.ok()) return work.status();
  const absl::StatusOr<std::vector<double>> t = CornerOf(factorization, track);
  if (!t.ok()) return t.status();

  const std::vector<double> m = InvertCorner(p, *t);
  std::vector<double> factor(p * p);  // inv(T)', then -inv(T)
  for (int64_t j = 0; j < p; ++j) {
    for (int64_t i = 0; i < p; ++i) factor[j + i * p] = m[i + j * p];
  }
  const auto upload = [&] {
    return backend_->Upload(track, work->doubles, factor.data(), BytesOf(factor));
  };
  Shape blocks = factorization.shape();
  const int64_t before = BorderBlockBytes(blocks, p, item.first_block);
  blocks.num_blocks = item.num_blocks;
  const BorderColumns h{blocks, static_cast<const std::byte*>(work->columns) + before, p};
  Steps steps(item.cancelled, "inverting");
  steps.Run(upload);
  steps.Run([&] {
    return backend_->AddBorder(track, ColumnsOf(factorization), work->doubles, work->columns, p,
                               /*add=*/false);
  });
  steps.Run([&] {
    const SolveSystem system{factorization.data(), work->columns, p, work->chains,
                             factorization.substitutes()};
    return SolveHalf(*backend_, track, plan, system, SolvePart::kBackward, item.cancelled);
  });
  steps.Run([&] { return backend_->AddBorderSquares(track, h, item.parts, diagonal, coupling); });
  if (output.border != nullptr) {
    std::transform(m.begin(), m.end(), factor.begin(), [](double entry) { return -entry; });
    steps.Run(upload);
    steps.Run([&] {
      return backend_->AddBorder(track, h, work->doubles, work->chains, p, /*add=*/false);
    });
    steps.Run([&] {
      const HostColumns columns{output.border, work->chains, p, 0, p};
      return backend_->UnpackColumns(track, blocks, {&columns, 1});
    });
  }
  absl::Status status = steps.End(*backend_, track);
  if (status.ok() && output.corner != nullptr) {
    factorization.shape().scalar == Scalar::kFloat64
        ? StoreCorner(p, m, static_cast<double*>(output.corner))
        : StoreCorner(p, m, static_cast<float*>(output.corner));
  }
  return status;
}

int64_t Solver::InverseWorkspaceBytes(const EliminationPlan& plan, InverseParts parts,
                                      int64_t first_block, int64_t num_blocks,
                                      int64_t border_rows) const {
  const Shape& shape = plan.shape();
  const int64_t p = border_rows;
  return MemoryPool::Rounded(InverseDiagonalBytes(shape, parts, num_blocks)) +
         MemoryPool::Rounded(InverseCouplingBytes(shape, parts, num_blocks)) +
         MemoryPool::Rounded(backend_->InverseScratchBytes(plan, first_block, num_blocks)) +
         (p == 0 ? 0
                 : ColumnsWork::Bytes(ColumnsWork::ColumnBytes(plan, p),
                                      InverseChainBytes(plan, p, num_blocks), p * p));
}

}  // namespace blockd
