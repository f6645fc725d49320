// A block-tridiagonal matrix, or an arrowhead, in the client's canonical layout, made from what
// files hold.
#ifndef BLOCKD_CLIENT_BLOCKCTL_FORMATS_BLOCKS_H_
#define BLOCKD_CLIENT_BLOCKCTL_FORMATS_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "blockd/client/system.h"
#include "client/blockctl/formats/array.h"
#include "client/blockctl/formats/matrix_market.h"

namespace blockd::blockctl {

// Full diagonal blocks and subdiagonal coupling blocks, column-major.
struct Blocks {
  int64_t num_blocks = 0;
  int64_t block_size = 0;
  client::Scalar scalar = client::Scalar::kFloat64;
  std::vector<std::byte> diagonal;
  std::vector<std::byte> coupling;
  int64_t arrow_size = 0;  // p, rows of the border
  std::vector<std::byte> border, corner;
  // Rows at the end of the last block that the matrix does not have: they fill it up, and have
  // `padding_value` on their diagonal and nothing else.
  int64_t padding = 0;
  double padding_value = 1;

  // The rows of the matrix, without padding.
  int64_t rows() const { return num_blocks * block_size + arrow_size - padding; }
  double padding_log_determinant() const;
  client::SystemView view() const;  // valid while this lives
};

// From arrays of shape (N, n, n) and (N-1, n, n) in either order. `superdiagonal`: the coupling
// blocks are A(i,i+1). `coupling` may be null for N = 1. INVALID_ARGUMENT where shapes or types do
// not agree.
absl::StatusOr<Blocks> BlocksFromArrays(const Array& diagonal, const Array* coupling,
                                        bool superdiagonal);
// Adds a border: its rows, of shape (p, N n), and its corner, (p, p).
absl::Status AddBorder(const Array& border, const Array& corner, Blocks* blocks);

// From a whole sparse matrix, whose last `arrow_size` rows are a border. A block size of 0 takes
// that of DetectBlockSize for what is before them, and pads the last block. INVALID_ARGUMENT where
// a size that is given does not divide the rows, or an entry falls outside of the blocks (naming
// it), or the dense blocks would not fit into this machine's memory.
absl::StatusOr<Blocks> BlocksFromSparse(const SparseMatrix& matrix, int64_t block_size,
                                        int64_t arrow_size = 0);

// The smallest n that makes the matrix block tridiagonal, or the smallest divisor of the rows that
// does, if that is no more than twice as large. At least half of the band where no n that a server
// takes does.
int64_t DetectBlockSize(const SparseMatrix& matrix);

// Columns of right-hand sides or solutions, column-major.
struct Columns {
  client::Scalar scalar = client::Scalar::kFloat64;
  int64_t rows = 0;            // N n + p
  int64_t count = 0;           // d
  std::vector<int64_t> shape;  // that they came in
  std::vector<std::byte> data;

  Array ToArray() const;   // of the shape they came in
  Array ToMatrix() const;  // of shape (rows, d), Fortran order

  // The same with `more` rows of zeros before the row `at`, and without `fewer` rows from there on.
  Columns WithRows(int64_t at, int64_t more) const;
  Columns WithoutRows(int64_t at, int64_t fewer) const;
};

// "N*n = 12", as messages say how many rows there are.
std::string RowsText(int64_t rows, int64_t arrow_size, int64_t padding);

// From an array of shape (rows,) or (rows, d), where rows is N n + p without padding, or, where p
// and the padding are 0, by block rows, (N, n) or (N, n, d), in either order. INVALID_ARGUMENT for
// any other shape: as many numbers in other places are another problem.
absl::StatusOr<Columns> ColumnsFromArray(const Array& array, int64_t num_blocks, int64_t block_size,
                                         int64_t arrow_size = 0, int64_t padding = 0);

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_FORMATS_BLOCKS_H_
