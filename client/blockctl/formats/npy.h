// NumPy's .npy files: versions 1 to 3, C and Fortran order, little-endian float32 and float64, and
// booleans, as 0 and 1 in float64.
#ifndef BLOCKD_CLIENT_BLOCKCTL_FORMATS_NPY_H_
#define BLOCKD_CLIENT_BLOCKCTL_FORMATS_NPY_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/blockctl/formats/array.h"

namespace blockd::blockctl {

// INVALID_ARGUMENT, saying what is wrong with the file and how to mend it.
absl::StatusOr<Array> ReadNpy(const std::string& path);
absl::StatusOr<Array> ParseNpy(std::string_view bytes);
// The header, version 1, and then the data.
absl::Status WriteNpy(const std::string& path, const Array& array);

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_FORMATS_NPY_H_
