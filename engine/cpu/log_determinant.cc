#include "engine/cpu/log_determinant.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace blockd::cpu {
namespace {

// Neumaier's: as good as a sum in twice the digits, rounded once. A chain has many equal terms,
// whose roundings all go one way.
class CompensatedSum {
 public:
  void Add(double term) {
    const double before = sum_;
    sum_ += term;
    lost_ += std::abs(before) >= std::abs(term) ? (before - sum_) + term : (term - sum_) + before;
  }
  double value() const { return sum_ + lost_; }

 private:
  double sum_ = 0, lost_ = 0;
};

template <typename T>
double SumLogs(const EliminationPlan& plan, const T* factor) {
  const int64_t n = plan.shape().block_size;
  const int64_t panels = (n + kPanel - 1) / kPanel;
  CompensatedSum sum;
  for (const Level& level : plan.levels()) {
    for (int64_t slot = 0; slot < level.interiors; ++slot) {
      const T* inverse = factor + level.inverse_offset + slot * TriangleScalars(n);
      for (int64_t p = 0; p < panels; ++p) {
        const T* panel = inverse + TrianglePanelOffset(n, p);
        const int64_t ld = n - p * kPanel;
        for (int64_t i = 0; i < std::min(kPanel, ld); ++i) {
          const auto entry = static_cast<double>(panel[i * ld + i]);
          sum.Add(entry < 0 ? -std::log(-entry) : std::log(entry));  // of -L or of inv(L)
        }
      }
    }
  }
  return sum.value();
}

}  // namespace

double LogDeterminant(const EliminationPlan& plan, const void* factor) {
  return -2 * (plan.shape().scalar == Scalar::kFloat64
                   ? SumLogs(plan, static_cast<const double*>(factor))
                   : SumLogs(plan, static_cast<const float*>(factor)));
}

}  // namespace blockd::cpu
