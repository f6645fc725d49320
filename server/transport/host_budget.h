// Host memory that requests under way may hold: their bytes as they came and their solutions.
//
// Thread-safe. The budget outlives what was taken from it.
#ifndef BLOCKD_SERVER_TRANSPORT_HOST_BUDGET_H_
#define BLOCKD_SERVER_TRANSPORT_HOST_BUDGET_H_

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

  // Adds `bytes` of this tenant, null: of nobody, to what `share`, a share of this budget or an
  // empty one, holds. RESOURCE_EXHAUSTED if the two can never fit together, or with QuotaExceeded;
  // UNAVAILABLE with a delay if they do not fit now; `share` is then as it was.
  absl::Status Take(const TenantPtr& tenant, int64_t bytes, Reservation* share) {
    if (absl::Status status = CheckEverFits(bytes, share->bytes()); !status.ok()) return status;
    absl::StatusOr<Reservation> more = budget_.Reserve(tenant, bytes);
    if (!more.ok()) return more.status();
    share->Merge(*std::move(more));
    return absl::OkStatus();
  }
  // RESOURCE_EXHAUSTED if no waiting helps one that holds `held` already.
  absl::Status CheckEverFits(int64_t bytes, int64_t held = 0) const {
    if (bytes <= budget_.total() - held) return absl::OkStatus();
    return LimitExceededError("the request, with its solution,",
                              {.limit = "max_inflight_request_bytes",
                               .asked_bytes = held + bytes,
                               .limit_bytes = budget_.total()});
  }
  int64_t used_bytes() const { return budget_.reserved(); }

 private:
  Budget budget_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_HOST_BUDGET_H_
