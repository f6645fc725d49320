// A file that the server reads whole while signals wait: one that may keep it waiting is refused.
#ifndef BLOCKD_SERVER_IDENTITY_SMALL_FILE_H_
#define BLOCKD_SERVER_IDENTITY_SMALL_FILE_H_

#include <cstddef>
#include <optional>
#include <string>

namespace blockd::server {

// The file's bytes, of a longer file the first `max_bytes` + 1. Nothing if it cannot be read or is
// no regular file: a pipe blocks until somebody writes to it.
std::optional<std::string> ReadSmallFile(const std::string& path, size_t max_bytes);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_IDENTITY_SMALL_FILE_H_
