#include "server/core/handle.h"

#include <sys/random.h>

#include <cstdlib>
#include <cstring>

namespace blockd::server {
namespace {

// A machine without random bytes cannot name handles that nobody guesses: nothing to fall back on.
void FillRandom(char* out, size_t bytes) {
  if (getentropy(out, bytes) != 0) std::abort();
}

const std::array<char, Handle::kEpochBytes>& Epoch() {
  static const std::array<char, Handle::kEpochBytes> epoch = [] {
    std::array<char, Handle::kEpochBytes> random{};
    FillRandom(random.data(), random.size());
    return random;
  }();
  return epoch;
}

}  // namespace

Handle Handle::Random() {
  Handle handle;
  FillRandom(handle.bytes.data(), kIdBytes);
  std::memcpy(handle.bytes.data() + kIdBytes, Epoch().data(), kEpochBytes);
  return handle;
}

std::string Handle::ProcessEpoch() { return std::string(Epoch().data(), kEpochBytes); }

std::optional<Handle> Handle::FromBytes(std::string_view bytes) {
  if (bytes.size() != kBytes) return std::nullopt;
  Handle handle;
  std::memcpy(handle.bytes.data(), bytes.data(), kBytes);
  return handle;
}

bool Handle::of_this_process() const {
  return std::memcmp(bytes.data() + kIdBytes, Epoch().data(), kEpochBytes) == 0;
}

std::string Handle::hex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * kBytes);
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

}  // namespace blockd::server
