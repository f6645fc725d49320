// Pins and leases, and the bytes of the tenant's share that they take.
#include <algorithm>
#include <utility>

#include "server/core/cache/cache.h"

namespace blockd::server {

void Cache::PinForGood(CacheEntry& entry) {
  if (entry.pinned) return;
  ++pinned_;
  order_.Unfile(entry);
  entry.pinned = true;
}

bool Cache::NeedsPinGrant(const CacheEntry& entry, const KeyRequest& request) const {
  return options_.pinned != nullptr && (request.pin || request.lease > absl::ZeroDuration()) &&
         entry.pinned_grant.amount() == 0;
}

int64_t Cache::PinnedGrowth(const Pin& pin, int64_t bytes, bool pins) const {
  FairLock lock(&mutex_);
  const CacheEntry& entry = *pin.entry_;
  if (!entry.held || !(pins || entry.is_pinned_or_leased())) return 0;
  return std::max<int64_t>(bytes - entry.pinned_grant.amount(), 0);
}

absl::Status Cache::GrantPinned(CacheEntry& entry, int64_t bytes, const TenantPtr& tenant,
                                Reservation* reserved) {
  if (options_.pinned == nullptr) return absl::OkStatus();
  const int64_t lacking = bytes - entry.pinned_grant.amount();
  if (lacking <= 0) {
    entry.pinned_grant.Split(-lacking);  // and gives it back
    return absl::OkStatus();
  }
  const int64_t here = reserved == nullptr ? 0 : std::min(lacking, reserved->amount());
  absl::StatusOr<Reservation> more = options_.pinned->Reserve(tenant, lacking - here);
  if (!more.ok()) return more.status();
  if (here > 0) entry.pinned_grant.Merge(reserved->Split(here));
  entry.pinned_grant.Merge(*std::move(more));
  return absl::OkStatus();
}

}  // namespace blockd::server
