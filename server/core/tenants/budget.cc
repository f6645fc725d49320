#include "server/core/tenants/budget.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/common/errors.h"

namespace blockd::server {
namespace {

// True if the resource comes back by itself when the work that took it is over.
bool ReturnsByItself(Resource resource) {
  return resource == Resource::kHostBytes || resource == Resource::kQueueSlots;
}

std::string_view WhatIsFull(Resource resource) {
  return resource == Resource::kQueueSlots
             ? "the queue is full"
             : "requests under way fill the host memory that they may use";
}

}  // namespace

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  budget_ = std::exchange(other.budget_, nullptr);
  tenant_ = std::exchange(other.tenant_, nullptr);
  amount_ = std::exchange(other.amount_, 0);
  return *this;
}

Reservation Reservation::Split(int64_t amount) {
  amount = std::clamp<int64_t>(amount, 0, amount_);
  amount_ -= amount;
  return Reservation(budget_, tenant_, amount);
}

void Reservation::Merge(Reservation other) {
  // One of nothing is nobody's, so it may be of a budget already.
  if (amount_ == 0) budget_ = other.budget_, tenant_ = other.tenant_;
  amount_ += std::exchange(other.amount_, 0);
}

void Reservation::Reset() {
  if (amount_ > 0) budget_->Return(tenant_, amount_);
  budget_ = nullptr;
  tenant_ = nullptr;
  amount_ = 0;
}

Budget::Budget(const Options& options)
    : options_(options), group_(options.group != nullptr ? *options.group : own_group_) {
  absl::MutexLock lock(&group_.mutex_);
  group_.total_ += options.total;
}

void Budget::LeaveGroup() {
  absl::MutexLock lock(&group_.mutex_);
  group_.total_ -= options_.total;
}

Budget::~Budget() {
  absl::MutexLock lock(&mutex_);
  if (reserved_ != 0) std::abort();  // a reservation would write into a budget that is gone
}

int64_t FairShare(double share, int64_t total, int64_t others) {
  // used <= s / (1 - s) (total - others - used), solved for used.
  return static_cast<int64_t>(std::ceil(share * static_cast<double>(total - others)));
}

int64_t Budget::LimitInGroup(const Tenant& tenant) const {
  if (const int64_t quota = tenant.quota(resource()); quota >= 0) return quota;
  return FairShare(options_.share, group_.total_, group_.reserved_ - tenant.used(resource()));
}

absl::Status Budget::CheckQuota(const Tenant* tenant, int64_t amount) const {
  absl::MutexLock lock(&group_.mutex_);
  return CheckQuotaInGroup(tenant, amount);
}

absl::Status Budget::CheckQuotaInGroup(const Tenant* tenant, int64_t amount) const {
  if (tenant == nullptr || amount == 0) return absl::OkStatus();
  if (tenant->quota(resource()) < 0 && options_.share >= 1) return absl::OkStatus();
  const int64_t used = tenant->used(resource());
  const int64_t limit = LimitInGroup(*tenant);
  if (amount <= limit - used) return absl::OkStatus();
  const absl::Status status = QuotaExceededError({.quota = std::string(QuotaName(resource())),
                                                  .limit = static_cast<double>(limit),
                                                  .used = static_cast<double>(used),
                                                  .asked = static_cast<double>(amount),
                                                  .tenant = tenant->name()});
  const bool ever =
      tenant->quota(resource()) >= 0
          ? amount <= limit
          : static_cast<double>(amount) <= options_.share * static_cast<double>(group_.total_);
  return ever && ReturnsByItself(resource()) ? WithRetryAfter(status, options_.retry_delay)
                                             : status;
}

absl::StatusOr<Reservation> Budget::Reserve(const TenantPtr& tenant, int64_t amount) {
  absl::MutexLock lock(&mutex_);
  absl::Status status = CheckQuota(tenant.get(), amount);
  if (!status.ok()) return status;
  // The lock is held from the look at what is free until it is taken: nobody else takes what was
  // evicted for this one.
  if (amount > FreeLocked() && evictor_ != nullptr) {
    const double weights = std::max(evictor_->HoldersWeight(), 1e-9);
    FreeLocked(
        evictor_->Evict(amount - FreeLocked(), static_cast<double>(options_.total) / weights));
  }
  if (amount > FreeLocked()) return RefusalLocked(amount);
  return TakeLocked(tenant.get(), amount);
}

