#include "blockd/client/solve_session.h"

#include <algorithm>
#include <deque>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "blockd/client/errors.h"
#include "client/connection.h"
#include "client/healer.h"
#include "client/requests.h"
#include "client/solve_many.h"
#include "client/solve_stream.h"
#include "client/wire.h"

namespace blockd::client {

namespace {

bool IsOtherServers(const absl::Status& status) {
  const auto detail = GetHandleNotFound(status);
  return detail.has_value() && detail->reason() == v1::HandleNotFound::OTHER_SERVER;
}

absl::Status NotOutstanding(uint64_t id) {
  return absl::NotFoundError(absl::StrCat("no request ", id, " is outstanding"));
}

}  // namespace

// One request, until it is answered.
struct SolveSession::Item {
  v1::SolveStreamRequest request;  // without the right-hand sides
  absl::Time deadline;
  Factorization factorization;
  Bytes rhs;
  std::vector<std::byte> copy;  // behind `rhs`, where it may have to be sent again
  std::span<std::byte> solution;
  int64_t generation = 0;  // of the factorization that it was sent for
  int attempts = 0;        // with that one
  int restores = 0;        // that it has waited for

  // The rest is the state's, with its mutex.
  std::weak_ptr<SolveStream> stream;  // that it was sent on
  int sending = 0;                    // threads that are about to send it
  bool over = false;                  // nobody may send it any more

  uint64_t id() const { return request.id(); }
};

struct SolveSession::State : std::enable_shared_from_this<State> {
  explicit State(std::shared_ptr<Connection> connection)
      : connection(std::move(connection)), stub(this->connection->NewSessionStub()) {}

  const std::shared_ptr<Connection> connection;
  const std::unique_ptr<grpc::GenericStub> stub;
  mutable absl::Mutex mutex;
  // One to each server, by its route.
  absl::flat_hash_map<std::string, std::shared_ptr<SolveStream>> streams ABSL_GUARDED_BY(mutex);
  std::vector<std::shared_ptr<SolveStream>> leaving ABSL_GUARDED_BY(mutex);  // answer still
  bool ended ABSL_GUARDED_BY(mutex) = false;
  uint64_t last_id ABSL_GUARDED_BY(mutex) = 0;
  // Null once it is answered.
  absl::flat_hash_map<uint64_t, std::shared_ptr<Item>> outstanding ABSL_GUARDED_BY(mutex);
  std::set<std::pair<absl::Time, uint64_t>> deadlines ABSL_GUARDED_BY(mutex);  // of what is not
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

  void Add(const std::shared_ptr<Item>& item) {
    absl::MutexLock lock(&mutex);
    item->request.set_id(++last_id);
    outstanding.emplace(item->id(), item);
    deadlines.emplace(item->deadline, item->id());
  }

  void Remove(const Item& item) {
    absl::MutexLock lock(&mutex);
    outstanding.erase(item.id());
    deadlines.erase({item.deadline, item.id()});
  }

  // The first answer counts.
  void Answer(const std::shared_ptr<Item>& item, absl::StatusOr<SolveResult> result) {
    absl::MutexLock lock(&mutex);
    item->over = true;
    const auto found = outstanding.find(item->id());
    if (found == outstanding.end() || found->second == nullptr) return;
    found->second = nullptr;
    deadlines.erase({item->deadline, item->id()});
    answers.emplace(item->id(), std::move(result));
    order.push_back(item->id());
  }

  // Answers it here and now: nothing is written to its solution any more.
  void GiveUp(const std::shared_ptr<Item>& item, const absl::Status& status) {
    std::shared_ptr<SolveStream> stream;
    {
      absl::MutexLock lock(&mutex);
      item->over = true;
      const auto sent = [&item] { return item->sending == 0; };
      mutex.Await(absl::Condition(&sent));
      stream = item->stream.lock();
    }
    if (stream != nullptr) stream->Abandon(item->id());
    Answer(item, status);
  }

  // Those whose time has passed.
  void GiveUpLate() {
    std::vector<std::shared_ptr<Item>> late;
    {
      absl::MutexLock lock(&mutex);
      const absl::Time now = absl::Now();
      for (const auto& [deadline, id] : deadlines) {
        if (deadline > now) break;
        late.push_back(outstanding.at(id));
      }
    }
    for (const auto& item : late) {
      GiveUp(item, absl::DeadlineExceededError("the timeout of the request passed"));
    }
  }

  // When the next request is late. None is if there is none.
  absl::Time NextDeadline() const ABSL_SHARED_LOCKS_REQUIRED(mutex) {
    return deadlines.empty() ? absl::InfiniteFuture() : deadlines.begin()->first;
  }

