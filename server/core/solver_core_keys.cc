// Idempotency keys: a Factor that arrives twice factors once. solver_core.h has the contract.
#include <algorithm>
#include <utility>

#include "server/core/solver_core_impl.h"

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
  return a.form.shape == b.form.shape && a.num_systems == b.num_systems;
}

}  // namespace

bool SolverCore::Impl::OwnKeyOrWait(std::unique_ptr<FactorTask>& task) {
  absl::MutexLock lock(&mutex_);
  auto [it, first] = keys_.try_emplace(Key(task->context->caller, task->params.idempotency_key));
  if (first) {
    task->owns_key = true;
    return true;
  }
  // What an upload staged is not needed if the first one succeeds, but is if it does not, and so
  // stays.
  WatchBefore(task->context->deadline);
  ++waiting_;
  it->second.push_back(std::move(task));
  return false;
}

void SolverCore::Impl::ReleaseKey(const FactorTask& task,
                                  const absl::StatusOr<FactorReply>& reply) {
  FactorTasks answered;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = keys_.find(Key(task.context->caller, task.params.idempotency_key));
    for (std::unique_ptr<FactorTask>& waiter : it->second) {
      if (ContentFailed(reply) && SameContent(task.params, waiter->params)) {
        answered.push_back(std::move(waiter));
        --waiting_;
      } else {
        resumed_.push_back(std::move(waiter));
      }
    }
    keys_.erase(it);
  }
  const absl::Time now = clock_->Now();
  for (std::unique_ptr<FactorTask>& waiter : answered) {
    absl::StatusOr<FactorReply> shared = reply;
    if (waiter->ended(now)) shared = waiter->EndStatus(now);
    if (shared.ok()) {
      shared->cost = Cost();
      shared->cost.queue = now - waiter->accepted;
    }
    EndFactor(std::move(waiter), std::move(shared));
  }
  ResumeWaiters();
}

// One thread at a time, and not from within itself: what it lets go may end at once and set others
// free, one after another.
void SolverCore::Impl::ResumeWaiters() {
  absl::MutexLock lock(&mutex_);
  if (resuming_) return;
  resuming_ = true;
  while (!resumed_.empty()) {
    std::unique_ptr<FactorTask> task = std::move(resumed_.front());
    resumed_.pop_front();
    --waiting_;
    mutex_.Unlock();
    const absl::Time now = clock_->Now();
    if (task->ended(now)) {
      absl::Status status = task->EndStatus(now);
      EndFactor(std::move(task), std::move(status));
    } else {
      SubmitFactor(std::move(task));
    }
    mutex_.Lock();
  }
  resuming_ = false;
}

void SolverCore::Impl::EndFactor(std::unique_ptr<FactorTask> task,
                                 absl::StatusOr<FactorReply> reply) {
  AnswerFactor(*task, std::move(reply));
  task.reset();
  Finished(1);
}

absl::Duration SolverCore::Impl::LeaseOf(const FactorParams& params) const {
  return params.lease > absl::ZeroDuration() ? params.lease : limits_.default_lease;
}

void SolverCore::Impl::KeepKey(const FactorParams& params, const FactorReply& reply,
                               FactorizationCache::EntryOptions& options) const {
  for (const FactoredSystem& system : reply.systems) {
    if (!system.status.ok() && !NotSpd(system.status)) return;
  }
  options.idempotency_key = params.idempotency_key;
  for (const FactoredSystem& system : reply.systems) {
    options.keyed.push_back({.status = system.status, .log_determinant = system.log_determinant});
  }
}

absl::StatusOr<std::optional<FactorReply>> SolverCore::Impl::FindKey(const std::string& caller,
                                                                     const FactorParams& params) {
  if (params.idempotency_key.empty()) return std::nullopt;
  auto found = cache_.FindKey(caller, params.idempotency_key,
                              {.shape = params.form.shape,
                               .systems = params.num_systems,
                               .keep_matrix = params.keep_matrix,
                               .accuracy = params.accuracy,
                               .condition_estimate = params.condition_estimate,
                               .lease = LeaseOf(params),
                               .pin = params.pin});
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
    if (!params.log_determinant || !system.status.ok()) continue;
    out.log_determinant = system.log_determinant;
    if (out.log_determinant.has_value()) continue;
    absl::StatusOr<double> value = solver_->LogDeterminant(*factors.pins[i]);
    if (!value.ok()) return value.status();
    out.log_determinant = *value;
  }
  return reply;
}

}  // namespace blockd::server
