// Calls that wait for their caller: for a message of theirs, or for a short reply to be taken.
//
// gRPC makes a call before its message has come, and keeps it until its reply has gone. Such a call
// costs its caller some hundred bytes and the server some 20 KiB. So a peer may have kMost of them
// at a time. Where it has more, the one that has waited longest ends, unless its caller is
// identified. It ends once it has waited for kNew or there are kMostNew: the message of a call that
// is new may have come, and a thread of a busy machine not yet have taken it. Thread-safe; takes no
// lock of a call.
#ifndef BLOCKD_SERVER_TRANSPORT_RPC_WAITING_CALLS_H_
#define BLOCKD_SERVER_TRANSPORT_RPC_WAITING_CALLS_H_

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace blockd::server {

class ServerCall;

class WaitingCalls {
 public:
  static constexpr size_t kMost = 1000, kMostNew = 4000;
  static constexpr absl::Duration kNew = absl::Seconds(1);

  // State of one call, which only this class looks at.
  struct Place {
    bool reads = false, writes = false;
    bool asks = false;        // has brought something that it is served for
    bool identified = false;  // found out once the call would have to end
    bool ended = false;
    std::list<ServerCall*>* list = nullptr;  // null: in none
    std::list<ServerCall*>::iterator at;
    absl::Time since;  // when it came into the list
  };

  // True if the call's caller is known by more than a name that it gives itself.
  using IsIdentified = std::function<bool(const ServerCall&)>;
  explicit WaitingCalls(IsIdentified is_identified) : is_identified_(std::move(is_identified)) {}

  // The call waits for a message from now on, or not any more. StopReading is false if the call was
  // taken meanwhile: whoever took it ends it.
  void StartReading(ServerCall* call);
  bool StopReading(ServerCall* call);
  // The same of a short reply.
  void StartWriting(ServerCall* call);
  void StopWriting(ServerCall* call);
  // While a call asks, it does not count.
  void SetAsks(ServerCall* call, bool asks);
  void Remove(ServerCall* call);

  // Takes the call, if it reads and nobody has taken it: the caller ends it.
  bool Take(ServerCall* call);
  // Takes the one that has waited longest of those of this call's peer, if they are too many.
  struct Taken {
    std::shared_ptr<ServerCall> call;  // null: none
    bool reads = false;                // else it only writes
  };
  Taken TakeOneTooMany(const ServerCall& call);
  // The same of all peers, until they are not too many.
  std::vector<Taken> TakeTooMany();

 private:
  using List = std::list<ServerCall*>;
  Taken TakeOldest(const List& list) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Update(ServerCall* call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Leave(Place& place, const std::string& host) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const IsIdentified is_identified_;
  absl::Mutex mutex_;
  // By host; the longest wait first. Lists stay where they are.
  absl::flat_hash_map<std::string, std::unique_ptr<std::list<ServerCall*>>> lists_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_RPC_WAITING_CALLS_H_
