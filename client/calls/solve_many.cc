#include "client/calls/solve_many.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "blockd/client/errors.h"
#include "client/calls/factor.h"
#include "client/calls/healer.h"
#include "client/calls/kept_rhs.h"
#include "client/calls/shm_calls.h"
#include "client/wire/requests.h"

namespace blockd::client {
namespace {

using Solve = ManySolves::Solve;

constexpr double kNotMeasured = -1;
constexpr size_t kHandleBytes = 24;

// New values for each of the factorizations.
struct NewValues {
  std::span<const SystemView> systems;
  const FactorOptions& options;
};

// One SolveMany, or with new values one FactorSolveMany, until all of it is answered.
class HealingCall {
 public:
  HealingCall(const Connection& connection, std::span<const Factorization> factorizations,
              const ManySolves& layout, Bytes rhs, std::span<std::byte> solution,
              const SolveOptions& options, const NewValues* values = nullptr)
      : connection_(connection),
        factorizations_(factorizations),
        solves_(layout.solves),
        rhs_(rhs, solution,
             connection.shared_memory() != nullptr ||
                 std::ranges::any_of(factorizations, &HealingCall::Heals)),
        solution_(solution),
        options_(options),
        values_(values),
        deadline_(connection.Deadline(options.timeout)),
        now_(factorizations.size()) {
    result_.solves.resize(factorizations.size());
  }

  absl::StatusOr<SolveResult> Run() {
    std::vector<size_t> left(factorizations_.size());
    for (size_t i = 0; i < left.size(); ++i) left[i] = i;
    while (!left.empty()) {
      std::map<std::string, std::vector<size_t>> by_route;
      for (const size_t i : left) {
        const auto& healer = factorizations_[i].healer;
        now_[i] = healer != nullptr ? healer->current() : Healer::Current{factorizations_[i]};
        now_[i].factorization.healer = healer;
        by_route[now_[i].factorization.route].push_back(i);
      }
      for (const auto& [route, some] : by_route) Call(some);
      std::vector<size_t> again = Replaced(left);
      left = AwaitRestored(left);
      left.insert(left.end(), again.begin(), again.end());
    }
    if (!any_answer_) return result_.solves[0].status;
    Summarize(result_);
    return std::move(result_);
  }

 private:
  static bool Heals(const Factorization& factorization) { return factorization.healer != nullptr; }

  // A failure of the call is a failure of each of its solves.
  void Call(const std::vector<size_t>& some) {
    const auto healing = std::find_if(some.begin(), some.end(),
                                      [this](size_t i) { return Heals(factorizations_[i]); });
    const Factorization& on = now_[healing == some.end() ? some[0] : *healing].factorization;
    absl::Status status;
    if (const auto shared = CallByMemory(some, on)) {
      status = *shared;
    } else {
      status = CallByMessage(some, on);
    }
    if (status.ok()) {
      any_answer_ = true;
    } else {
      for (const size_t i : some) result_.solves[i].status = status;
    }
  }

  std::optional<absl::Status> CallByMemory(const std::vector<size_t>& some,
                                           const Factorization& on) {
    if (connection_.shared_memory() == nullptr) return std::nullopt;
    std::vector<SharedData> data;
    for (const size_t i : some) {
      const auto& [num_rhs, offset, bytes] = solves_[i];
      if (values_ != nullptr) SharedData::AddMatrix(values_->systems[i], &data);
      data.push_back(
          SharedData::Columns(rhs_.get().subspan(offset, bytes), solution_.subspan(offset, bytes)));
    }
    v1::SolveManyReply reply;
    const auto call = [&](v1::ShmOperation operation, const auto& message) {
      return CallShared(connection_, &on, operation, message, std::move(data), deadline_, &reply);
    };
    const auto status = values_ == nullptr
                            ? call(v1::ShmOperation::kSolveMany, WithoutRhsBytes(MakeHeader(some)))
                            : call(v1::ShmOperation::kFactorSolveMany, MakeRefactorHeader(some));
    if (!status || !status->ok()) return status;
    return TakeOutcomes(some, reply);
  }

  absl::Status CallByMessage(const std::vector<size_t>& some, const Factorization& on) {
    v1::SolveManyReply reply;
    size_t bytes = 0;
    for (const size_t i : some) bytes += solves_[i].bytes;
    const absl::Status status =
        values_ == nullptr ? Send(MakeRequest(some), "SolveMany", on, &reply)
                           : Send(MakeRefactorRequest(some), "FactorSolveMany", on, &reply);
    return status.ok() ? Take(some, bytes, reply) : status;
  }

