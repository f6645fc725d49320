#include "blockd/engine/samples.h"

#include <cmath>
#include <numbers>

namespace blockd {
namespace {

uint64_t Upper53(uint32_t low, uint32_t high) { return ((uint64_t{high} << 32) | low) >> 11; }

template <typename T>
void Fill(const Shape& shape, int64_t border_rows, uint64_t seed, uint64_t first_sample,
          int64_t samples, T* z) {
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(seed),
                                       static_cast<uint32_t>(seed >> 32)};
  const int64_t blocks = shape.num_blocks;
  for (int64_t s = 0; s < samples; ++s) {
    const uint64_t sample = first_sample + static_cast<uint64_t>(s);
    for (int64_t block = 0; block <= blocks; ++block) {
      const int64_t n = block < blocks ? shape.block_size : border_rows;
      for (int64_t row = 0; row < n; row += 2) {
        const std::array<uint32_t, 4> bits = Philox(
            {static_cast<uint32_t>(row / 2 + (block >> 32 << 16)), static_cast<uint32_t>(block),
             static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)},
            key);
        const double u1 = static_cast<double>(Upper53(bits[0], bits[1]) + 1) * 0x1p-53;
        const double u2 = static_cast<double>(Upper53(bits[2], bits[3])) * 0x1p-53;
        const double radius = std::sqrt(-2 * std::log(u1)), angle = 2 * std::numbers::pi * u2;
        z[row] = static_cast<T>(radius * std::cos(angle));
        if (row + 1 < n) z[row + 1] = static_cast<T>(radius * std::sin(angle));
      }
      z += n;
    }
  }
}

}  // namespace

std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr uint64_t kMultipliers[2] = {0xD2511F53, 0xCD9E8D57};
  constexpr uint32_t kSteps[2] = {0x9E3779B9, 0xBB67AE85};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = kMultipliers[0] * counter[0], b = kMultipliers[1] * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key = {key[0] + kSteps[0], key[1] + kSteps[1]};
  }
  return counter;
}

void StandardNormals(const Shape& shape, uint64_t seed, uint64_t first_sample, int64_t samples,
                     void* z, int64_t border_rows) {
  shape.scalar == Scalar::kFloat64
      ? Fill(shape, border_rows, seed, first_sample, samples, static_cast<double*>(z))
      : Fill(shape, border_rows, seed, first_sample, samples, static_cast<float*>(z));
}

}  // namespace blockd
