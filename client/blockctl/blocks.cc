#include "client/blockctl/blocks.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace blockd::blockctl {
namespace {

constexpr int64_t kMaxBlockSize = 32768, kMaxArrowSize = 1024;

absl::Status Invalid(const std::string& message) { return absl::InvalidArgumentError(message); }

// Block b, row r, column c of an array of shape (count, n, n), to column-major blocks, transposed
// if so asked.
template <typename T>
void CopyBlocks(const Array& from, bool transpose, std::vector<std::byte>& to) {
  const int64_t count = from.shape[0], n = from.shape[1];
  const int64_t step_b = from.fortran_order ? 1 : n * n;
  int64_t step_r = from.fortran_order ? count : n;
  int64_t step_c = from.fortran_order ? count * n : 1;
  if (transpose) std::swap(step_r, step_c);
  to.resize(count * n * n * sizeof(T));
  const T* source = from.as<T>();
  T* out = reinterpret_cast<T*>(to.data());
  for (int64_t b = 0; b < count; ++b) {
    for (int64_t c = 0; c < n; ++c) {
      for (int64_t r = 0; r < n; ++r) *out++ = source[b * step_b + r * step_r + c * step_c];
    }
  }
}

void CopyBlocks(const Array& from, bool transpose, std::vector<std::byte>& to) {
  if (from.scalar == client::Scalar::kFloat64) {
    CopyBlocks<double>(from, transpose, to);
  } else {
    CopyBlocks<float>(from, transpose, to);
  }
}

// Row after row of an array of two dimensions, or column after column.
template <typename T>
void CopyMatrix(const Array& from, bool by_rows, std::vector<std::byte>& to) {
  const int64_t rows = from.shape[0], columns = from.shape[1];
  const int64_t step_r = from.fortran_order ? 1 : columns, step_c = from.fortran_order ? rows : 1;
  to.resize(rows * columns * sizeof(T));
  const T* source = from.as<T>();
  T* out = reinterpret_cast<T*>(to.data());
  for (int64_t i = 0; i < (by_rows ? rows : columns); ++i) {
    for (int64_t j = 0; j < (by_rows ? columns : rows); ++j) {
      *out++ = source[by_rows ? i * step_r + j * step_c : j * step_r + i * step_c];
    }
  }
}

void CopyMatrix(const Array& from, bool by_rows, std::vector<std::byte>& to) {
  if (from.scalar == client::Scalar::kFloat64) {
    CopyMatrix<double>(from, by_rows, to);
  } else {
    CopyMatrix<float>(from, by_rows, to);
  }
}

absl::Status CheckCoupling(const Array& diagonal, const Array* coupling) {
  const int64_t count = diagonal.shape[0], n = diagonal.shape[1];
  if (coupling == nullptr) {
    if (count == 1) return absl::OkStatus();
    return Invalid(absl::StrCat("--coupling is missing: ", count,
                                " diagonal blocks need an array of shape (", count - 1, ", ", n,
                                ", ", n, ")"));
  }
  const std::vector<int64_t> expected = {count - 1, n, n};
  if (coupling->shape != expected && !(count == 1 && coupling->size() == 0)) {
    return Invalid(absl::StrCat("the coupling blocks have the shape ", ShapeText(coupling->shape),
                                ", expected ", ShapeText(expected), " with diagonal blocks of ",
                                ShapeText(diagonal.shape)));
  }
  if (coupling->scalar != diagonal.scalar) {
    return Invalid("the diagonal and the coupling blocks differ in type; make both '<f8' or '<f4'");
  }
  return absl::OkStatus();
}

bool IsBlockTridiagonal(const SparseMatrix& matrix, int64_t n, const Entry** outside) {
  for (const Entry& e : matrix.entries) {
    if (e.row / n - e.column / n > 1) {
      *outside = &e;
      return false;
    }
  }
  return true;
}

absl::Status CheckFits(int64_t rows, int64_t n) {
  const double bytes = 2.0 * static_cast<double>(rows) * static_cast<double>(n) * sizeof(double);
  const double memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (bytes <= memory && n <= kMaxBlockSize) return absl::OkStatus();
  return Invalid(absl::StrCat("blocks of ", n, " make ", std::llround(bytes / (1 << 20)),
                              " MiB of this matrix: it has no narrow band in this order; reorder "
                              "it (reverse Cuthill-McKee) first"));
}

}  // namespace