  template <typename Request>
  absl::Status Send(const Request& request, const char* method, const Factorization& on,
                    v1::SolveManyReply* reply) {
    return connection_.Retry(
        deadline_,
        [&](grpc::ClientContext& context) {
          return ToStatus(connection_.Ask(context, method, request, reply));
        },
        &on);
  }

  // Without right-hand sides.
  v1::SolveManyRequest MakeHeader(const std::vector<size_t>& some) const {
    std::vector<Solve> solves;
    for (const size_t i : some) solves.push_back(solves_[i]);
    v1::SolveManyRequest request = MakeSolveManyRequest(solves, options_);
    for (const size_t i : some) *request.mutable_handles() += now_[i].factorization.handle;
    return request;
  }

  v1::SolveManyRequest MakeRequest(const std::vector<size_t>& some) const {
    v1::SolveManyRequest request = MakeHeader(some);
    for (const size_t i : some) {
      Append(rhs_.get().subspan(solves_[i].offset, solves_[i].bytes), *request.mutable_rhs());
    }
    return request;
  }

  // Without matrices and right-hand sides.
  v1::FactorSolveManyRequest MakeRefactorHeader(const std::vector<size_t>& some) const {
    v1::FactorSolveManyRequest request = MakeFactorSolveManyRequest(
        values_->systems[0], solves_[0].num_rhs, options_, values_->options);
    for (const size_t i : some) request.add_handle(now_[i].factorization.handle);
    return request;
  }

  v1::FactorSolveManyRequest MakeRefactorRequest(const std::vector<size_t>& some) const {
    v1::FactorSolveManyRequest request = MakeRefactorHeader(some);
    for (const size_t i : some) {
      Append(rhs_.get().subspan(solves_[i].offset, solves_[i].bytes), *request.mutable_rhs());
    }
    std::string& matrix = *request.mutable_matrix();
    matrix.reserve(static_cast<size_t>(TotalBytes(values_->systems)));
    for (const size_t i : some) {
      for (const Bytes part : values_->systems[i].parts()) Append(part, matrix);
    }
    return request;
  }

  static void Append(Bytes part, std::string& to) {
    to.append(reinterpret_cast<const char*>(part.data()), part.size());
  }

  // The factorizations to be sent again, because a restoration with the old values came before the
  // new ones, which the server has.
  std::vector<size_t> Replaced(const std::vector<size_t>& some) {
    std::vector<size_t> again;
    for (const size_t i : some) {
      Healer* const healer = factorizations_[i].healer.get();
      if (values_ == nullptr || healer == nullptr || !result_.solves[i].status.ok()) continue;
      if (!healer->Refactored(now_[i].generation, values_->systems[i], values_->options)) {
        again.push_back(i);
      }
    }
    return again;
  }

  absl::Status Take(const std::vector<size_t>& some, size_t bytes, v1::SolveManyReply& reply) {
    if (reply.solution().size() != bytes) {
      return absl::InternalError("the server sent solutions of another size");
    }
    if (absl::Status status = TakeOutcomes(some, reply); !status.ok()) return status;
    const auto* from = reinterpret_cast<const std::byte*>(reply.solution().data());
    for (const size_t i : some) {
      std::copy_n(from, solves_[i].bytes, solution_.data() + solves_[i].offset);
      from += solves_[i].bytes;
    }
    return absl::OkStatus();
  }

  absl::Status TakeOutcomes(const std::vector<size_t>& some, const v1::SolveManyReply& reply) {
    absl::StatusOr<SolveResult> result = ToResult(reply, some.size());
    if (!result.ok()) return result.status();
    for (size_t k = 0; k < some.size(); ++k) {
      result_.solves[some[k]] = std::move(result->solves[k]);
    }
    result_.cost = std::move(result->cost);
    return absl::OkStatus();
  }

  // Has all that are lost factored again at once, and returns those to be sent again.
  std::vector<size_t> AwaitRestored(const std::vector<size_t>& some) {
    struct Answers {
      absl::Mutex mutex;
      std::map<size_t, absl::Status> of ABSL_GUARDED_BY(mutex);
    };
    const auto answers = std::make_shared<Answers>();
    std::vector<size_t> lost;
    for (const size_t i : some) {
      Healer* const healer = factorizations_[i].healer.get();
      const absl::Status& why = result_.solves[i].status;
      if (why.ok() || healer == nullptr || !healer->Mends(now_[i].generation, why)) continue;
      lost.push_back(i);
      healer->Restore(now_[i].generation, why, [answers, i](const absl::Status& restored) {
        absl::MutexLock lock(&answers->mutex);
        answers->of.emplace(i, restored);
      });
    }
    if (lost.empty()) return {};
    std::vector<size_t> again;
    absl::MutexLock lock(&answers->mutex);
    const auto all = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(answers->mutex) {
      return answers->of.size() == lost.size();
    };
    answers->mutex.AwaitWithDeadline(absl::Condition(&all), deadline_);
    for (const size_t i : lost) {
      const auto found = answers->of.find(i);
      absl::Status& status = result_.solves[i].status;
      status = found == answers->of.end() ? RestoreIsLate(status) : found->second;
      if (status.ok()) again.push_back(i);
    }
    return again;
  }