  // The stream along this route. One that broke stays broken, but for who heals.
  std::shared_ptr<SolveStream> StreamAlong(const std::string& route, bool heals) {
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

  // A stream goes where its route led when it was opened: elsewhere, if the server was away then.
  void Forget(const std::shared_ptr<SolveStream>& wrong) {
    absl::MutexLock lock(&mutex);
    const auto found = std::find_if(streams.begin(), streams.end(),
                                    [&](const auto& each) { return each.second == wrong; });
    if (ended || found == streams.end()) return;
    found->second->CloseSending();
    std::erase_if(leaving,
                  [](const auto& stream) { return stream->AwaitEnd(absl::ZeroDuration()); });
    leaving.push_back(std::move(found->second));
    streams.erase(found);
  }

  absl::Status Start(const std::shared_ptr<Item>& item) {
    Factorization now = item->factorization;
    if (now.healer != nullptr) {
      const Healer::Current current = now.healer->current();
      if (current.generation != item->generation) item->attempts = 0;
      item->generation = current.generation;
      now = current.factorization;
    }
    ++item->attempts;
    const auto stream = StreamAlong(now.route, item->factorization.healer != nullptr);
    if (stream == nullptr) return absl::CancelledError("the session has ended");
    v1::SolveStreamRequest request = item->request;
    request.mutable_request()->set_handle(now.handle);
    if (item->deadline != absl::InfiniteFuture()) {
      const absl::Duration left = item->deadline - absl::Now();
      if (left <= absl::ZeroDuration()) return TimeIsOver();
      *request.mutable_timeout() = ToProto(left);
    }
    // Sent again, it may come after those that were to replace it.
    item->request.clear_replace_last();
    {
      absl::MutexLock lock(&mutex);
      if (item->over) return absl::CancelledError("nobody wants it any more");
      item->stream = stream;
      ++item->sending;
    }
    const absl::Status sent = stream->Send(
        std::move(request), item->rhs, item->solution, nullptr,
        [state = shared_from_this(), item, stream](absl::StatusOr<SolveResult> result) {
          if (IsOtherServers(result.status())) state->Forget(stream);
          if (!result.ok() && state->Heal(item, result.status())) return;
          state->Answer(item, std::move(result));
        });
    absl::MutexLock lock(&mutex);
    --item->sending;
    return sent;
  }

  // The item is a frame, for these factorizations as they are now.
  absl::Status StartFrame(const std::shared_ptr<Item>& item, const std::string& route, bool heals,
                          std::span<const std::string> handles) {
    v1::SolveStreamRequest request = item->request;
    if (item->deadline != absl::InfiniteFuture()) {
      const absl::Duration left = item->deadline - absl::Now();
      if (left <= absl::ZeroDuration()) return TimeIsOver();
      *request.mutable_timeout() = ToProto(left);
    }
    while (true) {
      const auto stream = StreamAlong(route, heals);
      if (stream == nullptr) return absl::CancelledError("the session has ended");
      {
        absl::MutexLock lock(&mutex);
        item->stream = stream;
        ++item->sending;
      }
      const absl::Status sent =
          stream->SendFrame(request, handles, item->rhs, item->solution,
                            [state = shared_from_this(), item](absl::StatusOr<SolveResult> result) {
                              state->Answer(item, std::move(result));
                            });
      {
        absl::MutexLock lock(&mutex);
        --item->sending;
      }
      if (!absl::IsOutOfRange(sent)) return sent;
      Forget(stream);  // a new one has an empty table
    }
  }

  // False if the status is the answer. Else the request is sent again, and answered then.
  bool Heal(const std::shared_ptr<Item>& item, const absl::Status& why) {
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

  void Again(const std::shared_ptr<Item>& item) {
    const absl::Status sent = Start(item);
    if (!sent.ok() && !Heal(item, sent)) Answer(item, sent);
  }
};

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
  std::vector<std::string> handles;
  handles.reserve(factorizations.size());
  std::string route;
  bool heals = false;
  for (const Factorization& each : factorizations) {
    const Factorization now = each.healer ? each.healer->current().factorization : each;
    if (handles.empty()) route = now.route;
    if (now.route != route) {
      return InvalidFieldError("handle", "factorizations on several servers", "on one");
    }
    heals |= each.healer != nullptr;
    handles.push_back(now.handle);
  }
  auto item = std::make_shared<Item>();
  item->deadline = state_->connection->Deadline(options.timeout);
  *item->request.mutable_many() = MakeSolveManyRequest(layout->solves, options);
  item->rhs = rhs;
  item->solution = solution;
  state_->Add(item);
  const uint64_t id = item->id();
  const absl::Status sent = state_->StartFrame(item, route, heals, handles);
  if (sent.ok()) return id;
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
