#include "blockd/client/solve_session.h"

#include <deque>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/requests.h"
#include "client/solve_stream.h"

namespace blockd::client {

struct SolveSession::State {
  std::shared_ptr<SolveStream> stream;
  mutable absl::Mutex mutex;
  absl::flat_hash_set<uint64_t> outstanding ABSL_GUARDED_BY(mutex);
  absl::flat_hash_map<uint64_t, absl::StatusOr<SolveResult>> answers ABSL_GUARDED_BY(mutex);
  std::deque<uint64_t> order ABSL_GUARDED_BY(mutex);  // of the answers; may name some taken by id

  SolveSession::Answer Take(uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    auto it = answers.find(id);
    SolveSession::Answer answer{id, std::move(it->second)};
    answers.erase(it);
    outstanding.erase(id);
    while (!order.empty() && !answers.contains(order.front())) order.pop_front();
    return answer;
  }
};

SolveSession::SolveSession(std::shared_ptr<Connection> connection)
    : state_(std::make_shared<State>()) {
  state_->stream = SolveStream::Start(std::move(connection), absl::InfiniteFuture());
}

SolveSession::SolveSession(SolveSession&&) noexcept = default;

SolveSession& SolveSession::operator=(SolveSession&& other) noexcept {
  if (this != &other) {
    End();
    state_ = std::move(other.state_);
  }
  return *this;
}

SolveSession::~SolveSession() { End(); }

void SolveSession::End() {
  if (state_ == nullptr) return;
  state_->stream->CloseSending();
  bool unanswered;
  {
    absl::MutexLock lock(&state_->mutex);
    unanswered = state_->answers.size() < state_->outstanding.size();
  }
  // A stream with nothing in flight ends by itself; the limit is for a server that went silent.
  if (unanswered || !state_->stream->AwaitEnd(absl::Seconds(1))) state_->stream->Cancel();
  state_->stream->AwaitEnd();
  state_.reset();
}

absl::StatusOr<uint64_t> SolveSession::SendBytes(const Factorization& factorization, Scalar scalar,
                                                 std::span<const std::byte> rhs,
                                                 std::span<std::byte> solution,
                                                 const SolveOptions& options) {
  absl::StatusOr<v1::SolveRequest> request =
      MakeSolveRequest(factorization, scalar, rhs.size(), solution.size(), options);
  if (!request.ok()) return request.status();
  const uint64_t id = state_->stream->NextId();
  {
    absl::MutexLock lock(&state_->mutex);
    state_->outstanding.insert(id);
  }
  const absl::Status sent =
      state_->stream->Send(id, *std::move(request), rhs, solution, nullptr,
                           [state = state_, id](absl::StatusOr<SolveResult> result) {
                             absl::MutexLock lock(&state->mutex);
                             state->answers.emplace(id, std::move(result));
                             state->order.push_back(id);
                           });
  if (sent.ok()) return id;
  absl::MutexLock lock(&state_->mutex);
  state_->outstanding.erase(id);
  return sent;
}

absl::StatusOr<SolveResult> SolveSession::Await(uint64_t id, absl::Duration limit) {
  absl::MutexLock lock(&state_->mutex);
  if (!state_->outstanding.contains(id)) {
    return absl::NotFoundError(absl::StrCat("no request ", id, " is outstanding"));
  }
  const auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex) {
    return state_->answers.contains(id) || !state_->outstanding.contains(id);
  };
  if (!state_->mutex.AwaitWithTimeout(absl::Condition(&ready), limit)) {
    return absl::DeadlineExceededError(absl::StrCat("no answer to request ", id, " yet"));
  }
  if (!state_->answers.contains(id)) {
    return absl::NotFoundError(absl::StrCat("another thread took the answer to request ", id));
  }
  return state_->Take(id).result;
}

absl::StatusOr<SolveSession::Answer> SolveSession::Next(absl::Duration limit) {
  absl::MutexLock lock(&state_->mutex);
  const auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex) {
    return !state_->answers.empty() || state_->outstanding.empty();
  };
  if (!state_->mutex.AwaitWithTimeout(absl::Condition(&ready), limit)) {
    return absl::DeadlineExceededError("no answer yet");
  }
  if (state_->answers.empty()) return absl::FailedPreconditionError("nothing is outstanding");
  return state_->Take(state_->order.front());
}

int64_t SolveSession::outstanding() const {
  absl::MutexLock lock(&state_->mutex);
  return static_cast<int64_t>(state_->outstanding.size());
}

}  // namespace blockd::client
