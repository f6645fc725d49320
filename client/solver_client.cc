#include "blockd/client/solver_client.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "client/base/check_options.h"
#include "client/calls/factor.h"
#include "client/calls/factor_solve.h"
#include "client/calls/healer.h"
#include "client/calls/inverse_call.h"
#include "client/calls/kept_rhs.h"
#include "client/calls/release.h"
#include "client/calls/shm_calls.h"
#include "client/calls/smooth_call.h"
#include "client/calls/solve_many.h"
#include "client/rpc/connection.h"
#include "client/session/async_solve.h"
#include "client/session/solve_stream.h"
#include "client/wire/requests.h"
#include "client/wire/slice_pool.h"
#include "client/wire/wire.h"

namespace blockd::client {
namespace {

// The log-determinant of a message, which has one if it was asked for.
template <typename Reply>
std::optional<double> LogDeterminantOf(const Reply& reply) {
  if (!reply.has_log_determinant()) return std::nullopt;
  return reply.log_determinant();
}

FactorSolveResult Join(SolveResult solved, std::optional<double> log_determinant,
                       const Conditioning& conditioning) {
  FactorSolveResult result;
  result.backward_error = solved.backward_error;
  result.backward_error_bound = solved.backward_error_bound;
  result.refinements = solved.refinements;
  result.log_determinant = log_determinant;
  result.growth = conditioning.growth;
  result.matrix_kept = conditioning.matrix_kept;
  result.cost = std::move(solved.cost);
  return result;
}

template <typename T>
InversePlaces PlacesOf(std::span<T> diagonal, std::span<T> coupling,
                       const InverseBorder<T>& border) {
  return {std::as_writable_bytes(diagonal), std::as_writable_bytes(coupling),
          std::as_writable_bytes(border.border), std::as_writable_bytes(border.corner)};
}

Factorization Name(const SystemView& system, const std::string& handle, const std::string& route) {
  Factorization name{handle, system.num_blocks, system.block_size, system.scalar, route};
  name.arrow_size = system.arrow_size;
  return name;
}

// A call of one small message each way, with the connection's own deadline. `route`: where to; then
// where the answer is from, if it says so.
template <typename Reply, typename Request>
absl::StatusOr<Reply> Ask(Connection& connection, const char* method, const Request& request,
                          std::string* route = nullptr) {
  Reply reply;
  Factorization on;
  if (route != nullptr) on.route = *route;
  const absl::Status status = connection.Retry(
      connection.Deadline({}),
      [&](grpc::ClientContext& context) {
        const absl::Status once = ToStatus(connection.Ask(context, method, request, &reply));
        if (std::string found = RouteOf(context); once.ok() && route != nullptr && !found.empty()) {
          *route = std::move(found);
        }
        return once;
      },
      &on);
  if (!status.ok()) return status;
  return reply;
}

}  // namespace

absl::StatusOr<SolverClient> SolverClient::Connect(const std::string& target,
                                                   const ClientOptions& options) {
  if (absl::Status status = CheckOptions(target, options); !status.ok()) return status;
  const std::shared_ptr<Connection> connection = Connection::Make(target, options);
  if (options.shared_memory_bytes > 0) {
    if (absl::Status status = connection->OpenSharedMemory(); !status.ok()) return status;
  }
  return SolverClient(connection);
}

absl::StatusOr<SharedBuffer> SolverClient::AllocateShared(int64_t bytes) const {
  if (connection_->shared_memory() == nullptr) {
    return absl::FailedPreconditionError("the client shares no memory (shared_memory_bytes)");
  }
  const auto session = connection_->shared_memory()->session(connection_->Deadline({}));
  if (!session.ok()) return session.status();
  std::optional<ShmPiece> piece = (*session)->memory()->Allocate(std::max<int64_t>(bytes, 0));
  if (!piece) return absl::ResourceExhaustedError("no such piece of the shared memory is left");
  std::byte* const data = piece->data();
  return SharedBuffer({data, static_cast<size_t>(bytes)},
                      std::make_shared<ShmPiece>(*std::move(piece)));
}

SolverClient::SolverClient(std::shared_ptr<Connection> connection)
    : connection_(std::move(connection)) {}

bool SolverClient::WaitUntilConnected(absl::Duration limit) const {
  return connection_->WaitUntilConnected(connection_->Deadline(limit));
}

absl::StatusOr<FactorResult> SolverClient::Factor(const SystemView& system,
                                                  const FactorOptions& options) const {
  absl::StatusOr<FactorBatchResult> batch = FactorBatch({&system, 1}, options);
  if (!batch.ok()) return batch.status();
  FactorBatchResult::System& only = batch->systems[0];
  if (!only.status.ok()) return only.status;
  return FactorResult{std::move(only.handle), only.log_determinant, only.conditioning,
                      batch->factor_bytes,    batch->found,         std::move(batch->cost)};
}

absl::StatusOr<FactorBatchResult> SolverClient::FactorBatch(std::span<const SystemView> systems,
                                                            const FactorOptions& options) const {
  absl::StatusOr<FactorAnswer> answer = FactorSystems(*connection_, systems, {}, options);
  if (!answer.ok()) return answer.status();
  v1::FactorReply& reply = answer->reply;
  FactorBatchResult result;
  result.factor_bytes = reply.factor_bytes();
  result.found = reply.found();
  result.cost = std::move(*reply.mutable_cost());
  for (int k = 0; k < reply.system_size(); ++k) {
    const v1::FactoredSystem& system = reply.system(k);
    FactorBatchResult::System& out = result.systems.emplace_back();
    if (system.has_status()) out.status = ToStatus(system.status());
    if (out.status.ok()) {
      Factorization made = Name(systems[k], system.handle(), answer->route);
      if (options.restore.heals()) {
        made.healer = std::make_shared<Healer>(connection_, options, k, systems[k], made);
      }
      out.handle = FactorHandle(connection_, std::move(made));
      out.log_determinant = LogDeterminantOf(system);
      out.conditioning = ConditioningOf(system);
    }
  }
  return result;
}

absl::StatusOr<RefactorResult> SolverClient::Refactor(const Factorization& factorization,
                                                      const SystemView& system,
                                                      const FactorOptions& options) const {
  absl::StatusOr<RefactorResult> result = RefactorBatch({&factorization, 1}, {&system, 1}, options);
  if (result.ok() && !result->systems[0].ok()) return result->systems[0];
  return result;
}

absl::StatusOr<RefactorResult> SolverClient::RefactorBatch(
    std::span<const Factorization> factorizations, std::span<const SystemView> systems,
    const FactorOptions& options) const {
  if (factorizations.empty()) return InvalidFieldError("options.handle", "none", "one a system");
  if (!options.idempotency_key.empty()) {
    return InvalidFieldError("options.idempotency_key", "given", "none where handles are given");
  }
  absl::StatusOr<v1::FactorReply> reply =
      RefactorHealing(*connection_, systems, factorizations, options);
  if (!reply.ok()) return reply.status();
  RefactorResult result;
  result.cost = std::move(*reply->mutable_cost());
  for (const v1::FactoredSystem& system : reply->system()) {
    result.systems.push_back(system.has_status() ? ToStatus(system.status()) : absl::OkStatus());
    result.log_determinants.push_back(LogDeterminantOf(system));
    result.conditioning.push_back(ConditioningOf(system));
  }
  return result;
}

absl::StatusOr<SolveResult> SolverClient::SolveBytes(const Factorization& factorization,
                                                     Scalar scalar, std::span<const std::byte> rhs,
                                                     std::span<std::byte> solution,
                                                     const SolveOptions& options) const {
  absl::StatusOr<v1::SolveRequest> request =
      MakeSolveRequest(factorization, scalar, rhs.size(), solution.size(), options);
  if (!request.ok()) return request.status();
  const bool large =
      static_cast<int64_t>(rhs.size()) > connection_->options().stream_threshold_bytes;
  const absl::Time deadline = connection_->Deadline(options.timeout);
  const KeptRhs kept(rhs, solution, connection_->shared_memory() != nullptr);
  absl::StatusOr<SolveResult> result;
  const absl::Status status = CallHealing(factorization, deadline, [&](const Factorization& now) {
    request->set_handle(now.handle);
    v1::SolveReply reply;
    const auto shared = CallShared(*connection_, &now, v1::ShmOperation::kSolve, *request,
                                   {SharedData::Columns(kept.get(), solution)}, deadline, &reply);
    if (shared) {
      if (shared->ok()) result = ToResult(reply);
      return *shared;
    }
    return large ? SolveLarge(now, *request, kept.get(), solution, deadline, &result)
                 : SolveSmall(now, *request, kept.get(), solution, deadline, &result);
  });
  if (!status.ok()) return status;
  return result;
}

absl::StatusOr<SolveResult> SolverClient::SolveManyBytes(
    std::span<const Factorization> factorizations, Scalar scalar, std::span<const std::byte> rhs,
    std::span<std::byte> solution, const SolveOptions& options,
    std::span<const int64_t> num_rhs) const {
  const absl::StatusOr<ManySolves> layout =
      LayOut(factorizations, scalar, num_rhs, rhs.size(), solution.size());
  if (!layout.ok()) return layout.status();
  return SolveManyHealing(*connection_, factorizations, *layout, rhs, solution, options);
}

absl::Status SolverClient::SolveSmall(const Factorization& now, const v1::SolveRequest& request,
                                      std::span<const std::byte> rhs, std::span<std::byte> solution,
                                      absl::Time deadline,
                                      absl::StatusOr<SolveResult>* result) const {
  const grpc::ByteBuffer bytes = SolveMessage(request, CopyForSending(rhs));
  grpc::ByteBuffer reply;
  const absl::Status status = connection_->Retry(
      deadline,
      [&](grpc::ClientContext& context) {
        return ToStatus(connection_->Ask(context, "Solve", bytes, &reply));
      },
      &now);
  if (status.ok()) *result = ReadSolution(reply, solution);
  return status;
}

absl::Status SolverClient::SolveLarge(const Factorization& now, const v1::SolveRequest& request,
                                      std::span<const std::byte> rhs, std::span<std::byte> solution,
                                      absl::Time deadline,
                                      absl::StatusOr<SolveResult>* result) const {
  return connection_->Retry(
      deadline,
      [&](grpc::ClientContext&) {
        MemoryLoan loan;  // comes back, at the latest, when this goes out of scope
        const auto stream =
            SolveStream::Start(connection_, connection_->bulk(), deadline, now.route);
        v1::SolveStreamRequest first;
        first.set_id(1);
        *first.mutable_request() = request;
        const absl::Status sent =
            stream->Send(std::move(first), rhs, solution, &loan,
                         [&](absl::StatusOr<SolveResult> answer) { *result = std::move(answer); });
        stream->CloseSending();
        stream->AwaitEnd();
        return sent.ok() ? result->status() : sent;
      },
      &now);
}

void SolverClient::SolveBytesAsync(const Factorization& factorization, Scalar scalar,
                                   std::span<const std::byte> rhs, std::span<std::byte> solution,
                                   const SolveOptions& options, SolveDone done) const {
  absl::StatusOr<v1::SolveRequest> request =
      MakeSolveRequest(factorization, scalar, rhs.size(), solution.size(), options);
  if (!request.ok()) return done(request.status());
  const absl::Time deadline = connection_->Deadline(options.timeout);
  if (absl::Now() >= deadline) return done(TimeIsOver());
  StartAsyncSolve(connection_, factorization, *std::move(request), rhs, solution, deadline,
                  std::move(done));
}

SolveSession SolverClient::OpenSession() const { return SolveSession(connection_); }

absl::StatusOr<FactorSolveResult> SolverClient::FactorSolveBytes(
    const SystemView& system, Scalar scalar, std::span<const std::byte> rhs,
    std::span<std::byte> solution, const SolveOptions& solve, const FactorOptions& factor) const {
  if (absl::Status status = CheckSystem(system); !status.ok()) return status;
  const absl::StatusOr<int64_t> columns =
      CountColumns(system.rows(), system.scalar, scalar, rhs.size(), solution.size());
  if (!columns.ok()) return columns.status();
  const KeptRhs kept(rhs, solution, connection_->shared_memory() != nullptr);
  const FactorSolveCall call{system, kept.get(), solution, connection_->Deadline(solve.timeout)};
  absl::StatusOr<FactorSolveResult> result =
      FactorSolveOnce(*connection_, MakeFactorSolveRequest(system, *columns, solve, factor), call);
  if (!absl::IsOutOfRange(result.status())) return result;
  return FactorThenSolve(system, scalar, kept.get(), solution, solve, factor);
}

// FactorSolve where one message would be too large: a Factor, and then a Solve.
absl::StatusOr<FactorSolveResult> SolverClient::FactorThenSolve(
    const SystemView& system, Scalar scalar, std::span<const std::byte> rhs,
    std::span<std::byte> solution, const SolveOptions& solve, const FactorOptions& factor) const {
  FactorOptions options = factor;
  options.restore = {};
  options.keep_matrix = solve.residual || solve.max_refinements > 0;
  options.pin = false;
  options.timeout = solve.timeout;
  const absl::Time deadline = connection_->Deadline(solve.timeout);
  const auto remaining = [&] { return std::max(deadline - absl::Now(), absl::Nanoseconds(1)); };
  absl::StatusOr<FactorResult> factored;
  absl::StatusOr<SolveResult> solved;
  // Once more where the server went away in between.
  for (int attempt = 0; attempt < 2; ++attempt) {
    factored = Factor(system, options);
    if (!factored.ok()) return factored.status();
    SolveOptions rest = solve;
    rest.check_finite = solve.check_finite || factor.check_finite;
    rest.timeout = remaining();
    solved = SolveBytes(factored->handle, scalar, rhs, solution, rest);
    if (!IsLost(solved.status())) break;
    options.timeout = remaining();
  }
  if (!solved.ok()) return solved.status();
  return Join(*std::move(solved), factored->log_determinant, factored->conditioning);
}

absl::StatusOr<FactorSolveResult> SolverClient::RefactorSolveBytes(
    const Factorization& factorization, const SystemView& system, Scalar scalar,
    std::span<const std::byte> rhs, std::span<std::byte> solution, const SolveOptions& solve,
    const FactorOptions& factor) const {
  if (absl::Status status = CheckSystems({&system, 1}, {&factorization, 1}); !status.ok()) {
    return status;
  }
  const absl::StatusOr<int64_t> columns =
      CountColumns(system.rows(), system.scalar, scalar, rhs.size(), solution.size());
  if (!columns.ok()) return columns.status();
  v1::FactorSolveRequest request = MakeFactorSolveRequest(system, *columns, solve, factor);
  request.set_overwrite(factor.overwrite);
  request.set_keep_matrix(factor.keep_matrix);
  const bool heals = factorization.healer != nullptr;  // it may send again what was solved
  const KeptRhs kept(rhs, solution, heals || connection_->shared_memory() != nullptr);
  absl::StatusOr<FactorSolveResult> result = RefactorSolveHealing(
      *connection_, factorization, std::move(request),
      {system, kept.get(), solution, connection_->Deadline(solve.timeout)}, factor);
  if (!absl::IsOutOfRange(result.status())) return result;
  return RefactorThenSolve(factorization, system, scalar, kept.get(), solution, solve, factor);
}

// RefactorSolve where one message would be too large: a Refactor, and then a Solve.
absl::StatusOr<FactorSolveResult> SolverClient::RefactorThenSolve(
    const Factorization& factorization, const SystemView& system, Scalar scalar,
    std::span<const std::byte> rhs, std::span<std::byte> solution, const SolveOptions& solve,
    const FactorOptions& factor) const {
  const absl::Time deadline = connection_->Deadline(solve.timeout);
  FactorOptions options = factor;
  options.keep_matrix = factor.keep_matrix || solve.residual || solve.max_refinements > 0;
  options.pin = false;
  options.lease = {};
  options.timeout = solve.timeout;
  const absl::StatusOr<RefactorResult> factored = Refactor(factorization, system, options);
  if (!factored.ok()) return factored.status();
  SolveOptions rest = solve;
  rest.check_finite = solve.check_finite || factor.check_finite;
  rest.timeout = std::max(deadline - absl::Now(), absl::Nanoseconds(1));
  absl::StatusOr<SolveResult> solved = SolveBytes(factorization, scalar, rhs, solution, rest);
  if (!solved.ok()) return solved.status();
  return Join(*std::move(solved), factored->log_determinants[0], factored->conditioning[0]);
}

absl::StatusOr<SolveResult> SolverClient::RefactorSolveManyBytes(
    std::span<const Factorization> factorizations, std::span<const SystemView> systems,
    Scalar scalar, std::span<const std::byte> rhs, std::span<std::byte> solution,
    const SolveOptions& solve, const FactorOptions& factor) const {
  const absl::StatusOr<ManySolves> layout =
      LayOut(factorizations, systems, scalar, rhs.size(), solution.size());
  if (!layout.ok()) return layout.status();
  return RefactorSolveManyHealing(*connection_, factorizations, systems, *layout, rhs, solution,
                                  solve, factor);
}

absl::StatusOr<int64_t> SolverClient::Release(std::span<const std::string> handles,
                                              const std::string& route) const {
  return ReleaseNow(*connection_, handles, route);
}

absl::StatusOr<v1::FactorizationInfo> SolverClient::Get(const std::string& handle,
                                                        std::string* route) const {
  v1::GetFactorizationRequest request;
  request.set_handle(handle);
  return Ask<v1::FactorizationInfo>(*connection_, "GetFactorization", request, route);
}

absl::StatusOr<std::vector<v1::FactorizationInfo>> SolverClient::List(std::string* route) const {
  std::string from;  // the next pages are of the server of the first
  std::vector<v1::FactorizationInfo> all;
  v1::ListFactorizationsRequest request;
  do {
    absl::StatusOr<v1::ListFactorizationsReply> reply =
        Ask<v1::ListFactorizationsReply>(*connection_, "ListFactorizations", request, &from);
    if (!reply.ok()) return reply.status();
    std::move(reply->mutable_factorization()->begin(), reply->mutable_factorization()->end(),
              std::back_inserter(all));
    request.set_page_token(reply->next_page_token());
  } while (!request.page_token().empty());
  if (route != nullptr) *route = from;
  return all;
}

absl::StatusOr<v1::ServerInfo> SolverClient::ServerInfo() const {
  return Ask<v1::ServerInfo>(*connection_, "GetServerInfo", v1::GetServerInfoRequest());
}

absl::StatusOr<v1::Plan> SolverClient::Plan(int64_t num_blocks, int64_t block_size, Scalar scalar,
                                            int64_t num_systems, int64_t num_rhs,
                                            int64_t arrow_size) const {
  v1::GetPlanRequest request;
  v1::SystemSpec& spec = *request.mutable_spec();
  spec.set_num_blocks(num_blocks);
  spec.set_block_size(block_size);
  spec.set_scalar(ToProto(scalar));
  spec.set_diagonal_form(v1::FULL);
  spec.set_coupling_form(v1::SUBDIAGONAL);
  spec.set_arrow_size(arrow_size);
  request.set_num_systems(num_systems);
  request.set_num_rhs(num_rhs);
  return Ask<v1::Plan>(*connection_, "GetPlan", request);
}

absl::Status SolverClient::CheckHealth() const {
  grpc::ClientContext context;  // one attempt: who asks for the health wants it as it is now
  connection_->Prepare(context, connection_->Deadline({}));
  return connection_->CheckHealth(context);
}

absl::StatusOr<v1::Cost> SolverClient::SelectedInverse(const Factorization& factorization,
                                                       std::span<double> diagonal,
                                                       std::span<double> coupling,
                                                       const InverseOptions& options,
                                                       const InverseBorder<double>& border) const {
  return CallSelectedInverse(*connection_, factorization, Scalar::kFloat64,
                             PlacesOf(diagonal, coupling, border), options);
}

absl::StatusOr<v1::Cost> SolverClient::SelectedInverse(const Factorization& factorization,
                                                       std::span<float> diagonal,
                                                       std::span<float> coupling,
                                                       const InverseOptions& options,
                                                       const InverseBorder<float>& border) const {
  return CallSelectedInverse(*connection_, factorization, Scalar::kFloat32,
                             PlacesOf(diagonal, coupling, border), options);
}

absl::StatusOr<v1::Cost> SolverClient::Sample(const Factorization& factorization,
                                              std::span<double> samples,
                                              const SampleOptions& options) const {
  return CallSample(*connection_, factorization, Scalar::kFloat64, std::as_writable_bytes(samples),
                    options);
}

absl::StatusOr<v1::Cost> SolverClient::Sample(const Factorization& factorization,
                                              std::span<float> samples,
                                              const SampleOptions& options) const {
  return CallSample(*connection_, factorization, Scalar::kFloat32, std::as_writable_bytes(samples),
                    options);
}

absl::StatusOr<SmoothResult> SolverClient::Smooth(const StateSpaceModel& model,
                                                  std::span<const double> observations,
                                                  const SmoothOptions& options) const {
  absl::StatusOr<SmoothAnswer> answer = SmoothSeries(*connection_, model, observations, options);
  if (!answer.ok()) return answer.status();
  for (std::string& handle : answer->handles) {
    answer->result.handles.push_back(Adopt({.handle = std::move(handle),
                                            .num_blocks = model.num_steps,
                                            .block_size = model.state_size,
                                            .scalar = Scalar::kFloat64,
                                            .route = answer->route}));
  }
  return std::move(answer->result);
}

FactorHandle SolverClient::Adopt(Factorization factorization) const {
  return FactorHandle(connection_, std::move(factorization));
}

RetryCounters SolverClient::retry_counters() const {
  return connection_->retry_budget()->counters();
}

RestoreCounters SolverClient::restore_counters() const { return connection_->restore_counters(); }

bool SolverClient::AwaitReleases(absl::Duration limit) const {
  return connection_->AwaitReleases(limit);
}

}  // namespace blockd::client
