// The factorizations that the server keeps: by handle, owned by a caller, charged to the budget.
//
// An entry's memory is its Holding. The cache holds one reference to it and each Pin another one;
// the memory and its reservation return when the last of them goes. What is pinned by a Pin, by its
// owner or by an unexpired lease is never evicted. Release ends an entry for lookups at once; its
// memory returns with its last Pin.
//
// The cache finds idle entries, which could be evicted, without a look at all entries: each
// caller's entries are ordered by their last use, leased entries by the end of their lease.
//
// An ended handle leaves a tombstone, so that NOT_FOUND can say why; only so many are kept.
//
// A cache whose device failed is closed: all of its handles end at once, and it takes no more.
//
// An idempotency key stands for all systems of the Factor that brought it, those that were not
// positive definite included. It lives as long as all of its handles do, and goes with the first of
// them that ends or changes.
//
// The bytes of a pinned or leased entry, with its matrix, are always reserved from the budget of
// pins: a change that would add to them is refused if the budget has no room.
//
// Thread-safe. No Reservation of device memory is destroyed under the cache's lock (see budget.h);
// those of handles and of pins are, and those of pins are taken, whose budgets have no evictor.
#ifndef BLOCKD_SERVER_CORE_CACHE_FACTORIZATION_CACHE_H_
#define BLOCKD_SERVER_CORE_CACHE_FACTORIZATION_CACHE_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "blockd/engine/factorization.h"
#include "server/base/clock.h"
#include "server/base/fair_mutex.h"
#include "server/core/cache/eviction_plan.h"
#include "server/core/common/errors.h"
#include "server/core/common/factorization_stats.h"
#include "server/core/common/handle.h"
#include "server/core/common/metrics.h"
#include "server/core/tenants/budget.h"

namespace blockd::server {

// A factorization and the promise of its memory, which goes last.
struct Holding {
  Reservation reservation;
  std::shared_ptr<Factorization> factorization;
};

class FactorizationCache : public Evictor {
 private:
  struct Entry;
  struct Caller;

 public:
  struct Options {
    int64_t tombstones = 65536;
    absl::Duration idle_expiry = absl::InfiniteDuration();
    uint8_t shard = 0;         // in every handle that it makes
    Budget* pinned = nullptr;  // of what is pinned or leased; null: nobody counts it
  };
  // A system of a Factor with an idempotency key.
  struct KeyedSystem {
    absl::Status status;                    // OK, or that it is not positive definite
    Handle handle = {};                     // if status is OK
    std::optional<double> log_determinant;  // absent: not known
  };
  struct EntryOptions {
    absl::Duration lease = absl::ZeroDuration();  // not evicted for so long after its last use
    bool pin = false;                             // never evicted, never expired
    std::string idempotency_key = {};             // of all the holdings inserted together
    // With a key: one a system of the request, in order. Those that are OK are the holdings, in
    // order; their handles are filled in.
    std::vector<KeyedSystem> keyed = {};
  };
  // The entries' reservations beside their device memory: one handle each, or none if handles are
  // not counted. `pinned`: the holdings' bytes, if they are pinned or leased.
  struct EntryGrants {
    Reservation handles, pinned;
  };
  // The requirements of a Factor with a key on the factorizations that it may find.
  struct KeyRequest {
    BorderedShape shape;
    int64_t systems = 0;
    bool keep_matrix = false;
    Accuracy accuracy = Accuracy::kStandard;
    bool condition_estimate = false;
    absl::Duration lease = absl::ZeroDuration();
    bool pin = false;
    TenantPtr tenant = nullptr;  // of whom the pin's bytes are taken
  };
  struct Totals {
    int64_t entries = 0;
    int64_t bytes = 0;
    int64_t pinned = 0;
    int64_t callers = 0;  // who have some
  };

  // Keeps a factorization's memory while in use. Movable; one thread at a time.
  class Pin {
   public:
    Pin() = default;
    Pin(Pin&& other) noexcept { *this = std::move(other); }
    Pin& operator=(Pin&& other) noexcept;
    ~Pin() { Reset(); }
    void Reset();

    const std::shared_ptr<Factorization>& factorization() const { return holding_->factorization; }
    const Factorization& operator*() const { return *holding_->factorization; }
    const Factorization* operator->() const { return holding_->factorization.get(); }

