// Waiting for what other threads do.
#ifndef BLOCKD_TESTS_SUPPORT_EVENTUALLY_H_
#define BLOCKD_TESTS_SUPPORT_EVENTUALLY_H_

#include "absl/functional/function_ref.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace blockd::test {

// Everything that should happen soon is waited for so long; only a failure takes it.
inline constexpr absl::Duration kGenerous = absl::Seconds(60);

// True once `condition` is; false if that takes too long.
inline bool Eventually(absl::FunctionRef<bool()> condition) {
  const absl::Time end = absl::Now() + kGenerous;
  while (!condition()) {
    if (absl::Now() > end) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SUPPORT_EVENTUALLY_H_
