#include "server/core/memory_budget.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "server/core/errors.h"

namespace blockd::server {

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  budget_ = std::exchange(other.budget_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

Reservation Reservation::Split(int64_t bytes) {
  bytes = std::clamp<int64_t>(bytes, 0, bytes_);
  bytes_ -= bytes;
  return Reservation(budget_, bytes);
}

void Reservation::Merge(Reservation other) {
  if (budget_ == nullptr) budget_ = other.budget_;
  bytes_ += std::exchange(other.bytes_, 0);
}

void Reservation::Reset() {
  if (bytes_ > 0) budget_->Return(bytes_);
  budget_ = nullptr;
  bytes_ = 0;
}

MemoryBudget::~MemoryBudget() {
  absl::MutexLock lock(&mutex_);
  if (reserved_ != 0) std::abort();  // a reservation would write into a budget that is gone
}

absl::StatusOr<Reservation> MemoryBudget::Reserve(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  // The lock is held from the look at what is free until it is taken: nobody else takes what was
  // evicted for this one.
  if (bytes > total_ - reserved_ && evictor_ != nullptr) {
    FreeLocked(evictor_->Evict(bytes - (total_ - reserved_)));
  }
  if (bytes > total_ - reserved_) return RefusalLocked(bytes);
  return TakeLocked(bytes);
}

absl::Status MemoryBudget::RefusalLocked(int64_t bytes) const {
  const int64_t free = total_ - reserved_;
  const int64_t evictable = evictor_ ? evictor_->EvictableBytes() : 0;
  const absl::Status status = InsufficientMemoryError({.asked_bytes = bytes,
                                                       .free_bytes = free,
                                                       .evictable_bytes = evictable,
                                                       .total_bytes = total_});
  const int64_t working = reserved_ - (evictor_ ? evictor_->HeldBytes() : 0);
  return bytes <= free + evictable + working ? WithRetryAfter(status, retry_delay_) : status;
}

std::optional<Reservation> MemoryBudget::TryReserve(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  if (bytes > total_ - reserved_) return std::nullopt;
  return TakeLocked(bytes);
}

Reservation MemoryBudget::TakeLocked(int64_t bytes) {
  reserved_ += bytes;
  peak_ = std::max(peak_, reserved_);
  return Reservation(this, bytes);
}

void MemoryBudget::Free(std::vector<Evicted> evicted) {
  absl::MutexLock lock(&mutex_);
  FreeLocked(std::move(evicted));
}

void MemoryBudget::FreeLocked(std::vector<Evicted> evicted) {
  for (Evicted& one : evicted) {
    one.holding.reset();  // first the memory, then the promise
    reserved_ -= std::exchange(one.reservation.bytes_, 0);
  }
}

void MemoryBudget::Return(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  reserved_ -= bytes;
}

int64_t MemoryBudget::reserved_bytes() const {
  absl::MutexLock lock(&mutex_);
  return reserved_;
}

int64_t MemoryBudget::peak_reserved_bytes() const {
  absl::MutexLock lock(&mutex_);
  return peak_;
}

}  // namespace blockd::server
