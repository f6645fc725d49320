#include "server/core/operations/solve_requests.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "server/core/common/checks.h"
#include "server/core/common/finite_scanner.h"

namespace blockd::server {
namespace {

// True if all solves ended for one reason that is no solve's own.
bool EndedAsAWhole(const std::vector<SolveOutcome>& outcomes) {
  const absl::Status& first = outcomes[0].status;
  if (!absl::IsCancelled(first) && !absl::IsDeadlineExceeded(first)) return false;
  return std::all_of(outcomes.begin(), outcomes.end(), [&](const SolveOutcome& outcome) {
    return outcome.status.code() == first.code();
  });
}

}  // namespace

void SolveRequest::Answer() {
  if (EndedAsAWhole(outcomes)) return done(outcomes[0].status);
  SolveManyReply reply;
  reply.outcomes = std::move(outcomes);
  {
    absl::MutexLock lock(&mutex);
    reply.cost = cost;
  }
  done(std::move(reply));
}

void SolveRequests::Start(ContextPtr context, const SolveParams& params, SolveDone done) {
  SolveManyParams one;
  one.handles.push_back(params.handle);
  one.solves.push_back({params.num_rhs, params.rhs, params.solution});
  one.residual = params.residual;
  one.max_refinements = params.max_refinements;
  one.check_finite = params.check_finite;
  absl::StatusOr<Permit> permit = admission_->Admit(*context);
  if (!permit.ok()) return done(permit.status());
  StartAll(std::move(context), Method::kSolve, *std::move(permit), std::move(one),
           [done = std::move(done)](absl::StatusOr<SolveManyReply> many) mutable {
             if (!many.ok()) return done(many.status());
             const SolveOutcome& outcome = many->outcomes[0];
             if (!outcome.status.ok()) return done(outcome.status);
             SolveReply reply;
             reply.backward_error = outcome.backward_error;
             reply.backward_error_bound = outcome.backward_error_bound;
             reply.refinements = outcome.refinements;
             reply.cost = many->cost;
             done(reply);
           });
}

void SolveRequests::StartMany(ContextPtr context, SolveManyParams params, SolveManyDone done) {
  if (params.solves.empty()) return done(InvalidFieldError("handle", "0 solves", "at least 1"));
  absl::StatusOr<Permit> permit = admission_->Admit(*context, std::ssize(params.solves));
  if (!permit.ok()) return done(permit.status());
  StartAll(std::move(context), Method::kSolveMany, *std::move(permit), std::move(params),
           std::move(done));
}

void SolveRequests::StartPart(ContextPtr context, Permit permit, SolveManyParams params,
                              SolveManyDone done) {
  StartAll(std::move(context), Method::kSolveMany, std::move(permit), std::move(params),
           std::move(done));
}

void SolveRequests::StartAll(ContextPtr context, Method method, Permit permit,
                             SolveManyParams params, SolveManyDone done) {
  auto request = std::make_shared<SolveRequest>();
  request->params = std::move(params);
  request->done = std::move(done);
  request->outcomes.resize(request->params.solves.size());
  Tasks tasks{context, method, permit, request};
  const absl::Status status = MakeAll(tasks);
  if (!status.ok() || tasks.made.empty()) {
    // Gives everything back before the caller learns of the answer; the core waits for that.
    for (const auto& task : tasks.made) {
      task->parts.clear();
      task->permit.GiveBack();
    }
    permit.GiveBack();
    return status.ok() ? request->Answer() : request->done(status);
  }
  request->unanswered = static_cast<int>(tasks.made.size());
  for (auto& task : tasks.made) {
    auto* const operation = static_cast<SolveOperation*>(task->operation);
    operation->Submit(std::move(task));
  }
}

absl::Status SolveRequests::Check(const RequestContext& context, const SolveManyParams& params,
                                  const SolveManyParams::Columns& columns,
                                  const Factorization& factorization) const {
  const Shape& shape = factorization.shape();
  absl::Status status = CheckRhs(
      factorization.bordered_shape(), columns.num_rhs, static_cast<int64_t>(columns.rhs.size()),
      static_cast<int64_t>(columns.solution.size()), params.max_refinements, admission_->limits());
  if (!status.ok()) return status;
  // The first one counts from where the message's right-hand sides begin.
  const std::byte* const begin = params.solves[0].rhs.data();
  if (const auto at = columns.rhs.data() - begin; at % ScalarBytes(shape.scalar) != 0) {
    return InvalidFieldError("rhs", absl::StrCat("float64 from byte ", at, " on"),
                             "a multiple of 8");
  }
  if (params.check_finite) {
    status = CheckFiniteRhs(shape.scalar, factorization.rows(), columns.rhs,
                            [&] { return context.CheckOngoing(admission_->Now()); });
    if (!status.ok()) return status;
  }
  const BorderedShape bordered = factorization.bordered_shape();
  status.Update(CheckNoBorder(bordered, "options.residual", params.residual));
  status.Update(CheckNoBorder(bordered, "options.max_refinements", params.max_refinements > 0));
  if (!status.ok()) return status;
  if (params.needs_matrix() && !factorization.matrix()) {
    return absl::FailedPreconditionError(
        "residuals and refinement need a factorization that kept its matrix (keep_matrix)");
  }
  return absl::OkStatus();
}

absl::Status SolveRequests::MakeAll(Tasks& tasks) {
  const std::vector<Handle>& handles = tasks.request->params.handles;
  const size_t first = shards_->IndexOf(handles[0]);
  const bool together = std::all_of(handles.begin(), handles.end(), [&](const Handle& handle) {
    return shards_->IndexOf(handle) == first;
  });
  absl::Status status;
  if (together) {
    status = Make(first, handles, {}, tasks);
  } else {
    std::vector<std::vector<Handle>> handles_of(shards_->size());
    std::vector<std::vector<size_t>> solves_of(shards_->size());
    for (size_t i = 0; i < handles.size(); ++i) {
      const size_t shard = shards_->IndexOf(handles[i]);
      handles_of[shard].push_back(handles[i]);
      solves_of[shard].push_back(i);
    }
    for (size_t shard = 0; shard < shards_->size() && status.ok(); ++shard) {
      if (solves_of[shard].empty()) continue;
      status = Make(shard, handles_of[shard], solves_of[shard], tasks);
    }
  }
  if (!status.ok() || tasks.made.empty()) return status;
  return admission_->TakeUpload(tasks.made[0]->permit, tasks.bytes);
}

absl::Status SolveRequests::Make(size_t shard, std::span<const Handle> handles,
                                 std::span<const size_t> solves, Tasks& tasks) {
  const SolveManyParams& params = tasks.request->params;
  const absl::Time now = admission_->Now();
  absl::flat_hash_map<const EliminationPlan*, SolveTask*> task_of;
  std::vector<absl::StatusOr<FactorizationPin>> pins =
      (*shards_)[shard].cache().LookupAll<FactorizationPin>(tasks.context->caller, handles);
  SolveTask* task = nullptr;  // of the solve before
  for (size_t i = 0; i < pins.size(); ++i) {
    const size_t solve = solves.empty() ? i : solves[i];
    absl::Status& status = tasks.request->outcomes[solve].status;
    status = pins[i].status();
    if (status.ok()) status = Check(*tasks.context, params, params.solves[solve], **pins[i]);
    if (!status.ok()) continue;
    const EliminationPlan* const plan = &(*pins[i])->plan();
    if (task == nullptr || plan != &task->plan()) task = task_of[plan];
    if (task == nullptr) {
      tasks.made.push_back(std::make_unique<SolveTask>(
          &(*operations_)[shard], tasks.method, tasks.context, Permit(), now, tasks.request));
      Permit& own = tasks.made.back()->permit;
      if (tasks.made.size() == 1) {
        std::swap(own, tasks.permit);
      } else {
        absl::StatusOr<Permit> another = admission_->AdmitAnother(tasks.made[0]->permit);
        if (!another.ok()) return another.status();
        own = *std::move(another);
      }
      task_of[plan] = task = tasks.made.back().get();
      if (task_of.size() == 1) task->parts.reserve(pins.size());  // as a rule they have one plan
    }
    SolvePart& part = task->parts.emplace_back();
    part.solve = solve;
    part.pin = *std::move(pins[i]);
    part.columns = params.solves[solve];
    ++task->requests;
    task->columns += part.columns.num_rhs;
    task->left += part.columns.num_rhs;
    tasks.bytes += static_cast<int64_t>(part.columns.rhs.size());
  }
  return absl::OkStatus();
}

}  // namespace blockd::server
