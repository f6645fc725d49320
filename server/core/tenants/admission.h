// Admission accepts or refuses a request by what it needs on any device.
//
// Thread-safe. Outlives all permits.
#ifndef BLOCKD_SERVER_CORE_TENANTS_ADMISSION_H_
#define BLOCKD_SERVER_CORE_TENANTS_ADMISSION_H_

#include <cstdint>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/core/common/request.h"
#include "server/core/tenants/budget.h"
#include "server/core/tenants/permit.h"
#include "server/core/tenants/tenants.h"

namespace blockd::server {

class Admission {
 public:
  // `backlog`: in how long a device has done what waits, as predicted; asked once a place in the
  // queue is missing. Tenants and clock outlive it.
  Admission(const CoreLimits& limits, const ServerIdentity& server, Tenants* tenants, Clock* clock,
            absl::AnyInvocable<absl::Duration() const> backlog);

  const CoreLimits& limits() const { return limits_; }
  absl::Time Now() const { return clock_->Now(); }
  Budget& handles() { return handles_; }

  // Accepts a request that counts for so many: it is not over yet, the server does not drain, the
  // tenant's rate and the queue have room. INVALID_ARGUMENT for REALTIME without a deadline.
  absl::StatusOr<Permit> Admit(RequestContext& context, int64_t requests = 1);
  // Another place in the queue for an accepted request that is not over.
  absl::StatusOr<Permit> AdmitAnother(const Permit& permit);
  // The tenant's rate of bytes that it sends. What a part has was made of them.
  absl::Status TakeUpload(const Permit& permit, int64_t bytes);
  // Its class, not above the tenant's highest.
  static PriorityClass ClassOf(const RequestContext& context);

  // New work is refused from now on.
  void Close() { ongoing_.Close(); }
  void WaitUntilIdle() { ongoing_.WaitUntilNone(); }

 private:
  absl::Status TakeSlot(Permit& permit);
  absl::Status TakeRate(const char* quota, TokenBucket& bucket, const Tenant& tenant, double amount,
                        absl::Time now) const;
  absl::Duration RetryDelay() const;

  const CoreLimits limits_;
  const std::string server_name_;
  Tenants* const tenants_;
  Clock* const clock_;
  const absl::AnyInvocable<absl::Duration() const> backlog_;
  Budget handles_, slots_;
  OngoingWork ongoing_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_TENANTS_ADMISSION_H_
