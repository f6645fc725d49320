// A block-tridiagonal matrix in the client's canonical layout, made from what files hold.
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

  client::SystemView view() const;  // valid while this lives
};

// From arrays of shape (N, n, n) and (N-1, n, n) in either order. `superdiagonal`: the coupling
// blocks are A(i,i+1). `coupling` may be null for N = 1. INVALID_ARGUMENT where shapes or types do
// not agree.
absl::StatusOr<Blocks> BlocksFromArrays(const Array& diagonal, const Array* coupling,
                                        bool superdiagonal);

// From a whole sparse matrix. A block size of 0 takes the smallest that makes it block tridiagonal.
// INVALID_ARGUMENT where the size does not divide the rows, or an entry falls outside of the blocks
// (naming it), or the dense blocks would not fit into this machine's memory.
absl::StatusOr<Blocks> BlocksFromSparse(const SparseMatrix& matrix, int64_t block_size);

// The smallest n that divides the rows and makes the matrix block tridiagonal; all rows where no n
// that a server takes does.
int64_t DetectBlockSize(const SparseMatrix& matrix);

// Columns of right-hand sides or solutions, column-major.
struct Columns {
  client::Scalar scalar = client::Scalar::kFloat64;
  int64_t rows = 0;            // N n
  int64_t count = 0;           // d
  std::vector<int64_t> shape;  // that they came in
  std::vector<std::byte> data;

  Array ToArray() const;   // of the shape they came in
  Array ToMatrix() const;  // of shape (rows, d), Fortran order
};

// From an array of shape (N n,) or (N n, d), or by block rows, (N, n) or (N, n, d), in either
// order. INVALID_ARGUMENT for any other shape: as many numbers in other places are another problem.
absl::StatusOr<Columns> ColumnsFromArray(const Array& array, int64_t num_blocks,
                                         int64_t block_size);

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_BLOCKS_H_
