// One system of a linear Gaussian model in orthogonal form: series with the same elements missing,
// the numbers that are wanted of them, and how far they can be trusted.
//
//   x(1) = m + Z z + D delta,  x(t+1) = F x(t) + c + B u(t),  y(t) = H x(t) + d + S e(t);
//   z, u, e ~ N(0, I), delta flat.
//
// The knowledge of x(t) is x = a + X xi + D delta with xi ~ N(0, I). An element of y is one
// reflection Theta, orthogonal, which turns its row [h X, S_i] into (s, 0, ..., 0): s is the
// innovation's standard deviation, that coordinate is known from then on, and the others stay N(0,
// I). A step in time is [F X, B] Theta = [X, 0]. Backward, means and a factor of the covariance of
// xi go through the same matrices, which change no norm. So Q, R, P and predicted covariances may
// be singular or zero (Paige, Covariance matrix representation in linear filtering, 1985, is close
// to it).
//
// The filter's numbers, of x(t) before and after y(t), come from X, whose rounding no residual
// tells. So the forward pass runs again over the mirror of the system: the same states
// in reverse order, with Z, B, S and D of three times their size, so that every number is rounded
// otherwise.
//
// Plain data. Pointers outlive the call that takes them.
#ifndef BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_SYSTEM_H_
#define BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_SYSTEM_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace blockd::orthogonal {

// Matrices of one kind, column-major: one for all steps (stride 0) or one a step.
struct Matrices {
  const double* values = nullptr;  // nullptr: zero
  int64_t stride = 0;

  bool is_per_step() const { return stride != 0; }
  const double* at(int64_t step) const { return values + step * stride; }
};
// Factors C of covariances C C': rows x `columns`, each padded to `stride` if there is one a step.
// They are sums of two doubles: what covariances of low rank say is lost by rounding their factors.
struct Factors {
  Matrices matrices, low;
  std::vector<int32_t> columns;  // one, or one a step
  int32_t most_columns = 0;      // of them

  int32_t columns_at(int64_t step) const {
    return columns[matrices.is_per_step() ? static_cast<size_t>(step) : 0];
  }
};

struct System {
  int64_t num_steps = 0, state_size = 0, observation_size = 0;
  Matrices transition, transition_offset;    // F, c
  Factors transition_factor;                 // B
  Matrices observation, observation_offset;  // H, d
  // S: rows x columns, or the diagonal of a diagonal one.
  Factors observation_factor;
  bool is_diagonal = false;
  const double* initial_mean = nullptr;  // m; nullptr: zero
  // Z, state_size x initial_columns, as Factors.
  const double* initial_factor = nullptr;
  const double* initial_low = nullptr;
  int64_t initial_columns = 0;
  const double* diffuse = nullptr;      // D, state_size x diffuse_columns
  const double* diffuse_low = nullptr;  // the rest of it; nullptr: zero
  int64_t diffuse_columns = 0;
  // The rows of y that are observed at each step, ascending.
  std::vector<const std::vector<int32_t>*> rows;
  std::vector<const double*> series;  // y, observation_size x num_steps each
  // Standard normal numbers of draws: z, then u and e of each step, `draw_stride` apart.
  std::vector<const double*> draws;
  int64_t draw_stride = 0;

  Matrices observation_covariance;  // R, for that of new observations
  const System* mirror = nullptr;   // for all that a filter has
};
inline constexpr double kMirrorUnit = 3;  // its columns over those of the system
// One difference of the two is a sample of the error; three times that is rarely less than a tenth.
inline constexpr double kMirrorFactor = 3;

// Where the results go; nullptr: not wanted. SmoothOutput says what they are.
struct SeriesResults {
  double* means = nullptr;  // state_size x num_steps
  double* filtered_means = nullptr;
  double* predicted_means = nullptr;
  double* innovations = nullptr;           // observation_size x num_steps
  double* log_likelihood_steps = nullptr;  // num_steps
  double* observation_means = nullptr;     // observation_size x num_steps
  // state_size x (num_steps - 1), observation_size x num_steps:
  double* state_disturbances = nullptr;
  double* observation_disturbances = nullptr;
  double* standardized_state_disturbances = nullptr;
  double* standardized_observation_disturbances = nullptr;
  // The gradient of the log-likelihood, in the arrays' own shapes: constant or one a step.
  double* score_transition = nullptr;
  double* score_transition_covariance = nullptr;
  double* score_observation = nullptr;
  double* score_observation_covariance = nullptr;
  double* score_transition_offset = nullptr;
  double* score_observation_offset = nullptr;
  double* score_initial_mean = nullptr;
  double* score_initial_covariance = nullptr;
};
struct Results {
  std::vector<SeriesResults> series;
  double* covariances = nullptr;      // state_size x state_size x num_steps
  double* variances = nullptr;        // their diagonals
  double* lag_one = nullptr;          // Cov(x(t+1), x(t)), one less
  double* log_likelihoods = nullptr;  // of each series
  std::vector<double*> errors;        // of each draw, of x less its mean: state_size x num_steps
  bool only_variances = false;        // diagonals, of these:
  double* filtered_covariances = nullptr;
  double* predicted_covariances = nullptr;
  double* observation_covariances = nullptr;

  bool has_innovations = false;   // something that the filter's means give, for each series
  bool has_disturbances = false;  // some, of each series
  bool has_standardized = false;  // disturbances
  bool has_score = false;         // some of it, of each series
};

enum class Outcome {
  kDone,
  // The observations do not identify the states: directions of D are left at the end.
  kNotIdentified,
  // An innovation has no variance, within rounding: only a wider arithmetic tells whether it has
  // none.
  kSkipped,
  // Its observation is another than the model says that it must be.
  kContradiction,
};

// Estimated errors: of means in standard deviations, of variances relative, of log-likelihoods. The
// largest of all series and steps.
struct Estimates {
  double means = 0, variances = 0, log_likelihood = 0;
};

struct Report {
  Outcome outcome = Outcome::kDone;
  Estimates estimates;
  int64_t step = 0, row = 0;  // of a contradiction, or of what was skipped first
  int64_t directions = 0;     // that are not identified
  int64_t corrections = 0;    // of the means
};

// Computes a system in one precision or the other; what the results have is undefined unless the
// outcome is kDone. Thread-safe. Throws std::bad_alloc.
struct Arithmetic {
  Report (*in_double)(const System& system, const Results& results);
  Report (*in_double_double)(const System& system, const Results& results);
};
const Arithmetic& SelectArithmetic();

}  // namespace blockd::orthogonal

#endif  // BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_SYSTEM_H_
