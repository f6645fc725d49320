// Time, injected: the core never asks the system for it, so that tests can drive it by hand.
//
// Clocks are thread-safe and outlive what uses them.
#ifndef BLOCKD_SERVER_BASE_CLOCK_H_
#define BLOCKD_SERVER_BASE_CLOCK_H_

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace blockd::server {

class Clock {
 public:
  virtual ~Clock() = default;

  virtual absl::Time Now() = 0;

  // Waits until `condition` is signalled or Now() reaches `deadline`, which may be InfiniteFuture.
  // The caller holds `mutex`, which is released meanwhile. True if the deadline was reached; it may
  // wake for no reason, so callers look at their own condition again.
  virtual bool WaitUntil(absl::Mutex* mutex, absl::CondVar* condition, absl::Time deadline) = 0;
};

// SteadyNow. A wait under way while the wall's clock is set back may last as much longer: Abseil's
// are until a time of that clock. So somebody whose waits are not looks whether others overslept.
class RealClock : public Clock {
 public:
  absl::Time Now() override;
  bool WaitUntil(absl::Mutex* mutex, absl::CondVar* condition, absl::Time deadline) override;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_BASE_CLOCK_H_
