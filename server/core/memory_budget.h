// How much device memory may still be promised: integers only, no memory.
//
// A Reservation is taken before bytes are accepted and given back by its destructor. The sum of all
// reservations never exceeds the total. Where a reservation does not fit, the budget asks its
// Evictor to end idle holdings, and asks for nothing if even all of them would not make it fit.
//
// Thread-safe. Lock order: the budget's lock, then the evictor's; so an evictor never destroys a
// Reservation while it holds its own lock.
#ifndef BLOCKD_SERVER_CORE_MEMORY_BUDGET_H_
#define BLOCKD_SERVER_CORE_MEMORY_BUDGET_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace blockd::server {

class MemoryBudget;

// RAII promise of some bytes of a budget, which outlives it. Movable; empty after a move. One
// thread at a time.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept { *this = std::move(other); }
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation() { Reset(); }

  int64_t bytes() const { return bytes_; }
  // Moves `bytes`, at most bytes(), into a reservation of its own.
  Reservation Split(int64_t bytes);
  // Takes over what `other`, of the same budget, holds.
  void Merge(Reservation other);
  void Reset();

 private:
  friend class MemoryBudget;
  Reservation(MemoryBudget* budget, int64_t bytes) : budget_(budget), bytes_(bytes) {}
  MemoryBudget* budget_ = nullptr;
  int64_t bytes_ = 0;
};

// Something held that could be given up, and its promise.
struct Evicted {
  Reservation reservation;              // destroyed last
  std::shared_ptr<const void> holding;  // nobody else has it: its memory returns with it
};

class Evictor {
 public:
  virtual ~Evictor() = default;
  // Ends idle holdings, least recently used first, until they sum up to `bytes`; none at all if all
  // that are idle sum up to less. Does not call the budget.
  virtual std::vector<Evicted> Evict(int64_t bytes) = 0;
  virtual int64_t EvictableBytes() const = 0;
  // Of all holdings; what is reserved beside them is work under way.
  virtual int64_t HeldBytes() const = 0;
};

class MemoryBudget {
 public:
  // `retry_delay`: what a refusal asks for that work under way is the reason of.
  explicit MemoryBudget(int64_t total_bytes, absl::Duration retry_delay = absl::Milliseconds(50))
      : total_(total_bytes), retry_delay_(retry_delay) {}
  ~MemoryBudget();  // CHECKs that every reservation is back
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // Before the first Reserve; null: nothing is ever evicted. Outlives the last Reserve.
  void set_evictor(Evictor* evictor) { evictor_ = evictor; }

  // RESOURCE_EXHAUSTED with the detail InsufficientMemory, and with a RetryAfter where it would fit
  // once the work under way is over; `bytes` >= 0.
  absl::StatusOr<Reservation> Reserve(int64_t bytes);
  // The same without evicting anything; empty if it does not fit now.
  std::optional<Reservation> TryReserve(int64_t bytes);
  // Gives evicted things back at once, so that the pool has their memory when this returns.
  void Free(std::vector<Evicted> evicted);

  int64_t total_bytes() const { return total_; }
  int64_t reserved_bytes() const;
  int64_t peak_reserved_bytes() const;
  int64_t free_bytes() const { return total_ - reserved_bytes(); }

 private:
  friend class Reservation;
  void Return(int64_t bytes);
  Reservation TakeLocked(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FreeLocked(std::vector<Evicted> evicted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Status RefusalLocked(int64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t total_;
  const absl::Duration retry_delay_;
  Evictor* evictor_ = nullptr;
  mutable absl::Mutex mutex_;
  int64_t reserved_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t peak_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_MEMORY_BUDGET_H_
