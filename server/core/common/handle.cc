#include "server/core/common/handle.h"

#include <sys/random.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/strings/escaping.h"

namespace blockd::server {
namespace {

// A machine without random bytes cannot name handles that nobody guesses: nothing to fall back on.
void FillRandom(char* out, size_t bytes) {
  if (getentropy(out, bytes) != 0) std::abort();
}

// FNV-1a: the same in every build, which std::hash does not promise.
uint32_t HashOf(std::string_view text) {
  uint32_t hash = 2166136261u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash;
}

}  // namespace

Epoch Epoch::Start(std::string_view server_name) {
  Epoch epoch;
  const uint32_t hash = HashOf(server_name);
  for (size_t i = 0; i < kNameBytes; ++i) epoch.bytes[i] = static_cast<char>(hash >> (8 * i));
  FillRandom(epoch.bytes.data() + kNameBytes, kBytes - kNameBytes);
  return epoch;
}

Handle Handle::Random(const Epoch& epoch, uint8_t shard) {
  Handle handle;
  FillRandom(handle.bytes.data(), kIdBytes - 1);
  handle.bytes[kIdBytes - 1] = static_cast<char>(shard);
  std::memcpy(handle.bytes.data() + kIdBytes, epoch.bytes.data(), Epoch::kBytes);
  return handle;
}

std::optional<Handle> Handle::FromBytes(std::string_view bytes) {
  if (bytes.size() != kBytes) return std::nullopt;
  Handle handle;
  std::memcpy(handle.bytes.data(), bytes.data(), kBytes);
  return handle;
}

Epoch Handle::epoch() const {
  Epoch epoch;
  std::memcpy(epoch.bytes.data(), bytes.data() + kIdBytes, Epoch::kBytes);
  return epoch;
}

std::string Handle::hex(size_t first_bytes) const {
  return absl::BytesToHexString({bytes.data(), std::min(first_bytes, bytes.size())});
}

}  // namespace blockd::server
