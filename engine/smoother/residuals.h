// Residuals of the observations of one step: pure functions of the model. Private to the smoother.
#ifndef BLOCKD_ENGINE_SMOOTHER_RESIDUALS_H_
#define BLOCKD_ENGINE_SMOOTHER_RESIDUALS_H_

#include <cstdint>

#include "blockd/engine/smooth_model.h"

namespace blockd {

// y - H x - d of the elements that are observed, of one series; without x: y - d. How many there
// are.
int64_t WriteErrors(const SmoothParams& params, const MissingPatterns::Mask& mask, int64_t series,
                    int64_t step, const double* x, double* errors);

// The variances (R - H Z H')(i,i) of y - H x - d, of the covariance Z of x: observation_size
// numbers, NaN where y is missing and where rounding leaves nothing. `scratch` has 2 nx ny doubles.
void WriteResidualVariances(const SmoothParams& params, const MissingPatterns::Mask& mask,
                            int64_t step, const double* covariance, double* scratch,
                            double* variances);

// Errors over the roots of their variances: observation_size numbers, NaN where y is missing.
void WriteStandardized(const SmoothParams& params, const MissingPatterns::Mask& mask,
                       const double* errors, const double* variances, double* residuals);

}  // namespace blockd

#endif  // BLOCKD_ENGINE_SMOOTHER_RESIDUALS_H_
