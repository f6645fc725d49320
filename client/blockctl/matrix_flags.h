// The flags that name a matrix and what is wanted of it, and reading what they name.
#ifndef BLOCKD_CLIENT_BLOCKCTL_MATRIX_FLAGS_H_
#define BLOCKD_CLIENT_BLOCKCTL_MATRIX_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockd/client/results.h"
#include "client/blockctl/formats/blocks.h"

namespace blockd::blockctl {

const std::vector<std::string_view>& MatrixFlags();
bool MatrixGiven();
absl::StatusOr<Blocks> ReadMatrix();

// --accuracy; a usage error if it is neither standard nor guaranteed.
absl::StatusOr<client::Accuracy> AccuracyFromFlag();

// By the ending of the name: .npy or .mtx. A .mtx holds rows and columns, never block rows.
absl::StatusOr<Array> ReadRhs(const std::string& path);
// A matrix of N blocks of n, the last `padding` rows of which are none of its own, and a border of
// p.
struct MatrixShape {
  int64_t num_blocks = 0, block_size = 0, arrow_size = 0, padding = 0;

  int64_t padding_row() const { return num_blocks * block_size - padding; }
};
// The array that `path` held, as right-hand sides of such a matrix; without padding.
// INVALID_ARGUMENT, naming the file, if its shape is not that of such right-hand sides.
absl::StatusOr<Columns> RhsColumns(const std::string& path, const Array& array,
                                   const MatrixShape& shape);
// log det A, of what the server says of the blocks.
std::optional<double> WithoutPadding(const Blocks& blocks, std::optional<double> log_determinant);
// The same status, saying which matrix did not fit where it is that the server's memory was short.
absl::Status OfMatrix(const Blocks& blocks, const absl::Status& status);
absl::Status WriteSolution(const std::string& path, const Columns& solution);
// A usage error unless the name ends in .npy or .mtx.
absl::Status CheckName(const std::string& path, const std::string& flag);

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_MATRIX_FLAGS_H_
