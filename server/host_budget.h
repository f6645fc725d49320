// Host memory that requests under way may hold: their bytes as they came and their solutions.
//
// Thread-safe. The budget outlives what was taken from it.
#ifndef BLOCKD_SERVER_HOST_BUDGET_H_
#define BLOCKD_SERVER_HOST_BUDGET_H_

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/core/budget.h"
#include "server/core/errors.h"

namespace blockd::server {

class HostBudget {
 public:
  HostBudget(int64_t limit_bytes, absl::Duration retry_delay)
      : budget_(
            {.resource = Resource::kHostBytes, .total = limit_bytes, .retry_delay = retry_delay}) {}

  // Adds `bytes` to what `share`, a share of this budget or an empty one, holds. RESOURCE_EXHAUSTED
  // if the two can never fit together, UNAVAILABLE with a delay if they do not fit now; `share` is
  // then as it was.
  absl::Status Take(int64_t bytes, Reservation* share) {
    if (bytes > budget_.total() - share->bytes()) {
      return LimitExceededError("the request, with its solution,",
                                {.limit = "max_inflight_request_bytes",
                                 .asked_bytes = share->bytes() + bytes,
                                 .limit_bytes = budget_.total()});
    }
    absl::StatusOr<Reservation> more = budget_.Reserve(nullptr, bytes);
    if (!more.ok()) return more.status();
    share->Merge(*std::move(more));
    return absl::OkStatus();
  }
  int64_t used_bytes() const { return budget_.reserved(); }

 private:
  Budget budget_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_HOST_BUDGET_H_
