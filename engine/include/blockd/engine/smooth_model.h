// A linear Gaussian model, series that were observed of it, and the results that are wanted.
//
//   x(1) ~ N(m, P), or diffuse in whole or in part;  x(t+1) = F x(t) + c + w, w ~ N(0, Q);  y(t) =
//   H x(t) + d + v, v ~ N(0, R).
//
// Plain data and pure functions.
#ifndef BLOCKD_ENGINE_SMOOTH_MODEL_H_
#define BLOCKD_ENGINE_SMOOTH_MODEL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace blockd {

// Matrices of one kind, column-major, in host memory: one for all steps, or one a step.
struct ModelArray {
  std::span<const double> values;  // empty: absent
  bool per_step = false;

  // The matrix of a step, of so many numbers.
  const double* At(int64_t step, int64_t size) const {
    return values.data() + (per_step ? step * size : 0);
  }
};

enum class SmoothedCovariances { kNone, kVariances, kFull };

// Which arithmetic gives the numbers: smoother.h, or orthogonal_smoother.h in double or
// double-double.
enum class SmoothForm { kInformation = 1, kOrthogonal, kOrthogonalInDoubleDouble };

// Results beside the smoothed states, in orthogonal form alone. Where nothing is known of an
// element of the state, since it was diffuse and y did not tell it yet, its mean and covariances
// are NaN and its variance is infinite. Covariances are whole or diagonals, as
// SmoothParams.covariances says, and whole if it says none.
enum class SmoothOutput {
  kFilteredMeans = 1,     // of x(t) given y(1), ..., y(t): nx x T x K
  kFilteredCovariances,   // nx x nx x T x S, or nx x T x S
  kPredictedMeans,        // of x(t) given y(1), ..., y(t-1): nx x T x K
  kPredictedCovariances,  // as those
  // Standardized one-step-ahead residuals, ny x T x K, by Cholesky's factor in y's order: N(0, I).
  // NaN where y is missing and where the variance is zero or infinite.
  kInnovations,
  kLogLikelihoodSteps,  // log p(y(t) | y(1), ..., y(t-1)): T x K
  // A new H x(t) + d + v given all of y, where v ~ N(0, R) is a noise of its own:
  kObservationMeans,        // ny x T x K
  kObservationCovariances,  // ny x ny x T x S, or ny x T x S
  // Means of w(t), nx x (T-1) x K, and v(t), ny x T x K, given all of y, and over their own
  // standard deviations (Durbin and Koopman, 2nd ed. 2012, 7.5). NaN where these are zero; of v
  // where y is missing. A v(i) with R(i,i) = 0 is zero, its standardized one the limit of a small
  // R(i,i).
  kStateDisturbances,
  kObservationDisturbances,
  kStandardizedStateDisturbances,
  kStandardizedObservationDisturbances,
  // The score: the gradient of the log-likelihood with respect to F, Q, H, R, c, d, m and P, of
  // each series in the shape of the array: one, the sum over the steps, or one a step. Those of Q,
  // R and P are symmetric: of G the log-likelihood changes by the sum of G(i,j) dQ(i,j) over all i
  // and j.
  kScoreTransition,
  kScoreTransitionCovariance,
  kScoreObservation,
  kScoreObservationCovariance,
  kScoreTransitionOffset,
  kScoreObservationOffset,
  kScoreInitialMean,
  kScoreInitialCovariance,
};
inline constexpr int kNumSmoothOutputs = 20;

struct SmoothParams {
  int64_t num_steps = 0;                           // T
  int64_t state_size = 0;                          // nx
  int64_t observation_size = 0;                    // ny
  int64_t num_series = 1;                          // K
  ModelArray transition, transition_covariance;    // F, Q: nx x nx, T-1 steps; empty if T = 1
  ModelArray observation, observation_covariance;  // H: ny x nx, R: ny x ny, T steps
  ModelArray transition_offset;                    // c: nx, T-1 steps
  ModelArray observation_offset;                   // d: ny, T steps
  bool diffuse = false;
  std::span<const double> initial_mean, initial_covariance;  // m, P; unless diffuse
  // G: nx x q, unless diffuse: x(1) = m + u + G delta, u ~ N(0, P), and nothing is known of delta.
  // P's rows and columns of states whose unit vectors are there do not count. Empty: none.
  std::span<const double> initial_diffuse;
  std::span<const double> observations;  // ny x T x K; NaN is missing

