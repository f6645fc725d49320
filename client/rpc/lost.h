// The statuses that say that a factorization is lost. Internal to the client.
#ifndef BLOCKD_CLIENT_RPC_LOST_H_
#define BLOCKD_CLIENT_RPC_LOST_H_

#include "absl/status/status.h"

namespace blockd::client {

// True if nobody answers: UNAVAILABLE, and no time to come back is named.
bool IsGone(const absl::Status& status);
// True if factoring again mends it: the server does not hold the handle any more, drains or is
// gone.
bool IsLost(const absl::Status& status);
// True if a call on a factorization that heals does not try again after so many attempts, but
// factors again instead. A server that seems gone is asked twice.
bool HealsNow(const absl::Status& status, int attempts);

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_RPC_LOST_H_
