// Cholesky of the corner of an arrowhead, p x p in double, column-major, by the thread that calls.
// Every sum is formed in one order. Only lower triangles are read and written.
#ifndef BLOCKD_ENGINE_SOLVER_BORDER_CHOLESKY_H_
#define BLOCKD_ENGINE_SOLVER_BORDER_CHOLESKY_H_

#include <cstdint>
#include <vector>

namespace blockd {

// S becomes T, S = T T'. Returns the first row whose pivot is not positive, or not finite; -1:
// there is none. Then s is garbage.
int64_t FactorCorner(int64_t p, std::vector<double>& s);

// x = inv(T) x and x = inv(T)' x for one column; both in turn are inv(S) x.
void SolveCorner(int64_t p, const std::vector<double>& t, double* x);
void SolveCornerTransposed(int64_t p, const std::vector<double>& t, double* x);

// inv(T), zeros above its diagonal.
std::vector<double> InvertCorner(int64_t p, const std::vector<double>& t);

}  // namespace blockd

#endif  // BLOCKD_ENGINE_SOLVER_BORDER_CHOLESKY_H_
