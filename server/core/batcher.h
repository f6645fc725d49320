// Groups tasks that can run together: one queue a key, bounded together.
//
// A batch closes when it is full by count, items or bytes, when its oldest task has waited for the
// longest delay, or when half of the time that one of its tasks had when it came is over, so that
// waiting for company never eats a deadline. With a delay of zero every batch is closed at once:
// the worker takes whatever is queued and compatible when it is free. Between keys the oldest task
// wins.
//
// Pure logic: time is an argument. Not thread-safe.
#ifndef BLOCKD_SERVER_CORE_BATCHER_H_
#define BLOCKD_SERVER_CORE_BATCHER_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "blockd/engine/elimination_plan.h"
#include "server/core/metrics.h"

namespace blockd::server {

// What can run together: work of one kind with equal plans, whether or not they are one object.
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

struct BatchLimits {
  int64_t max_queued = 1024;  // tasks, of all keys
  int64_t max_requests = 256;
  int64_t max_items = 1024;
  int64_t max_bytes = int64_t{256} << 20;
  absl::Duration max_delay = absl::ZeroDuration();
};

// What the batcher needs to know of a task.
struct Ticket {
  BatchKey key = {};
  int64_t items = 0;
  int64_t bytes = 0;
  absl::Time deadline = absl::InfiniteFuture();
  const std::atomic<bool>* cancelled = nullptr;  // lives as long as the task; null: never
};

// Task is movable and owns its resources.
template <typename Task>
class Batcher {
 public:
  struct Ended {
    Task task;
    absl::Status status;  // DEADLINE_EXCEEDED or CANCELLED
  };

  explicit Batcher(const BatchLimits& limits) : limits_(limits) {}

  bool full() const { return size_ >= limits_.max_queued; }
  int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  int64_t size(WorkKind kind) const { return by_kind_[static_cast<int>(kind)]; }

  // False, and the task is the caller's still, if the queue is full.
  bool Push(const Ticket& ticket, Task& task, absl::Time now) {
    if (full()) return false;
    Group& group = groups_[ticket.key];
    absl::Time close = now + limits_.max_delay;
    if (ticket.deadline != absl::InfiniteFuture()) {
      close = std::min(close, now + std::max((ticket.deadline - now) / 2, absl::ZeroDuration()));
    }
    group.tasks.push_back({ticket, std::move(task), next_sequence_++});
    group.close = std::min(group.close, close);
    group.items += ticket.items;
    group.bytes += ticket.bytes;
    Count(ticket.key.kind, 1);
    return true;
  }

  // When a batch closes, if nothing more comes; InfinitePast if one is full now, InfiniteFuture if
  // the queue is empty.
  absl::Time NextClose() const {
    absl::Time next = absl::InfiniteFuture();
    for (const auto& [key, group] : groups_) next = std::min(next, CloseOf(group));
    return next;
  }

  // The closed batch with the oldest task; empty if none is closed. `flush` closes all. Tasks that
  // it meets and that are expired or cancelled are moved to `ended`.
  std::vector<Task> Take(absl::Time now, bool flush, std::vector<Ended>* ended) {
    std::vector<Task> batch;
    while (batch.empty()) {
      auto oldest = groups_.end();
      for (auto it = groups_.begin(); it != groups_.end(); ++it) {
        if (!flush && CloseOf(it->second) > now) continue;
        if (oldest == groups_.end() ||
            it->second.tasks.front().sequence < oldest->second.tasks.front().sequence) {
          oldest = it;
        }
      }
      if (oldest == groups_.end()) break;
      TakeFrom(oldest->second, now, &batch, ended);
      if (oldest->second.tasks.empty()) groups_.erase(oldest);
    }
    return batch;
  }

  // Everything queued that is expired or cancelled.
  std::vector<Ended> TakeEnded(absl::Time now) {
    std::vector<Ended> ended;
    for (auto it = groups_.begin(); it != groups_.end();) {
      Group& group = it->second;
      std::deque<Queued> kept;
      for (Queued& queued : group.tasks) {
        absl::Status status = EndOf(queued.ticket, now);
        if (status.ok()) {
          kept.push_back(std::move(queued));
        } else {
          Forget(group, queued.ticket);
          ended.push_back({std::move(queued.task), std::move(status)});
        }
      }
      group.tasks = std::move(kept);
      if (group.tasks.empty()) {
        groups_.erase(it++);
      } else {
        ++it;
      }
    }
    return ended;
  }

  // The earliest deadline of what is queued.
  absl::Time NextDeadline() const {
    absl::Time next = absl::InfiniteFuture();
    for (const auto& [key, group] : groups_) {
      for (const Queued& queued : group.tasks) next = std::min(next, queued.ticket.deadline);
    }
    return next;
  }

 private:
  struct Queued {
    Ticket ticket;
    Task task;
    int64_t sequence = 0;
  };
  struct Group {
    std::deque<Queued> tasks;
    absl::Time close = absl::InfiniteFuture();
    int64_t items = 0;
    int64_t bytes = 0;
  };

  static absl::Status EndOf(const Ticket& ticket, absl::Time now) {
    // The deadline first: whoever sets the flag because of the deadline means the deadline.
    if (ticket.deadline <= now) return absl::DeadlineExceededError("deadline passed in the queue");
    if (ticket.cancelled != nullptr && ticket.cancelled->load(std::memory_order_relaxed)) {
      return absl::CancelledError("cancelled in the queue");
    }
    return absl::OkStatus();
  }

  absl::Time CloseOf(const Group& group) const {
    const bool is_full = static_cast<int64_t>(group.tasks.size()) >= limits_.max_requests ||
                         group.items >= limits_.max_items || group.bytes >= limits_.max_bytes;
    return is_full ? absl::InfinitePast() : group.close;
  }

  // From the front, as much as fits; the first always does. What stays behind has waited already
  // and keeps the time to close.
  void TakeFrom(Group& group, absl::Time now, std::vector<Task>* batch, std::vector<Ended>* ended) {
    int64_t items = 0;
    int64_t bytes = 0;
    while (!group.tasks.empty()) {
      Queued& front = group.tasks.front();
      absl::Status status = EndOf(front.ticket, now);
      if (status.ok()) {
        const bool fits = static_cast<int64_t>(batch->size()) < limits_.max_requests &&
                          items + front.ticket.items <= limits_.max_items &&
                          bytes + front.ticket.bytes <= limits_.max_bytes;
        if (!batch->empty() && !fits) return;
        items += front.ticket.items;
        bytes += front.ticket.bytes;
      }
      Forget(group, front.ticket);
      if (status.ok()) {
        batch->push_back(std::move(front.task));
      } else {
        ended->push_back({std::move(front.task), std::move(status)});
      }
      group.tasks.pop_front();
    }
  }

  void Forget(Group& group, const Ticket& ticket) {
    group.items -= ticket.items;
    group.bytes -= ticket.bytes;
    Count(ticket.key.kind, -1);
  }

  void Count(WorkKind kind, int64_t change) {
    size_ += change;
    by_kind_[static_cast<int>(kind)] += change;
  }

  const BatchLimits limits_;
  absl::flat_hash_map<BatchKey, Group> groups_;
  int64_t size_ = 0;
  int64_t by_kind_[kWorkKinds] = {};
  int64_t next_sequence_ = 0;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_BATCHER_H_
