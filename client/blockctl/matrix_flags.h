// The flags that name a matrix, and reading what they name.
#ifndef BLOCKD_CLIENT_BLOCKCTL_MATRIX_FLAGS_H_
#define BLOCKD_CLIENT_BLOCKCTL_MATRIX_FLAGS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/blockctl/blocks.h"

namespace blockd::blockctl {

const std::vector<std::string_view>& MatrixFlags();
bool MatrixGiven();
absl::StatusOr<Blocks> ReadMatrix();

// By the ending of the name: .npy or .mtx.
absl::StatusOr<Columns> ReadRhs(const std::string& path);
absl::Status WriteSolution(const std::string& path, const Columns& solution);
// A usage error unless the name ends in .npy or .mtx.
absl::Status CheckName(const std::string& path, const std::string& flag);

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_MATRIX_FLAGS_H_
