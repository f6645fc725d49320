// Standard normal numbers that depend on where they stand and on nothing else: not on the plan, the
// backend, the batch or the threads.
//
// z of (seed, sample, block, row) comes of Philox 4x32-10, a counter-based generator (Salmon,
// Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3, 2011). Its key is the seed; its
// counter, low word first, is row / 2 + 2^16 (block / 2^32), block mod 2^32, and the sample's two
// words. The words 0 and 1 of what it gives, and 2 and 3, low word first, are two numbers of which
// the upper 53 bits count: u1 = (a + 1) / 2^53 and u2 = b / 2^53. Of them Box and Muller's method
// makes z of the even row, sqrt(-2 log u1) cos(2 pi u2), and of the odd one, with the sine. That is
// done in double, on the host, by the C library's functions, and rounded for float32.
//
// Functions may be called from any thread.
#ifndef BLOCKD_ENGINE_SAMPLES_H_
#define BLOCKD_ENGINE_SAMPLES_H_

#include <array>
#include <cstdint>

#include "blockd/engine/block_tridiagonal.h"

namespace blockd {

// Philox 4x32-10.
std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// z of samples [first_sample, first_sample + samples): (Nn + p) x samples, column-major, host
// memory. The p rows of a border are those of block N.
void StandardNormals(const Shape& shape, uint64_t seed, uint64_t first_sample, int64_t samples,
                     void* z, int64_t border_rows = 0);

}  // namespace blockd

#endif  // BLOCKD_ENGINE_SAMPLES_H_
