#include "server/core/shard/scheduler.h"

#include <algorithm>
#include <limits>

namespace blockd::server {

Scheduler::~Scheduler() {
  for (Class& each : classes_) {
    for (auto& [tenant, share] : each.shares) {
      for (Work* work : share.line) delete work;
    }
  }
}

absl::Status Scheduler::EndOf(const Ticket& ticket, absl::Time now) {
  // The deadline first: whoever cancels because of the deadline means the deadline.
  return IsLate(ticket, now) ? absl::DeadlineExceededError("deadline passed in the queue")
                             : absl::CancelledError("cancelled in the queue");
}

void Scheduler::Push(WorkPtr owned, absl::Time now) {
  Work* const work = owned.release();
  const Ticket& ticket = work->ticket_;
  work->sequence_ = next_sequence_++;

  Class& of = ClassOf(ticket);
  Share& share = of.shares[ticket.tenant];
  // Who had nothing waiting has not saved up for it.
  if (share.line.empty()) share.virtual_time = std::max(share.virtual_time, of.virtual_time);
  share.line.insert(work);
  share.seconds += ticket.seconds;
  share.last = now;
  ++of.size;

  Group& group = groups_[ticket.key];
  absl::Time close = now + limits_.max_delay;
  if (ticket.deadline != absl::InfiniteFuture()) {
    close = std::min(close, now + std::max((ticket.deadline - now) / 2, absl::ZeroDuration()));
    deadlines_.insert(work);
  }
  group.lines[static_cast<size_t>(ticket.priority)].insert(work);
  group.close = std::min(group.close, close);
  ++group.requests;
  group.items += ticket.items;
  group.bytes += ticket.bytes;

  if (ticket.owner != nullptr) owners_[ticket.owner].push_back(work);
  ++size_;
  seconds_ += ticket.seconds;
  ++by_kind_[static_cast<size_t>(ticket.key.kind)];
}

WorkPtr Scheduler::Remove(Work* work) {
  const Ticket& ticket = work->ticket_;
  Class& of = ClassOf(ticket);
  Share& share = of.shares[ticket.tenant];
  share.line.erase(work);
  share.seconds = share.line.empty() ? 0 : share.seconds - ticket.seconds;
  --of.size;

  const auto found = groups_.find(ticket.key);
  Group& group = found->second;
  group.lines[static_cast<size_t>(ticket.priority)].erase(work);
  group.items -= ticket.items;
  group.bytes -= ticket.bytes;
  // Work that stays in the group has waited already and keeps its closing time.
  if (--group.requests == 0) groups_.erase(found);

  if (ticket.deadline != absl::InfiniteFuture()) deadlines_.erase(work);
  if (ticket.owner != nullptr) {
    const auto owned = owners_.find(ticket.owner);
    auto& works = owned->second;
    works.erase(std::find(works.begin(), works.end(), work));
    if (works.empty()) owners_.erase(owned);
  }
  --size_;
  seconds_ = size_ == 0 ? 0 : seconds_ - ticket.seconds;
  --by_kind_[static_cast<size_t>(ticket.key.kind)];
  return WorkPtr(work);
}

double Scheduler::SecondsBefore(const Ticket& ticket) const {
  double seconds = 0;
  if (ticket.priority == PriorityClass::kRealtime) {
    for (const auto& [tenant, share] : classes_[0].shares) {
      for (const Work* work : share.line) {
        if (work->ticket_.deadline > ticket.deadline) break;
        seconds += work->ticket_.marginal_seconds;
      }
    }
    return seconds;
  }
  for (size_t i = 0; i <= static_cast<size_t>(ticket.priority); ++i) {
    const auto share = classes_[i].shares.find(ticket.tenant);
    if (share == classes_[i].shares.end()) continue;
    for (const Work* work : share->second.line) seconds += work->ticket_.marginal_seconds;
  }
  return seconds;
}

// -----------------------------------------------------------------------------------------------------
// The next batch

absl::Time Scheduler::CloseOf(const Group& group) const {
  const bool is_full = group.requests >= limits_.max_requests || group.items >= limits_.max_items ||
                       group.bytes >= limits_.max_bytes;
  return is_full ? absl::InfinitePast() : group.close;
}

absl::Time Scheduler::NextClose() const {
  if (size_ == 0) return absl::InfiniteFuture();
  if (limits_.max_delay == absl::ZeroDuration()) return absl::InfinitePast();
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [key, group] : groups_) next = std::min(next, CloseOf(group));
  return next;
}

