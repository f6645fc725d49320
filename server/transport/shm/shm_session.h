// A shared-memory session: the server's side of the rings of proto/blockd/v1/shared_memory.h.
//
// One thread, its poller's, takes requests; any thread answers. The server keeps its own positions
// and reads each of the caller's once: nothing that the caller writes afterwards changes what was
// checked. A caller that breaks the rules ends its own session. The memory, and what it takes of
// the tenant's budget, stay until the last request that uses them is answered.
//
// Woken through the session's socket, and not through an eventfd: a caller could turn off
// O_NONBLOCK of an eventfd that it shares and fill it, and would so hold up the thread that
// answers. A socket has MSG_DONTWAIT, call by call.
#ifndef BLOCKD_SERVER_TRANSPORT_SHM_SHM_SESSION_H_
#define BLOCKD_SERVER_TRANSPORT_SHM_SHM_SESSION_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "server/base/descriptors.h"
#include "server/core/tenants/budget.h"
#include "server/transport/rpc/call.h"
#include "server/transport/rpc/executor.h"
#include "server/transport/shm/shm_mapping.h"

namespace blockd::server {

class ShmSession : public std::enable_shared_from_this<ShmSession> {
 public:
  // `host_bytes` is what the mapping takes. `place` goes when all of it is back.
  ShmSession(ServiceState* state, ContextPtr context, ShmMapping mapping, Reservation host_bytes,
             FileDescriptor socket, std::shared_ptr<const void> place);

  ServiceState* state() const { return state_; }
  const RequestContext& context() const { return *context_; }
  const ShmMapping& mapping() const { return mapping_; }
  int socket() const { return socket_.get(); }
  bool ended() const { return ended_.load(std::memory_order_acquire); }

  // Only the poller calls this and the next three. Takes up to `most` requests, of which the first
  // may be done before this returns; false if there was none.
  bool Take(int most, bool may_run_here);
  // Before it sleeps: true if a request came meanwhile.
  bool FallAsleep();
  void WakeUp();
  // The socket has something: bytes that wake, or its end.
  void ReadSocket();

  // Any thread. Writes the reply of a request that Take has begun, once; nothing after the end.
  void Answer(const v1::ShmReply& reply);
  // The request of this id, if it is not answered, is over.
  void Cancel(uint64_t id);
  void CancelAll();
  // Requests that look for NaN in much do so one after another, so that they never have more than
  // one work thread. True if it is `call`'s turn; else it is posted to the work
  // threads once it is. Who had a turn ends it.
  bool AwaitScan(std::shared_ptr<Executor::Task> call);
  void EndScan();
  // Cancels what is under way and closes the socket. `why` is for the caller; empty: the caller has
  // gone.
  void End(std::string_view why);

 private:
  void Begin(const v1::ShmRequest& request, bool may_run_here);
  bool CheckCredit();
  void Wake();

  const std::shared_ptr<const void> place_;  // first: goes last
  ServiceState* const state_;
  const ContextPtr context_;
  Reservation host_bytes_;
  const ShmMapping mapping_;
  const FileDescriptor socket_;
  std::atomic<bool> ended_{false};

  // Positions after the last request and the last reply known to be taken; the poller's alone.
  uint64_t taken_ = 0, replies_taken_ = 0;

  absl::Mutex mutex_;
  std::atomic<uint64_t> answered_{0};  // replies; written under the mutex
  absl::flat_hash_map<uint64_t, ContextPtr> under_way_ ABSL_GUARDED_BY(mutex_);  // by id
  std::deque<std::shared_ptr<Executor::Task>> scans_
      ABSL_GUARDED_BY(mutex_);  // the first has its turn
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_SHM_SHM_SESSION_H_
