// The factorizations that the server keeps: by handle, owned by a caller, charged to the budget.
//
// An entry's memory is its Holding. The cache holds one reference to it and each Pin another one;
// the memory and its reservation return when the last of them goes. What is pinned by a Pin, by its
// owner or by an unexpired lease is never evicted. Release ends an entry for lookups at once; its
// memory returns with its last Pin.
//
// An ended handle leaves a tombstone, so that NOT_FOUND can say why; only so many are kept.
//
// An idempotency key stands for all systems of the Factor that brought it, those that were not
// positive definite included. It lives as long as all of its handles do, and goes with the first of
// them that ends or changes.
//
// Thread-safe. No Reservation is destroyed under the cache's lock (see memory_budget.h).
#ifndef BLOCKD_SERVER_CORE_FACTORIZATION_CACHE_H_
#define BLOCKD_SERVER_CORE_FACTORIZATION_CACHE_H_

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "blockd/engine/factorization.h"
#include "server/core/clock.h"
#include "server/core/errors.h"
#include "server/core/factorization_stats.h"
#include "server/core/handle.h"
#include "server/core/memory_budget.h"
#include "server/core/metrics.h"

namespace blockd::server {

// A factorization and the promise of its memory, which goes last.
struct Holding {
  Reservation reservation;
  std::shared_ptr<Factorization> factorization;
};

class FactorizationCache : public Evictor {
 private:
  struct Entry;

 public:
  struct Options {
    int64_t tombstones = 65536;
    absl::Duration idle_expiry = absl::InfiniteDuration();
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
  // What a Factor with a key asks of the factorizations that it may find.
  struct KeyRequest {
    Shape shape;
    int64_t systems = 0;
    bool keep_matrix = false;
    Accuracy accuracy = Accuracy::kStandard;
    bool condition_estimate = false;
    absl::Duration lease = absl::ZeroDuration();
    bool pin = false;
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
    const std::shared_ptr<Factorization>& factorization() const { return holding_->factorization; }
    const Factorization& operator*() const { return *holding_->factorization; }
    const Factorization* operator->() const { return holding_->factorization.get(); }

   private:
    friend class FactorizationCache;
    std::shared_ptr<Entry> entry_;
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
                             const EntryOptions& options);

  // NOT_FOUND with the reason; UNAVAILABLE while a refactor overwrites it. Counts as a use.
  absl::StatusOr<Pin> Lookup(const std::string& caller, const Handle& handle);
  // The same, but neither a use nor a hit or miss.
  absl::StatusOr<Pin> Peek(const std::string& caller, const Handle& handle);
  // A Solve with this pin was answered: also a use.
  void RecordSolved(const Pin& pin, int64_t num_rhs);

  // What the Factor with this key made, all of it still held; nullopt if it is not. Counts as a use
  // of each, pins them where asked to, and makes their leases at least that of the request.
  // INVALID_ARGUMENT, and nothing changes, if the request is for another shape or number of systems
  // or wants a matrix that was not kept.
  absl::StatusOr<std::optional<KeyedFactors>> FindKey(const std::string& caller,
                                                      const std::string& key,
                                                      const KeyRequest& request);

  // Ends those that are held; bytes that return, at once or with the last pin. NOT_FOUND, for the
  // first of them, if some are not held: the others are released all the same. A handle that is
  // named twice counts once.
  absl::StatusOr<int64_t> Release(const std::string& caller, std::span<const Handle> handles);

  // A refactor in place: the handle keeps its name and loses its idempotency key, since its content
  // is another one. `lease` of zero and `pin` of false leave what the entry has. NOT_FOUND if it is
  // not held any more.
  absl::Status Replace(const std::string& caller, const Handle& handle, Holding holding,
                       const EntryOptions& options);
  // Takes the memory out of an entry to be overwritten; lookups are UNAVAILABLE until Replace or
  // FailOverwrite. nullopt, and the pin stays, if somebody else uses it or it is not held any more.
  std::optional<Holding> BeginOverwrite(Pin& pin);
  // Ends the handle with the reason FAILED_REFACTOR.
  void FailOverwrite(const Handle& handle);

  std::vector<Evicted> Evict(int64_t bytes) override;
  int64_t EvictableBytes() const override;
  int64_t HeldBytes() const override { return totals().bytes; }
  // The least recently used that is idle, against fragmentation; empty if none is.
  std::vector<Evicted> EvictOldest();
  // Ends what was idle for longer than the expiry, and neither pinned, leased nor in use.
  void Expire();

  absl::StatusOr<FactorizationStats> Get(const std::string& caller, const Handle& handle) const;
  std::vector<FactorizationStats> List(const std::string& caller, std::optional<Handle> after,
                                       int64_t limit) const;
  Totals totals() const;

 private:
  using EntryPtr = std::shared_ptr<Entry>;
  using Lru = std::list<EntryPtr>;  // least recently used first

  struct Entry {
    Handle handle;
    std::string caller;
    std::string key;
    std::shared_ptr<Holding> holding;  // null while it is overwritten
    Shape shape;
    bool pinned = false;
    bool held = true;
    absl::Duration lease;
    absl::Time made, used;
    int64_t times_solved = 0, rhs_solved = 0, times_refactored = 0;
    Lru::iterator lru;
  };
  struct KeyRecord {
    Shape shape;
    std::vector<KeyedSystem> systems;
    int64_t held_bytes = 0;  // of each, the most
  };
  struct Caller {
    absl::btree_map<Handle, EntryPtr> entries;
    absl::flat_hash_map<std::string, KeyRecord> keys;
  };
  struct Tombstone {
    std::string caller;
    NotFoundReason reason;
  };

  absl::StatusOr<EntryPtr> Find(const std::string& caller, const Handle& handle) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  NotFoundReason WhyNot(const std::string& caller, const Handle& handle) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Touch(Entry& entry, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Idle(const Entry& entry, absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // factorization_cache_keys.cc
  void RememberKey(Caller& owner, const EntryOptions& options, std::span<const EntryPtr> entries)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static absl::Status CheckKept(const Factorization& held, const KeyRequest& request);
  void ForgetKey(Caller& owner, const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PinForGood(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the entry; the caller drops the holding after unlocking.
  std::shared_ptr<Holding> End(EntryPtr entry, NotFoundReason why, EvictionReason reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Evicted EndIdle(EntryPtr entry, EvictionReason reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  FactorizationStats StatsOf(const Entry& entry, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const ServerIdentity server_;
  Clock* const clock_;
  Metrics* const metrics_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<Handle, EntryPtr> entries_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, Caller> callers_ ABSL_GUARDED_BY(mutex_);
  Lru lru_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<Handle, Tombstone> tombstones_ ABSL_GUARDED_BY(mutex_);
  std::deque<Handle> tombstone_order_ ABSL_GUARDED_BY(mutex_);
  int64_t held_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t pinned_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_FACTORIZATION_CACHE_H_
