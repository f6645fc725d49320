// A Smooth request: a linear Gaussian model, observed series, and the wanted results. Plain data;
// the proto's SmoothHeader is the same.
#ifndef BLOCKD_SERVER_CORE_SMOOTH_REQUEST_H_
#define BLOCKD_SERVER_CORE_SMOOTH_REQUEST_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/handle.h"
#include "server/core/request.h"

namespace blockd::server {

// Matrices of one kind, column-major, in host memory: one for all steps, or one a step.
struct ModelArray {
  std::span<const double> values;  // empty: absent
  bool per_step = false;
};

struct MissingPatterns;  // server/core/smoother/missing_patterns.h

enum class SmoothedCovariances { kNone, kVariances, kFull };

// x(1) ~ N(m, P) or diffuse; x(t+1) = F x(t) + c + w, w ~ N(0, Q); y(t) = H x(t) + d + v,
// v ~ N(0, R).
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
  std::span<const double> observations;                      // ny x T x K; NaN is missing

  SmoothedCovariances covariances = SmoothedCovariances::kNone;
  bool lag_one = false;
  bool log_likelihood = false;
  bool residuals = false;
  int64_t num_samples = 0;  // of each series
  uint64_t seed = 0;
  bool keep = false;
  absl::Duration lease = absl::ZeroDuration();  // with keep

  // True if A has few distinct blocks, because all arrays but y are the same at all steps.
  bool is_constant() const {
    return !transition.per_step && !transition_covariance.per_step && !observation.per_step &&
           !observation_covariance.per_step;
  }
};

// How many doubles the results have, as the proto's SmoothHead says.
struct SmoothSizes {
  int64_t systems = 0;  // S: distinct patterns of missing elements
  int64_t means = 0, covariances = 0, lag_one = 0, residuals = 0, samples = 0;
  int64_t work_bytes = 0;  // that the core takes of the host meanwhile, at most; not in doubles
  int64_t total() const { return means + covariances + lag_one + residuals + samples; }
};

// A request that passed its checks, and sizes that the checks found.
struct MeasuredSmooth {
  SmoothParams params;
  SmoothSizes sizes;
  std::shared_ptr<const MissingPatterns> patterns;
};
// INVALID_ARGUMENT with the proto's path of the field: sizes, the lengths of the arrays, numbers
// that are not finite.
absl::StatusOr<MeasuredSmooth> MeasureSmooth(const SmoothParams& params, const CoreLimits& limits);

// Where the results go: host memory of the sizes above.
struct SmoothResults {
  std::span<double> means, covariances, lag_one, residuals, samples;
};

struct SmoothReply {
  std::vector<uint32_t> system_of_series;  // K
  std::vector<Handle> handles;             // S, if kept
  bool found = false;                      // all were held already
  std::vector<double> log_likelihood;      // K, if asked for
  std::vector<int64_t> observed;           // K
  double growth = 1;
  double backward_error_bound = 0;
  Cost cost;
};

// All that a device has to do with a Smooth is over.
class PendingSmooth {
 public:
  virtual ~PendingSmooth() = default;
  // Once, on a thread that has time: writes what is left of the results.
  virtual SmoothReply Finish() = 0;
};
using SmoothDone = absl::AnyInvocable<void(absl::StatusOr<std::shared_ptr<PendingSmooth>>)>;

// Has the work done by a thread that has time, and returns at once. Called by any thread.
using PostWork = std::function<void(absl::AnyInvocable<void()> work)>;

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_SMOOTH_REQUEST_H_
