#include "server/core/common/finite_scanner.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/core/common/errors.h"

namespace blockd::server {
namespace {

// A scalar is NaN or infinite if all bits of its exponent are set.
template <typename Bits, Bits kExponent>
bool NotFinite(const std::byte* scalar) {
  Bits bits;
  std::memcpy(&bits, scalar, sizeof(bits));
  return (bits & kExponent) == kExponent;
}
constexpr auto kNotFinite64 = NotFinite<uint64_t, 0x7ff0000000000000>;
constexpr auto kNotFinite32 = NotFinite<uint32_t, 0x7f800000>;

// Without a branch in the loop, so that the compiler can vectorize it.
template <auto kTest>
bool AnyNotFinite(const std::byte* scalars, int64_t count, int64_t size) {
  bool any = false;
  for (int64_t i = 0; i < count; ++i) any |= kTest(scalars + i * size);
  return any;
}

constexpr int64_t kStrip = 4096;  // scalars looked at together

// Calls `refuse` with the index of each scalar that is not finite, until it returns an error.
template <typename Refuse>
absl::Status ForEachNotFinite(Scalar scalar, const std::byte* scalars, int64_t count,
                              Refuse refuse) {
  const int64_t size = ScalarBytes(scalar);
  const auto any = size == 8 ? &AnyNotFinite<kNotFinite64> : &AnyNotFinite<kNotFinite32>;
  const auto one = size == 8 ? kNotFinite64 : kNotFinite32;
  for (int64_t first = 0; first < count; first += kStrip) {
    const int64_t length = std::min(kStrip, count - first);
    if (!any(scalars + first * size, length, size)) continue;
    for (int64_t i = first; i < first + length; ++i) {
      if (!one(scalars + i * size)) continue;
      absl::Status status = refuse(i);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace

FiniteScanner FiniteScanner::AtBlock(const MatrixForm& form, int64_t system, bool diagonal,
                                     int64_t block) {
  FiniteScanner scanner(form, system);
  scanner.scalars_ = diagonal ? block * form.diagonal_block_scalars()
                              : form.diagonal_blocks() * form.diagonal_block_scalars() +
                                    block * form.coupling_block_scalars();
  return scanner;
}

FiniteScanner FiniteScanner::AtByte(const MatrixForm& form, int64_t system, int64_t byte) {
  FiniteScanner scanner(form, system);
  scanner.scalars_ = byte / ScalarBytes(form.shape.scalar);
  return scanner;
}

absl::Status FiniteScanner::Scan(std::span<const std::byte> bytes) {
  const size_t size = static_cast<size_t>(ScalarBytes(form_.shape.scalar));
  if (partial_bytes_ > 0) {
    const size_t taken = std::min(size - partial_bytes_, bytes.size());
    std::memcpy(partial_ + partial_bytes_, bytes.data(), taken);
    partial_bytes_ += taken;
    bytes = bytes.subspan(taken);
    if (partial_bytes_ < size) return absl::OkStatus();
    partial_bytes_ = 0;
    absl::Status status = CheckScalars(partial_, 1);
    if (!status.ok()) return status;
  }
  const size_t whole = bytes.size() / size * size;
  partial_bytes_ = bytes.size() - whole;
  if (partial_bytes_ > 0) std::memcpy(partial_, bytes.data() + whole, partial_bytes_);
  return CheckScalars(bytes.data(), static_cast<int64_t>(whole / size));
}

absl::Status FiniteScanner::CheckScalars(const std::byte* scalars, int64_t count) {
  absl::Status status = ForEachNotFinite(form_.shape.scalar, scalars, count,
                                         [this](int64_t i) { return Refuse(scalars_ + i); });
  scalars_ += count;
  return status;
}

absl::Status FiniteScanner::Refuse(int64_t scalar) const {
  const int64_t size = ScalarBytes(form_.shape.scalar);
  size_t part = 0;
  while (scalar >= form_.bytes(kMatrixParts[part]) / size) {
    scalar -= form_.bytes(kMatrixParts[part++]) / size;
  }
  return part < 2 ? RefuseInBlock(part == 0, scalar) : RefuseInBorder(part == 2, scalar);
}

absl::Status FiniteScanner::RefuseInBlock(bool diagonal, int64_t scalar) const {
  const int64_t n = form_.shape.block_size;
  const int64_t block_scalars =
      diagonal ? form_.diagonal_block_scalars() : form_.coupling_block_scalars();
  int64_t row = scalar % block_scalars;
  int64_t column = 0;
  if (diagonal && form_.diagonal == DiagonalForm::kPackedLower) {
    for (int64_t length = n; row >= length; --length, ++column) row -= length;
    row += column;
  } else {
    column = row / n;
    row %= n;
    if (diagonal && row < column) return absl::OkStatus();
  }
  return InvalidFieldError(absl::StrCat("system[", system_, diagonal ? "].diagonal" : "].coupling"),
                           absl::StrCat("NaN or infinity in block ", scalar / block_scalars,
                                        ", row ", row, ", column ", column),
                           "finite numbers");
}

absl::Status FiniteScanner::RefuseInBorder(bool border, int64_t scalar) const {
  int64_t row = scalar / form_.shape.rows(), column = scalar % form_.shape.rows();
  if (!border) {
    column = scalar / form_.border_rows;
    row = scalar % form_.border_rows;
    if (row < column) return absl::OkStatus();
  }
  return InvalidFieldError(absl::StrCat("system[", system_, border ? "].border" : "].corner"),
                           absl::StrCat("NaN or infinity in row ", row, ", column ", column),
                           "finite numbers");
}

namespace {

// `look` has each piece, and where it begins.
absl::Status LookThrough(std::span<const std::byte> bytes, MayGoOn may_go_on,
                         absl::FunctionRef<absl::Status(size_t, std::span<const std::byte>)> look) {
  for (size_t at = 0; at < bytes.size(); at += kScanBytes) {
    absl::Status status = may_go_on();
    if (status.ok()) status = look(at, bytes.subspan(at, std::min(kScanBytes, bytes.size() - at)));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckFiniteRhs(Scalar scalar, int64_t rows, std::span<const std::byte> rhs,
                            MayGoOn may_go_on) {
  return LookThrough(rhs, may_go_on, [&](size_t at, auto piece) {
    const int64_t first = static_cast<int64_t>(at) / ScalarBytes(scalar);
    const int64_t count = static_cast<int64_t>(piece.size()) / ScalarBytes(scalar);
    return ForEachNotFinite(scalar, piece.data(), count, [rows, first](int64_t i) {
      return InvalidFieldError("rhs",
                               absl::StrCat("NaN or infinity in row ", (first + i) % rows,
                                            ", right-hand side ", (first + i) / rows),
                               "finite numbers");
    });
  });
}

absl::Status CheckFiniteMatrix(const BlockTridiagonalView& matrix, int64_t system,
                               MayGoOn may_go_on) {
  const MatrixForm& form = matrix.form;
  FiniteScanner scanner(form, system);
  for (const MatrixPart part : kMatrixParts) {
    const std::span bytes(static_cast<const std::byte*>(matrix.part(part)),
                          static_cast<size_t>(form.bytes(part)));
    absl::Status status =
        LookThrough(bytes, may_go_on, [&](size_t, auto piece) { return scanner.Scan(piece); });
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace blockd::server
