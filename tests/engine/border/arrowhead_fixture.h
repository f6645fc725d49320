// Arrowheads as the tests make them.
#ifndef BLOCKD_TESTS_ENGINE_BORDER_ARROWHEAD_FIXTURE_H_
#define BLOCKD_TESTS_ENGINE_BORDER_ARROWHEAD_FIXTURE_H_

#include <cstdint>

#include "tests/engine/solver_fixture.h"

namespace blockd::test {

// Random, SPD. `slack`: about the eigenvalues of S, the corner's Schur complement. `scale`: row and
// column r of the border are multiplied by scale^r. The corner's strict upper triangle is NaN.
HostMatrix RandomArrowhead(int64_t num_blocks, int64_t n, int64_t p, Scalar scalar,
                           double slack = 1, double scale = 1);
// The same as one dense block, for the oracles of a chain.
HostMatrix Whole(const HostMatrix& arrowhead);

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_ENGINE_BORDER_ARROWHEAD_FIXTURE_H_
