#include "client/blockctl/formats/blocks.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/blockctl/text/text.h"

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

absl::Status CheckFits(int64_t rows, int64_t n) {
  constexpr char kAdvice[] =
      ": it has no narrow band in this order; reorder it (reverse "
      "Cuthill-McKee) first";
  if (n > kMaxBlockSize) {
    return Invalid(absl::StrCat("blocks of ", n, " are larger than ", kMaxBlockSize, kAdvice));
  }
  const double bytes = 2.0 * static_cast<double>(rows) * static_cast<double>(n) * sizeof(double);
  const double memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (bytes <= memory) return absl::OkStatus();
  return Invalid(absl::StrCat("blocks of ", n, " make ", BytesText(bytes), " of this matrix of ",
                              rows, " rows, and this machine has ", BytesText(memory), kAdvice));
}

// The last entry of each column that has one, which is the farthest from the diagonal.
std::vector<const Entry*> LastOfColumns(std::span<const Entry> entries) {
  std::vector<const Entry*> last;
  for (const Entry& e : entries) {
    if (!last.empty() && last.back()->column == e.column) {
      last.back() = &e;
    } else {
      last.push_back(&e);
    }
  }
  return last;
}

bool IsOutside(const Entry& e, int64_t n) { return e.row / n - e.column / n > 1; }

// The first of them that lies outside of blocks of n; null if none does.
const Entry* FindOutside(const std::vector<const Entry*>& last, int64_t n) {
  const auto found =
      std::find_if(last.begin(), last.end(), [&](const Entry* e) { return IsOutside(*e, n); });
  return found == last.end() ? nullptr : *found;
}

int64_t DetectBlockSize(const std::vector<const Entry*>& last, int64_t rows) {
  int64_t band = 0;
  for (const Entry* e : last) band = std::max(band, e->row - e->column);
  // Two neighbouring blocks of n hold a band of 2n - 1 at most, and of n at least.
  int64_t smallest = std::max<int64_t>(1, (band + 2) / 2);
  const Entry* outside = nullptr;  // what ruled out the last size often rules out the next
  while (smallest <= kMaxBlockSize && ((outside != nullptr && IsOutside(*outside, smallest)) ||
                                       (outside = FindOutside(last, smallest)) != nullptr)) {
    ++smallest;
  }
  const int64_t end = std::min({rows, 2 * std::min(smallest, kMaxBlockSize), kMaxBlockSize});
  for (int64_t n = smallest; n <= end; ++n) {
    if (rows % n == 0 && FindOutside(last, n) == nullptr) return n;
  }
  return smallest;
}

// 1, or the element of the diagonal that is nearest to it. No norm of A or of inv(A) grows by an
// element between those of its diagonal.
double PaddingValue(std::span<const Entry> entries) {
  double least = std::numeric_limits<double>::infinity(), most = 0;
  for (const Entry& e : entries) {
    if (e.row != e.column || !(e.value > 0) || !std::isfinite(e.value)) continue;
    least = std::min(least, e.value);
    most = std::max(most, e.value);
  }
  return most > 0 ? std::min(std::max(1.0, least), most) : 1.0;
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

double Blocks::padding_log_determinant() const {
  return static_cast<double>(padding) * std::log(padding_value);
}

int64_t DetectBlockSize(const SparseMatrix& matrix) {
  return DetectBlockSize(LastOfColumns(matrix.entries), matrix.rows);
}

namespace {

absl::StatusOr<Blocks> BlocksOfChain(std::span<const Entry> entries, int64_t rows,
                                     int64_t block_size) {
  const std::vector<const Entry*> last = LastOfColumns(entries);
  const int64_t n = block_size > 0 ? block_size : DetectBlockSize(last, rows);
  if (block_size > 0 && rows % n != 0) {
    return Invalid(absl::StrCat("--block_size=", n, " does not divide the ", rows, " rows"));
  }
  const Entry* outside = n <= kMaxBlockSize ? FindOutside(last, n) : nullptr;
  if (outside != nullptr) {
    return Invalid(absl::StrCat("not block tridiagonal with blocks of ", n, ": entry (",
                                outside->row + 1, ", ", outside->column + 1,
                                ") is outside; without --block_size the smallest is found"));
  }
  if (absl::Status status = CheckFits(rows, n); !status.ok()) return status;
  Blocks blocks;
  blocks.num_blocks = (rows + n - 1) / n;
  blocks.block_size = n;
  blocks.padding = blocks.num_blocks * n - rows;
  blocks.diagonal.resize(blocks.num_blocks * n * n * sizeof(double));
  blocks.coupling.resize((blocks.num_blocks - 1) * n * n * sizeof(double));
  double* diagonal = reinterpret_cast<double*>(blocks.diagonal.data());
  double* coupling = reinterpret_cast<double*>(blocks.coupling.data());
  for (const Entry& e : entries) {
    const int64_t i = e.column / n, r = e.row % n, c = e.column % n;
    if (e.row / n > i) {
      coupling[(i * n + c) * n + r] = e.value;
    } else {
      diagonal[(i * n + c) * n + r] = diagonal[(i * n + r) * n + c] = e.value;
    }
  }
  if (blocks.padding > 0) blocks.padding_value = PaddingValue(entries);
  for (int64_t r = n - blocks.padding; r < n; ++r) {
    diagonal[((blocks.num_blocks - 1) * n + r) * n + r] = blocks.padding_value;
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
  if (arrow_size == 0) return BlocksOfChain(matrix.entries, matrix.rows, block_size);
  const int64_t chain_rows = matrix.rows - arrow_size;
  std::vector<Entry> chain, border;
  for (const Entry& e : matrix.entries) (e.row < chain_rows ? chain : border).push_back(e);
  absl::StatusOr<Blocks> blocks = BlocksOfChain(chain, chain_rows, block_size);
  if (!blocks.ok()) return blocks;
  const int64_t width = blocks->num_blocks * blocks->block_size;
  blocks->arrow_size = arrow_size;
  blocks->border.resize(width * arrow_size * sizeof(double));
  blocks->corner.resize(arrow_size * arrow_size * sizeof(double));
  auto* const rows = reinterpret_cast<double*>(blocks->border.data());
  auto* const corner = reinterpret_cast<double*>(blocks->corner.data());
  for (const Entry& e : border) {
    const int64_t r = e.row - chain_rows;
    if (e.column < chain_rows) {
      rows[r * width + e.column] = e.value;
    } else {
      corner[(e.column - chain_rows) * arrow_size + r] = e.value;
    }
  }
  return blocks;
}

}  // namespace blockd::blockctl
