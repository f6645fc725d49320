// The orthogonal smoother, run on a model.
#ifndef BLOCKD_TESTS_ENGINE_SMOOTHER_ORTHOGONAL_RUN_H_
#define BLOCKD_TESTS_ENGINE_SMOOTHER_ORTHOGONAL_RUN_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "blockd/engine/orthogonal_smoother.h"
#include "tests/engine/smoother/smoother_models.h"
#include "tests/support/classical_smoother.h"

namespace blockd::test {

inline constexpr double kUnit = 0x1p-52;  // of a double's last place

// A model and all of its results.
struct Smoothed {
  explicit Smoothed(const SmoothParams& params) {
    auto measured = MeasureSmooth(params, {});
    status = measured.status();
    if (!status.ok()) return;
    const SmoothSizes& sizes = measured->sizes;
    means.resize(static_cast<size_t>(sizes.means));
    covariances.resize(static_cast<size_t>(sizes.covariances));
    lag_one.resize(static_cast<size_t>(sizes.lag_one));
    residuals.resize(static_cast<size_t>(sizes.residuals));
    samples.resize(static_cast<size_t>(sizes.samples));
    likelihoods.resize(params.log_likelihood ? static_cast<size_t>(params.num_series) : 0);
    std::vector<std::span<double>> spans;
    for (size_t i = 0; i < params.outputs.size(); ++i) {
      std::vector<double>& own = outputs[params.outputs[i]];
      own.resize(static_cast<size_t>(sizes.outputs[i]));
      spans.emplace_back(own);
    }
    auto smoother = OrthogonalSmoother::Make(*measured);
    status = smoother.status();
    if (!status.ok()) return;
    const size_t systems = (*smoother)->systems();
    const auto part = [systems](std::vector<double>& all, size_t s) {
      const size_t each = all.size() / systems;
      return std::span<double>(all).subspan(s * each, each);
    };
    for (size_t s = 0; s < systems; ++s) {
      const auto outcome = (*smoother)->Smooth(s, {.means = means,
                                                   .covariances = part(covariances, s),
                                                   .lag_one = part(lag_one, s),
                                                   .residuals = residuals,
                                                   .samples = samples,
                                                   .log_likelihood = likelihoods,
                                                   .outputs = spans});
      status.Update(outcome.status());
      if (!outcome.ok()) return;
      form = std::max(form, outcome->form);
      errors = outcome->errors;
    }
  }

  absl::Status status;
  SmoothForm form = SmoothForm::kInformation;
  SmoothErrors errors;
  std::vector<double> means, covariances, lag_one, residuals, samples, likelihoods;
  std::map<SmoothOutput, std::vector<double>> outputs;
};

// The reference of a model of one series, computed once: it takes most of the time of a test.
inline const ClassicalSmoother& TruthOf(const NamedModel& model) {
  static auto& known = *new std::map<std::string, ClassicalSmoother>;
  const auto found = known.find(model.name);
  if (found != known.end()) return found->second;
  const ClassicalSmoother truth(model.params(), 0, kDiffuse, ClassicalSmoother::Digits::k230);
  return known.emplace(model.name, truth).first->second;
}

// The sizes of what the states' deviations are differences of: predicted ones that are not
// diffuse, of which half goes on.
inline std::vector<double> SizesOf(const SmoothParams& params, const ClassicalSmoother& truth) {
  const int64_t n = params.state_size;
  std::vector<double> sizes(static_cast<size_t>(n * params.num_steps));
  for (int64_t t = 0; t < params.num_steps; ++t) {
    for (int64_t i = 0; i < n; ++i) {
      double before = 0;
      for (int64_t j = 0; j < n && t > 0; ++j) {
        const double f = params.transition.At(t - 1, n * n)[j * n + i];
        before += 0.5 * std::fabs(f) * sizes[(t - 1) * n + j];
      }
      const long double variance = truth.predicted_covariances[(t * n + i) * n + i];
      const auto own = static_cast<double>(std::sqrt(std::max(0.0L, variance)));
      sizes[t * n + i] = variance > kLeastDiffuse ? before : std::max(own, before);
    }
  }
  return sizes;
}

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_ENGINE_SMOOTHER_ORTHOGONAL_RUN_H_
