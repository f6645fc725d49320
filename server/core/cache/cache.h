// The objects that the server keeps on a device: by handle, owned by a caller, charged to the
// budget. The cache knows no kind of them (kept_object.h).
//
// The cache holds one reference to an object and each Pin another one; its memory and its
// reservation return when the last of them goes. What is pinned by a Pin, by its owner or by an
// unexpired lease is never evicted. Release ends an entry for lookups at once; its memory returns
// with its last Pin.
//
// An ended handle leaves a tombstone, so that NOT_FOUND can say why; only so many are kept.
//
// A cache whose device failed is closed: all of its handles end at once, and it takes no more.
//
// The bytes of a pinned or leased object are always reserved from the budget of pins: a change that
// would add to them is refused if the budget has no room.
//
// It is made of a table (entry_table.h), keys (keys.h), an order of eviction (eviction_order.h) and
// tombstones (tombstones.h), under one lock.
//
// Thread-safe. No Reservation of device memory is destroyed under the cache's lock (see budget.h);
// those of handles and of pins are, and those of pins are taken, whose budgets have no evictor.
#ifndef BLOCKD_SERVER_CORE_CACHE_CACHE_H_
#define BLOCKD_SERVER_CORE_CACHE_CACHE_H_

#include <algorithm>
#include <any>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/fair_mutex.h"
#include "server/core/cache/entry.h"
#include "server/core/cache/entry_table.h"
#include "server/core/cache/eviction_order.h"
#include "server/core/cache/eviction_plan.h"
#include "server/core/cache/kept_object.h"
#include "server/core/cache/tombstones.h"
#include "server/core/common/errors.h"
#include "server/core/common/handle.h"
#include "server/core/common/metrics.h"
#include "server/core/tenants/budget.h"

namespace blockd::server {

class Cache : public Evictor {
 public:
  struct Options {
    int64_t tombstones = 65536;
    absl::Duration idle_expiry = absl::InfiniteDuration();
    uint8_t shard = 0;         // in every handle that it makes
    Budget* pinned = nullptr;  // of what is pinned or leased; null: nobody counts it
  };
  struct EntryOptions {
    absl::Duration lease = absl::ZeroDuration();  // not evicted for so long after its last use
    bool pin = false;                             // never evicted, never expired
    std::string idempotency_key = {};             // of all the objects inserted together
    std::any answer = {};                         // with a key: what FindKey returns
  };
  // The entries' reservations beside their device memory: one handle each, or none if handles are
  // not counted. `pinned`: the objects' bytes, if they are pinned or leased.
  struct EntryGrants {
    Reservation handles, pinned;
  };
  struct Totals {
    int64_t entries = 0;
    int64_t bytes = 0;
    int64_t pinned = 0;
    int64_t callers = 0;  // who have some
  };

  // Keeps an object's memory while in use. Movable; one thread at a time.
  class Pin {
   public:
    Pin() = default;
    Pin(Pin&& other) noexcept
        : cache_(other.cache_),
          entry_(std::exchange(other.entry_, nullptr)),
          object_(std::move(other.object_)) {}
    Pin& operator=(Pin&& other) noexcept;
    ~Pin() { Reset(); }
    void Reset();

    KeptObject& object() const { return *object_; }

   private:
    friend class Cache;
    Cache* cache_ = nullptr;
    CacheEntry* entry_ = nullptr;
    KeptObjectPtr object_;
  };

  // `clock` and `metrics` outlive the cache. `server` is in every handle that it makes.
  Cache(const Options& options, const ServerIdentity& server, Clock* clock, Metrics* metrics);
  // Nobody who outlives the cache has a pin; the budget's destructor would tell.
  ~Cache() override = default;

  // New handles, one an object, in order.
  std::vector<Handle> Insert(const std::string& caller, std::vector<KeptObjectPtr> objects,
                             const EntryOptions& options, EntryGrants grants = {});

