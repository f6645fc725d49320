// Idempotency keys: a Factor that arrives twice factors once. request.h has the contract.
#include <algorithm>
#include <utility>

#include "server/core/operations/factor.h"

namespace blockd::server {
namespace {

bool NotSpd(const absl::Status& status) { return NotSpdOf(status).has_value(); }

// Nothing was factored, and a repetition would end in the same way.
bool ContentFailed(const absl::StatusOr<FactorReply>& reply) {
  if (!reply.ok()) return NotSpd(reply.status());
  return std::all_of(reply->systems.begin(), reply->systems.end(),
                     [](const FactoredSystem& system) { return NotSpd(system.status); });
}

bool SameContent(const FactorParams& a, const FactorParams& b) {
  return a.form.bordered_shape() == b.form.bordered_shape() && a.num_systems == b.num_systems;
}

}  // namespace

bool FactorOperation::OwnKeyOrWait(FactorTaskPtr& task) {
  {
    absl::MutexLock lock(&mutex_);
    auto [it, first] = keys_.try_emplace(Key(task->context->caller, task->params.idempotency_key));
    if (first) {
      task->owns_key = true;
      return true;
    }
    // A thread that raises the flag afterwards finds the task, under this lock. An upload keeps its
    // staged bytes, which are needed if the first task with the key fails.
    if (!task->context->cancelled.load(std::memory_order_relaxed)) {
      (*shards_)[0].WatchBefore(task->context->deadline);
      it->second.push_back(std::move(task));
      return false;
    }
  }
  const absl::Status status = task->EndStatus(admission_->Now());
  Fail(std::move(task), status);
  return false;
}

void FactorOperation::ReleaseKey(const FactorTask& task, const absl::StatusOr<FactorReply>& reply) {
  FactorTasks answered;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = keys_.find(Key(task.context->caller, task.params.idempotency_key));
    for (FactorTaskPtr& waiter : it->second) {
      if (ContentFailed(reply) && SameContent(task.params, waiter->params)) {
        answered.push_back(std::move(waiter));
      } else {
        resumed_.push_back(std::move(waiter));
      }
    }
    keys_.erase(it);
  }
  const absl::Time now = admission_->Now();
  for (FactorTaskPtr& waiter : answered) {
    absl::StatusOr<FactorReply> shared = reply;
    if (waiter->ended(now)) shared = waiter->EndStatus(now);
    if (shared.ok()) {
      shared->cost = Cost();
      shared->cost.queue = now - waiter->accepted;
    }
    Answer(*waiter, std::move(shared));
  }
  ResumeWaiters();
}

// One thread at a time, and not from within itself: what it lets go may end at once and set others
// free, one after another.
void FactorOperation::ResumeWaiters() {
  absl::MutexLock lock(&mutex_);
  if (resuming_) return;
  resuming_ = true;
  while (!resumed_.empty()) {
    FactorTaskPtr task = std::move(resumed_.front());
    resumed_.pop_front();
    mutex_.Unlock();
    const absl::Time now = admission_->Now();
    if (task->ended(now)) {
      const absl::Status status = task->EndStatus(now);
      Fail(std::move(task), status);
    } else {
      Submit(std::move(task));
    }
    mutex_.Lock();
  }
  resuming_ = false;
}

void FactorOperation::Cancel(const RequestContext* context) {
  FactorTasks cancelled;
  {
    absl::MutexLock lock(&mutex_);
    for (auto& [key, waiters] : keys_) {
      for (FactorTaskPtr& waiter : waiters) {
        if (waiter->context.get() == context) cancelled.push_back(std::move(waiter));
      }
      std::erase(waiters, nullptr);
    }
  }
  const absl::Time now = admission_->Now();
  for (FactorTaskPtr& task : cancelled) {
    const absl::Status status = task->EndStatus(now);
    Fail(std::move(task), status);
  }
}

absl::Time FactorOperation::EndExpired(absl::Time now) {
  FactorTasks ended;
  absl::Time next = absl::InfiniteFuture();
  {
    absl::MutexLock lock(&mutex_);
    for (auto& [key, waiters] : keys_) {
      for (FactorTaskPtr& waiter : waiters) {
        if (waiter->ended(now)) {
          ended.push_back(std::move(waiter));
        } else {
          next = std::min(next, waiter->context->deadline);
        }
      }
      std::erase(waiters, nullptr);
    }
  }
  for (FactorTaskPtr& task : ended) {
    const absl::Status status = task->EndStatus(now);
    Fail(std::move(task), status);
  }
  return next;
}

absl::Duration FactorOperation::LeaseOf(const FactorParams& params) const {
  return params.lease > absl::ZeroDuration() ? params.lease : admission_->limits().default_lease;
}

void FactorOperation::KeepKey(const FactorParams& params, const FactorReply& reply,
                              FactorizationCache::EntryOptions& options) {
  for (const FactoredSystem& system : reply.systems) {
    if (!system.status.ok() && !NotSpd(system.status)) return;
  }
  options.idempotency_key = params.idempotency_key;
  for (const FactoredSystem& system : reply.systems) {
    options.keyed.push_back({.status = system.status, .log_determinant = system.log_determinant});
  }
}

absl::StatusOr<std::optional<FactorReply>> FactorOperation::FindKey(const RequestContext& context,
                                                                    const FactorParams& params) {
  if (params.idempotency_key.empty()) return std::nullopt;
  auto found = shards_->FindKey(context.caller, params.idempotency_key,
                                {.shape = params.form.bordered_shape(),
                                 .systems = params.num_systems,
                                 .keep_matrix = params.keep_matrix,
                                 .accuracy = params.accuracy,
                                 .condition_estimate = params.condition_estimate,
                                 .lease = LeaseOf(params),
                                 .pin = params.pin,
                                 .tenant = context.tenant});
  if (!found.ok()) return found.status();
  if (!found->has_value()) return std::nullopt;
  FactorizationCache::KeyedFactors& factors = **found;
  FactorReply reply;
  reply.found = true;
  reply.factor_bytes = factors.held_bytes;
  for (size_t i = 0; i < factors.systems.size(); ++i) {
    const FactorizationCache::KeyedSystem& system = factors.systems[i];
    FactoredSystem& out = reply.systems.emplace_back();
    out.status = system.status;
    out.handle = system.handle;
    if (system.status.ok()) Describe(*factors.pins[i], out);
    if (params.log_determinant) out.log_determinant = system.log_determinant;
  }
  return reply;
}

}  // namespace blockd::server