   private:
    friend class FactorizationCache;
    FactorizationCache* cache_ = nullptr;
    Entry* entry_ = nullptr;
    std::shared_ptr<Holding> holding_;
  };
  struct KeyedFactors {
    std::vector<KeyedSystem> systems;
    std::vector<Pin> pins;   // one a system; without a factorization where its status is not OK
    int64_t held_bytes = 0;  // of each
  };

  // `clock` and `metrics` outlive the cache. `server` is in every handle that it makes.
  FactorizationCache(const Options& options, const ServerIdentity& server, Clock* clock,
                     Metrics* metrics);
  ~FactorizationCache() override;

  // New handles, one a holding, in order.
  std::vector<Handle> Insert(const std::string& caller, std::vector<Holding> holdings,
                             const EntryOptions& options, EntryGrants grants = {});

  // NOT_FOUND with the reason; UNAVAILABLE while a refactor overwrites it. Counts as a use.
  absl::StatusOr<Pin> Lookup(const std::string& caller, const Handle& handle);
  // The same for each of several, in order; others come in between.
  std::vector<absl::StatusOr<Pin>> LookupAll(const std::string& caller,
                                             std::span<const Handle> handles);
  // The same, but neither a use nor a hit or miss.
  absl::StatusOr<Pin> Peek(const std::string& caller, const Handle& handle);
  // Solves are over; others come in between. One that was answered is also a use.
  struct EndedSolve {
    Pin pin;
    int64_t num_rhs = 0;  // that were solved; 0: it failed
  };
  void EndSolves(std::span<EndedSolve> solves);

  // The factorizations that the Factor with this key made; nullopt unless all are still held.
  // Counts as a use of each, pins them if asked to, and extends their leases to that of the
  // request. INVALID_ARGUMENT, and nothing changes, if the request is for another shape or number
  // of systems or wants a matrix that was not kept.
  absl::StatusOr<std::optional<KeyedFactors>> FindKey(const std::string& caller,
                                                      const std::string& key,
                                                      const KeyRequest& request);

  // Ends those that are held; bytes that return, at once or with the last pin. NOT_FOUND, for the
  // first of them, if some are not held: the others are released all the same. A handle that is
  // named twice counts once.
  absl::StatusOr<int64_t> Release(const std::string& caller, std::span<const Handle> handles);

  // A refactor in place: the handle keeps its name and loses its idempotency key, since its content
  // is another one. `lease` of zero and `pin` of false leave what the entry has. NOT_FOUND if it is
  // not held any more. Where it then pins more bytes, these are of `reserved`, and what that lacks
  // of the tenant's. RESOURCE_EXHAUSTED if there are no more: the old one stays, and one whose
  // memory was taken ends with the reason FAILED_REFACTOR.
  absl::Status Replace(const std::string& caller, const Handle& handle, Holding holding,
                       const EntryOptions& options, const TenantPtr& tenant = nullptr,
                       Reservation* reserved = nullptr);
  // How many bytes more would be pinned or leased if `bytes` took the place of what is pinned here.
  // `pins`: they would be, whether what they replace is or not.
  int64_t PinnedGrowth(const Pin& pin, int64_t bytes, bool pins) const;
  // Takes the memory out of an entry to be overwritten; lookups are UNAVAILABLE until Replace or
  // FailOverwrite. nullopt, and the pin stays, if somebody else uses it or it is not held any more.
  std::optional<Holding> BeginOverwrite(Pin& pin);
  // Ends the handle with the reason FAILED_REFACTOR.
  void FailOverwrite(const Handle& handle);

