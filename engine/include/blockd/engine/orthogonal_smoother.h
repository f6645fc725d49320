// The states of a linear Gaussian model given its observations, in orthogonal form: right where the
// information form (smoother.h) is not, because the precision of the states does not fit doubles or
// because Q, R or P is singular. It is an orthogonal factorization of the map from the unit noises
// to the data, one step at a time (Paige, Covariance matrix representation in linear filtering,
// 1985); nothing is inverted but the standard deviations of innovations.
//
// A system is computed in double; where its estimated errors are too large or an innovation has no
// variance within rounding, again in double-double; what that cannot answer either is refused.
//
// Immutable once it is made, thread-safe. The model's arrays outlive it.
#ifndef BLOCKD_ENGINE_ORTHOGONAL_SMOOTHER_H_
#define BLOCKD_ENGINE_ORTHOGONAL_SMOOTHER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockd/engine/smooth_model.h"

namespace blockd {

class OrthogonalSmoother {
 public:
  // Where the results of one system go. Spans that are empty are not wanted; sizes as
  // SmoothSizesOf.
  struct Results {
    std::span<double> means;           // of all series
    std::span<double> covariances;     // of this system, as SmoothParams.covariances asks
    std::span<double> lag_one;         // of this system
    std::span<double> residuals;       // of all series
    std::span<double> samples;         // of all series
    std::span<double> log_likelihood;  // of all series
    // By SmoothParams.outputs, each of all series or systems.
    std::vector<std::span<double>> outputs{};
  };
  struct Outcome {
    SmoothForm form = SmoothForm::kOrthogonal;
    SmoothErrors errors;
  };

  // INVALID_ARGUMENT with SingularCovariance if Q, R or P is not positive semidefinite to rounding.
  // Works on the calling thread.
  static absl::StatusOr<std::unique_ptr<OrthogonalSmoother>> Make(const MeasuredSmooth& measured);
  ~OrthogonalSmoother();

  size_t systems() const { return patterns_->systems.size(); }
  // The most host memory that calls of Smooth take, so many at once, in bytes.
  static int64_t WorkBytes(const MeasuredSmooth& measured, int64_t together);

  // The results of a system, for its series, on the calling thread. INVALID_ARGUMENT with
  // NotSmoothable where no number can be given.
  absl::StatusOr<Outcome> Smooth(size_t system, const Results& results) const;

 private:
  struct Arrays;
  class Work;

  explicit OrthogonalSmoother(const MeasuredSmooth& measured);

  const SmoothParams params_;
  const std::shared_ptr<const MissingPatterns> patterns_;
  const bool has_diagonal_noise_;
  std::vector<std::vector<int64_t>> series_of_;  // of each system
  std::unique_ptr<Arrays> arrays_;
};

}  // namespace blockd

#endif  // BLOCKD_ENGINE_ORTHOGONAL_SMOOTHER_H_
