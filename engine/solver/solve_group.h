// Right-hand sides that Solver::Solve is at. Private to the solver.
#ifndef BLOCKD_ENGINE_SOLVER_SOLVE_GROUP_H_
#define BLOCKD_ENGINE_SOLVER_SOLVE_GROUP_H_

#include <algorithm>
#include <cstdint>
#include <span>

#include "blockd/engine/solver.h"
#include "engine/solver/stopwatch.h"

namespace blockd {

// The items of one factorization, solved together: their columns stand side by side in x.
struct Solver::Group {
  const Factorization* factorization = nullptr;
  std::span<const size_t> items;
  int64_t columns = 0;
  bool residual = false;
  bool in_place = false;  // in the solution's own memory
  void* chains = nullptr;
  // Packed [block][column][n]; for residuals also a copy of B, B - A X, and the X that is tried.
  void *x = nullptr, *rhs = nullptr, *r = nullptr, *tried = nullptr;
  void* border = nullptr;  // with a border: p x columns doubles
  absl::Status status;

  int64_t border_rows() const { return factorization->border().rows(); }
  int64_t vector_bytes() const {
    const Shape& shape = factorization->shape();
    return shape.rows() * columns * ScalarBytes(shape.scalar);
  }
  // Where its memory is to be, in the order in which it is taken, and how much of it.
  template <typename Use>
  void ForPieces(const Use& use) {
    const EliminationPlan& plan = factorization->plan();
    use(&chains, plan.solve_chain_scalars(columns) * ScalarBytes(plan.shape().scalar));
    if (in_place) return;
    use(&x, vector_bytes());
    if (border_rows() > 0) use(&border, border_rows() * columns * int64_t{sizeof(double)});
    if (!residual) return;
    for (void** vector : {&rhs, &r, &tried}) use(vector, vector_bytes());
  }
  SolveSystem System(void* vectors) const {
    return {factorization->data(), vectors, columns, chains, factorization->substitutes()};
  }
};

// True if at least one of these items has not been cancelled.
inline bool AnyWanted(std::span<const SolveItem> items, std::span<const size_t> group) {
  return std::any_of(group.begin(), group.end(),
                     [items](size_t i) { return !IsCancelled(items[i].cancelled); });
}

}  // namespace blockd

#endif  // BLOCKD_ENGINE_SOLVER_SOLVE_GROUP_H_