  std::vector<Evicted> Evict(int64_t bytes, double fair_bytes) override;
  int64_t EvictableBytes() override;
  int64_t HeldBytes() const override { return totals().bytes; }
  double HoldersWeight() const override;
  // Against fragmentation (factorization_cache_eviction.cc): all that are idle, with where they
  // lie; others come in between.
  std::vector<IdleHolding> IdleHoldings(double fair_bytes);
  // Evicts what was chosen of them. None of it if some is not idle there any more; of many some may
  // be gone where one becomes used meanwhile.
  std::vector<Evicted> EvictChosen(std::span<const IdleHolding> chosen);
  // By whoever runs the server: any caller's handles, pinned and used ones too, which end with the
  // reason EVICTED. Those not held are left in `missing`. A handle that is named twice counts once.
  struct Changed {
    int64_t handles = 0;                        // evicted; that were pinned or leased until now
    int64_t bytes = 0;                          // that return, at once or with the last pin
    absl::btree_set<std::string> callers = {};  // whose they are
  };
  Changed EvictHandles(std::span<const Handle> handles, std::vector<Handle>* missing);
  // Ends pins and leases of any callers' handles.
  Changed UnpinHandles(std::span<const Handle> handles, std::vector<Handle>* missing);
  // Ends what was idle for longer than the expiry, and neither pinned, leased nor in use.
  void Expire();
  // Ends all, in use or not, with the reason DEVICE_FAILED, as it then ends what comes later.
  void Close();

  absl::StatusOr<FactorizationStats> Get(const std::string& caller, const Handle& handle) const;
  std::vector<FactorizationStats> List(const std::string& caller, std::optional<Handle> after,
                                       int64_t limit) const;
  // Stats of all callers' entries, in the order of the handles.
  struct OwnedStats {
    std::string caller;
    FactorizationStats stats;
  };
  std::vector<OwnedStats> ListAll(std::optional<Handle> after, int64_t limit) const;
  Totals totals() const;

 private:
  // Handles that are filed, found, released or looked at under one hold of the lock: some 50 us.
  static constexpr size_t kAtATime = 64;
  template <typename T>
  static std::span<const T> Portion(std::span<const T> all, size_t at) {
    return all.subspan(at, std::min(kAtATime, all.size() - at));
  }

  // Shared by all entries that a Factor with a key made. Constant but for `forgotten`, which is
  // guarded.
  struct KeyRecord {
    std::string key;
    BorderedShape shape;
    std::vector<KeyedSystem> systems;
    int64_t held_bytes = 0;  // of each, the most
    bool forgotten = false;  // for good; else all of its entries are held
  };

  // It lives until it is neither held nor in use.
  struct Entry {
    Handle handle;
    bool pinned = false;
    bool held = true;
    bool idle = false;                 // in its caller's `idle`
    bool leased = false;               // in `leased_`
    int32_t uses = 0;                  // pins
    Caller* caller = nullptr;          // while it is held
    std::shared_ptr<KeyRecord> key;    // null or forgotten: none
    std::shared_ptr<Holding> holding;  // null while it is overwritten
    BorderedShape shape;
    absl::Duration lease;
    absl::Time made, used;
    int64_t use_order = 0;  // of all entries' uses
    int64_t times_solved = 0, rhs_solved = 0, times_refactored = 0;
    Reservation handle_grant, pinned_grant;

    absl::Time lease_end() const { return used + lease; }
    // A lease that is over begins again with the next use.
    bool is_pinned_or_leased() const { return pinned || lease > absl::ZeroDuration(); }
  };
  struct LessRecentlyUsed {
    bool operator()(const Entry* a, const Entry* b) const { return a->use_order < b->use_order; }
  };
  struct LeaseEndsEarlier {
    bool operator()(const Entry* a, const Entry* b) const {
      return a->lease_end() != b->lease_end() ? a->lease_end() < b->lease_end() : a < b;
    }
  };
  struct ByHandle {
    using is_transparent = void;
    static const Handle& Of(const Entry* entry) { return entry->handle; }
    static const Handle& Of(const Handle& handle) { return handle; }
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      return Of(a) < Of(b);
    }
  };
  struct Caller {
    std::string name;
    const Tenant* tenant = nullptr;  // null: it has no quotas
    absl::btree_set<Entry*, ByHandle> entries;
    absl::btree_set<Entry*, LessRecentlyUsed> idle;
    absl::flat_hash_map<std::string, std::shared_ptr<KeyRecord>> keys;
    int64_t charged_bytes = 0;  // of the holdings' reservations
  };
  struct Tombstone {
    uint64_t caller_hash;
    NotFoundReason reason;
  };
  using Leases = absl::btree_set<Entry*, LeaseEndsEarlier>;

