// Which observations of a Smooth are missing: what MeasureSmooth finds beside the sizes.
#ifndef BLOCKD_SERVER_CORE_SMOOTHER_MISSING_PATTERNS_H_
#define BLOCKD_SERVER_CORE_SMOOTHER_MISSING_PATTERNS_H_

#include <cstdint>
#include <vector>

namespace blockd::server {

// Which elements of y are observed. Steps with the same elements have one mask, series with the
// same masks at all steps are one system.
struct MissingPatterns {
  struct Mask {
    std::vector<int32_t> rows;  // that are observed, ascending
  };
  std::vector<Mask> masks;
  std::vector<std::vector<uint32_t>> systems;  // S x T: the mask of each step
  std::vector<uint32_t> system_of_series;      // K
  std::vector<int64_t> observed;               // K: elements
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_SMOOTHER_MISSING_PATTERNS_H_
