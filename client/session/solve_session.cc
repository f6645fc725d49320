#include "blockd/client/solve_session.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "blockd/client/errors.h"
#include "client/calls/healer.h"
#include "client/calls/solve_many.h"
#include "client/rpc/connection.h"
#include "client/session/session_state.h"
#include "client/session/shm_stream.h"
#include "client/session/solve_stream.h"
#include "client/wire/requests.h"
#include "client/wire/wire.h"

namespace blockd::client {

namespace {

absl::Status NotOutstanding(uint64_t id) {
  return absl::NotFoundError(absl::StrCat("no request ", id, " is outstanding"));
}

// The present state of factorizations on one server.
struct OneServer {
  std::vector<std::string> handles;
  std::string route;
  bool heals = false;  // one of them does
};

absl::StatusOr<OneServer> CheckOneServer(std::span<const Factorization> factorizations) {
  OneServer server;
  server.handles.reserve(factorizations.size());
  for (const Factorization& each : factorizations) {
    const Factorization now = each.healer ? each.healer->current().factorization : each;
    if (server.handles.empty()) server.route = now.route;
    if (now.route != server.route) {
      return InvalidFieldError("handle", "factorizations on several servers", "on one");
    }
    server.heals |= each.healer != nullptr;
    server.handles.push_back(now.handle);
  }
  return server;
}

}  // namespace

SolveSession::SolveSession(std::shared_ptr<Connection> connection)
    : state_(std::make_shared<State>(std::move(connection))) {}

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
  bool unanswered;
  if (state_->memory != nullptr) state_->memory->End();
  std::vector<std::shared_ptr<SolveStream>> streams;
  {
    absl::MutexLock lock(&state_->mutex);
    state_->ended = true;
    streams.swap(state_->leaving);
    for (auto& [route, stream] : state_->streams) streams.push_back(std::move(stream));
    state_->streams.clear();
    unanswered = state_->answers.size() < state_->outstanding.size();
  }
  for (const auto& stream : streams) stream->CloseSending();
  for (const auto& stream : streams) {
    // A stream with nothing in flight ends by itself; the limit is for a server that went silent.
    if (unanswered || !stream->AwaitEnd(absl::Seconds(1))) stream->Cancel();
  }
  for (const auto& stream : streams) stream->AwaitEnd();
  state_.reset();
}

absl::StatusOr<uint64_t> SolveSession::SendBytes(const Factorization& factorization, Scalar scalar,
                                                 std::span<const std::byte> rhs,
                                                 std::span<std::byte> solution,
                                                 const SolveOptions& options) {
  absl::StatusOr<v1::SolveRequest> request =
      MakeSolveRequest(factorization, scalar, rhs.size(), solution.size(), options);
  if (!request.ok()) return request.status();
  auto item = std::make_shared<Item>();
  item->deadline = state_->connection->Deadline(options.timeout);
  item->factorization = factorization;
  *item->request.mutable_request() = *std::move(request);
  item->request.set_replace_last(options.replace_last);
  item->rhs = rhs;
  item->solution = solution;
  if (factorization.healer != nullptr) {
    item->copy.assign(rhs.begin(), rhs.end());
    item->rhs = item->copy;
  }
  state_->Add(item);
  const uint64_t id = item->id();
  const absl::Status sent = state_->Start(item);
  if (sent.ok() || state_->Heal(item, sent)) return id;
  state_->Remove(*item);
  return sent;
}

absl::StatusOr<uint64_t> SolveSession::SendManyBytes(std::span<const Factorization> factorizations,
                                                     Scalar scalar, std::span<const std::byte> rhs,
                                                     std::span<std::byte> solution,
                                                     const SolveOptions& options,
                                                     std::span<const int64_t> num_rhs) {
  if (options.replace_last) {
    return InvalidFieldError("options.replace_last", "true with a frame", "false");
  }
  const absl::StatusOr<ManySolves> layout =
      LayOut(factorizations, scalar, num_rhs, rhs.size(), solution.size());
  if (!layout.ok()) return layout.status();
  const absl::StatusOr<OneServer> now = CheckOneServer(factorizations);
  if (!now.ok()) return now.status();
  auto item = std::make_shared<Item>();
  item->deadline = state_->connection->Deadline(options.timeout);
  v1::SolveManyRequest& many = *item->request.mutable_many();
  many = MakeSolveManyRequest(layout->solves, options);
  for (const std::string& handle : now->handles) *many.mutable_handles() += handle;
  item->rhs = rhs;
  item->solution = solution;
  state_->Add(item);
  const uint64_t id = item->id();
  const auto shared = state_->StartFrameShared(item, now->heals, *layout);
  const absl::Status sent =
      shared ? *shared : state_->StartFrame(item, now->route, now->heals, layout->solves.size());
  if (sent.ok()) return id;
  state_->Remove(*item);
  return sent;
}

