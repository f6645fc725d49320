// Records of the forward pass: each element of y and each step. Numbers lie in the arrays of the
// factorization, by their places.
#ifndef BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_FACTORED_STEP_H_
#define BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_FACTORED_STEP_H_

#include <cstdint>

#include "engine/smoother/orthogonal/numbers.h"
#include "engine/smoother/orthogonal/reflection.h"

namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE {

// An element of y. Where it is observed its coordinate is known and leaves: it goes to the front,
// and the last one takes its place. Where a diffuse direction is seen that direction leaves
// instead.
template <typename N>
struct Elimination {
  enum class Kind { kObserved, kDiffuse, kSkipped };
  Kind kind = Kind::kObserved;
  bool has_noise = false;      // the last coordinate is its own noise, which came with it
  int32_t row = 0;             // of y
  int64_t coordinates = 0;     // of xi that it turns, its own noise included
  Reflection<N> reflection;    // where it is observed
  typename N::Scalar scale{};  // s, of a diffuse direction h D_j
  int64_t column = 0;          // where x's change for a unit of the innovation is, and v's
  double terms = 0;            // of a row that was skipped: what it is the difference of
  // Where a diffuse direction is seen:
  int64_t directions = 0;   // before it
  int64_t direction = 0;    // which
  int64_t multipliers = 0;  // h D_j / s of each direction
  int64_t noise_row = 0;    // [h X, S_i] / s
};

template <typename N>
struct FactoredStep {
  // Before the observations:
  int64_t coordinates = 0, directions = 0;
  int64_t x = 0, d = 0;  // where X and D are
  int64_t scales = 0;    // n: the sizes of x's rows, for what is nothing beside them
  // The observations:
  int64_t first_elimination = 0, last_elimination = 0;
  int64_t noises = 0;  // of the observation, that are coordinates from the start
  // After them:
  int64_t known_coordinates = 0, known_directions = 0;
  int64_t known_x = 0, known_d = 0;
  // The step in time:
  int64_t first_reflection = 0, last_reflection = 0;
  int64_t transition_noises = 0;
  int64_t turned() const { return known_coordinates + transition_noises; }
};

}  // namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_FACTORED_STEP_H_