  SmoothedCovariances covariances = SmoothedCovariances::kNone;
  bool lag_one = false;
  bool log_likelihood = false;
  bool residuals = false;
  int64_t num_samples = 0;  // of each series
  uint64_t seed = 0;
  std::optional<SmoothForm> form;     // none: the first whose numbers are good enough
  std::vector<SmoothOutput> outputs;  // ascending

  // True if A has few distinct blocks, because all arrays but y are the same at all steps.
  bool is_constant() const {
    return !transition.per_step && !transition_covariance.per_step && !observation.per_step &&
           !observation_covariance.per_step;
  }
};

// The elements of y that are observed. Steps with the same elements share a mask, series with the
// same masks at all steps are one system.
struct MissingPatterns {
  struct Mask {
    std::vector<int32_t> rows;  // that are observed, ascending
  };
  std::vector<Mask> masks;
  std::vector<std::vector<uint32_t>> systems;  // S x T: the mask of each step
  std::vector<uint32_t> system_of_series;      // K
  std::vector<int64_t> observed;               // K: elements
};

// The numbers of doubles of the results.
struct SmoothSizes {
  int64_t systems = 0;  // S: distinct patterns of missing elements
  int64_t means = 0, covariances = 0, lag_one = 0, residuals = 0, samples = 0;
  std::vector<int64_t> outputs;  // of SmoothParams.outputs
  int64_t work_bytes = 0;        // most host memory that smoothing takes beside; bytes, not doubles
  int64_t total() const;
};
// The numbers of an output at one step, of how many steps, and of whom.
struct SmoothOutputShape {
  int64_t numbers = 0, steps = 0;
  bool is_of_system = false;  // else of a series
};
SmoothOutputShape ShapeOf(const SmoothParams& params, SmoothOutput output);

struct SmoothLimits {
  int64_t max_columns = int64_t{1} << 20;  // series, and series times samples
  int threads = 1;                         // of the StepPool
};

// INVALID_ARGUMENT with InvalidField (model_errors.h), whose field is a member of SmoothParams. The
// arrays are not looked at.
absl::Status CheckSmoothSizes(const SmoothParams& params, const SmoothLimits& limits);

// The sizes of the results with so many systems, at least 1; `work_bytes` is 0. CheckSmoothSizes
// holds for `params`.
SmoothSizes SmoothSizesOf(const SmoothParams& params, int64_t systems);

// Parameters that passed all checks, and what the checks found.
struct MeasuredSmooth {
  SmoothParams params;
  SmoothSizes sizes;
  std::shared_ptr<const MissingPatterns> patterns;
  bool has_diagonal_noise = false;  // R, of all steps
};
// INVALID_ARGUMENT as CheckSmoothSizes, for the lengths of the arrays, numbers that are not finite
// and a Q, R or P that is not symmetric too: elements that mirror each other differ by at most 1e-8
// of their standard deviations, and 16 n eps of the largest variance.
absl::StatusOr<MeasuredSmooth> MeasureSmooth(const SmoothParams& params,
                                             const SmoothLimits& limits);

// Estimated errors, the largest of all steps: of means in posterior standard deviations, of
// variances relative, of the log-likelihood absolute.
struct SmoothErrors {
  double means = 0, variances = 0, log_likelihood = 0;
};
// Numbers are given out where the estimates are at most these; a mean is then within 1e-7 standard
// deviations and one unit in its last place, the log-likelihood within 1e-6 and four. Neither
// counts states that the observations tell exactly: a deviation below 1e-12 of what it was before.
inline constexpr SmoothErrors kPromisedErrors{1e-7, 1e-7, 1e-6};
// True if numbers with such estimates may be given out. `log_likelihood` is the least one in size;
// nullptr: none is wanted.
bool IsPromised(const SmoothErrors& errors, const double* log_likelihood);

}  // namespace blockd

#endif  // BLOCKD_ENGINE_SMOOTH_MODEL_H_
