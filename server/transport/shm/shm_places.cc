#include "server/transport/shm/shm_places.h"

#include "absl/strings/str_cat.h"
#include "server/core/common/errors.h"
#include "server/core/tenants/budget.h"

namespace blockd::server {
namespace {

constexpr char kSessions[] = "shared_memory_sessions", kBytes[] = "max_shared_memory_bytes";

}  // namespace

absl::StatusOr<std::shared_ptr<const void>> ShmPlaces::Take(const TenantPtr& tenant,
                                                            int64_t bytes) {
  if (bytes > limits_.bytes) {
    return LimitExceededError(
        "the session's memory",
        {.limit = kBytes, .asked_bytes = bytes, .limit_bytes = limits_.bytes});
  }
  if (absl::Status status = TakeIfFree(*tenant, bytes); !status.ok()) return status;
  return std::shared_ptr<const void>(this, [places = shared_from_this(), tenant, bytes](
                                               const void*) { places->GiveBack(tenant, bytes); });
}

absl::Status ShmPlaces::TakeIfFree(const Tenant& tenant, int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  if (all_.sessions >= limits_.sessions) {
    return RetryAfterError(absl::StrCat("--", kSessions, "=", limits_.sessions, " are open"),
                           retry_delay_);
  }
  absl::Status status = CheckShare(tenant, kSessions, &Use::sessions, 1);
  if (status.ok() && all_.bytes > limits_.bytes - bytes) {
    return RetryAfterError(absl::StrCat("other sessions have ", all_.bytes, " bytes of --", kBytes,
                                        "=", limits_.bytes),
                           retry_delay_);
  }
  if (status.ok() && tenant.quota(Resource::kHostBytes) < 0) {
    status = CheckShare(tenant, kBytes, &Use::bytes, bytes);
  }
  if (!status.ok()) return status;
  for (Use* const use : {&all_, &of_[&tenant]}) {
    ++use->sessions;
    use->bytes += bytes;
  }
  return status;
}

void ShmPlaces::GiveBack(const TenantPtr& tenant, int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  Use& own = of_[tenant.get()];
  for (Use* const use : {&all_, &own}) {
    --use->sessions;
    use->bytes -= bytes;
  }
  if (own.sessions == 0) of_.erase(tenant.get());
}

absl::Status ShmPlaces::CheckShare(const Tenant& tenant, const char* name, int64_t Use::*what,
                                   int64_t asked) const {
  const auto found = of_.find(&tenant);
  const int64_t own = found == of_.end() ? 0 : found->second.*what;
  const int64_t limit = FairShare(tenant_share_, limits_.*what, all_.*what - own);
  if (asked <= limit - own) return absl::OkStatus();
  const absl::Status status = QuotaExceededError({.quota = name,
                                                  .limit = static_cast<double>(limit),
                                                  .used = static_cast<double>(own),
                                                  .asked = static_cast<double>(asked),
                                                  .tenant = tenant.name()});
  const bool ever = asked <= FairShare(tenant_share_, limits_.*what, 0);
  return ever ? WithRetryAfter(status, retry_delay_) : status;
}

ShmPlaces::Use ShmPlaces::used() const {
  absl::MutexLock lock(&mutex_);
  return all_;
}

}  // namespace blockd::server
