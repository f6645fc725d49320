#include "client/rpc/chunked_answer.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace blockd::client {

absl::Status WrongAnswer(const char* what) {
  return absl::InternalError(absl::StrCat("the server's answer has ", what));
}

bool ChunkPlaces::Take(const std::string& chunk) {
  for (size_t taken = 0; taken < chunk.size();) {
    if (full()) return false;
    std::span<std::byte>& place = places_[next_];
    const size_t size = std::min(place.size(), chunk.size() - taken);
    std::memcpy(place.data(), chunk.data() + taken, size);
    place = place.subspan(size);
    taken += size;
    if (place.empty()) ++next_;
  }
  return true;
}

}  // namespace blockd::client
