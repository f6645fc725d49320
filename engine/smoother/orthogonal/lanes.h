// The four right-hand sides that are computed side by side, and a model's constants.
#ifndef BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_LANES_H_
#define BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_LANES_H_

#include <cstdint>

#include "engine/smoother/orthogonal/numbers.h"
#include "engine/smoother/orthogonal/system.h"

namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE {

// Probes, draws of the smoothing error, series, or nothing.
struct Lanes {
  const double* series[kLanes] = {};  // y
  const double* draws[kLanes] = {};   // the means of the noises
  bool probes[kLanes] = {};

  Four data() const {
    return Choose([&](int k) { return series[k] != nullptr; });
  }
  Four probe() const {
    return Choose([&](int k) { return probes[k]; });
  }
  // y - d of the series.
  LongFour ObservationAt(const System& system, int64_t t, int32_t row) const {
    Four y{}, d{};
    const double* const offset =
        system.observation_offset.values == nullptr ? nullptr : system.observation_offset.at(t);
    for (int k = 0; k < kLanes; ++k) {
      if (series[k] == nullptr) continue;
      y[k] = series[k][t * system.observation_size + row];
      if (offset != nullptr) d[k] = offset[row];
    }
    return TwoSum(y, -d);
  }

 private:
  template <typename Is>
  static Four Choose(Is is) {
    Four chosen{};
    for (int k = 0; k < kLanes; ++k) chosen[k] = is(k) ? 1 : 0;
    return chosen;
  }
};

// The constant of the equation that makes x(t): m, then c.
inline double ConstantOf(const System& system, int64_t t, int64_t i) {
  if (t == 0) return system.initial_mean == nullptr ? 0 : system.initial_mean[i];
  const Matrices& offset = system.transition_offset;
  return offset.values == nullptr ? 0 : offset.at(t - 1)[i];
}

}  // namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_LANES_H_
