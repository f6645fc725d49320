// Solver::FactorBorder and SolveArrowhead: a chain with a border of dense rows.
#include "blockd/engine/arrowhead.h"

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "engine/arrowhead_steps.h"
#include "engine/border_cholesky.h"

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

absl::Status CheckBorder(const BorderItem& item) {
  if (item.rows < 1 || item.rows > kMaxBorderRows) {
    return absl::InvalidArgumentError(
        absl::StrCat("a border of ", item.rows, " rows, expected 1 to ", kMaxBorderRows));
  }
  if (item.chain == nullptr || item.border == nullptr || item.corner == nullptr) {
    return absl::InvalidArgumentError("a border needs its chain, its rows and its corner");
  }
  return absl::OkStatus();
}

absl::Status CheckItem(const ArrowheadSolveItem& item) {
  if (item.num_rhs < 1) {
    return absl::InvalidArgumentError(absl::StrCat("num_rhs is ", item.num_rhs, ", expected >= 1"));
  }
  if (item.residual || item.max_refinements != 0) {
    return absl::InvalidArgumentError("a solve of an arrowhead has no residual and no refinement");
  }
  // Ten times what any of its pieces takes.
  return CheckedProduct(10 * 8 * item.arrowhead->rows(), item.num_rhs).status();
}

NotPositiveDefinite BadCorner(const Shape& shape, int64_t row) {
  return {.block = shape.num_blocks, .row = row, .minor = shape.rows() + row + 1};
}

// Each column of the chain's part by itself: below it stands the border's.
std::vector<HostColumns> ChainColumns(const ArrowheadSolveItem& item, const void* host,
                                      void* packed) {
  const int64_t column = item.arrowhead->rows() * ScalarBytes(item.arrowhead->shape().scalar);
  std::vector<HostColumns> columns(item.num_rhs);
  for (int64_t c = 0; c < item.num_rhs; ++c) {
    auto* const at = static_cast<std::byte*>(const_cast<void*>(host)) + c * column;
    columns[c] = {at, packed, 1, c, item.num_rhs};
  }
  return columns;
}

}  // namespace

Arrowhead::Arrowhead(std::shared_ptr<const Factorization> chain, DeviceBuffer columns,
                     std::vector<double> corner, int64_t border_rows)
    : chain_(std::move(chain)),
      columns_(std::move(columns)),
      corner_(std::move(corner)),
      border_rows_(border_rows) {}

int64_t Arrowhead::BorderBytes(const Shape& shape, int64_t border_rows) {
  return shape.rows() * border_rows * ScalarBytes(shape.scalar);
}

double Arrowhead::corner_log_determinant() const {
  double sum = 0;
  for (int64_t i = 0; i < border_rows_; ++i) sum += std::log(corner_[i * (border_rows_ + 1)]);
  return 2 * sum;
}

int64_t Solver::BorderWorkspaceBytes(const EliminationPlan& plan, int64_t border_rows) const {
  return ColumnsWork::Bytes(0, ColumnsWork::ChainBytes(plan, border_rows), 0);
}

int64_t Solver::ArrowheadSolveBytes(const EliminationPlan& plan, int64_t border_rows,
                                    int64_t num_rhs) const {
  return ColumnsWork::Bytes(ColumnsWork::ColumnBytes(plan, num_rhs),
                            ColumnsWork::ChainBytes(plan, num_rhs), border_rows * num_rhs);
}

