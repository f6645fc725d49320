// A plan's level as kernels know it: plain data. Segments are computed, not looked up: a level's
// segments have one length at each end and two lengths, one apart, between.
#ifndef BLOCKD_ENGINE_GPU_PLAN_LEVEL_H_
#define BLOCKD_ENGINE_GPU_PLAN_LEVEL_H_

#include <cstdint>

#include "engine/gpu/arch/host_device.h"

namespace blockd::gpu {

inline constexpr int kPanelColumns = 8;  // blockd::kPanel, columns of a stored block column

// Scalars before block column p of a stored triangle, and all of them.
BLOCKD_HOST_DEVICE inline int64_t PanelOffset(int64_t n, int64_t p) {
  return p * kPanelColumns * n - kPanelColumns * kPanelColumns * (p * (p - 1) / 2);
}
BLOCKD_HOST_DEVICE inline int64_t TriangleSize(int64_t n) {
  const int64_t whole = n / kPanelColumns, rest = n % kPanelColumns;
  return PanelOffset(n, whole) + rest * rest;
}

// A segment, as blockd::Segment has it.
struct SegmentRange {
  int64_t first = 0;
  int64_t count = 0;
  int64_t slot = 0;
  int64_t fill_slot = -1;
  int64_t left = -1;
  int64_t right = -1;
  bool reversed = false;

  BLOCKD_HOST_DEVICE bool has_fill() const { return fill_slot >= 0; }
  BLOCKD_HOST_DEVICE int64_t block(int64_t k) const {
    return reversed ? first + count - 1 - k : first + k;
  }
  // Chain index of the block after the last interior, -1 if there is none.
  BLOCKD_HOST_DEVICE int64_t target() const {
    if (reversed) return left >= 0 ? first - 1 : -1;
    return right >= 0 ? first + count : -1;
  }
};

struct LevelShape {
  int64_t n = 0;
  int64_t separators = 0;
  int64_t first_length = 0;   // interiors of the first segment
  int64_t last_length = 0;    // and of the last, if there are separators
  int64_t middle_length = 0;  // of those between, the shorter ones
  int64_t longer = 0;         // how many of those between have one interior more; they come first

  BLOCKD_HOST_DEVICE int64_t segments() const { return separators + 1; }
  BLOCKD_HOST_DEVICE int64_t longest_middle() const {
    return separators < 2 ? 0 : middle_length + (longer > 0);
  }
  BLOCKD_HOST_DEVICE SegmentRange segment(int64_t i) const {
    SegmentRange range;
    range.left = i - 1;
    range.right = i < separators ? i : -1;
    range.reversed = separators > 0 && i == separators;
    if (i == 0) {
      range.count = first_length;
      return range;
    }
    const int64_t before = i - 1;  // segments between this one and the first
    range.first =
        first_length + 1 + before * (middle_length + 1) + (before < longer ? before : longer);
    range.slot = range.first - i;
    range.count = range.reversed ? last_length : middle_length + (before < longer);
    if (!range.reversed) range.fill_slot = range.slot - first_length;
    return range;
  }
  // Blocks of the chain that are not separators.
  BLOCKD_HOST_DEVICE int64_t interiors() const {
    const int64_t ends = first_length + last_length;
    return separators < 2 ? ends : ends + (separators - 1) * middle_length + longer;
  }
  // The segment that a block of the chain is in, or that it is the right separator of.
  BLOCKD_HOST_DEVICE int64_t segment_of(int64_t block) const {
    const int64_t after = block - first_length - 1;
    if (after < 0 || separators == 0) return 0;
    const int64_t of_longer = longer * (middle_length + 2);
    const int64_t i = after < of_longer ? 1 + after / (middle_length + 2)
                                        : 1 + longer + (after - of_longer) / (middle_length + 1);
    return i < separators ? i : separators;
  }
  // The i-th segment in the order of launches: both ends, which are longest, then the others.
  BLOCKD_HOST_DEVICE int64_t launched(int64_t i) const {
    if (i == 0) return 0;
    return i == 1 ? separators : i - 1;
  }
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_PLAN_LEVEL_H_
