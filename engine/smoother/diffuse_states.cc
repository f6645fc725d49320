#include "engine/smoother/diffuse_states.h"

#include <algorithm>
#include <cstdint>

namespace blockd {

std::vector<bool> DiffuseStates(const SmoothParams& params) {
  const auto n = static_cast<size_t>(params.state_size);
  std::vector<bool> diffuse(n, false);
  for (auto g = params.initial_diffuse; !g.empty(); g = g.subspan(n)) {
    const auto column = g.first(n);
    const auto one = std::find(column.begin(), column.end(), 1.0);
    const auto zeros = std::count(column.begin(), column.end(), 0.0);
    if (one != column.end() && zeros + 1 == params.state_size) {
      diffuse[static_cast<size_t>(one - column.begin())] = true;
    }
  }
  return diffuse;
}

}  // namespace blockd