client::SystemView Blocks::view() const {
  client::SystemView view;
  view.num_blocks = num_blocks;
  view.block_size = block_size;
  view.scalar = scalar;
  view.diagonal = diagonal.data();
  view.coupling = coupling.data();
  view.arrow_size = arrow_size;
  view.border = border.data();
  view.corner = corner.data();
  return view;
}

absl::StatusOr<Blocks> BlocksFromArrays(const Array& diagonal, const Array* coupling,
                                        bool superdiagonal) {
  if (diagonal.shape.size() != 3 || diagonal.shape[1] != diagonal.shape[2] ||
      diagonal.shape[0] < 1 || diagonal.shape[1] < 1) {
    return Invalid(absl::StrCat("the diagonal blocks have the shape ", ShapeText(diagonal.shape),
                                ", expected (N, n, n)"));
  }
  if (absl::Status status = CheckCoupling(diagonal, coupling); !status.ok()) return status;
  Blocks blocks;
  blocks.num_blocks = diagonal.shape[0];
  blocks.block_size = diagonal.shape[1];
  blocks.scalar = diagonal.scalar;
  CopyBlocks(diagonal, false, blocks.diagonal);
  if (blocks.num_blocks > 1) CopyBlocks(*coupling, superdiagonal, blocks.coupling);
  return blocks;
}

absl::Status AddBorder(const Array& border, const Array& corner, Blocks* blocks) {
  const int64_t rows = blocks->num_blocks * blocks->block_size;
  const int64_t p = corner.shape.empty() ? 0 : corner.shape[0];
  if (p < 1 || p > kMaxArrowSize || corner.shape != std::vector<int64_t>{p, p}) {
    return Invalid(absl::StrCat("the corner has the shape ", ShapeText(corner.shape),
                                ", expected (p, p), p at most ", kMaxArrowSize));
  }
  if (border.shape != std::vector<int64_t>{p, rows}) {
    return Invalid(absl::StrCat("the border has the shape ", ShapeText(border.shape), ", expected ",
                                ShapeText({p, rows}), ", (p, N*n)"));
  }
  if (border.scalar != blocks->scalar || corner.scalar != blocks->scalar) {
    return Invalid("the blocks, the border and the corner differ in type");
  }
  blocks->arrow_size = p;
  CopyMatrix(border, /*by_rows=*/true, blocks->border);
  CopyMatrix(corner, /*by_rows=*/false, blocks->corner);
  return absl::OkStatus();
}

int64_t DetectBlockSize(const SparseMatrix& matrix) {
  int64_t band = 0;
  for (const Entry& e : matrix.entries) band = std::max(band, e.row - e.column);
  const Entry* outside = nullptr;
  // Two neighbouring blocks of n hold a band of 2n - 1 at most. Larger blocks than a server takes
  // are not looked for: a prime number of rows, which is a word in a file, would take for ever.
  const int64_t end = std::min(matrix.rows, kMaxBlockSize + 1);
  for (int64_t n = std::max<int64_t>(1, (band + 2) / 2); n < end; ++n) {
    if (matrix.rows % n == 0 && IsBlockTridiagonal(matrix, n, &outside)) return n;
  }
  return matrix.rows;
}

namespace {

absl::StatusOr<Blocks> BlocksOfChain(const SparseMatrix& matrix, int64_t block_size) {
  const int64_t n = block_size > 0 ? block_size : DetectBlockSize(matrix);
  if (matrix.rows % n != 0) {
    return Invalid(absl::StrCat("--block_size=", n, " does not divide the ", matrix.rows, " rows"));
  }
  const Entry* outside = nullptr;
  if (!IsBlockTridiagonal(matrix, n, &outside)) {
    return Invalid(absl::StrCat("not block tridiagonal with blocks of ", n, ": entry (",
                                outside->row + 1, ", ", outside->column + 1,
                                ") is outside; without --block_size the smallest is found"));
  }
  if (absl::Status status = CheckFits(matrix.rows, n); !status.ok()) return status;
  Blocks blocks;
  blocks.num_blocks = matrix.rows / n;
  blocks.block_size = n;
  blocks.diagonal.resize(blocks.num_blocks * n * n * sizeof(double));
  blocks.coupling.resize((blocks.num_blocks - 1) * n * n * sizeof(double));
  double* diagonal = reinterpret_cast<double*>(blocks.diagonal.data());
  double* coupling = reinterpret_cast<double*>(blocks.coupling.data());
  for (const Entry& e : matrix.entries) {
    const int64_t i = e.column / n, r = e.row % n, c = e.column % n;
    if (e.row / n > i) {
      coupling[(i * n + c) * n + r] = e.value;
    } else {
      diagonal[(i * n + c) * n + r] = diagonal[(i * n + r) * n + c] = e.value;
    }
  }
  return blocks;
}

}  // namespace

