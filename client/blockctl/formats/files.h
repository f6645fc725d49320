// Whole files, with messages that name them.
#ifndef BLOCKD_CLIENT_BLOCKCTL_FORMATS_FILES_H_
#define BLOCKD_CLIENT_BLOCKCTL_FORMATS_FILES_H_

#include <initializer_list>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace blockd::blockctl {

absl::StatusOr<std::string> ReadFile(const std::string& path);
// Writes beside it and renames, so that no reader, and no interrupted run, sees half a file.
absl::Status WriteFile(const std::string& path, std::initializer_list<std::string_view> parts);
// The same status, its message beginning with the path.
absl::Status InFile(const std::string& path, const absl::Status& status);

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_FORMATS_FILES_H_
