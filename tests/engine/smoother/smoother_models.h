// Linear Gaussian models that people fit, and models built to break a smoother.
#ifndef BLOCKD_TESTS_ENGINE_SMOOTHER_SMOOTHER_MODELS_H_
#define BLOCKD_TESTS_ENGINE_SMOOTHER_SMOOTHER_MODELS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "blockd/engine/smooth_model.h"

namespace blockd::test {

// Arrays column-major; all are constant but H, which may be one a step.
struct NamedModel {
  std::string name = {};
  int64_t states = 1, outputs = 1;
  std::vector<double> f = {}, q = {}, h = {}, r = {}, m = {}, p = {}, c = {}, d = {}, y = {};
  std::vector<double> g = {};  // diffuse directions, beside m and p
  bool h_per_step = false;
  bool diffuse = false;

  int64_t steps() const { return std::ssize(y) / outputs; }
  SmoothParams params() const;
};

// Trends with priors to 1e24; constant acceleration to 10 kHz and a level of 5e6; regressions with
// little or no noise; ARMA without noise of the observation; seasonal; dynamic factors; Q of rank
// one; R singular, nearly singular and zero; gaps and tails of unstable models; diffuse starts;
// mixed units; sensors that are nearly the same.
std::vector<NamedModel> SmootherFamilies();

// A random small model, built to break: integrators at a rate, unstable modes, scales of 1e-3 to
// 1e3, covariances of low rank, priors of 1e-4 to 1e16, nearly equal sensors, gaps.
NamedModel HostileModel(uint64_t seed);

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_ENGINE_SMOOTHER_SMOOTHER_MODELS_H_
