#include "client/calls/shm_calls.h"

#include <utility>

#include "absl/time/clock.h"
#include "client/shm/shm_link.h"
#include "client/shm/shm_session.h"

namespace blockd::client {

std::optional<absl::Status> CallShared(const Connection& connection, const Factorization* on,
                                       v1::ShmOperation operation,
                                       const google::protobuf::MessageLite& message,
                                       std::vector<SharedData> data, absl::Time deadline,
                                       google::protobuf::MessageLite* reply, SeeAttempt see) {
  ShmLink* const link = connection.shared_memory();
  if (link == nullptr) return std::nullopt;
  if (absl::Now() >= deadline) return TimeIsOver();
  bool no_room = false;
  const auto once = [&]() -> absl::Status {
    const auto session = link->session(deadline);
    if (!session.ok()) return session.status();
    const auto request = SharedRequest::Make(*(*session)->memory(), operation, message, data);
    no_room = !request.has_value();
    if (no_room) return absl::ResourceExhaustedError("no room in the shared memory");
    const absl::StatusOr<v1::ShmReply> answer = (*session)->Call(request->request(), deadline);
    return answer.ok() ? see(request->Take(*answer, reply)) : see(answer.status());
  };
  // The first attempt costs nothing of what a call of gRPC does; Retry sees its failure alone.
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

}  // namespace blockd::client
