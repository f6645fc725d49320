// Chooses the work that runs next, and the work that runs together with it.
//
// Classes. REALTIME goes before INTERACTIVE, INTERACTIVE before BULK. Nobody starves: while a lower
// class waits it earns a part of the time that goes to higher ones (kEarns), and once that suffices
// for its next work it goes first.
//
// Tenants. Within a class each tenant has a virtual time, the predicted seconds that it was given
// over its weight (start-time fair queueing: Goyal, Vin and Cheng, SIGCOMM 1996): in INTERACTIVE
// and BULK the tenant with the least goes first, with its oldest work. In REALTIME the earliest
// deadline goes first, of the tenants that are not ahead of the least by more than kAhead. Work
// that would be late even at the pace of the fastest of late goes after work that would not:
// under overload, running what is late makes the next one late too.
//
// Batches. With the work that was chosen goes what is compatible (BatchKey) of the same class,
// whoever asks, within limits; each tenant is charged for its own. Where several tenants have asked
// for something within the last second, a batch is also limited in predicted seconds, so that
// nobody waits for long: what it holds beyond the first is then short. A REALTIME batch does not
// grow past the deadline of its first work, where work in a batch takes as long as alone.
//
// A batch closes when it is full by count, items or bytes, when its oldest work has waited for the
// longest delay, or when half of the time that one of its works had when it came is over, so that
// waiting for company never eats a deadline. With a delay of zero every batch is closed at once.
//
// Pure logic: time is an argument. Not thread-safe.
#ifndef BLOCKD_SERVER_CORE_SHARD_SCHEDULER_H_
#define BLOCKD_SERVER_CORE_SHARD_SCHEDULER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/container/node_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "blockd/engine/elimination_plan.h"
#include "server/core/common/metrics.h"
#include "server/core/common/tenant.h"

namespace blockd::server {

// Work of one kind with equal plans can run together, even if the plans are different objects.
struct BatchKey {
  WorkKind kind = WorkKind::kSolve;
  std::shared_ptr<const EliminationPlan> plan;  // null: of no plan
  friend bool operator==(const BatchKey& a, const BatchKey& b) {
    if (a.kind != b.kind || a.plan == b.plan) return a.kind == b.kind;
    return a.plan != nullptr && b.plan != nullptr && *a.plan == *b.plan;
  }
  template <typename H>
  friend H AbslHashValue(H h, const BatchKey& key) {
    h = H::combine(std::move(h), key.kind, key.plan != nullptr);
    return key.plan != nullptr ? H::combine(std::move(h), *key.plan) : std::move(h);
  }
};

// The scheduler's description of a work.
struct Ticket {
  BatchKey key = {};
  const Tenant* tenant = nullptr;  // lives as long as the work; null is one like any other
  PriorityClass priority = PriorityClass::kInteractive;
  double seconds = 0;           // that it would take alone, as predicted
  double marginal_seconds = 0;  // that a batch takes longer with it
  double piece_seconds = 0;     // it may run in pieces that take at least this; 0: in one
  bool refines = false;         // and may take several times as long
  int64_t items = 0;
  int64_t bytes = 0;
  absl::Time deadline = absl::InfiniteFuture();
  const void* owner = nullptr;  // by which it can be cancelled
};

// Base of scheduled work. It owns its resources: destroying it gives them back.
class Work {
 public:
  explicit Work(Ticket ticket = {}) : ticket_(std::move(ticket)) {}
  virtual ~Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  const Ticket& ticket() const { return ticket_; }
  void set_ticket(Ticket ticket) { ticket_ = std::move(ticket); }  // before it is scheduled
  // For how long it may run, as predicted, before it comes back with what is left of it: for as
  // long as its ticket says unless others wait, or have just asked, and it can run in pieces.
  double granted_seconds() const { return granted_seconds_; }
  bool is_piece() const { return granted_seconds_ < ticket_.seconds; }

 private:
  friend class Scheduler;
  Ticket ticket_;
  double granted_seconds_ = std::numeric_limits<double>::infinity();
  int64_t sequence_ = 0;
};
using WorkPtr = std::unique_ptr<Work>;

struct SchedulerLimits {
  int64_t max_requests = 256;  // of a batch, as the next ones
  int64_t max_items = 1024;
  int64_t max_bytes = int64_t{256} << 20;
  // Where tenants or classes share: of a batch, or of a piece of a work. A work that cannot run in
  // pieces may be longer.
  double max_shared_seconds = 1e-3;
  absl::Duration max_delay = absl::ZeroDuration();
};

// How the device keeps up with the predictions.
struct Pace {
  double stretch = 1;        // how long work takes, over what is predicted
  double least_stretch = 1;  // and the fastest of late
  double busy_seconds = 0;   // until it has done what it was given, at the fastest
};

struct EndedWork {
  WorkPtr work;
  absl::Status status;  // DEADLINE_EXCEEDED or CANCELLED
};

class Scheduler {
 public:
  static constexpr int kClasses = 3;
  // The part of each second of higher classes that a lower class earns.
  static constexpr std::array<double, kClasses> kEarns = {0, 0.1, 0.05};
  static constexpr double kMostEarned = 1;  // seconds
  static constexpr double kAhead = 0.02;    // seconds over weight
  static constexpr absl::Duration kRecently = absl::Seconds(1);

