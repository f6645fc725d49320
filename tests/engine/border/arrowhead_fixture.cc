#include "tests/engine/border/arrowhead_fixture.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace blockd::test {

HostMatrix RandomArrowhead(int64_t num_blocks, int64_t n, int64_t p, Scalar scalar, double slack,
                           double scale) {
  HostMatrix chain(problems::RandomSpd(num_blocks, n, 5, 100), scalar);
  const int64_t rows = num_blocks * n;
  // C = B inv(A) B' + slack (I + G G' / p)
  const std::vector<double> rounded = Columns(problems::RandomColumns(rows, p, 7), scalar).values();
  const std::vector<double> x = SequentialCholesky(chain.view()).Solve(rounded);
  const std::vector<double> g = problems::RandomColumns(p, p, 9);
  std::vector<double> corner(p * p);
  std::vector<double> scaled = rounded;
  for (int64_t j = 0; j < p; ++j) {
    for (int64_t i = 0; i < p; ++i) {
      long double sum = i == j ? slack : 0;
      for (int64_t k = 0; k < rows; ++k) {
        sum += static_cast<long double>(rounded[k + i * rows]) * x[k + j * rows];
      }
      for (int64_t k = 0; k < p; ++k) {
        sum += slack * g[i + k * p] * g[j + k * p] / static_cast<double>(p);
      }
      const double factor =
          std::pow(scale, static_cast<double>(i)) * std::pow(scale, static_cast<double>(j));
      corner[i + j * p] =
          i < j ? std::numeric_limits<double>::quiet_NaN() : static_cast<double>(sum) * factor;
    }
    for (int64_t k = 0; k < rows; ++k) {
      scaled[k + j * rows] *= std::pow(scale, static_cast<double>(j));
    }
  }
  chain.SetBorder(p, scaled, corner);
  return chain;
}

HostMatrix Whole(const HostMatrix& arrowhead) {
  problems::Problem whole;
  whole.num_blocks = 1;
  whole.block_size = arrowhead.form().rows();
  whole.diagonal = AssembleDense(arrowhead.view());
  return HostMatrix(whole, Scalar::kFloat64);
}

}  // namespace blockd::test
