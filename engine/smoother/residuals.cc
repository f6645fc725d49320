#include "engine/smoother/residuals.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/smoother/dense.h"

namespace blockd {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

}  // namespace

int64_t WriteErrors(const SmoothParams& params, const MissingPatterns::Mask& mask, int64_t series,
                    int64_t step, const double* x, double* errors) {
  const int64_t n = params.state_size, ny = params.observation_size;
  const int64_t count = std::ssize(mask.rows);
  const double* const y = params.observations.data() + (series * params.num_steps + step) * ny;
  for (int64_t i = 0; i < count; ++i) errors[i] = y[mask.rows[i]];
  if (!params.observation_offset.values.empty()) {
    const double* const d = params.observation_offset.At(step, ny);
    for (int64_t i = 0; i < count; ++i) errors[i] -= d[mask.rows[i]];
  }
  if (x == nullptr) return count;
  const double* const h = params.observation.At(step, ny * n);
  if (count == ny) {
    AddProduct(ny, n, -1, h, x, errors);
    return count;
  }
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < count; ++i) errors[i] -= h[j * ny + mask.rows[i]] * x[j];
  }
  return count;
}

void WriteResidualVariances(const SmoothParams& params, const MissingPatterns::Mask& mask,
                            int64_t step, const double* covariance, double* scratch,
                            double* variances) {
  const int64_t n = params.state_size, ny = params.observation_size;
  constexpr double kEps = std::numeric_limits<double>::epsilon();
  const double* const h = params.observation.At(step, ny * n);
  const double* const r = params.observation_covariance.At(step, ny * ny);
  const int64_t count = std::ssize(mask.rows);
  double* const rows = scratch;  // of H', each a column
  double* const products = scratch + n * ny;
  for (int64_t k = 0; k < count; ++k) {
    for (int64_t j = 0; j < n; ++j) rows[k * n + j] = h[j * ny + mask.rows[k]];
  }
  Multiply(n, n, count, covariance, rows, products);
  std::fill_n(variances, ny, kNan);
  for (int64_t k = 0; k < count; ++k) {
    double taken = 0;
    for (int64_t j = 0; j < n; ++j) taken += rows[k * n + j] * products[k * n + j];
    const double own = r[mask.rows[k] * ny + mask.rows[k]];
    const double left = own - taken;
    if (left > static_cast<double>(4 * n) * kEps * own) variances[mask.rows[k]] = left;
  }
}

void WriteStandardized(const SmoothParams& params, const MissingPatterns::Mask& mask,
                       const double* errors, const double* variances, double* residuals) {
  std::fill_n(residuals, params.observation_size, kNan);
  for (size_t i = 0; i < mask.rows.size(); ++i) {
    residuals[mask.rows[i]] = errors[i] / std::sqrt(variances[mask.rows[i]]);
  }
}

}  // namespace blockd