  explicit Scheduler(const SchedulerLimits& limits) : limits_(limits) {}
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  int64_t size(WorkKind kind) const { return by_kind_[static_cast<size_t>(kind)]; }

  void Push(WorkPtr owned, absl::Time now);

  // Predicted seconds of what would run before such work: of REALTIME with an earlier deadline or,
  // for the other classes, of the tenant's own in its class and above.
  double SecondsBefore(const Ticket& ticket) const;
  // Predicted seconds of all waiting work.
  double seconds() const { return seconds_; }

  // When a batch closes, if nothing more comes; InfinitePast if one is closed now, InfiniteFuture
  // if nothing waits.
  absl::Time NextClose() const;

  // The next batch, of one key; empty if none is closed. `flush` closes all. What it meets whose
  // deadline has passed is moved to `ended`.
  std::vector<WorkPtr> Take(absl::Time now, bool flush, std::vector<EndedWork>* ended,
                            const Pace& pace = {});

  // All whose deadline has passed.
  std::vector<EndedWork> TakeExpired(absl::Time now);
  // Takes out the work of this owner.
  std::vector<EndedWork> Cancel(const void* owner, absl::Time now);
  // The earliest deadline of what waits.
  absl::Time NextDeadline() const;

 private:
  // Earlier deadlines first in REALTIME; else in the order of arrival.
  struct Before {
    bool operator()(const Work* a, const Work* b) const {
      const bool deadlines = a->ticket_.priority == PriorityClass::kRealtime &&
                             b->ticket_.priority == PriorityClass::kRealtime;
      if (deadlines && a->ticket_.deadline != b->ticket_.deadline) {
        return a->ticket_.deadline < b->ticket_.deadline;
      }
      return a->sequence_ < b->sequence_;
    }
  };
  struct EarlierDeadline {
    bool operator()(const Work* a, const Work* b) const {
      if (a->ticket_.deadline != b->ticket_.deadline) {
        return a->ticket_.deadline < b->ticket_.deadline;
      }
      return a->sequence_ < b->sequence_;
    }
  };
  using Line = std::set<Work*, Before>;

  // A tenant in a class.
  struct Share {
    Line line;
    double virtual_time = 0;
    double seconds = 0;                      // of its line
    absl::Time last = absl::InfinitePast();  // when it asked for something
  };
  struct Class {
    absl::flat_hash_map<const Tenant*, Share> shares;
    double virtual_time = 0;  // of those who wait, the least; never falls
    double earned = 0;        // seconds
    int64_t size = 0;
  };
  struct Group {
    std::array<Line, kClasses> lines;
    absl::Time close = absl::InfiniteFuture();
    int64_t requests = 0, items = 0, bytes = 0;
  };
  using Groups = absl::node_hash_map<BatchKey, Group>;

  static bool IsLate(const Ticket& ticket, absl::Time now) { return ticket.deadline <= now; }
  static absl::Status EndOf(const Ticket& ticket, absl::Time now);
  Class& ClassOf(const Ticket& ticket) { return classes_[static_cast<size_t>(ticket.priority)]; }
  absl::Time CloseOf(const Group& group) const;
  bool IsClosed(const Group& group, absl::Time now) const { return CloseOf(group) <= now; }
  // A moment at which work is chosen.
  struct Moment {
    absl::Time now;
    bool flush;
    Pace pace;
    // True if work that ends after so many predicted seconds would be late even at the fastest:
    // a prediction that is too long puts off nothing that might be met.
    bool IsTooLate(const Ticket& ticket, double seconds) const {
      return ticket.priority == PriorityClass::kRealtime &&
             now + absl::Seconds(pace.busy_seconds + seconds * pace.least_stretch) >
                 ticket.deadline;
    }
    bool IsHopeless(const Work& work) const {
      return IsTooLate(work.ticket_, work.ticket_.seconds);
    }
  };
  // The first work of the line whose batch is closed, rather one that is not hopeless; null if
  // there is none.
  Work* FirstOf(const Line& line, const Moment& at) const;
  Work* ChooseIn(Class& of, bool realtime, const Moment& at) const;
  Work* Choose(const Moment& at);
  bool IsShared(absl::Time now) const;
  void Charge(const Work& work, double seconds);
  void Earn(PriorityClass priority, double seconds);
  // Takes it out of every index.
  WorkPtr Remove(Work* work);
  EndedWork End(Work* work, absl::Status status) { return {Remove(work), std::move(status)}; }
  void ForgetIdle(absl::Time now);

  const SchedulerLimits limits_;
  std::array<Class, kClasses> classes_;
  Groups groups_;
  std::set<Work*, EarlierDeadline> deadlines_;  // those that have one
  absl::flat_hash_map<const void*, absl::InlinedVector<Work*, 1>> owners_;
  int64_t size_ = 0;
  double seconds_ = 0;
  std::array<int64_t, kWorkKinds> by_kind_{};
  int64_t next_sequence_ = 0;
  absl::Time next_forget_ = absl::InfinitePast();
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_SHARD_SCHEDULER_H_
