// Matrix Market files: coordinate (real or integer, general or symmetric) or array (symmetric) for
// matrices, array (general) for right-hand sides and solutions. Exponents may be Fortran's.
#ifndef BLOCKD_CLIENT_BLOCKCTL_FORMATS_MATRIX_MARKET_H_
#define BLOCKD_CLIENT_BLOCKCTL_FORMATS_MATRIX_MARKET_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/blockctl/formats/array.h"

namespace blockd::blockctl {

struct Entry {
  int64_t row = 0;  // from 0
  int64_t column = 0;
  double value = 0;
};

// A symmetric matrix: its lower triangle, sorted by column and row, each place once.
struct SparseMatrix {
  int64_t rows = 0;
  std::vector<Entry> entries;
};

// INVALID_ARGUMENT with the line where the file is wrong, which includes the second triangle of a
// symmetric file, and for a general matrix that is not symmetric, the place where it is not. The
// triangles of a general matrix may differ by rounding; the lower one counts.
absl::StatusOr<SparseMatrix> ReadSparse(const std::string& path);
absl::StatusOr<SparseMatrix> ParseSparse(std::string_view text);

// Columns of numbers: shape (rows, columns), Fortran order, float64.
absl::StatusOr<Array> ReadColumns(const std::string& path);
absl::StatusOr<Array> ParseColumns(std::string_view text);
// `array` has one or two dimensions and is in Fortran order.
absl::Status WriteColumns(const std::string& path, const Array& array);

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_FORMATS_MATRIX_MARKET_H_
