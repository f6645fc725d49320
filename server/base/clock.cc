#include "server/base/clock.h"

#include "server/base/steady_time.h"

namespace blockd::server {

absl::Time RealClock::Now() { return SteadyNow(); }

bool RealClock::WaitUntil(absl::Mutex* mutex, absl::CondVar* condition, absl::Time deadline) {
  if (deadline == absl::InfiniteFuture()) {
    condition->Wait(mutex);
    return false;
  }
  condition->WaitWithTimeout(mutex, deadline - SteadyNow());
  return SteadyNow() >= deadline;
}

}  // namespace blockd::server
