#include "server/base/fair_mutex.h"

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/base/steady_time.h"

namespace blockd::server {
namespace {

constexpr absl::Duration kNap = absl::Microseconds(20);  // about as long as a thread takes to wake
constexpr absl::Duration kLongest = absl::Seconds(1);

}  // namespace

void FairMutex::LetOthersIn() {
  if (waiting() == 0) return;
  const std::atomic<int64_t>& waiting = waiting_[generation_.fetch_add(1) % 2];
  const absl::Time end = SteadyNow() + kLongest;
  while (waiting.load() > 0 && SteadyNow() < end) absl::SleepFor(kNap);
}

}  // namespace blockd::server
