#include "server/core/tenants/admission.h"

#include <algorithm>
#include <utility>

#include "server/core/common/errors.h"

namespace blockd::server {
namespace {

// A delay to try again after says how long the queue is, but not that somebody should give up.
constexpr absl::Duration kLongestRetry = absl::Seconds(5);

Budget::Options BudgetOf(Resource resource, int64_t total, const CoreLimits& limits) {
  return {.resource = resource,
          .total = total,
          .share = limits.tenant_share,
          .retry_delay = limits.retry_delay};
}

}  // namespace

Admission::Admission(const CoreLimits& limits, const ServerIdentity& server, Tenants* tenants,
                     Clock* clock, absl::AnyInvocable<absl::Duration() const> backlog)
    : limits_(limits),
      server_name_(server.name),
      tenants_(tenants),
      clock_(clock),
      backlog_(std::move(backlog)),
      handles_(BudgetOf(Resource::kHandles, limits.max_handles, limits)),
      slots_(BudgetOf(Resource::kQueueSlots, limits.max_queued_requests, limits)) {}

absl::Duration Admission::RetryDelay() const {
  return std::clamp(backlog_(), limits_.retry_delay, std::max(limits_.retry_delay, kLongestRetry));
}

absl::StatusOr<Permit> Admission::Admit(RequestContext& context, int64_t requests) {
  const absl::Time now = clock_->Now();
  if (context.deadline <= now) return absl::DeadlineExceededError("the deadline has passed");
  if (context.cancelled.load(std::memory_order_relaxed)) {
    return absl::CancelledError("the request was cancelled");
  }
  if (context.priority == PriorityClass::kRealtime && context.deadline == absl::InfiniteFuture()) {
    return InvalidFieldError("priority", "REALTIME without a deadline", "a deadline");
  }
  if (context.tenant == nullptr) {
    absl::StatusOr<TenantPtr> tenant = tenants_->Get(context.caller);
    if (!tenant.ok()) return tenant.status();
    context.tenant = *std::move(tenant);
  }
  Permit permit;
  permit.tenant = context.tenant;
  if (!ongoing_.Begin(&permit.ongoing)) return DrainingError(server_name_, limits_.retry_delay);
  absl::Status status = TakeRate("requests_per_second", permit.tenant->requests(), *permit.tenant,
                                 static_cast<double>(requests), now);
  context.is_over_rate = !status.ok();
  if (status.ok()) status = TakeSlot(permit);
  if (!status.ok()) return status;
  return permit;
}

absl::StatusOr<Permit> Admission::AdmitAnother(const Permit& permit) {
  Permit another;
  another.tenant = permit.tenant;
  ongoing_.BeginPart(&another.ongoing);
  if (absl::Status status = TakeSlot(another); !status.ok()) return status;
  return another;
}

absl::Status Admission::TakeSlot(Permit& permit) {
  absl::StatusOr<Reservation> slot = slots_.Reserve(permit.tenant, 1);
  if (!slot.ok()) return WithRetryAfter(slot.status(), RetryDelay());
  permit.slot = *std::move(slot);
  return absl::OkStatus();
}

absl::Status Admission::TakeUpload(const Permit& permit, int64_t bytes) {
  if (permit.is_part) return absl::OkStatus();
  return TakeRate("upload_bytes_per_second", permit.tenant->upload_bytes(), *permit.tenant,
                  static_cast<double>(bytes), clock_->Now());
}

absl::Status Admission::TakeRate(const char* quota, TokenBucket& bucket, const Tenant& tenant,
                                 double amount, absl::Time now) const {
  const absl::Duration wait = bucket.Take(amount, now);
  if (wait == absl::ZeroDuration()) return absl::OkStatus();
  const double rate = bucket.rate();
  const absl::Status status = QuotaExceededError(
      {.quota = quota, .limit = rate, .used = rate, .asked = amount, .tenant = tenant.name()});
  if (wait == absl::InfiniteDuration()) return status;
  return WithRetryAfter(status, std::max(wait, limits_.retry_delay));
}

PriorityClass Admission::ClassOf(const RequestContext& context) {
  return context.tenant ? std::max(context.priority, context.tenant->highest_class())
                        : context.priority;
}

}  // namespace blockd::server