  // Pins each of several objects, in order; others come in between. NOT_FOUND with the reason;
  // UNAVAILABLE while a refactor overwrites it; INVALID_ARGUMENT if it is of another kind than
  // KindPin::kKind. KindPin is made of a Pin. Counts as a use.
  template <typename KindPin>
  std::vector<absl::StatusOr<KindPin>> LookupAll(const std::string& caller,
                                                 std::span<const Handle> handles) {
    std::vector<absl::StatusOr<KindPin>> pins;
    pins.reserve(handles.size());
    LookupEach(caller, handles, KindPin::kKind, [&](absl::StatusOr<Pin>&& pin) {
      if (pin.ok()) {
        pins.emplace_back(KindPin(*std::move(pin)));
      } else {
        pins.emplace_back(std::move(pin).status());
      }
    });
    return pins;
  }
  template <typename KindPin>
  absl::StatusOr<KindPin> Lookup(const std::string& caller, const Handle& handle) {
    return std::move(LookupAll<KindPin>(caller, {&handle, 1})[0]);
  }
  // The same, but of any kind, and neither a use nor a hit or miss.
  absl::StatusOr<Pin> Peek(const std::string& caller, const Handle& handle);
  // Uses are over; others come in between. One that was answered counts once more.
  struct EndedUse {
    Pin pin;
    int64_t num_rhs = 0;  // that were solved; 0: it failed
  };
  void EndUses(std::span<EndedUse> uses);

  // A request with an idempotency key, and what it expects of the objects that it may find.
  struct KeyRequest {
    // INVALID_ARGUMENT: the key's answer is none to this request; the object is not as asked for.
    // Called under the cache's lock.
    absl::FunctionRef<absl::Status(const std::any& answer)> check_answer;
    absl::FunctionRef<absl::Status(const KeptObject& object)> check_object;
    absl::Duration lease = absl::ZeroDuration();
    bool pin = false;
    TenantPtr tenant = nullptr;  // of whom the pin's bytes are taken
  };
  struct Found {
    std::any answer;
    std::vector<Handle> handles;  // of all objects that were inserted with it
    std::vector<Pin> pins;
  };
  // Finds the objects that were inserted with this key; nullopt unless all of them are still held.
  // Counts as a use of each, pins them if asked to, and extends their leases to that of the
  // request. If a check fails nothing changes.
  absl::StatusOr<std::optional<Found>> FindKey(const std::string& caller, const std::string& key,
                                               const KeyRequest& request);

  // Ends those that are held; bytes that return, at once or with the last pin. NOT_FOUND, for the
  // first of them, if some are not held: the others are released all the same. A handle that is
  // named twice counts once.
  absl::StatusOr<int64_t> Release(const std::string& caller, std::span<const Handle> handles);

  // Another object in the place of one: the handle keeps its name and loses its idempotency key.
  // `lease` of zero and `pin` of false leave what the entry has. NOT_FOUND if it is not held any
  // more. Where it then pins more bytes, these are of `reserved`, and what that lacks of the
  // tenant's. RESOURCE_EXHAUSTED if there are no more: the old one stays, and one whose memory was
  // taken ends with the reason FAILED_REFACTOR.
  absl::Status Replace(const std::string& caller, const Handle& handle, KeptObjectPtr object,
                       const EntryOptions& options, const TenantPtr& tenant = nullptr,
                       Reservation* reserved = nullptr);
  // How many bytes more would be pinned or leased if `bytes` took the place of what is pinned here.
  // `pins`: they would be, whether what they replace is or not.
  int64_t PinnedGrowth(const Pin& pin, int64_t bytes, bool pins) const;
  // Takes the object out of an entry, to be overwritten; lookups are UNAVAILABLE until Replace or
  // FailOverwrite. Null, and the pin stays, if somebody else uses it or it is not held any more.
  KeptObjectPtr BeginOverwrite(Pin& pin);
  // Ends the handle with the reason FAILED_REFACTOR.
  void FailOverwrite(const Handle& handle);

