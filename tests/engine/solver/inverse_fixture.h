// Selected inverses as the tests ask for them.
#ifndef BLOCKD_TESTS_ENGINE_SOLVER_INVERSE_FIXTURE_H_
#define BLOCKD_TESTS_ENGINE_SOLVER_INVERSE_FIXTURE_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/engine/solver_fixture.h"

namespace blockd::test {

// Blocks of an inverse as the solver gives them.
struct Selected {
  std::vector<double> diagonal, coupling, border, corner;
  absl::Status status;

  friend bool operator==(const Selected& a, const Selected& b) {
    return a.diagonal == b.diagonal && a.coupling == b.coupling && a.border == b.border &&
           a.corner == b.corner;
  }
};

inline Selected Invert(Solver& solver, const InverseItem& item, Track track = Track::kFactor) {
  const Shape& shape = item.factorization->shape();
  const int64_t bytes = ScalarBytes(shape.scalar), p = item.factorization->border().rows();
  Columns diagonal(item.diagonal_bytes() / bytes, shape.scalar);
  Columns coupling(item.coupling_bytes() / bytes, shape.scalar);
  Columns border(item.num_blocks * shape.block_size * p, shape.scalar);
  Columns corner(p * p, shape.scalar);
  const InverseOutput output{diagonal.data(), coupling.data(), border.data(), corner.data()};
  Selected selected;
  selected.status = solver.SelectedInverse(item, output, track);
  selected.diagonal = diagonal.values();
  selected.coupling = coupling.values();
  selected.border = border.values();
  selected.corner = corner.values();
  return selected;
}

inline InverseItem All(std::shared_ptr<const Factorization> factorization,
                       InverseParts parts = InverseParts::kWithCouplings) {
  InverseItem item;
  item.num_blocks = factorization->shape().num_blocks;
  item.factorization = std::move(factorization);
  item.parts = parts;
  return item;
}

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_ENGINE_SOLVER_INVERSE_FIXTURE_H_
