// Host memory that requests under way may hold: their bytes as they came and their solutions.
//
// Thread-safe. The budget outlives what was taken from it.
#ifndef BLOCKD_SERVER_TRANSPORT_HOST_BUDGET_H_
#define BLOCKD_SERVER_TRANSPORT_HOST_BUDGET_H_

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/core/errors.h"
#include "server/core/memory_budget.h"

namespace blockd::server {

class HostBudget {
 public:
  HostBudget(int64_t limit_bytes, absl::Duration retry_delay)
      : budget_(limit_bytes), retry_delay_(retry_delay) {}

  // Adds `bytes` to what `share`, a share of this budget or an empty one, holds. RESOURCE_EXHAUSTED
  // if the two can never fit together, UNAVAILABLE with a delay if they do not fit now; `share` is
  // then as it was.
  absl::Status Take(int64_t bytes, Reservation* share) {
    if (absl::Status status = CheckEverFits(bytes, share->bytes()); !status.ok()) return status;
    std::optional<Reservation> more = budget_.TryReserve(bytes);
    if (!more) {
      return RetryAfterError("requests under way fill the host memory that they may use",
                             retry_delay_);
    }
    share->Merge(*std::move(more));
    return absl::OkStatus();
  }
  // RESOURCE_EXHAUSTED if no waiting helps one that holds `held` already.
  absl::Status CheckEverFits(int64_t bytes, int64_t held = 0) const {
    if (bytes <= budget_.total_bytes() - held) return absl::OkStatus();
    return LimitExceededError("the request, with its solution,",
                              {.limit = "max_inflight_request_bytes",
                               .asked_bytes = held + bytes,
                               .limit_bytes = budget_.total_bytes()});
  }
  int64_t used_bytes() const { return budget_.reserved_bytes(); }

 private:
  MemoryBudget budget_;
  const absl::Duration retry_delay_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_HOST_BUDGET_H_