absl::StatusOr<uint64_t> SolveSession::SendRefactorManyBytes(
    std::span<const Factorization> factorizations, std::span<const SystemView> systems,
    Scalar scalar, std::span<const std::byte> rhs, std::span<std::byte> solution,
    const SolveOptions& solve, const FactorOptions& factor) {
  if (solve.replace_last) {
    return InvalidFieldError("options.replace_last", "true with a frame", "false");
  }
  const absl::StatusOr<ManySolves> layout =
      LayOut(factorizations, systems, scalar, rhs.size(), solution.size());
  if (!layout.ok()) return layout.status();
  if (const auto now = CheckOneServer(factorizations); !now.ok()) return now.status();
  auto item = std::make_shared<Item>();
  item->deadline = state_->connection->Deadline(solve.timeout);
  item->refactors = std::make_unique<RefactorFrame>(factorizations, systems, *layout, rhs, solution,
                                                    solve, factor);
  state_->Add(item);
  const uint64_t id = item->id();
  const absl::Status sent = state_->StartRefactors(item);
  if (sent.ok()) return id;
  if (item->refactors->heals()) {
    state_->TakeRefactors(item, sent);
    return id;
  }
  state_->Remove(*item);
  return sent;
}

absl::Status SolveSession::Cancel(uint64_t id) {
  std::shared_ptr<Item> item;
  std::shared_ptr<SolveStream> stream;
  {
    absl::MutexLock lock(&state_->mutex);
    const auto found = state_->outstanding.find(id);
    if (found == state_->outstanding.end()) return NotOutstanding(id);
    item = found->second;
    if (item == nullptr) return absl::OkStatus();  // it is answered
    item->over = true;
    stream = item->stream.lock();
  }
  if (state_->memory != nullptr && state_->memory->Cancel(id)) return absl::OkStatus();
  // It may be between two streams, or its answer on its way.
  if (stream == nullptr || !stream->CancelRequest(id)) {
    state_->GiveUp(item, absl::CancelledError("cancelled"));
  }
  return absl::OkStatus();
}

absl::StatusOr<SolveResult> SolveSession::Await(uint64_t id, absl::Duration limit) {
  const absl::Time until = absl::Now() + limit;
  bool found = false;
  while (true) {
    {
      absl::MutexLock lock(&state_->mutex);
      const auto item = state_->outstanding.find(id);
      if (item == state_->outstanding.end()) {
        return found ? absl::NotFoundError(
                           absl::StrCat("another thread took the answer to request ", id))
                     : NotOutstanding(id);
      }
      found = true;
      const absl::Time late =
          item->second == nullptr ? absl::InfiniteFuture() : item->second->deadline;
      const auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex) {
        return state_->answers.contains(id) || !state_->outstanding.contains(id);
      };
      if (state_->mutex.AwaitWithDeadline(absl::Condition(&ready), std::min(until, late))) {
        if (state_->answers.contains(id)) return state_->Take(id).result;
      } else if (until < late) {
        return absl::DeadlineExceededError(absl::StrCat("no answer to request ", id, " yet"));
      }
    }
    state_->GiveUpLate();
  }
}

absl::StatusOr<SolveSession::Answer> SolveSession::Next(absl::Duration limit) {
  const absl::Time until = absl::Now() + limit;
  while (true) {
    {
      absl::MutexLock lock(&state_->mutex);
      const absl::Time late = state_->NextDeadline();
      const auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex) {
        return !state_->answers.empty() || state_->outstanding.empty() ||
               state_->NextDeadline() < late;
      };
      if (!state_->mutex.AwaitWithDeadline(absl::Condition(&ready), std::min(until, late)) &&
          until < late) {
        return absl::DeadlineExceededError("no answer yet");
      }
      if (!state_->answers.empty()) return state_->Take(state_->order.front());
      if (state_->outstanding.empty()) {
        return absl::FailedPreconditionError("nothing is outstanding");
      }
    }
    state_->GiveUpLate();
  }
}

int64_t SolveSession::outstanding() const {
  absl::MutexLock lock(&state_->mutex);
  return static_cast<int64_t>(state_->outstanding.size());
}

}  // namespace blockd::client
