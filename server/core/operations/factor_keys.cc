// Idempotency keys: a Factor that arrives twice factors once. request.h has the contract.
#include <algorithm>
#include <any>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/core/operations/factor.h"
#include "server/core/operations/kept_factorization.h"

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

// A key's answer.
struct KeyAnswer {
  BorderedShape shape;
  std::vector<FactoredSystem> systems;  // without their handles
};

absl::Status CheckAnswer(const std::any& answer, const FactorParams& params) {
  const auto* const factored = std::any_cast<KeyAnswer>(&answer);
  const BorderedShape shape = params.form.bordered_shape();
  const int64_t systems = factored == nullptr ? 0 : std::ssize(factored->systems);
  if (factored != nullptr && factored->shape == shape && systems == params.num_systems) {
    return absl::OkStatus();
  }
  return InvalidFieldError(
      "options.idempotency_key",
      factored == nullptr
          ? "a key of another call"
          : absl::StrCat("a key of ", systems, " systems of ", ToString(factored->shape), " for ",
                         params.num_systems, " of ", ToString(shape)),
      "a key of its own for each content");
}

// OK if the held factorization satisfies a later call with its key.
absl::Status CheckKept(const KeptObject& object, const FactorParams& params) {
  constexpr char kOwnKey[] = "or a key of its own";
  const Factorization& held = *static_cast<const KeptFactorization&>(object).factorization();
  if (params.keep_matrix && !held.matrix()) {
    return InvalidFieldError("options.keep_matrix",
                             "true, with the key of factorizations held without their matrices",
                             absl::StrCat("false, ", kOwnKey));
  }
  if (params.accuracy == Accuracy::kGuaranteed && held.at_risk() && !held.matrix()) {
    return InvalidFieldError("options.accuracy",
                             "ACCURACY_GUARANTEED, with the key of factorizations that need their "
                             "matrices for it and are held without",
                             absl::StrCat("ACCURACY_STANDARD, ", kOwnKey));
  }
  if (params.condition_estimate && !held.conditioning().condition_estimate) {
    return InvalidFieldError("options.condition_estimate",
                             "true, with the key of factorizations that were made without",
                             absl::StrCat("false, ", kOwnKey));
  }
  return absl::OkStatus();
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

void FactorOperation::KeepKey(const FactorParams& params, const FactorReply& reply,
                              Cache::EntryOptions& options) {
  for (const FactoredSystem& system : reply.systems) {
    if (!system.status.ok() && !NotSpd(system.status)) return;
  }
  options.idempotency_key = params.idempotency_key;
  options.answer = KeyAnswer{params.form.bordered_shape(), reply.systems};
}

absl::StatusOr<std::optional<FactorReply>> FactorOperation::FindKey(const RequestContext& context,
                                                                    const FactorParams& params) {
  if (params.idempotency_key.empty()) return std::nullopt;
  const auto check_answer = [&](const std::any& answer) { return CheckAnswer(answer, params); };
  const auto check_object = [&](const KeptObject& object) { return CheckKept(object, params); };
  auto found = shards_->FindKey(context.caller, params.idempotency_key,
                                {.check_answer = check_answer,
                                 .check_object = check_object,
                                 .lease = admission_->limits().Lease(params.lease),
                                 .pin = params.pin,
                                 .tenant = context.tenant});
  if (!found.ok()) return found.status();
  if (!found->has_value()) return std::nullopt;
  FactorReply reply;
  reply.found = true;
  reply.systems = std::any_cast<KeyAnswer&>((*found)->answer).systems;
  size_t next = 0;
  for (FactoredSystem& system : reply.systems) {
    if (!params.log_determinant) system.log_determinant.reset();
    if (!system.status.ok()) continue;
    const FactorizationPin pin(std::move((*found)->pins[next]));
    system.handle = (*found)->handles[next++];
    reply.factor_bytes = std::max(reply.factor_bytes, pin->bytes());
  }
  return reply;
}

}  // namespace blockd::server
