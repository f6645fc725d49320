// The wall's clock of this program, set forward or back: only for programs that link
// blockd_test_clock, which then ask the system through it. Thread-safe.
#ifndef BLOCKD_TESTS_SUPPORT_HOOKS_STEPPED_CLOCK_H_
#define BLOCKD_TESTS_SUPPORT_HOOKS_STEPPED_CLOCK_H_

#include "absl/time/time.h"

namespace blockd::test {

// Set by so much while it exists; one at a time.
class SteppedClock {
 public:
  explicit SteppedClock(absl::Duration step);
  ~SteppedClock();
  SteppedClock(const SteppedClock&) = delete;
};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SUPPORT_HOOKS_STEPPED_CLOCK_H_
