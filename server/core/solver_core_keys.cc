// Idempotency keys: a Factor that arrives twice factors once.
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/solver_core_impl.h"

namespace blockd::server {
namespace {

// The end of the first call was its own: it says nothing about the others.
bool OnlyItsOwn(const absl::Status& status) {
  return absl::IsCancelled(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace

bool SolverCore::Impl::OwnKeyOrWait(std::unique_ptr<FactorTask>& task) {
  absl::MutexLock lock(&mutex_);
  auto [it, first] = keys_.try_emplace(Key(task->context->caller, task->params.idempotency_key));
  if (first) {
    task->owns_key = true;
    return true;
  }
  // It waits without its memory: what an upload staged is not needed if the first succeeds, but is
  // if the first is cancelled, and so stays.
  WatchBefore(task->context->deadline);
  ++waiting_;
  it->second.push_back(std::move(task));
  return false;
}

void SolverCore::Impl::ReleaseKey(const FactorTask& task,
                                  const absl::StatusOr<FactorReply>& reply) {
  const absl::Time now = clock_->Now();
  std::vector<std::unique_ptr<FactorTask>> answered;
  std::unique_ptr<FactorTask> heir;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = keys_.find(Key(task.context->caller, task.params.idempotency_key));
    std::vector<std::unique_ptr<FactorTask>>& waiters = it->second;
    if (OnlyItsOwn(reply.status())) {
      for (std::unique_ptr<FactorTask>& waiter : waiters) {
        if (heir != nullptr || waiter->ended(now)) continue;
        heir = std::move(waiter);
        heir->owns_key = true;
        --waiting_;
      }
      std::erase(waiters, nullptr);
    }
    if (heir == nullptr) {
      answered = std::move(waiters);
      waiting_ -= static_cast<int64_t>(answered.size());
      keys_.erase(it);
    }
  }
  for (std::unique_ptr<FactorTask>& waiter : answered) {
    absl::StatusOr<FactorReply> shared = reply;
    if (shared.ok()) {
      shared->found = true;
      shared->cost = Cost();
      shared->cost.queue = now - waiter->accepted;
    } else if (waiter->ended(now)) {
      shared = waiter->EndStatus(now);
    }
    AnswerFactor(*waiter, std::move(shared));
    waiter.reset();
    Finished(1);
  }
  if (heir != nullptr) {
    const bool admitted = !heir->staged.empty();
    SubmitFactor(std::move(heir), admitted);
  }
}

// The first call's, or, where that one did not ask for it, computed now.
absl::StatusOr<double> SolverCore::Impl::LogDeterminantOf(
    const std::string& caller, const FactorizationCache::KeyRecord& record, size_t system) {
  if (!record.log_determinants.empty()) return record.log_determinants[system];
  absl::StatusOr<FactorizationCache::Pin> pin = cache_.Peek(caller, record.handles[system]);
  if (!pin.ok()) return pin.status();
  return solver_->LogDeterminant(**pin);
}

absl::StatusOr<std::optional<FactorReply>> SolverCore::Impl::FindKey(const std::string& caller,
                                                                     const FactorParams& params) {
  if (params.idempotency_key.empty()) return std::nullopt;
  std::optional<FactorizationCache::KeyRecord> record =
      cache_.FindKey(caller, params.idempotency_key);
  if (!record) return std::nullopt;
  const int64_t systems = static_cast<int64_t>(record->handles.size());
  if (!(record->shape == params.form.shape) || systems != params.num_systems) {
    return InvalidFieldError(
        "options.idempotency_key",
        absl::StrCat("a key of ", systems, " systems of ", ToString(record->shape), " for ",
                     params.num_systems, " of ", ToString(params.form.shape)),
        "a key of its own for each content");
  }
  FactorReply reply;
  reply.found = true;
  reply.factor_bytes = record->held_bytes;
  for (size_t i = 0; i < record->handles.size(); ++i) {
    reply.systems.push_back({absl::OkStatus(), record->handles[i], 0});
    if (!params.log_determinant) continue;
    absl::StatusOr<double> value = LogDeterminantOf(caller, *record, i);
    if (!value.ok()) return value.status();
    reply.systems[i].log_determinant = *value;
  }
  return reply;
}

}  // namespace blockd::server