  std::vector<Evicted> Evict(int64_t bytes, double fair_bytes) override;
  int64_t EvictableBytes() override;
  int64_t HeldBytes() const override { return totals().bytes; }
  double HoldersWeight() const override;
  // Against fragmentation (cache_eviction.cc): all that are idle, with where they lie; others come
  // in between.
  std::vector<IdleObject> IdleObjects(double fair_bytes);
  // Evicts what was chosen of them. None of it if some is not idle there any more; of many some may
  // be gone where one becomes used meanwhile.
  std::vector<Evicted> EvictChosen(std::span<const IdleObject> chosen);
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

  absl::StatusOr<KeptStats> Get(const std::string& caller, const Handle& handle) const;
  // In the order of the handles.
  std::vector<KeptStats> List(const std::string& caller, std::optional<Handle> after,
                              int64_t limit) const;
  struct OwnedStats {
    std::string caller;
    KeptStats stats;
  };
  std::vector<OwnedStats> ListAll(std::optional<Handle> after, int64_t limit) const;
  Totals totals() const;

 private:
  // Handles that are filed, found, released or looked at under one hold of the lock: some 50 us.
  static constexpr size_t kAtATime = 64;
  template <typename T>
  static std::span<T> Portion(std::span<T> all, size_t at) {
    return all.subspan(at, std::min(kAtATime, all.size() - at));
  }

  absl::StatusOr<CacheEntry*> Find(const std::string& caller, const Handle& handle) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  NotFoundReason WhyNot(const std::string& caller, const Handle& handle) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LookupEach(const std::string& caller, std::span<const Handle> handles, std::string_view kind,
                  absl::FunctionRef<void(absl::StatusOr<Pin>&&)> take);
  absl::StatusOr<Pin> LookupLocked(const std::string& caller, const Handle& handle,
                                   std::string_view kind, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Pin MakePin(CacheEntry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndUse(CacheEntry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The entry, if it is idle and lies where it did.
  CacheEntry* StillIdle(const IdleObject& chosen) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // cache_keys.cc. Null: the key finds nothing.
  absl::StatusOr<std::shared_ptr<KeyRecord>> FindRecord(const std::string& caller,
                                                        const std::string& key,
                                                        const KeyRequest& request);
  // One pin an object, and in `wanted` the bytes that each lacks for what is asked of it. False:
  // the key was forgotten meanwhile.
  absl::StatusOr<bool> PinAll(const KeyRecord& record, const KeyRequest& request,
                              std::vector<Pin>* pins, std::vector<int64_t>* wanted);
  void UseAll(std::span<Pin> pins, std::span<const int64_t> wanted, const KeyRequest& request,
              Reservation pinned);
  // cache_pins.cc
  void PinForGood(CacheEntry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // True if the request asks for a pin or lease that is not counted yet.
  bool NeedsPinGrant(const CacheEntry& entry, const KeyRequest& request) const;
  // Makes what the entry has of the budget of pins so many bytes, of `reserved` and then of the
  // tenant's. If there are no more nothing changes.
  absl::Status GrantPinned(CacheEntry& entry, int64_t bytes, const TenantPtr& tenant,
                           Reservation* reserved) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Each entry once, whichever caller it belongs to; `changed` says which.
  std::vector<CacheEntry*> EntriesOf(std::span<const Handle> handles, Changed* changed,
                                     std::vector<Handle>* missing) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the entry; the caller drops the object after unlocking. The entry may be gone then.
  KeptObjectPtr End(CacheEntry* entry, NotFoundReason why, EvictionReason reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Up to so many, since the device failed; destroyed after unlocking.
  std::vector<KeptObjectPtr> EndAll(size_t most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Evicted EndIdle(CacheEntry* entry, EvictionReason reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static KeptStats StatsOf(const CacheEntry& entry, absl::Time now);

  const Options options_;
  const ServerIdentity server_;
  Clock* const clock_;
  Metrics* const metrics_;
  mutable FairMutex mutex_;
  EntryTable table_ ABSL_GUARDED_BY(mutex_);
  EvictionOrder order_ ABSL_GUARDED_BY(mutex_);
  Tombstones tombstones_ ABSL_GUARDED_BY(mutex_);
  int64_t held_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t pinned_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_CACHE_CACHE_H_