absl::StatusOr<Blocks> BlocksFromSparse(const SparseMatrix& matrix, int64_t block_size,
                                        int64_t arrow_size) {
  if (arrow_size < 0 || arrow_size >= matrix.rows || arrow_size > kMaxArrowSize) {
    return Invalid(absl::StrCat("--arrow_size=", arrow_size, " of ", matrix.rows,
                                " rows, expected less, and at most ", kMaxArrowSize));
  }
  SparseMatrix chain{matrix.rows - arrow_size, {}};
  std::vector<Entry> border;
  for (const Entry& e : matrix.entries) {
    (e.row < chain.rows ? chain.entries : border).push_back(e);
  }
  absl::StatusOr<Blocks> blocks = BlocksOfChain(chain, block_size);
  if (!blocks.ok() || arrow_size == 0) return blocks;
  blocks->arrow_size = arrow_size;
  blocks->border.resize(chain.rows * arrow_size * sizeof(double));
  blocks->corner.resize(arrow_size * arrow_size * sizeof(double));
  auto* const rows = reinterpret_cast<double*>(blocks->border.data());
  auto* const corner = reinterpret_cast<double*>(blocks->corner.data());
  for (const Entry& e : border) {
    const int64_t r = e.row - chain.rows;
    if (e.column < chain.rows) {
      rows[r * chain.rows + e.column] = e.value;
    } else {
      corner[(e.column - chain.rows) * arrow_size + r] = e.value;
    }
  }
  return blocks;
}

Array Columns::ToMatrix() const {
  Array array;
  array.scalar = scalar;
  array.shape = {rows, count};
  array.fortran_order = true;
  array.data = data;
  return array;
}

Array Columns::ToArray() const {
  Array array = ToMatrix();
  array.shape = shape;
  // Block rows stand one after another in C order, and in Fortran order they do not.
  array.fortran_order = shape.size() == 2 && shape[0] == rows;
  if (!array.fortran_order && count > 1) {
    const int64_t width = client::ScalarBytes(scalar);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < count; ++c) {
        std::copy_n(&data[(c * rows + r) * width], width, &array.data[(r * count + c) * width]);
      }
    }
  }
  return array;
}

absl::StatusOr<Columns> ColumnsFromArray(const Array& array, int64_t num_blocks, int64_t block_size,
                                         int64_t arrow_size) {
  const int64_t rows = num_blocks * block_size + arrow_size;
  const std::vector<int64_t>& shape = array.shape;
  const bool by_rows = !shape.empty() && shape.size() <= 2 && shape[0] == rows;
  const bool by_blocks = arrow_size == 0 && (shape.size() == 2 || shape.size() == 3) &&
                         shape[0] == num_blocks && shape[1] == block_size;
  if ((!by_rows && !by_blocks) || array.size() == 0) {
    const std::string blocks =
        absl::StrCat(", or by block rows ", ShapeText({num_blocks, block_size}), " or (",
                     num_blocks, ", ", block_size, ", d)");
    return Invalid(absl::StrCat("the right-hand sides have the shape ", ShapeText(shape),
                                ", expected ", ShapeText({rows}), " or (", rows, ", d), ",
                                arrow_size == 0 ? "N*n = " : "N*n + p = ", rows, " rows",
                                arrow_size == 0 ? blocks : ""));
  }
  Columns columns;
  columns.scalar = array.scalar;
  columns.rows = rows;
  columns.count = array.size() / rows;
  columns.shape = shape;
  columns.data.resize(array.data.size());
  // Row i n + j of column c.
  const int64_t d = columns.count;
  const int64_t count = by_rows ? rows : num_blocks, n = by_rows ? 1 : block_size;
  int64_t step_i = n * d, step_j = d, step_c = 1;
  if (array.fortran_order) {
    step_i = 1;
    step_j = num_blocks;
    step_c = rows;
  }
  const int64_t width = client::ScalarBytes(array.scalar);
  std::byte* out = columns.data.data();
  for (int64_t c = 0; c < d; ++c) {
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        out = std::copy_n(&array.data[(i * step_i + j * step_j + c * step_c) * width], width, out);
      }
    }
  }
  return columns;
}

}  // namespace blockd::blockctl