  const Connection& connection_;
  const std::span<const Factorization> factorizations_;
  const std::span<const Solve> solves_;
  const KeptRhs rhs_;
  const std::span<std::byte> solution_;
  const SolveOptions& options_;
  const NewValues* const values_;  // null: none
  const absl::Time deadline_;
  std::vector<Healer::Current> now_;  // what each stood for when it was last sent
  bool any_answer_ = false;
  SolveResult result_;
};

}  // namespace

absl::StatusOr<ManySolves> LayOut(std::span<const Factorization> factorizations, Scalar scalar,
                                  std::span<const int64_t> num_rhs, size_t rhs_bytes,
                                  size_t solution_bytes) {
  const size_t count = factorizations.size();
  if (count == 0 || count > kMaxSolves) {
    return InvalidFieldError("handle", absl::StrCat(count, " solves"),
                             absl::StrCat("1 to ", kMaxSolves));
  }
  if (!num_rhs.empty() && num_rhs.size() != count) {
    return InvalidFieldError("num_rhs", absl::StrCat(num_rhs.size(), " entries"),
                             absl::StrCat(count, ", one a solve, or none"));
  }
  ManySolves layout;
  layout.solves.reserve(count);
  size_t offset = 0;
  for (size_t i = 0; i < count; ++i) {
    if (factorizations[i].handle.size() != kHandleBytes) {
      return InvalidFieldError(absl::StrCat("handle[", i, "]"),
                               absl::StrCat(factorizations[i].handle.size(), " bytes"),
                               absl::StrCat(kHandleBytes, " bytes, as Factor returned them"));
    }
    const int64_t columns = num_rhs.empty() ? 1 : num_rhs[i];
    const size_t column = factorizations[i].rows() * ScalarBytes(scalar);
    const size_t left = rhs_bytes - offset;
    if (columns < 1 || column == 0 || static_cast<uint64_t>(columns) > left / column) {
      return InvalidFieldError(
          columns < 1 ? absl::StrCat("num_rhs[", i, "]") : "rhs",
          columns < 1 ? absl::StrCat(columns) : absl::StrCat(rhs_bytes, " bytes in all"),
          columns < 1 ? "at least 1" : absl::StrCat("more, for solve ", i));
    }
    const size_t bytes = static_cast<size_t>(columns) * column;
    const absl::StatusOr<int64_t> checked =
        CountColumns(factorizations[i].rows(), factorizations[i].scalar, scalar, bytes, bytes);
    if (!checked.ok()) return checked.status();
    if (bytes > std::numeric_limits<uint32_t>::max()) {
      return InvalidFieldError("rhs", absl::StrCat(bytes, " bytes for solve ", i), "below 4 GiB");
    }
    layout.solves.push_back({static_cast<uint32_t>(columns), offset, bytes});
    offset += bytes;
  }
  if (offset != rhs_bytes || solution_bytes != rhs_bytes) {
    return InvalidFieldError(
        offset != rhs_bytes ? "rhs" : "solution",
        absl::StrCat(offset != rhs_bytes ? rhs_bytes : solution_bytes, " bytes"),
        absl::StrCat(offset, " bytes in all"));
  }
  return layout;
}

absl::StatusOr<ManySolves> LayOut(std::span<const Factorization> factorizations,
                                  std::span<const SystemView> systems, Scalar scalar,
                                  size_t rhs_bytes, size_t solution_bytes) {
  if (factorizations.empty()) return InvalidFieldError("handle", "none", "one a system");
  if (absl::Status status = CheckSystems(systems, factorizations); !status.ok()) return status;
  const auto column = static_cast<size_t>(systems[0].rows() * ScalarBytes(scalar));
  const auto each = static_cast<int64_t>(rhs_bytes / systems.size() / column);
  const std::vector<int64_t> num_rhs(systems.size(), each);
  return LayOut(factorizations, scalar, num_rhs, rhs_bytes, solution_bytes);
}

v1::FactorSolveManyRequest MakeFactorSolveManyRequest(const SystemView& system, int64_t num_rhs,
                                                      const SolveOptions& solve,
                                                      const FactorOptions& factor) {
  v1::FactorSolveManyRequest request;
  *request.mutable_spec() = ToProto(system);
  *request.mutable_options() = ToProto(solve);
  request.set_num_rhs(num_rhs);
  request.set_check_finite(factor.check_finite);
  request.set_accuracy(ToProto(factor.accuracy));
  request.set_overwrite(factor.overwrite);
  request.set_keep_matrix(factor.keep_matrix);
  return request;
}

void Summarize(SolveResult& result) {
  for (const SolveOutcome& solve : result.solves) {
    if (!solve.status.ok()) continue;
    if (solve.backward_error) {
      double& error =
          result.backward_error ? *result.backward_error : result.backward_error.emplace();
      if (!(*solve.backward_error <= error)) error = *solve.backward_error;  // NaN too
    }
    result.backward_error_bound = std::max(result.backward_error_bound, solve.backward_error_bound);
    result.refinements = std::max(result.refinements, solve.refinements);
  }
}

v1::SolveManyRequest MakeSolveManyRequest(std::span<const Solve> solves,
                                          const SolveOptions& options) {
  v1::SolveManyRequest request;
  *request.mutable_options() = ToProto(options);
  const auto differ = [&](const Solve& solve) { return solve.bytes != solves[0].bytes; };
  const auto several = [](const Solve& solve) { return solve.num_rhs != 1; };
  if (std::ranges::any_of(solves, differ)) {
    for (const Solve& solve : solves) request.add_rhs_bytes(static_cast<uint32_t>(solve.bytes));
  }
  if (std::ranges::any_of(solves, several)) {
    for (const Solve& solve : solves) request.add_num_rhs(solve.num_rhs);
  }
  return request;
}

v1::SolveManyRequest WithoutRhsBytes(v1::SolveManyRequest request) {
  request.clear_rhs_bytes();
  return request;
}

absl::StatusOr<SolveResult> ToResult(const v1::SolveManyReply& reply, size_t solves) {
  const auto fits = [solves](int entries, bool may_be_none) {
    return (may_be_none && entries == 0) || static_cast<size_t>(entries) == solves;
  };
  bool agrees = fits(reply.backward_error_bound_size(), false) &&
                fits(reply.backward_error_size(), true) && fits(reply.refinements_size(), true) &&
                fits(reply.growth_size(), true) && fits(reply.matrix_kept_size(), true);
  for (const v1::SolveFailure& failure : reply.failure()) {
    agrees = agrees && failure.solve() < solves && failure.status().code() != 0;
  }
  if (!agrees) {
    return absl::InternalError(
        absl::StrCat("the server's answer is not one to ", solves, " solves"));
  }
  SolveResult result;
  result.solves.resize(solves);
  for (size_t i = 0; i < solves; ++i) {
    const int k = static_cast<int>(i);
    SolveOutcome& solve = result.solves[i];
    solve.backward_error_bound = reply.backward_error_bound(k);
    if (reply.backward_error_size() > 0 && reply.backward_error(k) != kNotMeasured) {
      solve.backward_error = reply.backward_error(k);
    }
    if (reply.refinements_size() > 0) solve.refinements = static_cast<int>(reply.refinements(k));
    if (reply.growth_size() > 0) solve.growth = reply.growth(k);
    if (reply.matrix_kept_size() > 0) solve.matrix_kept = reply.matrix_kept(k);
  }
  for (const v1::SolveFailure& failure : reply.failure()) {
    result.solves[failure.solve()] = {ToStatus(failure.status())};
  }
  result.cost = reply.cost();
  Summarize(result);
  return result;
}

absl::StatusOr<SolveResult> SolveManyHealing(const Connection& connection,
                                             std::span<const Factorization> factorizations,
                                             const ManySolves& layout, Bytes rhs,
                                             std::span<std::byte> solution,
                                             const SolveOptions& options) {
  return HealingCall(connection, factorizations, layout, rhs, solution, options).Run();
}

absl::StatusOr<SolveResult> RefactorSolveManyHealing(
    const Connection& connection, std::span<const Factorization> factorizations,
    std::span<const SystemView> systems, const ManySolves& layout, Bytes rhs,
    std::span<std::byte> solution, const SolveOptions& solve, const FactorOptions& factor) {
  const NewValues values{systems, factor};
  return HealingCall(connection, factorizations, layout, rhs, solution, solve, &values).Run();
}

}  // namespace blockd::client
