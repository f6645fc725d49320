// Random numbers of probes: the same ones for every system, of no use but to measure with.
#ifndef BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_DRAWS_H_
#define BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_DRAWS_H_

#include <cstdint>

#include "engine/smoother/orthogonal/numbers.h"

namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE {

// Numbers of 1/2 to 3/2 with either sign: independent, mean 0, variance 13/12, and never next to
// zero, as normal ones may be, so that a few of them see every error. SplitMix64 (Steele, Lea and
// Flood, Fast splittable pseudorandom number generators, 2014).
class Draws {
 public:
  Four Next() {
    const uint64_t bits = NextBits();
    Four numbers;
    for (int k = 0; k < kLanes; ++k) {
      const auto part = static_cast<int32_t>((bits >> (16 * k)) & 0xFFFF);
      const double size = 0.5 + (part >> 1) * 0x1p-15;
      numbers[k] = (part & 1) != 0 ? size : -size;
    }
    return numbers;
  }

 private:
  uint64_t NextBits() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  uint64_t state_ = 1;
};

}  // namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_DRAWS_H_
