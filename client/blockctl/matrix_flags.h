// The flags that name a matrix and what is wanted of it, and reading what they name.
#ifndef BLOCKD_CLIENT_BLOCKCTL_MATRIX_FLAGS_H_
#define BLOCKD_CLIENT_BLOCKCTL_MATRIX_FLAGS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockd/client/results.h"
#include "client/blockctl/blocks.h"

namespace blockd::blockctl {

const std::vector<std::string_view>& MatrixFlags();
bool MatrixGiven();
absl::StatusOr<Blocks> ReadMatrix();

// --accuracy; a usage error if it is neither standard nor guaranteed.
absl::StatusOr<client::Accuracy> AccuracyFromFlag();

// By the ending of the name: .npy or .mtx. A .mtx holds rows and columns, never block rows.
absl::StatusOr<Array> ReadRhs(const std::string& path);
// What `path` held, for a matrix of N blocks of n and a border of p rows. INVALID_ARGUMENT, naming
// the file, where its shape is none of such right-hand sides.
absl::StatusOr<Columns> RhsColumns(const std::string& path, const Array& array, int64_t num_blocks,
                                   int64_t block_size, int64_t arrow_size);
absl::Status WriteSolution(const std::string& path, const Columns& solution);
// A usage error unless the name ends in .npy or .mtx.
absl::Status CheckName(const std::string& path, const std::string& flag);

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_MATRIX_FLAGS_H_