absl::Status Budget::Check(const TenantPtr& tenant, int64_t amount) const {
  absl::MutexLock lock(&mutex_);
  absl::Status status = CheckQuota(tenant.get(), amount);
  if (!status.ok()) return status;
  const int64_t evictable = evictor_ != nullptr ? evictor_->EvictableBytes() : 0;
  return amount <= FreeLocked() + evictable ? absl::OkStatus() : RefusalLocked(amount);
}

absl::Status Budget::Extend(const TenantPtr& tenant, int64_t amount, Reservation* held) {
  if (absl::Status status = CheckEverFits(amount, held->amount()); !status.ok()) return status;
  absl::StatusOr<Reservation> more = Reserve(tenant, amount);
  if (!more.ok()) return more.status();
  held->Merge(*std::move(more));
  return absl::OkStatus();
}

absl::Status Budget::CheckEverFits(int64_t amount, int64_t held) const {
  if (options_.limit.empty() || amount <= options_.total - held) return absl::OkStatus();
  return LimitExceededError("the request, with its solution,",
                            {.limit = std::string(options_.limit),
                             .asked_bytes = held + amount,
                             .limit_bytes = options_.total});
}

absl::Status Budget::RefusalLocked(int64_t amount) const {
  if (resource() == Resource::kHandles) {
    return QuotaExceededError({.quota = std::string(QuotaName(resource())),
                               .limit = static_cast<double>(options_.total),
                               .used = static_cast<double>(reserved_),
                               .asked = static_cast<double>(amount),
                               .tenant = "all"});
  }
  if (ReturnsByItself(resource())) {
    return RetryAfterError(WhatIsFull(resource()), options_.retry_delay);
  }
  const int64_t free = FreeLocked();
  const int64_t evictable = evictor_ ? evictor_->EvictableBytes() : 0;
  const absl::Status status = InsufficientMemoryError({.asked_bytes = amount,
                                                       .free_bytes = free,
                                                       .evictable_bytes = evictable,
                                                       .total_bytes = options_.total});
  if (resource() == Resource::kPinnedBytes) return status;
  const int64_t working = reserved_ - (evictor_ ? evictor_->HeldBytes() : 0);
  return amount <= free + evictable + working ? WithRetryAfter(status, options_.retry_delay)
                                              : status;
}

std::optional<Reservation> Budget::TryReserve(const TenantPtr& tenant, int64_t amount) {
  absl::MutexLock lock(&mutex_);
  if (amount > FreeLocked()) return std::nullopt;
  absl::StatusOr<Reservation> taken = TakeLocked(tenant.get(), amount);
  if (!taken.ok()) return std::nullopt;
  return *std::move(taken);
}

absl::StatusOr<Reservation> Budget::TakeLocked(Tenant* tenant, int64_t amount) {
  if (amount == 0) tenant = nullptr;  // nothing keeps it alive
  absl::MutexLock lock(&group_.mutex_);
  absl::Status status = CheckQuotaInGroup(tenant, amount);
  if (!status.ok()) return status;
  reserved_ += amount;
  peak_ = std::max(peak_, reserved_);
  group_.reserved_ += amount;
  if (tenant != nullptr) tenant->Use(resource(), amount);
  return Reservation(this, tenant, amount);
}

void Budget::ReturnLocked(Tenant* tenant, int64_t amount) {
  reserved_ -= amount;
  absl::MutexLock lock(&group_.mutex_);
  group_.reserved_ -= amount;
  if (tenant != nullptr) tenant->Use(resource(), -amount);
}

void Budget::Free(std::vector<Evicted> evicted) {
  absl::MutexLock lock(&mutex_);
  FreeLocked(std::move(evicted));
}

void Budget::FreeLocked(std::vector<Evicted> evicted) {
  for (Evicted& one : evicted) {
    one.object.reset();  // first the memory, then the promise
    ReturnLocked(one.reservation.tenant_, std::exchange(one.reservation.amount_, 0));
  }
}

void Budget::Return(Tenant* tenant, int64_t amount) {
  absl::MutexLock lock(&mutex_);
  ReturnLocked(tenant, amount);
}

int64_t Budget::reserved() const {
  absl::MutexLock lock(&mutex_);
  return reserved_;
}

int64_t Budget::peak_reserved() const {
  absl::MutexLock lock(&mutex_);
  return peak_;
}

}  // namespace blockd::server
