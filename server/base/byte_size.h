// A number of bytes as a flag: "8GiB", "512MiB", "64k", "1048576".
#ifndef BLOCKD_SERVER_BASE_BYTE_SIZE_H_
#define BLOCKD_SERVER_BASE_BYTE_SIZE_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace blockd::server {

struct ByteSize {
  int64_t bytes = 0;
  friend bool operator==(const ByteSize&, const ByteSize&) = default;
};

// For absl::flags. Units: B, KiB, MiB, GiB, TiB (powers of 1024; k, M, G, T and KB, MB, GB, TB mean
// the same), upper or lower case, with or without a space before; fractions as in "1.5GiB".
bool AbslParseFlag(absl::string_view text, ByteSize* size, std::string* error);
std::string AbslUnparseFlag(const ByteSize& size);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_BASE_BYTE_SIZE_H_
