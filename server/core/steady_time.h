// The time of a clock that nobody sets, for durations within this process: its zero means nothing.
#ifndef BLOCKD_SERVER_CORE_STEADY_TIME_H_
#define BLOCKD_SERVER_CORE_STEADY_TIME_H_

#include <chrono>

#include "absl/time/time.h"

namespace blockd::server {

inline absl::Time SteadyNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_STEADY_TIME_H_
