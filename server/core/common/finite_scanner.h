// FiniteScanner finds NaN and infinities in a matrix that arrives in pieces, cut anywhere: its
// diagonal blocks, its coupling blocks, its border and the border's corner. The strict upper
// triangles of full diagonal blocks and of the corner are not read, and so not looked at. One
// thread at a time.
#ifndef BLOCKD_SERVER_CORE_COMMON_FINITE_SCANNER_H_
#define BLOCKD_SERVER_CORE_COMMON_FINITE_SCANNER_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "blockd/engine/block_tridiagonal.h"

namespace blockd::server {

class FiniteScanner {
 public:
  FiniteScanner(const MatrixForm& form, int64_t system) : form_(form), system_(system) {}
  // One that begins at a diagonal or coupling block, as they are stored.
  static FiniteScanner AtBlock(const MatrixForm& form, int64_t system, bool diagonal,
                               int64_t block);
  // One that begins so many bytes into its system, at a scalar.
  static FiniteScanner AtByte(const MatrixForm& form, int64_t system, int64_t byte);

  // The next bytes of this system. INVALID_ARGUMENT with the field and the place.
  absl::Status Scan(std::span<const std::byte> bytes);

 private:
  absl::Status CheckScalars(const std::byte* scalars, int64_t count);
  // OK if the scalar at this place is not read.
  absl::Status Refuse(int64_t scalar) const;
  absl::Status RefuseInBlock(bool diagonal, int64_t scalar) const;
  absl::Status RefuseInBorder(bool border, int64_t scalar) const;

  MatrixForm form_;
  int64_t system_;
  int64_t scalars_ = 0;        // looked at so far
  std::byte partial_[8] = {};  // of a scalar that was cut
  size_t partial_bytes_ = 0;
};

// Asked before every few MiB of what a request holds: an error is the answer, and ends the look.
using MayGoOn = absl::FunctionRef<absl::Status()>;
inline constexpr size_t kScanBytes = size_t{4} << 20;

// The same for whole right-hand sides of `rows` scalars each.
absl::Status CheckFiniteRhs(Scalar scalar, int64_t rows, std::span<const std::byte> rhs,
                            MayGoOn may_go_on);
// The same for a whole matrix, `system` by its place in the request.
absl::Status CheckFiniteMatrix(const BlockTridiagonalView& matrix, int64_t system,
                               MayGoOn may_go_on);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_COMMON_FINITE_SCANNER_H_
