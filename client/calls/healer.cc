#include "client/calls/healer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "blockd/client/errors.h"
#include "client/base/detached_thread.h"
#include "client/calls/factor.h"

namespace blockd::client {
namespace {

// A restoration asks for what a Solve needs, and for nothing that only the first caller wanted.
FactorOptions ForRestoring(const FactorOptions& asked) {
  FactorOptions options = asked;
  options.idempotency_key.clear();  // each restoration has its own
  options.progress = nullptr;
  options.log_determinant = false;
  options.condition_estimate = false;
  return options;
}

absl::Status WithPayloadsOf(const absl::Status& from, absl::Status to) {
  from.ForEachPayload(
      [&to](absl::string_view url, const absl::Cord& payload) { to.SetPayload(url, payload); });
  return to;
}

absl::Status Failed(const absl::Status& failure, const absl::Status& why) {
  return WithPayloadsOf(
      failure,
      absl::Status(failure.code(), absl::StrCat("factoring again failed: ", failure.message(),
                                                " (it was lost: ", why.message(), ")")));
}

// The server may still hold what its callers could not reach.
bool MayBeHeld(const absl::Status& why) {
  const auto detail = GetHandleNotFound(why);
  return !detail.has_value() || detail->reason() == v1::HandleNotFound::OTHER_SERVER;
}

}  // namespace

Healer::Healer(std::shared_ptr<Connection> connection, const FactorOptions& options, size_t index,
               const SystemView& system, Factorization first)
    : connection_(std::move(connection)),
      restore_(options.restore),
      index_(index),
      options_(ForRestoring(options)) {
  current_.factorization = std::move(first);
  if (restore_.keep_copy) copy_ = CopySystem(system);
}

bool Healer::Mends(int64_t seen, const absl::Status& status) const {
  if (IsLost(status)) return true;
  if (!GetHandleNotFound(status).has_value()) return false;
  absl::MutexLock lock(&mutex_);
  return current_.generation != seen;
}

Healer::Current Healer::current() const {
  absl::MutexLock lock(&mutex_);
  return current_;
}

RestoreCounters Healer::counters() const {
  absl::MutexLock lock(&mutex_);
  return counters_;
}

absl::Status Healer::Admit(const absl::Status& why) {
  if (retired_) return why;
  const RestoreOptions& limit = restore_;
  const absl::Time now = absl::Now();
  while (!started_.empty() && started_.front() <= now - limit.window) started_.pop_front();
  if (static_cast<int>(started_.size()) < limit.max_restores) {
    started_.push_back(now);
    return absl::OkStatus();
  }
  ++counters_.refused;
  connection_->CountRestores({.refused = 1});
  return WithPayloadsOf(
      why, absl::Status(why.code(), absl::StrCat(why.message(), " (not factored again: that was ",
                                                 "tried ", limit.max_restores, " times within ",
                                                 absl::FormatDuration(limit.window), ")")));
}

void Healer::Restore(int64_t seen, const absl::Status& why, Done done) {
  absl::Status refused;
  {
    absl::MutexLock lock(&mutex_);
    if (current_.generation == seen) {
      if (!running_) refused = Admit(why);
      if (refused.ok()) {
        waiters_.push_back({why, std::move(done)});
        ++counters_.waited;
        connection_->CountRestores({.waited = 1});
        if (std::exchange(running_, true)) return;
        connection_->BeginRestore();
        const absl::Status started = StartDetached([self = shared_from_this()] { self->Run(); });
        if (started.ok()) return;
        // Nobody else waits: a restoration would be running.
        connection_->EndRestore();
        running_ = false;
        done = std::move(waiters_.back().done);
        waiters_.clear();
        ++counters_.failures;
        connection_->CountRestores({.failures = 1});
        refused = Failed(started, why);
      }
    }
  }
  done(refused);
}

absl::Status Healer::AwaitRestored(int64_t seen, const absl::Status& why, absl::Time deadline) {
  struct Answer {
    absl::Mutex mutex;
    std::optional<absl::Status> status ABSL_GUARDED_BY(mutex);
  };
  const auto answer = std::make_shared<Answer>();
  Restore(seen, why, [answer](const absl::Status& status) {
    absl::MutexLock lock(&answer->mutex);
    answer->status = status;
  });
  absl::MutexLock lock(&answer->mutex);
  const auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(answer->mutex) {
    return answer->status.has_value();
  };
  if (!answer->mutex.AwaitWithDeadline(absl::Condition(&ready), deadline)) {
    return RestoreIsLate(why);
  }
  return *answer->status;
}

absl::StatusOr<Factorization> Healer::FactorAgain(int64_t* version) {
  std::optional<OwnedSystem> system;
  FactorOptions options;
  {
    absl::MutexLock lock(&mutex_);
    if (retired_) return absl::CancelledError("the handle was given up");
    *version = version_;
    system = copy_;
    options = options_;
  }
  if (!system.has_value()) {
    absl::StatusOr<OwnedSystem> given = restore_.matrix(index_);
    if (!given.ok()) return given.status();
    system = *std::move(given);
  }
  const Factorization was = current().factorization;
  const SystemView& view = system->view;
  if (view.num_blocks != was.num_blocks || view.block_size != was.block_size ||
      view.scalar != was.scalar || view.arrow_size != was.arrow_size) {
    return InvalidFieldError("system", "of another shape", "that of the handle");
  }
  absl::StatusOr<FactorAnswer> answer = FactorSystems(*connection_, {&view, 1}, {}, options);
  if (!answer.ok()) return answer.status();
  const v1::FactoredSystem& made = answer->reply.system(0);
  if (made.has_status() && made.status().code() != 0) return ToStatus(made.status());
  Factorization again{made.handle(), was.num_blocks, was.block_size, was.scalar, answer->route};
  again.arrow_size = was.arrow_size;
  return again;
}

void Healer::Run() {
  while (true) {
    int64_t version = 0;
    absl::StatusOr<Factorization> made = FactorAgain(&version);
    std::vector<Waiter> waiters;
    std::vector<Factorization> leftover;  // on some server, with nobody to use it
    bool again = false, held = false, retired = false;
    {
      absl::MutexLock lock(&mutex_);
      retired = retired_;
      again = made.ok() && version != version_ && !retired_;  // these are yesterday's values
      if (again) {
        leftover.push_back(*made);
      } else {
        running_ = false;
        waiters = std::exchange(waiters_, {});
        held = made.ok() && !retired;
        if (held && MayBeHeld(waiters[0].why)) leftover.push_back(current_.factorization);
        if (made.ok() && retired) leftover.push_back(*made);
        if (held) {
          current_ = {*made, current_.generation + 1};
          ++counters_.restores;
          connection_->CountRestores({.restores = 1});
        } else if (!retired) {
          ++counters_.failures;
          connection_->CountRestores({.failures = 1});
          // No server was there to be spared.
          const bool spared = IsGone(made.status()) || GetServerDraining(made.status());
          if (spared && !started_.empty()) started_.pop_back();
        }
      }
    }
    for (const Factorization& one : leftover) Connection::ReleaseLater(connection_, one);
    if (again) continue;
    connection_->EndRestore();
    for (const Waiter& waiter : waiters) {
      waiter.done(held      ? absl::OkStatus()
                  : retired ? waiter.why
                            : Failed(made.status(), waiter.why));
    }
    return;
  }
}

bool Healer::Refactored(int64_t seen, const SystemView& system, const FactorOptions& options) {
  absl::MutexLock lock(&mutex_);
  if (current_.generation != seen) return false;
  ++version_;
  options_.keep_matrix = options.keep_matrix;
  options_.accuracy = options.accuracy;
  options_.check_finite = options.check_finite;
  options_.pin = options_.pin || options.pin;
  if (options.lease > absl::ZeroDuration()) options_.lease = options.lease;
  if (copy_.has_value()) copy_ = CopySystem(system);
  return true;
}

Factorization Healer::Retire() {
  absl::MutexLock lock(&mutex_);
  retired_ = true;
  return current_.factorization;
}

absl::Status RestoreIsLate(const absl::Status& why) {
  return absl::DeadlineExceededError(absl::StrCat(
      "the timeout passed while it was factored again (it was lost: ", why.message(), ")"));
}

absl::Status CallHealing(const Factorization& factorization, absl::Time deadline,
                         absl::FunctionRef<absl::Status(const Factorization& now)> call) {
  if (factorization.healer == nullptr) return call(factorization);
  while (true) {
    Healer::Current now = factorization.healer->current();
    now.factorization.healer = factorization.healer;
    const absl::Status status = call(now.factorization);
    if (status.ok() || !factorization.healer->Mends(now.generation, status)) return status;
    const absl::Status restored =
        factorization.healer->AwaitRestored(now.generation, status, deadline);
    if (!restored.ok()) return restored;
  }
}

absl::StatusOr<v1::FactorReply> RefactorHealing(Connection& connection,
                                                std::span<const SystemView> systems,
                                                std::span<const Factorization> factorizations,
                                                const FactorOptions& options) {
  const absl::Time deadline = connection.Deadline(options.timeout);
  while (true) {
    std::vector<Factorization> now(factorizations.begin(), factorizations.end());
    std::vector<int64_t> seen(now.size(), 0);
    for (size_t k = 0; k < now.size(); ++k) {
      if (now[k].healer == nullptr) continue;
      Healer::Current current = now[k].healer->current();
      current.factorization.healer = now[k].healer;
      now[k] = std::move(current.factorization);
      seen[k] = current.generation;
    }
    FactorOptions rest = options;
    rest.timeout = std::max(deadline - absl::Now(), absl::Nanoseconds(1));
    absl::StatusOr<FactorAnswer> answer = FactorSystems(connection, systems, now, rest);
    bool replaced = false, restored = false;
    if (answer.ok()) {
      for (size_t k = 0; k < now.size() && k < systems.size(); ++k) {
        const v1::FactoredSystem& system = answer->reply.system(static_cast<int>(k));
        if (now[k].healer == nullptr || (system.has_status() && system.status().code() != 0)) {
          continue;
        }
        if (!now[k].healer->Refactored(seen[k], systems[k], options)) replaced = true;
      }
      if (!replaced) return std::move(answer->reply);
    }
    const auto missing = GetHandleNotFound(answer.status());
    for (size_t k = 0; k < now.size() && !answer.ok(); ++k) {
      if (now[k].healer == nullptr || (missing && missing->handle() != now[k].handle)) continue;
      if (!now[k].healer->Mends(seen[k], answer.status())) continue;
      const absl::Status healed = now[k].healer->AwaitRestored(seen[k], answer.status(), deadline);
      if (!healed.ok()) return healed;
      restored = true;
    }
    if (!replaced && !restored) return answer.status();
  }
}

}  // namespace blockd::client