BorderOutcome Solver::FactorBorder(const BorderItem& item, Track track) {
  BorderOutcome outcome;
  outcome.status = CheckBorder(item);
  if (!outcome.status.ok()) return outcome;
  const Factorization& chain = *item.chain;
  const Shape& shape = chain.shape();
  const int64_t p = item.rows;
  absl::MutexLock lock(&TrackMutex(track));
  absl::StatusOr<DeviceBuffer> columns =
      backend_->pool().Allocate(Arrowhead::BorderBytes(shape, p));
  outcome.status = columns.status();
  if (!columns.ok()) return outcome;
  absl::StatusOr<ColumnsWork> work =
      ColumnsWork::Take(backend_->pool(), 0, ColumnsWork::ChainBytes(chain.plan(), p), 0);
  outcome.status = work.status();
  if (!work.ok()) return outcome;

  const BorderColumns y{shape, columns->data(), p};
  std::vector<double> s(p * p);
  Steps steps(item.cancelled, "factoring a border");
  // Y = inv(L) B'
  steps.Run([&] {
    const HostColumns all{const_cast<void*>(item.border), columns->data(), p, 0, p};
    return backend_->PackColumns(track, shape, {&all, 1});
  });
  steps.Run([&] {
    const SolveSystem system{chain.data(), columns->data(), p, work->chains};
    return SolveHalf(*backend_, track, chain, system, SolvePart::kForward, item.cancelled);
  });
  // S = C - Y' Y = T T'
  steps.Run([&] { return backend_->MultiplyBorder(track, y, y.data, p, s.data()); });
  outcome.status = steps.End(*backend_, track);
  if (!outcome.status.ok()) return outcome;
  for (int64_t j = 0; j < p; ++j) {
    for (int64_t i = 0; i < p; ++i) {
      double& entry = s[i + j * p];
      entry = i < j ? 0 : At(item.corner, shape.scalar, i + j * p) - entry;
    }
  }
  if (const int64_t row = FactorCorner(p, s); row >= 0) {
    outcome.not_positive_definite = BadCorner(shape, row);
    outcome.status = absl::InvalidArgumentError(
        absl::StrCat("the matrix is not positive definite: leading minor of order ",
                     outcome.not_positive_definite->minor, " (row ", row, " of the border)"));
    return outcome;
  }
  outcome.arrowhead =
      std::make_shared<const Arrowhead>(item.chain, *std::move(columns), std::move(s), p);
  return outcome;
}

absl::Status Solver::SolveArrowhead(const ArrowheadSolveItem& item, Track track) {
  absl::Status status = CheckItem(item);
  if (!status.ok()) return status;
  const Arrowhead& arrowhead = *item.arrowhead;
  const Factorization& chain = arrowhead.chain();
  const Shape& shape = chain.shape();
  const int64_t p = arrowhead.border_rows(), d = item.num_rhs;
  absl::MutexLock lock(&TrackMutex(track));
  absl::StatusOr<ColumnsWork> work =
      ColumnsWork::Take(backend_->pool(), ColumnsWork::ColumnBytes(chain.plan(), d),
                        ColumnsWork::ChainBytes(chain.plan(), d), p * d);
  if (!work.ok()) return work.status();

  const SolveSystem system{chain.data(), work->columns, d, work->chains};
  const auto half = [&](SolvePart part) {
    return SolveHalf(*backend_, track, chain, system, part, item.cancelled);
  };
  // Row i of the border's part of column c.
  const auto place = [&](int64_t i, int64_t c) { return c * arrowhead.rows() + shape.rows() + i; };
  std::vector<double> x2(p * d);
  Steps steps(item.cancelled, "solving");
  // y = inv(L) b1
  steps.Run([&] {
    return backend_->PackColumns(track, shape, ChainColumns(item, item.rhs, work->columns));
  });
  steps.Run([&] { return half(SolvePart::kForward); });
  // x2 = inv(S) (b2 - Y' y)
  steps.Run([&] {
    return backend_->MultiplyBorder(track, arrowhead.columns(), work->columns, d, x2.data());
  });
  // x1 = inv(L)' (y - Y x2)
  steps.Run([&] {
    std::vector<double> minus(p * d);
    for (int64_t c = 0; c < d; ++c) {
      double* const x = x2.data() + c * p;
      for (int64_t i = 0; i < p; ++i) x[i] = At(item.rhs, shape.scalar, place(i, c)) - x[i];
      SolveCorner(p, arrowhead.corner(), x);
      for (int64_t i = 0; i < p; ++i) minus[i + c * p] = -x[i];
    }
    const auto bytes = static_cast<int64_t>(minus.size() * sizeof(double));
    return backend_->Upload(track, work->doubles, minus.data(), bytes);
  });
  steps.Run([&] {
    return backend_->AddBorder(track, arrowhead.columns(), work->doubles, work->columns, d,
                               /*add=*/true);
  });
  steps.Run([&] { return half(SolvePart::kBackward); });
  steps.Run([&] {
    absl::Status stored =
        backend_->UnpackColumns(track, shape, ChainColumns(item, item.solution, work->columns));
    for (int64_t c = 0; c < d; ++c) {
      for (int64_t i = 0; i < p; ++i) Set(item.solution, shape.scalar, place(i, c), x2[i + c * p]);
    }
    return stored;
  });
  return steps.End(*backend_, track);
}

absl::StatusOr<double> Solver::LogDeterminant(const Arrowhead& arrowhead) {
  absl::StatusOr<double> of_chain = LogDeterminant(arrowhead.chain());
  if (!of_chain.ok()) return of_chain;
  return *of_chain + arrowhead.corner_log_determinant();
}

}  // namespace blockd