Work* Scheduler::FirstOf(const Line& line, const Moment& at) const {
  const bool all_closed = at.flush || limits_.max_delay == absl::ZeroDuration();
  Work* first = nullptr;
  for (Work* work : line) {
    if (!all_closed && !IsClosed(groups_.find(work->ticket_.key)->second, at.now)) continue;
    if (!at.IsHopeless(*work)) return work;
    if (first == nullptr) first = work;
  }
  return first;
}

Work* Scheduler::ChooseIn(Class& of, bool realtime, const Moment& at) const {
  if (of.size == 0) return nullptr;
  absl::InlinedVector<std::pair<Work*, const Share*>, 8> first;
  const Share* least = nullptr;
  for (const auto& [tenant, share] : of.shares) {
    Work* const work = FirstOf(share.line, at);
    if (work == nullptr) continue;
    first.emplace_back(work, &share);
    if (least == nullptr || share.virtual_time < least->virtual_time) least = &share;
  }
  if (least == nullptr) return nullptr;
  of.virtual_time = std::max(of.virtual_time, least->virtual_time);
  const auto goes_before = [&at](const Work* a, const Work* b) {
    const bool a_late = at.IsHopeless(*a), b_late = at.IsHopeless(*b);
    return a_late != b_late ? b_late : Before()(a, b);
  };
  Work* chosen = nullptr;
  for (const auto& [work, share] : first) {
    if (share->virtual_time > least->virtual_time + (realtime ? kAhead : 0)) continue;
    if (chosen == nullptr || goes_before(work, chosen)) chosen = work;
  }
  return chosen;
}

Work* Scheduler::Choose(const Moment& at) {
  Work* highest = nullptr;
  for (size_t i = 0; i < kClasses; ++i) {
    Work* const work = ChooseIn(classes_[i], i == 0, at);
    if (work == nullptr) continue;
    if (highest == nullptr) {
      highest = work;
    } else if (classes_[i].earned >= std::min(work->ticket_.seconds, kMostEarned)) {
      return work;
    }
  }
  return highest;
}

bool Scheduler::IsShared(absl::Time now) const {
  bool any = false;
  for (const Class& each : classes_) {
    for (const auto& [tenant, share] : each.shares) {
      if (share.line.empty() && share.last + kRecently < now) continue;
      if (any) return true;
      any = true;
    }
  }
  return false;
}

void Scheduler::Charge(const Work& work, double seconds) {
  const Tenant* const tenant = work.ticket_.tenant;
  const double weight = tenant != nullptr ? tenant->weight() : 1;
  ClassOf(work.ticket_).shares[tenant].virtual_time += seconds / weight;
}

void Scheduler::Earn(PriorityClass priority, double seconds) {
  const auto own = static_cast<size_t>(priority);
  for (size_t i = 0; i < kClasses; ++i) {
    Class& each = classes_[i];
    if (i > own) {
      each.earned = each.size == 0 ? 0 : std::min(each.earned + kEarns[i] * seconds, kMostEarned);
    } else if (i == own) {
      each.earned = std::max(each.earned - seconds, 0.0);
    }
  }
}

// The part of its own time by which work lengthens a batch. From here on a batch saves nothing, and
// may end before its first deadline. Below, short batches would make all that waits later.
constexpr double kNoSaving = 0.9;

