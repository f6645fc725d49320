// Arrowheads as the tests make them.
#ifndef BLOCKD_TESTS_ENGINE_ARROWHEAD_FIXTURE_H_
#define BLOCKD_TESTS_ENGINE_ARROWHEAD_FIXTURE_H_

#include <cstdint>
#include <memory>

#include "blockd/engine/arrowhead.h"
#include "tests/engine/solver_fixture.h"

namespace blockd::test {

// The numbers that the solver sees: chain, border and corner in one scalar type.
struct HostArrowhead {
  // Random, SPD. `slack`: about the eigenvalues of S, the corner's Schur complement. `scale`: row
  // and column r of the border are multiplied by scale^r.
  static HostArrowhead Random(int64_t num_blocks, int64_t n, int64_t p, Scalar scalar,
                              double slack = 1, double scale = 1);

  HostMatrix chain;
  int64_t p = 0;
  Columns border, corner;  // the corner's strict upper triangle is NaN

  int64_t rows() const { return chain.shape().rows() + p; }
  // A system of one block, for the oracles of a chain.
  HostMatrix Whole() const;
  BorderItem Item(std::shared_ptr<const Factorization> factorization);
};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_ENGINE_ARROWHEAD_FIXTURE_H_
