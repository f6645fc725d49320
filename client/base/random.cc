#include "client/base/random.h"

#include <cstdint>

#include "absl/random/random.h"

namespace blockd::client {

double UniformRandom() {
  absl::BitGen generator;
  return absl::Uniform(generator, 0.0, 1.0);
}

std::string RandomBytes(size_t count) {
  absl::BitGen generator;
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(absl::Uniform<uint8_t>(generator));
  return bytes;
}

}  // namespace blockd::client
