// How much of a resource may still be promised: integers only, no memory.
//
// A Reservation is taken before anything is accepted and given back by its destructor. The sum of
// all reservations never exceeds the total, nor a tenant's its quota. A tenant without a quota may
// have its fair share: with `share` s at most s / (1 - s) times what would then be left, so that
// one alone gets s of all, and whoever comes later still finds some. (A dynamic threshold:
// Choudhury and Hahne, IEEE/ACM Trans. Networking 6, 1998.)
//
// Where a reservation does not fit, the budget asks its Evictor to end idle objects, and asks for
// nothing if even all of them would not make it fit.
//
// Budgets of one resource, one a device, may be of one group: quotas and shares then hold for what
// a tenant has of all of them together.
//
// Thread-safe. Lock order: the budget's lock, then the evictor's or the group's; so an evictor
// never destroys a Reservation while it holds its own lock.
#ifndef BLOCKD_SERVER_CORE_TENANTS_BUDGET_H_
#define BLOCKD_SERVER_CORE_TENANTS_BUDGET_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/core/common/tenant.h"

namespace blockd::server {

class Budget;

// RAII promise of so much of a budget, which outlives it. Movable; empty after a move. One thread
// at a time.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept { *this = std::move(other); }
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation() { Reset(); }

  int64_t amount() const { return amount_; }
  int64_t bytes() const { return amount_; }         // of a budget of bytes
  const Tenant* tenant() const { return tenant_; }  // null: nobody's
  // Moves `amount`, at most amount(), into a reservation of its own.
  Reservation Split(int64_t amount);
  // Takes over what `other`, of the same budget and tenant, holds.
  void Merge(Reservation other);
  void Reset();

 private:
  friend class Budget;
  Reservation(Budget* budget, Tenant* tenant, int64_t amount)
      : budget_(budget), tenant_(tenant), amount_(amount) {}
  Budget* budget_ = nullptr;
  Tenant* tenant_ = nullptr;  // who has something is not forgotten
  int64_t amount_ = 0;
};

// Something held that could be given up, and its promise.
struct Evicted {
  Reservation reservation;             // destroyed last
  std::shared_ptr<const void> object;  // nobody else has it: its memory returns with it
};

class Evictor {
 public:
  virtual ~Evictor() = default;
  // Ends idle objects until they sum up to `bytes`; none at all if all that are idle sum up to
  // less, but fewer where others use them meanwhile. First those of tenants that have more than
  // `fair_bytes` times their weight, then those of all; the least recently used first. Does not
  // call the budget.
  virtual std::vector<Evicted> Evict(int64_t bytes, double fair_bytes) = 0;
  virtual int64_t EvictableBytes() = 0;
  // Bytes of all kept objects. Other reservations belong to work under way.
  virtual int64_t HeldBytes() const = 0;
  // The weights of all who hold something.
  virtual double HoldersWeight() const = 0;
};

// The total that its budgets share. It outlives them.
class BudgetGroup {
 private:
  friend class Budget;
  absl::Mutex mutex_;
  int64_t total_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t reserved_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The amount of `total` that a tenant without a quota may have while others have `others`.
int64_t FairShare(double share, int64_t total, int64_t others);

class Budget {
 public:
  struct Options {
    Resource resource = Resource::kDeviceBytes;
    int64_t total = 0;
    double share = 1;  // 1: who comes first may have all
    // The retry delay of a refusal whose reason is work under way.
    absl::Duration retry_delay = absl::Milliseconds(50);
    // The flag that `total` is, where one request may ask for more than that.
    std::string_view limit = {};
    BudgetGroup* group = nullptr;  // null: one of its own
  };
  explicit Budget(const Options& options);
  ~Budget();  // CHECKs that every reservation is back
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  // Before the first Reserve; null: nothing is ever evicted. Outlives the last Reserve.
  void set_evictor(Evictor* evictor) { evictor_ = evictor; }

  // RESOURCE_EXHAUSTED: of bytes on the device, pinned or not, with the detail InsufficientMemory,
  // and with a RetryAfter where it would fit once the work under way is over; where it is the
  // tenant's quota or share that does not suffice with QuotaExceeded, and with a RetryAfter if
  // giving back what the tenant has would help. UNAVAILABLE with a RetryAfter if there is nothing
  // left of a resource that comes back by itself. `amount` >= 0. Null: nobody's, bounded by the
  // total alone.
  absl::StatusOr<Reservation> Reserve(const TenantPtr& tenant, int64_t amount);
  // Reserves `amount` more for `held`, a reservation of this budget and tenant or an empty one,
  // which stays as it was if that is refused.
  absl::Status Extend(const TenantPtr& tenant, int64_t amount, Reservation* held);
  // RESOURCE_EXHAUSTED with LimitExceeded if no waiting helps one that has `held` already. Of a
  // budget with a limit's name.
  absl::Status CheckEverFits(int64_t amount, int64_t held = 0) const;
  // The status that Reserve would return now.
  absl::Status Check(const TenantPtr& tenant, int64_t amount) const;
  // The same as Reserve without evicting anything; empty if it does not fit now.
  std::optional<Reservation> TryReserve(const TenantPtr& tenant, int64_t amount);
  // Nobody's quota or share counts with its total any more, as with what is gone.
  void LeaveGroup();
  // Gives evicted things back at once, so that the pool has their memory when this returns.
  void Free(std::vector<Evicted> evicted);

  Resource resource() const { return options_.resource; }
  int64_t total() const { return options_.total; }
  int64_t reserved() const;
  int64_t peak_reserved() const;
  int64_t free() const { return total() - reserved(); }

 private:
  friend class Reservation;
  void Return(Tenant* tenant, int64_t amount);
  // Looks at the quota, and takes: nobody of the group comes in between.
  absl::StatusOr<Reservation> TakeLocked(Tenant* tenant, int64_t amount)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReturnLocked(Tenant* tenant, int64_t amount) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FreeLocked(std::vector<Evicted> evicted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t FreeLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return options_.total - reserved_;
  }
  // The most that the tenant may have with what the others have.
  int64_t LimitInGroup(const Tenant& tenant) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(group_.mutex_);
  absl::Status CheckQuotaInGroup(const Tenant* tenant, int64_t amount) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(group_.mutex_);
  absl::Status CheckQuota(const Tenant* tenant, int64_t amount) const
      ABSL_LOCKS_EXCLUDED(group_.mutex_);
  absl::Status RefusalLocked(int64_t amount) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  BudgetGroup own_group_;
  BudgetGroup& group_;
  Evictor* evictor_ = nullptr;
  mutable absl::Mutex mutex_ ABSL_ACQUIRED_BEFORE(group_.mutex_);
  int64_t reserved_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t peak_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_TENANTS_BUDGET_H_
