#include "tests/support/hooks/stepped_clock.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace blockd::test {
namespace {

std::atomic<int64_t> g_seconds = 0;

}  // namespace

SteppedClock::SteppedClock(absl::Duration step) { g_seconds = absl::ToInt64Seconds(step); }
SteppedClock::~SteppedClock() { g_seconds = 0; }

}  // namespace blockd::test

// In place of the C library's, for its callers in other libraries too.
extern "C" int BlockdTestClockGettime(clockid_t id, timespec* time) __asm__("clock_gettime");
extern "C" int BlockdTestClockGettime(clockid_t id, timespec* time) {
  if (syscall(SYS_clock_gettime, id, time) != 0) return -1;
  if (id == CLOCK_REALTIME) time->tv_sec += blockd::test::g_seconds.load(std::memory_order_relaxed);
  return 0;
}