  absl::StatusOr<Entry*> Find(const std::string& caller, const Handle& handle) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  NotFoundReason WhyNot(const std::string& caller, const Handle& handle) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Pin> LookupLocked(const std::string& caller, const Handle& handle, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Pin MakePin(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndUse(Entry* entry) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndUseLocked(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // NoteUse is for an entry that is not filed, Touch for any.
  void NoteUse(Entry& entry, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    entry.used = std::max(entry.used, now);
    entry.use_order = next_use_++;
  }
  void Touch(Entry& entry, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes it out of the orders of what is idle or leased, before what they go by changes, and puts
  // it back where it then belongs.
  void Unfile(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void File(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Entries whose lease is over become idle.
  void EndLeases(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static int64_t ChargeOf(const Entry& entry) {
    return entry.holding ? entry.holding->reservation.bytes() : 0;
  }
  // True if the caller has more than `fair_bytes` times its weight.
  static bool HasMoreThan(double fair_bytes, const Caller& caller);
  // The entry, if it is idle and lies where it did.
  Entry* StillIdle(const IdleHolding& chosen) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The least recently used idle entry of callers that have more than `fair_bytes` times their
  // weight; null if there is none.
  Entry* OldestIdle(double fair_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Caller& InsertAll(const std::string& caller, std::span<Entry* const> entries)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // factorization_cache_keys.cc
  static std::shared_ptr<KeyRecord> RecordOf(const EntryOptions& options,
                                             std::span<Entry* const> entries);
  // From now on the key finds it, unless one of its entries is not held any more.
  void RememberKey(Caller& owner, std::shared_ptr<KeyRecord> record)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetKey(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null: the key finds nothing.
  absl::StatusOr<std::shared_ptr<KeyRecord>> FindRecord(const std::string& caller,
                                                        const std::string& key,
                                                        const KeyRequest& request);
  static absl::Status CheckKept(const Factorization& held, const KeyRequest& request);
  // One pin a system, and in `wanted` the bytes that each lacks for what is asked of it. False: the
  // key was forgotten meanwhile.
  absl::StatusOr<bool> PinAll(const KeyRecord& record, const KeyRequest& request,
                              std::vector<Pin>* pins, std::vector<int64_t>* wanted);
  void UseAll(std::span<Pin> pins, std::span<const int64_t> wanted, const KeyRequest& request,
              Reservation pinned);
  // factorization_cache_pins.cc
  void PinForGood(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // True if the Factor asks for a pin or lease that is not counted yet.
  bool NeedsPinGrant(const Entry& entry, const KeyRequest& request) const;
  // Makes what the entry has of the budget of pins so many bytes, of `reserved` and then of the
  // tenant's. If there are no more nothing changes.
  absl::Status GrantPinned(Entry& entry, int64_t bytes, const TenantPtr& tenant,
                           Reservation* reserved) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Entry* EntryOf(const Handle& handle) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Each entry once, whichever caller it belongs to; `changed` says which.
  std::vector<Entry*> EntriesOf(std::span<const Handle> handles, Changed* changed,
                                std::vector<Handle>* missing) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The caller's own; null for one that it does not hold.
  Entry* EntryOf(const std::string& caller, const Handle& handle) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the entry; the caller drops the holding after unlocking. The entry may be gone then.
  std::shared_ptr<Holding> End(Entry* entry, NotFoundReason why, EvictionReason reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Up to so many, since the device failed; destroyed after unlocking.
  std::vector<std::shared_ptr<Holding>> EndAll(size_t most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Evicted EndIdle(Entry* entry, EvictionReason reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  FactorizationStats StatsOf(const Entry& entry, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const ServerIdentity server_;
  Clock* const clock_;
  Metrics* const metrics_;
  mutable FairMutex mutex_;
  absl::btree_set<Entry*, ByHandle> entries_ ABSL_GUARDED_BY(mutex_);
  absl::node_hash_map<std::string, Caller> callers_ ABSL_GUARDED_BY(mutex_);
  Leases leased_ ABSL_GUARDED_BY(mutex_);
  int64_t idle_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of all callers' `idle`
  absl::flat_hash_map<Handle, Tombstone> tombstones_ ABSL_GUARDED_BY(mutex_);
  std::deque<Handle> tombstone_order_ ABSL_GUARDED_BY(mutex_);
  int64_t next_use_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t held_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t pinned_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_CACHE_FACTORIZATION_CACHE_H_
