#include "engine/solver/border_cholesky.h"

#include <algorithm>
#include <cmath>

namespace blockd {

int64_t FactorCorner(int64_t p, std::vector<double>& s) {
  for (int64_t j = 0; j < p; ++j) {
    double* const column = s.data() + j * p;
    for (int64_t k = 0; k < j; ++k) {
      const double* const before = s.data() + k * p;
      const double factor = before[j];
      for (int64_t i = j; i < p; ++i) column[i] -= factor * before[i];
    }
    if (!(column[j] > 0) || !std::isfinite(column[j])) return j;
    const double pivot = std::sqrt(column[j]);
    for (int64_t i = j; i < p; ++i) column[i] /= pivot;
  }
  return -1;
}

void SolveCorner(int64_t p, const std::vector<double>& t, double* x) {
  for (int64_t j = 0; j < p; ++j) {
    const double* const column = t.data() + j * p;
    x[j] /= column[j];
    for (int64_t i = j + 1; i < p; ++i) x[i] -= column[i] * x[j];
  }
}

void SolveCornerTransposed(int64_t p, const std::vector<double>& t, double* x) {
  for (int64_t j = p - 1; j >= 0; --j) {
    const double* const column = t.data() + j * p;
    for (int64_t i = j + 1; i < p; ++i) x[j] -= column[i] * x[i];
    x[j] /= column[j];
  }
}

std::vector<double> InvertCorner(int64_t p, const std::vector<double>& t) {
  std::vector<double> inverse(p * p);
  for (int64_t c = 0; c < p; ++c) {
    double* const x = inverse.data() + c * p;
    x[c] = 1;
    for (int64_t j = c; j < p; ++j) {
      const double* const column = t.data() + j * p;
      x[j] /= column[j];
      for (int64_t i = j + 1; i < p; ++i) x[i] -= column[i] * x[j];
    }
  }
  return inverse;
}

}  // namespace blockd
