// Smooth requests of the core: the engine's model and results (smooth_model.h), what is kept of
// them, and the answer.
#ifndef BLOCKD_SERVER_CORE_COMMON_SMOOTH_REQUEST_H_
#define BLOCKD_SERVER_CORE_COMMON_SMOOTH_REQUEST_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "blockd/engine/smooth_model.h"
#include "server/core/common/handle.h"
#include "server/core/common/request.h"

namespace blockd::server {

// With `keep` the factorizations stay, so that a later Smooth of the same model only solves.
struct KeepModel {
  bool keep = false;
  absl::Duration lease = absl::ZeroDuration();  // with keep
};

SmoothLimits SmoothLimitsOf(const CoreLimits& limits);

// INVALID_ARGUMENT with the proto's path of the field: sizes, samples, the lease, and the priority
// of `context`. The arrays of `params` are not looked at.
absl::Status CheckSmoothHeader(const SmoothParams& params, const KeepModel& kept,
                               const RequestContext& context, const CoreLimits& limits);
// The engine's MeasureSmooth. INVALID_ARGUMENT with the proto's path of the field.
absl::StatusOr<MeasuredSmooth> MeasureSmooth(const SmoothParams& params, const CoreLimits& limits);

// Where the results go: host memory of the measured sizes.
struct SmoothResults {
  std::span<double> means, covariances, lag_one, residuals, samples;
  std::vector<std::span<double>> outputs;  // of SmoothParams.outputs
};

// How one system was smoothed.
struct SmoothedSystem {
  enum class Reason {  // why not in information form
    kNone = 0,         // it was
    kAskedFor = 1,     // another one was
    kSingularCovariance = 2,
    kIndefinitePrecision = 3,  // A has no factorization in double
    kInaccurate = 4,           // by the estimates
    kPartlyDiffuse = 5,        // in other directions than those of states
    kHasOutputs = 6,
  };
  SmoothForm form = SmoothForm::kInformation;
  Reason reason = Reason::kNone;
  SmoothErrors errors;  // estimates
};

struct SmoothReply {
  std::vector<uint32_t> system_of_series;  // K
  std::vector<Handle> handles;             // S, if kept
  bool found = false;                      // all were held already
  std::vector<double> log_likelihood;      // K, if asked for
  std::vector<int64_t> observed;           // K
  double growth = 1;
  double backward_error_bound = 0;
  std::vector<SmoothedSystem> systems;  // S
  Cost cost;
};

// All that a device has to do with a Smooth is over.
class PendingSmooth {
 public:
  virtual ~PendingSmooth() = default;
  // Once, on a thread that has time: writes what is left of the results, and smooths again what the
  // device's numbers are not good enough for. INVALID_ARGUMENT with NotSmoothable.
  virtual absl::StatusOr<SmoothReply> Finish() = 0;
};
using SmoothDone = absl::AnyInvocable<void(absl::StatusOr<std::shared_ptr<PendingSmooth>>)>;

// Has the work done by a thread that has time, and returns at once, without having done it. Called
// by any thread, until `done` has been.
using PostWork = std::function<void(absl::AnyInvocable<void()> work)>;

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_COMMON_SMOOTH_REQUEST_H_
