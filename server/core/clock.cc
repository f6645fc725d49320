#include "server/core/clock.h"

#include "absl/time/clock.h"

namespace blockd::server {

absl::Time RealClock::Now() { return absl::Now(); }

bool RealClock::WaitUntil(absl::Mutex* mutex, absl::CondVar* condition, absl::Time deadline) {
  if (deadline == absl::InfiniteFuture()) {
    condition->Wait(mutex);
    return false;
  }
  return condition->WaitWithDeadline(mutex, deadline);
}

}  // namespace blockd::server
