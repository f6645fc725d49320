#include "tests/support/host_matrix.h"

#include <cstring>
#include <limits>

namespace blockd::test {
namespace {

double Load(const std::vector<std::byte>& bytes, int64_t position, Scalar scalar) {
  if (scalar == Scalar::kFloat64) {
    double value;
    std::memcpy(&value, &bytes[position * sizeof value], sizeof value);
    return value;
  }
  float value;
  std::memcpy(&value, &bytes[position * sizeof value], sizeof value);
  return value;
}

void Store(std::vector<std::byte>& bytes, int64_t position, Scalar scalar, double value) {
  if (scalar == Scalar::kFloat64) {
    std::memcpy(&bytes[position * sizeof value], &value, sizeof value);
    return;
  }
  const float rounded = static_cast<float>(value);
  std::memcpy(&bytes[position * sizeof rounded], &rounded, sizeof rounded);
}

// One diagonal block in its stored form.
std::vector<double> DiagonalScalars(const double* block, int64_t n, DiagonalForm form) {
  std::vector<double> out;
  for (int64_t column = 0; column < n; ++column) {
    if (form == DiagonalForm::kFull) {
      out.insert(out.end(), column, std::numeric_limits<double>::quiet_NaN());
    }
    out.insert(out.end(), block + column * n + column, block + (column + 1) * n);
  }
  return out;
}

std::vector<double> CouplingScalars(const double* block, int64_t n, CouplingForm form) {
  std::vector<double> out(block, block + n * n);
  if (form == CouplingForm::kSubdiagonal) return out;
  for (int64_t column = 0; column < n; ++column) {
    for (int64_t row = 0; row < n; ++row) out[row * n + column] = block[column * n + row];
  }
  return out;
}

void Append(std::vector<std::byte>& bytes, const std::vector<double>& values, Scalar scalar) {
  const std::vector<std::byte> more = ToScalars(values, scalar);
  bytes.insert(bytes.end(), more.begin(), more.end());
}

}  // namespace

HostMatrix::HostMatrix(const problems::Problem& problem, Scalar scalar,
                       const FormOptions& options) {
  const int64_t n = problem.block_size;
  form_.shape = {problem.num_blocks, n, scalar};
  form_.diagonal = options.diagonal;
  form_.coupling = options.coupling;
  const problems::Problem stored = options.palette ? problem : problems::Expand(problem);
  const int64_t diagonals = static_cast<int64_t>(stored.diagonal.size()) / (n * n);
  const int64_t couplings = static_cast<int64_t>(stored.coupling.size()) / (n * n);
  if (options.palette) {
    diagonal_index_ = problem.diagonal_index;
    coupling_index_ = problem.coupling_index;
    form_.diagonal_palette = diagonal_index_.empty() ? 0 : diagonals;
    form_.coupling_palette = coupling_index_.empty() ? 0 : couplings;
  }
  for (int64_t i = 0; i < diagonals; ++i) {
    Append(diagonal_, DiagonalScalars(&stored.diagonal[i * n * n], n, options.diagonal), scalar);
  }
  for (int64_t i = 0; i < couplings; ++i) {
    Append(coupling_, CouplingScalars(&stored.coupling[i * n * n], n, options.coupling), scalar);
  }
}

BlockTridiagonalView HostMatrix::view() const {
  BlockTridiagonalView view;
  view.form = form_;
  view.diagonal = diagonal_.data();
  view.coupling = coupling_.empty() ? nullptr : coupling_.data();
  view.diagonal_index = diagonal_index_.empty() ? nullptr : diagonal_index_.data();
  view.coupling_index = coupling_index_.empty() ? nullptr : coupling_index_.data();
  view.border = border_.empty() ? nullptr : border_.data();
  view.corner = corner_.empty() ? nullptr : corner_.data();
  return view;
}

void HostMatrix::SetBorder(int64_t rows, std::span<const double> border,
                           std::span<const double> corner) {
  form_.border_rows = rows;
  border_ = ToScalars(border, form_.shape.scalar);
  corner_ = ToScalars(corner, form_.shape.scalar);
}

std::vector<double> HostMatrix::border() const { return ToDoubles(border_, form_.shape.scalar); }
std::vector<double> HostMatrix::corner() const { return ToDoubles(corner_, form_.shape.scalar); }

int64_t HostMatrix::DiagonalPosition(int64_t block, int64_t row, int64_t column) const {
  const int64_t n = form_.shape.block_size;
  const int64_t stored = diagonal_index_.empty() ? block : diagonal_index_[block];
  const int64_t start = stored * form_.diagonal_block_scalars();
  if (form_.diagonal == DiagonalForm::kFull) return start + column * n + row;
  return start + column * n - column * (column - 1) / 2 + row - column;
}

double HostMatrix::Diagonal(int64_t block, int64_t row, int64_t column) const {
  return Load(diagonal_, DiagonalPosition(block, row, column), form_.shape.scalar);
}

void HostMatrix::SetDiagonal(int64_t block, int64_t row, int64_t column, double value) {
  Store(diagonal_, DiagonalPosition(block, row, column), form_.shape.scalar, value);
}

void HostMatrix::SetCoupling(int64_t block, int64_t row, int64_t column, double value) {
  const int64_t n = form_.shape.block_size;
  const int64_t stored = coupling_index_.empty() ? block : coupling_index_[block];
  Store(coupling_, stored * n * n + column * n + row, form_.shape.scalar, value);
}

std::vector<std::byte> ToScalars(std::span<const double> values, Scalar scalar) {
  std::vector<std::byte> bytes(values.size() * ScalarBytes(scalar));
  for (size_t i = 0; i < values.size(); ++i) Store(bytes, i, scalar, values[i]);
  return bytes;
}

std::vector<double> ToDoubles(std::span<const std::byte> scalars, Scalar scalar) {
  const std::vector<std::byte> bytes(scalars.begin(), scalars.end());
  std::vector<double> values(bytes.size() / ScalarBytes(scalar));
  for (size_t i = 0; i < values.size(); ++i) values[i] = Load(bytes, i, scalar);
  return values;
}

double Epsilon(Scalar scalar) { return scalar == Scalar::kFloat64 ? 0x1p-52 : 0x1p-23; }

}  // namespace blockd::test
