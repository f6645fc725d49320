#include "blockd/engine/block_tridiagonal.h"

#include <cmath>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace blockd {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 62;

absl::Status CheckRange(std::string_view name, int64_t value, int64_t limit) {
  if (value >= 1 && value <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(name), " is ", value, ", expected 1 to ", limit));
}

template <typename T>
absl::Status CheckBlockFinite(const T* block, int64_t n, bool lower, bool packed,
                              std::string_view what, int64_t index) {
  for (int64_t column = 0; column < n; ++column) {
    for (int64_t row = lower ? column : 0; row < n; ++row) {
      const T value = packed ? *block++ : block[column * n + row];
      if (std::isfinite(value)) continue;
      return absl::InvalidArgumentError(absl::StrCat(std::string(what), " block ", index, ", row ",
                                                     row, ", column ", column, " is not finite"));
    }
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status CheckBorderFinite(const BlockTridiagonalView& view) {
  const int64_t p = view.form.border_rows, rows = view.form.shape.rows();
  const auto bad = [](const char* what, int64_t row, int64_t column) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ", row ", row, ", column ", column, " is not finite"));
  };
  const T* const border = static_cast<const T*>(view.border);
  const T* const corner = static_cast<const T*>(view.corner);
  for (int64_t row = 0; row < p; ++row) {
    for (int64_t column = 0; column < rows; ++column) {
      if (!std::isfinite(border[row * rows + column])) return bad("border", row, column);
    }
  }
  for (int64_t column = 0; column < p; ++column) {
    for (int64_t row = column; row < p; ++row) {
      if (!std::isfinite(corner[column * p + row])) return bad("corner", row, column);
    }
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status CheckAllFinite(const BlockTridiagonalView& view) {
  const MatrixForm& form = view.form;
  const int64_t n = form.shape.block_size;
  const bool packed = form.diagonal == DiagonalForm::kPackedLower;
  for (int64_t i = 0; i < form.diagonal_blocks(); ++i) {
    const T* block = static_cast<const T*>(view.diagonal) + i * form.diagonal_block_scalars();
    absl::Status status = CheckBlockFinite(block, n, true, packed, "diagonal", i);
    if (!status.ok()) return status;
  }
  for (int64_t i = 0; i < form.coupling_blocks(); ++i) {
    const T* block = static_cast<const T*>(view.coupling) + i * form.coupling_block_scalars();
    absl::Status status = CheckBlockFinite(block, n, false, false, "coupling", i);
    if (!status.ok()) return status;
  }
  return CheckBorderFinite<T>(view);
}

absl::Status CheckIndex(std::string_view name, const uint32_t* index, int64_t count, int64_t size) {
  for (int64_t i = 0; i < count; ++i) {
    if (index[i] < size) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(name), "[", i, "] is ", index[i], ", expected less than ", size));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int64_t> CheckedProduct(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product) || product > kMaxBytes) {
    return absl::OutOfRangeError(absl::StrCat(a, " * ", b, " exceeds 2^62"));
  }
  return product;
}

absl::StatusOr<int64_t> CheckedSum(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum) || sum > kMaxBytes) {
    return absl::OutOfRangeError(absl::StrCat(a, " + ", b, " exceeds 2^62"));
  }
  return sum;
}

absl::Status CheckShape(const Shape& shape) {
  absl::Status status = CheckRange("num_blocks", shape.num_blocks, kMaxRows);
  if (!status.ok()) return status;
  status = CheckRange("block_size", shape.block_size, kMaxBlockSize);
  if (!status.ok()) return status;
  const absl::StatusOr<int64_t> rows = CheckedProduct(shape.num_blocks, shape.block_size);
  if (!rows.ok() || *rows > kMaxRows) {
    return absl::InvalidArgumentError(absl::StrCat("num_blocks * block_size is ", shape.num_blocks,
                                                   " * ", shape.block_size, ", expected at most ",
                                                   kMaxRows));
  }
  // rows <= 2^40 and n <= 2^15 leave room for 8 bytes and the 4 blocks a row that any stage needs:
  // 2^40 * 2^15 * 2^3 = 2^58.
  return absl::OkStatus();
}

std::string ToString(const Shape& shape) {
  return absl::StrCat("N=", shape.num_blocks, " n=", shape.block_size,
                      shape.scalar == Scalar::kFloat64 ? " float64" : " float32");
}

