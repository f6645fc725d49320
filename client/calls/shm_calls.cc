#include "client/calls/shm_calls.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/time/clock.h"
#include "blockd/client/errors.h"
#include "client/shm/shm_link.h"
#include "client/shm/shm_session.h"

namespace blockd::client {
namespace {

// One attempt in the session that there is; nullopt: it has no room.
using Attempt = absl::FunctionRef<std::optional<absl::Status>(ShmSession&)>;

// The first attempt costs nothing of what a call of gRPC does; Retry sees its failure alone.
std::optional<absl::Status> CallShared(const Connection& connection, const Factorization* on,
                                       absl::Time deadline, Attempt attempt) {
  ShmLink* const link = connection.shared_memory();
  if (link == nullptr) return std::nullopt;
  if (absl::Now() >= deadline) return TimeIsOver();
  bool no_room = false;
  const auto once = [&]() -> absl::Status {
    const auto session = link->session(deadline);
    if (!session.ok()) return session.status();
    const std::optional<absl::Status> status = attempt(**session);
    no_room = !status.has_value();
    return no_room ? absl::ResourceExhaustedError("no room in the shared memory") : *status;
  };
  const absl::Status first = once();
  if (no_room) return std::nullopt;
  if (first.ok()) {
    connection.retry_budget()->CountCall();
    return first;
  }
  bool again = false;
  const absl::Status last = connection.Retry(
      deadline, [&](grpc::ClientContext&) { return std::exchange(again, true) ? once() : first; },
      on);
  if (no_room) return std::nullopt;
  return last;
}

// A call that this makes of a session's memory, and whose reply this takes.
template <typename Make, typename Take>
std::optional<absl::Status> CallShared(const Connection& connection, const Factorization* on,
                                       absl::Time deadline, Make make, Take take) {
  return CallShared(
      connection, on, deadline, [&](ShmSession& session) -> std::optional<absl::Status> {
        const auto request = make(*session.memory());
        if (!request) return std::nullopt;
        const absl::StatusOr<v1::ShmReply> reply = session.Call(request->request(), deadline);
        return reply.ok() ? take(*request, *reply) : reply.status();
      });
}

// A server that is older does not know the operation: it is asked over gRPC.
std::optional<absl::Status> UnlessUnknown(std::optional<absl::Status> status) {
  if (!status || !absl::IsInvalidArgument(*status)) return status;
  const auto detail = GetInvalidField(*status);
  return detail.has_value() && detail->field() == "operation" ? std::nullopt : status;
}

}  // namespace

std::optional<absl::Status> SolveShared(const Connection& connection, const Factorization& on,
                                        const v1::SolveRequest& request, Bytes rhs,
                                        std::span<std::byte> solution, absl::Time deadline,
                                        absl::StatusOr<SolveResult>* result) {
  return CallShared(
      connection, &on, deadline,
      [&](ShmMemory& memory) {
        return SharedSolveRequest::Make(memory, on.handle, request, rhs, solution, true);
      },
      [&](const SharedSolveRequest& asked, const v1::ShmReply& reply) {
        *result = asked.Take(reply);
        return result->status();
      });
}

std::optional<absl::Status> SolveManyShared(const Connection& connection, const Factorization& on,
                                            std::span<const SharedSolve> solves,
                                            const v1::SolveOptions& options, absl::Time deadline,
                                            v1::SolveManyReply* reply) {
  return CallShared(
      connection, &on, deadline,
      [&](ShmMemory& memory) { return SharedManyRequest::Make(memory, solves, options, true); },
      [&](const SharedManyRequest& asked, const v1::ShmReply& answer) {
        return asked.Take(answer, reply);
      });
}

std::optional<absl::Status> FactorShared(const Connection& connection, const Factorization* on,
                                         const v1::FactorStreamHeader& header,
                                         std::span<const SystemView> systems, absl::Time deadline,
                                         v1::FactorReply* reply) {
  return CallShared(
      connection, on, deadline,
      [&](ShmMemory& memory) { return SharedFactorRequest::Make(memory, header, systems); },
      [&](const SharedFactorRequest& asked, const v1::ShmReply& answer) {
        return asked.Take(answer, reply);
      });
}

std::optional<absl::Status> FactorSolveShared(const Connection& connection, const Factorization* on,
                                              const v1::FactorSolveRequest& message,
                                              const SystemView& system, const SharedSolve& solve,
                                              absl::Time deadline, v1::FactorSolveReply* reply) {
  return UnlessUnknown(CallShared(
      connection, on, deadline,
      [&](ShmMemory& memory) {
        return SharedFactorSolveRequest::Make(memory, message, {&system, 1}, {&solve, 1});
      },
      [&](const SharedFactorSolveRequest& asked, const v1::ShmReply& answer) {
        return asked.Take(answer, reply);
      }));
}

std::optional<absl::Status> FactorSolveManyShared(const Connection& connection,
                                                  const Factorization& on,
                                                  const v1::FactorSolveManyRequest& message,
                                                  std::span<const SystemView> systems,
                                                  std::span<const SharedSolve> solves,
                                                  absl::Time deadline, v1::SolveManyReply* reply) {
  return UnlessUnknown(CallShared(
      connection, &on, deadline,
      [&](ShmMemory& memory) {
        return SharedFactorSolveRequest::Make(memory, message, systems, solves);
      },
      [&](const SharedFactorSolveRequest& asked, const v1::ShmReply& answer) {
        return asked.Take(answer, reply);
      }));
}

// -----------------------------------------------------------------------------------------------------
// Releases

std::optional<absl::Status> ReleaseShared(const Connection& connection, const std::string& handle,
                                          absl::Time deadline, int64_t* released_bytes) {
  bool repeated = false;
  const Factorization on{.handle = handle};
  return CallShared(
      connection, &on, deadline, [&](ShmSession& session) -> std::optional<absl::Status> {
        const std::optional<ShmPiece> room = session.memory()->Allocate(v1::kShmReplyBytes);
        v1::ShmRequest request = MakeRelease(handle);
        if (room) {
          request.reply_offset = room->offset();
          request.reply_bytes = v1::kShmReplyBytes;
        }
        const absl::StatusOr<v1::ShmReply> reply = session.Call(request, deadline);
        const bool again = std::exchange(repeated, true);
        if (!reply.ok()) return reply.status();
        const absl::Status status =
            StatusOf(*reply, room ? Bytes(room->data(), v1::kShmReplyBytes) : Bytes());
        const auto detail = GetHandleNotFound(status);
        if (again && detail.has_value() && detail->reason() == v1::HandleNotFound::RELEASED) {
          return absl::OkStatus();
        }
        *released_bytes = reply->released_bytes;
        return status;
      });
}

}  // namespace blockd::client
