// The state of a SolveSession: its streams, its requests until they are answered, their deadlines,
// and how they heal. Internal to the client.
//
// Thread-safe. Lives as long as something of it is under way.
#ifndef BLOCKD_CLIENT_SESSION_SESSION_STATE_H_
#define BLOCKD_CLIENT_SESSION_SESSION_STATE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "blockd/client/solve_session.h"
#include "client/calls/solve_many.h"
#include "client/rpc/connection.h"
#include "client/session/refactor_frame.h"
#include "client/session/shm_stream.h"
#include "client/session/solve_stream.h"
#include "client/wire/wire.h"

namespace blockd::client {

// One request, until it is answered.
struct SolveSession::Item {
  v1::SolveStreamRequest request;  // without the right-hand sides
  absl::Time deadline;
  Factorization factorization;
  Bytes rhs;
  std::vector<std::byte> copy;  // behind `rhs`, where it may have to be sent again
  std::span<std::byte> solution;
  std::unique_ptr<RefactorFrame> refactors;  // of a frame of them, instead of the four above
  int64_t generation = 0;                    // of the factorization that it was sent for
  int attempts = 0;                          // with that one
  int restores = 0;                          // that it has waited for

  // The rest is the state's, with its mutex.
  std::weak_ptr<SolveStream> stream;  // that it was sent on
  int sending = 0;                    // threads that are about to send it
  bool over = false;                  // nobody may send it any more

  uint64_t id() const { return request.id(); }
};

struct SolveSession::State : std::enable_shared_from_this<State> {
  explicit State(std::shared_ptr<Connection> connection)
      : connection(std::move(connection)),
        memory(ShmStream::Make(*this->connection)),
        stub(this->connection->NewSessionStub()) {}

  const std::shared_ptr<Connection> connection;
  const std::shared_ptr<ShmStream> memory;  // null: all goes over gRPC
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
    if (memory != nullptr) memory->Abandon(item->id());
    if (stream != nullptr) stream->Abandon(item->id());
    Answer(item, status);
  }

  // Gives up the requests whose time has passed.
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

  // The stream along this route. One that broke stays broken, but for who heals. Null once the
  // session has ended.
  std::shared_ptr<SolveStream> StreamAlong(const std::string& route, bool heals);
  // A stream goes where its route led when it was opened: elsewhere, if the server was away then.
  void Forget(const std::shared_ptr<SolveStream>& wrong);

  // These send it; an error: it was not sent, and is not answered.
  absl::Status Start(const std::shared_ptr<Item>& item);
  // The item is a frame of so many solves.
  absl::Status StartFrame(const std::shared_ptr<Item>& item, const std::string& route, bool heals,
                          size_t solves);
  // The same by shared memory; nullopt if there is none, or no room in it.
  std::optional<absl::Status> StartFrameShared(const std::shared_ptr<Item>& item, bool heals,
                                               const ManySolves& layout);
  // The item is a frame of refactors: what is left of it.
  absl::Status StartRefactors(const std::shared_ptr<Item>& item);

  // False if the status is the answer. Else the request is sent again, and answered then.
  bool Heal(const std::shared_ptr<Item>& item, const absl::Status& why);
  // The answer to the last message of a frame of refactors: what is lost is restored and sent
  // again, and what is left is the answer to the frame.
  void TakeRefactors(const std::shared_ptr<Item>& item, absl::StatusOr<SolveResult> answer);

 private:
  std::optional<absl::Status> StartShared(const std::shared_ptr<Item>& item,
                                          const std::string& handle);
  std::optional<absl::Status> SendShared(const std::shared_ptr<Item>& item,
                                         absl::FunctionRef<std::optional<absl::Status>()> send);
  // Sends the item along the stream, by `send`, with what is left of its time.
  absl::Status Send(const std::shared_ptr<Item>& item, const std::shared_ptr<SolveStream>& stream,
                    v1::SolveStreamRequest request,
                    absl::FunctionRef<absl::Status(v1::SolveStreamRequest)> send);
  void Again(const std::shared_ptr<Item>& item);
  void SendRest(const std::shared_ptr<Item>& item);
  void RestoreRefactors(const std::shared_ptr<Item>& item, const std::vector<size_t>& lost);
};

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_SESSION_SESSION_STATE_H_