std::string ToString(const BorderedShape& shape) {
  const std::string chain = ToString(shape.chain);
  return shape.border_rows == 0 ? chain : absl::StrCat(chain, " p=", shape.border_rows);
}

int64_t MatrixForm::diagonal_block_scalars() const {
  const int64_t n = shape.block_size;
  return diagonal == DiagonalForm::kFull ? n * n : n * (n + 1) / 2;
}

int64_t MatrixForm::diagonal_bytes() const {
  return diagonal_blocks() * diagonal_block_scalars() * ScalarBytes(shape.scalar);
}

int64_t MatrixForm::coupling_bytes() const {
  return coupling_blocks() * coupling_block_scalars() * ScalarBytes(shape.scalar);
}

int64_t MatrixForm::border_bytes() const {
  return shape.rows() * border_rows * ScalarBytes(shape.scalar);
}

int64_t MatrixForm::corner_bytes() const {
  return border_rows * border_rows * ScalarBytes(shape.scalar);
}

int64_t MatrixForm::bytes(MatrixPart part) const {
  switch (part) {
    case MatrixPart::kDiagonal:
      return diagonal_bytes();
    case MatrixPart::kCoupling:
      return coupling_bytes();
    case MatrixPart::kBorder:
      return border_bytes();
    case MatrixPart::kCorner:
      return corner_bytes();
  }
  return 0;
}

void BlockTridiagonalView::SetParts(const void* data) {
  const auto* next = static_cast<const unsigned char*>(data);
  for (const MatrixPart which : kMatrixParts) {
    part(which) = next;
    next += form.bytes(which);
  }
}

absl::Status CheckForm(const MatrixForm& form) {
  absl::Status status = CheckShape(form.shape);
  if (!status.ok()) return status;
  // A palette longer than the chain would only carry blocks that no row names.
  if (form.diagonal_palette < 0 || form.diagonal_palette > form.shape.num_blocks) {
    return absl::InvalidArgumentError(absl::StrCat("diagonal_palette is ", form.diagonal_palette,
                                                   ", expected 0 to ", form.shape.num_blocks));
  }
  if (form.coupling_palette < 0 || form.coupling_palette > form.shape.num_blocks - 1) {
    return absl::InvalidArgumentError(absl::StrCat("coupling_palette is ", form.coupling_palette,
                                                   ", expected 0 to ", form.shape.num_blocks - 1));
  }
  if (form.border_rows < 0 || form.border_rows > kMaxBorderRows) {
    return absl::InvalidArgumentError(
        absl::StrCat("border_rows is ", form.border_rows, ", expected 0 to ", kMaxBorderRows));
  }
  return absl::OkStatus();
}

absl::Status CheckView(const BlockTridiagonalView& view) {
  absl::Status status = CheckForm(view.form);
  if (!status.ok()) return status;
  const int64_t blocks = view.form.shape.num_blocks;
  if (view.diagonal == nullptr) return absl::InvalidArgumentError("diagonal is null");
  if (blocks > 1 && view.coupling == nullptr) return absl::InvalidArgumentError("coupling is null");
  if (view.form.border_rows > 0 && (view.border == nullptr || view.corner == nullptr)) {
    return absl::InvalidArgumentError("a border needs its rows and its corner");
  }
  if ((view.form.diagonal_palette > 0) != (view.diagonal_index != nullptr)) {
    return absl::InvalidArgumentError("diagonal_index and diagonal_palette do not agree");
  }
  if ((view.form.coupling_palette > 0) != (view.coupling_index != nullptr)) {
    return absl::InvalidArgumentError("coupling_index and coupling_palette do not agree");
  }
  if (view.diagonal_index) {
    status = CheckIndex("diagonal_index", view.diagonal_index, blocks, view.form.diagonal_palette);
    if (!status.ok()) return status;
  }
  if (view.coupling_index) {
    return CheckIndex("coupling_index", view.coupling_index, blocks - 1,
                      view.form.coupling_palette);
  }
  return absl::OkStatus();
}

absl::Status CheckFinite(const BlockTridiagonalView& view) {
  return view.form.shape.scalar == Scalar::kFloat64 ? CheckAllFinite<double>(view)
                                                    : CheckAllFinite<float>(view);
}

}  // namespace blockd
