#include "client/session/shm_stream.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "client/wire/requests.h"

namespace blockd::client {
namespace {

absl::Status HasEnded() { return absl::CancelledError("the session has ended"); }

}  // namespace

struct ShmStream::Call {
  uint64_t id = 0;
  std::string handle;  // of a Solve
  std::shared_ptr<ShmSession> session;
  // Keeps the request's memory until the server has answered, whatever becomes of the call.
  std::function<absl::StatusOr<SolveResult>(const v1::ShmReply&)> take;
  Done done;

  absl::Mutex mutex;  // locked alone
  ShmSession::LaterPtr later ABSL_GUARDED_BY(mutex);
  bool over ABSL_GUARDED_BY(mutex) = false;  // answered, or given up

  void Cancel() {
    ShmSession::LaterPtr sent;
    {
      absl::MutexLock lock(&mutex);
      sent = later;
    }
    if (sent != nullptr) session->Cancel(sent);
  }
  void Abandon() {
    absl::MutexLock lock(&mutex);
    over = true;
  }
};

std::shared_ptr<ShmStream> ShmStream::Make(const Connection& connection) {
  ShmLink* const link = connection.shared_memory();
  return link == nullptr ? nullptr : std::make_shared<ShmStream>(link);
}

absl::StatusOr<std::shared_ptr<ShmSession>> ShmStream::SessionFor(const Request& request) {
  if (absl::Now() >= request.deadline) return TimeIsOver();
  {
    absl::MutexLock lock(&mutex_);
    if (ended_) return HasEnded();
    // One that has ended says why.
    if (session_ != nullptr && !(request.heals && session_->ended())) return session_;
  }
  auto session = link_->session(std::min(request.deadline, absl::Now() + ShmLink::kOpening));
  if (!session.ok()) return session.status();
  absl::MutexLock lock(&mutex_);
  session_ = *session;
  return session;
}

std::optional<absl::Status> ShmStream::Send(Request request, const v1::SolveRequest& solve,
                                            Bytes rhs, std::span<std::byte> solution,
                                            bool replace_last) {
  const CallPtr last = replace_last ? LastOf(solve.handle()) : nullptr;
  auto call = std::make_shared<Call>();
  call->handle = solve.handle();
  const auto sent = Start<v1::SolveReply>(
      std::move(call), std::move(request), v1::ShmOperation::kSolve, solve,
      {SharedData::Columns(rhs, solution)}, [](v1::SolveReply& reply) { return ToResult(reply); });
  if (sent && sent->ok() && last != nullptr) last->Cancel();
  return sent;
}

std::optional<absl::Status> ShmStream::SendFrame(Request request, const v1::SolveManyRequest& frame,
                                                 const ManySolves& layout, Bytes rhs,
                                                 std::span<std::byte> solution) {
  std::vector<SharedData> data;
  data.reserve(layout.solves.size());
  for (const auto& [num_rhs, offset, bytes] : layout.solves) {
    data.push_back(
        SharedData::Columns(rhs.subspan(offset, bytes), solution.subspan(offset, bytes)));
  }
  return Start<v1::SolveManyReply>(std::make_shared<Call>(), std::move(request),
                                   v1::ShmOperation::kSolveMany, WithoutRhsBytes(frame),
                                   std::move(data),
                                   [solves = layout.solves.size()](v1::SolveManyReply& reply) {
                                     return ToResult(reply, solves);
                                   });
}

template <typename Reply, typename ToSolveResult>
std::optional<absl::Status> ShmStream::Start(CallPtr call, Request request,
                                             v1::ShmOperation operation,
                                             const google::protobuf::MessageLite& message,
                                             std::vector<SharedData> data,
                                             ToSolveResult to_result) {
  auto session = SessionFor(request);
  if (!session.ok()) return session.status();
  auto made = SharedRequest::Make(*(*session)->memory(), operation, message, std::move(data),
                                  /*in_place=*/false);
  if (!made) return std::nullopt;
  const auto asked = std::make_shared<const SharedRequest>(*std::move(made));
  call->id = request.id;
  call->session = *std::move(session);
  call->take = [asked, to_result](const v1::ShmReply& answer) -> absl::StatusOr<SolveResult> {
    Reply reply;
    if (absl::Status status = asked->Take(answer, &reply); !status.ok()) return status;
    return to_result(reply);
  };
  call->done = std::move(request.done);
  return Start(call, asked->request(), request.deadline);
}

absl::Status ShmStream::Start(const CallPtr& call, const v1::ShmRequest& request,
                              absl::Time deadline) {
  {
    absl::MutexLock lock(&mutex_);
    if (ended_) return HasEnded();
    calls_[call->id] = call;
  }
  auto later = call->session->CallLater(
      request, deadline,
      [self = shared_from_this(), call](const absl::StatusOr<v1::ShmReply>& reply) {
        self->Finish(call, reply);
      });
  if (later.ok()) {
    absl::MutexLock lock(&call->mutex);
    call->later = *std::move(later);
    return absl::OkStatus();
  }
  absl::MutexLock lock(&mutex_);
  calls_.erase(call->id);
  return later.status();
}

void ShmStream::Finish(const CallPtr& call, const absl::StatusOr<v1::ShmReply>& reply) {
  {
    absl::MutexLock lock(&mutex_);
    const auto found = calls_.find(call->id);
    if (found != calls_.end() && found->second == call) calls_.erase(found);
  }
  absl::StatusOr<SolveResult> result;
  {
    absl::MutexLock lock(&call->mutex);
    if (std::exchange(call->over, true)) return;
    result = reply.ok() ? call->take(*reply) : reply.status();
  }
  call->done(std::move(result));
}

ShmStream::CallPtr ShmStream::Find(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  const auto found = calls_.find(id);
  return found == calls_.end() ? nullptr : found->second;
}

ShmStream::CallPtr ShmStream::LastOf(const std::string& handle) {
  absl::MutexLock lock(&mutex_);
  CallPtr last;
  for (const auto& [id, call] : calls_) {
    if (call->handle == handle && (last == nullptr || id > last->id)) last = call;
  }
  return last;
}

bool ShmStream::Cancel(uint64_t id) {
  const CallPtr call = Find(id);
  if (call != nullptr) call->Cancel();
  return call != nullptr;
}

void ShmStream::Abandon(uint64_t id) {
  if (const CallPtr call = Find(id)) call->Abandon();
}

void ShmStream::End() {
  std::vector<CallPtr> all;
  {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
    for (const auto& [id, call] : calls_) all.push_back(call);
  }
  for (const CallPtr& call : all) {
    call->Abandon();
    call->Cancel();
  }
}

}  // namespace blockd::client
