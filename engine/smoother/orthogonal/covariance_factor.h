// Factors of covariances that may be singular. Pure functions.
#ifndef BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_COVARIANCE_FACTOR_H_
#define BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_COVARIANCE_FACTOR_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace blockd::orthogonal {

struct NotSemidefinite {
  int64_t row = 0;
};
// Appends B, n x rank, column-major, the sum of `factor` and `low`, with B B' = C of a symmetric
// positive semidefinite C, of which the lower triangle is read: Cholesky with pivots, the largest
// beside its own diagonal element first, in double-double. A pivot of at most 4 n units of roundoff
// of its own diagonal element is zero. NotSemidefinite if C is not even that to rounding.
std::optional<NotSemidefinite> AppendFactor(int64_t n, const double* c, std::vector<double>* factor,
                                            std::vector<double>* low, int32_t* rank);
// The same for one variance, >= 0.
void AppendRoot(double variance, std::vector<double>* root, std::vector<double>* low);

}  // namespace blockd::orthogonal

#endif  // BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_COVARIANCE_FACTOR_H_
