#include "client/session/session_state.h"

#include <algorithm>
#include <map>

#include "absl/time/clock.h"
#include "blockd/client/errors.h"
#include "client/calls/healer.h"

namespace blockd::client {
namespace {

bool IsOtherServers(const absl::Status& status) {
  const auto detail = GetHandleNotFound(status);
  return detail.has_value() && detail->reason() == v1::HandleNotFound::OTHER_SERVER;
}

bool SomeAreOtherServers(const absl::StatusOr<SolveResult>& result) {
  if (!result.ok()) return IsOtherServers(result.status());
  return std::ranges::any_of(result->solves, IsOtherServers, &SolveOutcome::status);
}

}  // namespace

std::shared_ptr<SolveStream> SolveSession::State::StreamAlong(const std::string& route,
                                                              bool heals) {
  absl::MutexLock lock(&mutex);
  if (ended) return nullptr;
  std::shared_ptr<SolveStream>& stream = streams[route];
  if (stream == nullptr || (heals && !stream->open())) {
    // Answers that have come already may still be read.
    if (stream != nullptr) leaving.push_back(std::move(stream));
    stream = SolveStream::Start(connection, *stub, absl::InfiniteFuture(), route);
  }
  return stream;
}

void SolveSession::State::Forget(const std::shared_ptr<SolveStream>& wrong) {
  absl::MutexLock lock(&mutex);
  const auto found = std::find_if(streams.begin(), streams.end(),
                                  [&](const auto& each) { return each.second == wrong; });
  if (ended || found == streams.end()) return;
  found->second->CloseSending();
  std::erase_if(leaving, [](const auto& stream) { return stream->AwaitEnd(absl::ZeroDuration()); });
  leaving.push_back(std::move(found->second));
  streams.erase(found);
}

absl::Status SolveSession::State::Send(
    const std::shared_ptr<Item>& item, const std::shared_ptr<SolveStream>& stream,
    v1::SolveStreamRequest request, absl::FunctionRef<absl::Status(v1::SolveStreamRequest)> send) {
  if (stream == nullptr) return absl::CancelledError("the session has ended");
  if (item->deadline != absl::InfiniteFuture()) {
    const absl::Duration left = item->deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return TimeIsOver();
    *request.mutable_timeout() = ToProto(left);
  }
  {
    absl::MutexLock lock(&mutex);
    if (item->over) return absl::CancelledError("nobody wants it any more");
    item->stream = stream;
    ++item->sending;
  }
  const absl::Status sent = send(std::move(request));
  absl::MutexLock lock(&mutex);
  --item->sending;
  return sent;
}

absl::Status SolveSession::State::Start(const std::shared_ptr<Item>& item) {
  Factorization now = item->factorization;
  if (now.healer != nullptr) {
    const Healer::Current current = now.healer->current();
    if (current.generation != item->generation) item->attempts = 0;
    item->generation = current.generation;
    now = current.factorization;
  }
  ++item->attempts;
  if (const auto shared = StartShared(item, now.handle)) return *shared;
  const auto stream = StreamAlong(now.route, item->factorization.healer != nullptr);
  v1::SolveStreamRequest request = item->request;
  request.mutable_request()->set_handle(now.handle);
  // Sent again, it may come after those that were to replace it.
  item->request.clear_replace_last();
  return Send(item, stream, std::move(request), [&](v1::SolveStreamRequest first) {
    return stream->Send(
        std::move(first), item->rhs, item->solution, nullptr,
        [state = shared_from_this(), item, stream](absl::StatusOr<SolveResult> result) {
          if (IsOtherServers(result.status())) state->Forget(stream);
          if (!result.ok() && state->Heal(item, result.status())) return;
          state->Answer(item, std::move(result));
        });
  });
}

absl::Status SolveSession::State::StartFrame(const std::shared_ptr<Item>& item,
                                             const std::string& route, bool heals, size_t solves) {
  const auto stream = StreamAlong(route, heals);
  return Send(item, stream, item->request, [&](v1::SolveStreamRequest first) {
    return stream->SendFrame(
        std::move(first), solves, item->rhs, item->solution,
        [state = shared_from_this(), item](absl::StatusOr<SolveResult> result) {
          state->Answer(item, std::move(result));
        });
  });
}

std::optional<absl::Status> SolveSession::State::StartShared(const std::shared_ptr<Item>& item,
                                                             const std::string& handle) {
  if (memory == nullptr) return std::nullopt;
  v1::SolveRequest request = item->request.request();
  request.set_handle(handle);
  return SendShared(item, [&] {
    const auto sent =
        memory->Send({item->id(), item->deadline, item->factorization.healer != nullptr,
                      [state = shared_from_this(), item](absl::StatusOr<SolveResult> result) {
                        if (!result.ok() && state->Heal(item, result.status())) return;
                        state->Answer(item, std::move(result));
                      }},
                     request, item->rhs, item->solution, item->request.replace_last());
    if (sent) item->request.clear_replace_last();
    return sent;
  });
}

std::optional<absl::Status> SolveSession::State::StartFrameShared(const std::shared_ptr<Item>& item,
                                                                  bool heals,
                                                                  const ManySolves& layout) {
  if (memory == nullptr) return std::nullopt;
  return SendShared(item, [&] {
    return memory->SendFrame(
        {item->id(), item->deadline, heals,
         [state = shared_from_this(), item](absl::StatusOr<SolveResult> result) {
           state->Answer(item, std::move(result));
         }},
        item->request.many(), layout, item->rhs, item->solution);
  });
}

std::optional<absl::Status> SolveSession::State::SendShared(
    const std::shared_ptr<Item>& item, absl::FunctionRef<std::optional<absl::Status>()> send) {
  {
    absl::MutexLock lock(&mutex);
    if (item->over) return absl::CancelledError("nobody wants it any more");
    ++item->sending;
  }
  const std::optional<absl::Status> sent = send();
  absl::MutexLock lock(&mutex);
  --item->sending;
  return sent;
}

bool SolveSession::State::Heal(const std::shared_ptr<Item>& item, const absl::Status& why) {
  Healer* healer = item->factorization.healer.get();
  if (healer == nullptr || !healer->Mends(item->generation, why)) return false;
  {
    absl::MutexLock lock(&mutex);
    if (ended || item->over) return false;
  }
  // The end of a stream may be older than what it was sent for: a new stream will tell.
  if (absl::IsUnavailable(why) && item->attempts < 2) {
    Again(item);
  } else {
    // Two factorizations that evict one another would go on for ever.
    if (++item->restores > healer->max_restores()) return false;
    healer->Restore(item->generation, why,
                    [state = shared_from_this(), item](const absl::Status& restored) {
                      if (!restored.ok()) return state->Answer(item, restored);
                      state->Again(item);
                    });
  }
  return true;
}

void SolveSession::State::Again(const std::shared_ptr<Item>& item) {
  const absl::Status sent = Start(item);
  if (!sent.ok() && !Heal(item, sent)) Answer(item, sent);
}

// -------------------------------------------------------------------------- frames of refactors

absl::Status SolveSession::State::StartRefactors(const std::shared_ptr<Item>& item) {
  RefactorFrame::Message message = item->refactors->Next();
  ++item->attempts;
  const auto stream = StreamAlong(message.route, message.heals);
  v1::SolveStreamRequest request = item->request;
  *request.mutable_refactor() = std::move(message.request);
  return Send(item, stream, std::move(request), [&](v1::SolveStreamRequest first) {
    return stream->SendRefactors(
        std::move(first), message.matrix, message.rhs, message.solution,
        [state = shared_from_this(), item, stream](absl::StatusOr<SolveResult> result) {
          if (SomeAreOtherServers(result)) state->Forget(stream);
          state->TakeRefactors(item, std::move(result));
        });
  });
}

void SolveSession::State::TakeRefactors(const std::shared_ptr<Item>& item,
                                        absl::StatusOr<SolveResult> answer) {
  RefactorFrame& frame = *item->refactors;
  bool over;
  {
    absl::MutexLock lock(&mutex);
    const auto found = outstanding.find(item->id());
    if (found == outstanding.end() || found->second == nullptr) return;  // given up
    if (answer.ok()) frame.Place();
    over = ended || item->over;
  }
  const absl::Status whole = answer.status();
  std::vector<size_t> lost = frame.Take(std::move(answer));
  if (over) return Answer(item, frame.Result());
  if (lost.empty()) return SendRest(item);
  // As a single request: a new stream will tell, and not for ever.
  if (absl::IsUnavailable(whole) && item->attempts < 2) {
    frame.Again(lost);
    SendRest(item);
  } else if (++item->restores > frame.max_restores()) {
    SendRest(item);
  } else {
    item->attempts = 0;
    RestoreRefactors(item, lost);
  }
}

void SolveSession::State::SendRest(const std::shared_ptr<Item>& item) {
  if (item->refactors->done()) return Answer(item, item->refactors->Result());
  if (const absl::Status sent = StartRefactors(item); !sent.ok()) TakeRefactors(item, sent);
}

// All that are lost are factored again at once; the last one to be there goes on.
void SolveSession::State::RestoreRefactors(const std::shared_ptr<Item>& item,
                                           const std::vector<size_t>& lost) {
  struct Answers {
    absl::Mutex mutex;
    std::map<size_t, absl::Status> of ABSL_GUARDED_BY(mutex);
  };
  const auto answers = std::make_shared<Answers>();
  for (const size_t i : lost) {
    item->refactors->Restore(i, [state = shared_from_this(), item, answers, i,
                                 all = lost.size()](const absl::Status& restored) {
      std::map<size_t, absl::Status> last;
      {
        absl::MutexLock lock(&answers->mutex);
        answers->of.emplace(i, restored);
        if (answers->of.size() < all) return;
        last.swap(answers->of);
      }
      for (const auto& [system, status] : last) item->refactors->Restored(system, status);
      state->SendRest(item);
    });
  }
}

}  // namespace blockd::client