std::vector<WorkPtr> Scheduler::Take(absl::Time now, bool flush, std::vector<EndedWork>* ended,
                                     const Pace& pace) {
  const Moment at = {now, flush, pace};
  if (now >= next_forget_) ForgetIdle(now);
  std::vector<WorkPtr> batch;
  while (batch.empty()) {
    Work* const head = Choose(at);
    if (head == nullptr) break;
    if (IsLate(head->ticket_, now)) {
      ended->push_back(End(head, EndOf(head->ticket_, now)));
      continue;
    }
    const PriorityClass priority = head->ticket_.priority;
    constexpr double kNoLimit = std::numeric_limits<double>::infinity();
    const bool shared = IsShared(now);
    const double most_shared = limits_.max_shared_seconds / pace.stretch;
    const double piece = head->ticket_.piece_seconds;
    head->granted_seconds_ = shared && piece > 0 ? std::max(most_shared, piece) : kNoLimit;
    const BatchKey key = head->ticket_.key;
    double seconds = std::min(head->ticket_.seconds, head->granted_seconds_);
    const double most_seconds = shared ? std::max(most_shared, head->ticket_.seconds) : kNoLimit;
    int64_t items = head->ticket_.items, bytes = head->ticket_.bytes;
    const bool in_time = !at.IsTooLate(head->ticket_, seconds);
    Charge(*head, seconds);
    batch.push_back(Remove(head));
    std::vector<Work*> joining;
    if (const auto group = groups_.find(key); group != groups_.end()) {
      for (Work* next : group->second.lines[static_cast<size_t>(priority)]) {
        const Ticket& ticket = next->ticket_;
        const bool fits = !batch[0]->is_piece() &&
                          static_cast<int64_t>(joining.size()) + 1 < limits_.max_requests &&
                          items + ticket.items <= limits_.max_items &&
                          bytes + ticket.bytes <= limits_.max_bytes &&
                          seconds + ticket.marginal_seconds <= most_seconds;
        const bool is_over = IsLate(ticket, now);
        if (!fits && !is_over) break;
        if (in_time && !is_over && ticket.marginal_seconds >= kNoSaving * ticket.seconds) {
          const double grown = seconds + ticket.marginal_seconds;
          if (at.IsTooLate(batch[0]->ticket_, grown)) break;
          if (at.IsTooLate(ticket, grown)) continue;
        }
        joining.push_back(next);
        if (is_over) continue;
        seconds += ticket.marginal_seconds;
        items += ticket.items;
        bytes += ticket.bytes;
      }
    }
    for (Work* next : joining) {
      if (IsLate(next->ticket_, now)) {
        ended->push_back(End(next, EndOf(next->ticket_, now)));
        continue;
      }
      Charge(*next, next->ticket_.marginal_seconds);
      next->granted_seconds_ = kNoLimit;
      batch.push_back(Remove(next));
    }
    Earn(priority, seconds);
  }
  return batch;
}

void Scheduler::ForgetIdle(absl::Time now) {
  next_forget_ = now + kRecently;
  for (Class& each : classes_) {
    const auto is_idle = [now](const auto& entry) {
      return entry.second.line.empty() && entry.second.last + kRecently < now;
    };
    // Who is ahead of the others stays ahead while there are others.
    const bool all = std::all_of(each.shares.begin(), each.shares.end(), is_idle);
    absl::erase_if(each.shares, [&](const auto& entry) {
      return is_idle(entry) && (all || entry.second.virtual_time <= each.virtual_time);
    });
    if (each.shares.empty()) each.virtual_time = 0;
  }
}

// -----------------------------------------------------------------------------------------------------
// Cancelled and expired work

absl::Time Scheduler::NextDeadline() const {
  return deadlines_.empty() ? absl::InfiniteFuture() : (*deadlines_.begin())->ticket_.deadline;
}

std::vector<EndedWork> Scheduler::TakeExpired(absl::Time now) {
  std::vector<EndedWork> ended;
  while (!deadlines_.empty() && (*deadlines_.begin())->ticket_.deadline <= now) {
    Work* const work = *deadlines_.begin();
    ended.push_back(End(work, EndOf(work->ticket_, now)));
  }
  return ended;
}

std::vector<EndedWork> Scheduler::Cancel(const void* owner, absl::Time now) {
  std::vector<EndedWork> ended;
  const auto owned = owners_.find(owner);
  if (owned == owners_.end()) return ended;
  const auto works = owned->second;  // Remove changes it
  for (Work* work : works) ended.push_back(End(work, EndOf(work->ticket_, now)));
  return ended;
}

}  // namespace blockd::server
