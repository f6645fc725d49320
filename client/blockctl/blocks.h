// A block-tridiagonal matrix, or an arrowhead, in the client's canonical layout, made from what
// files hold.
#ifndef BLOCKD_CLIENT_BLOCKCTL_BLOCKS_H_
#define BLOCKD_CLIENT_BLOCKCTL_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "blockd/client/system.h"
#include "client/blockctl/array.h"
#include "client/blockctl/matrix_market.h"

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

  int64_t rows() const { return num_blocks * block_size + arrow_size; }
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
// the smallest that makes what is before them block tridiagonal. INVALID_ARGUMENT where the size
// does not divide the rows, or an entry falls outside of the blocks (naming it), or the dense
// blocks would not fit into this machine's memory.
absl::StatusOr<Blocks> BlocksFromSparse(const SparseMatrix& matrix, int64_t block_size,
                                        int64_t arrow_size = 0);

// The smallest n that divides the rows and makes the matrix block tridiagonal; all rows where no n
// that a server takes does.
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
};

// From an array of shape (N n + p,) or (N n + p, d), or, where p is 0, by block rows, (N, n) or
// (N, n, d), in either order. INVALID_ARGUMENT for any other shape: as many numbers in other places
// are another problem.
absl::StatusOr<Columns> ColumnsFromArray(const Array& array, int64_t num_blocks, int64_t block_size,
                                         int64_t arrow_size = 0);

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_BLOCKS_H_
