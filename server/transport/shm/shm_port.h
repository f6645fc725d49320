// Where callers of the same host get shared memory: a Unix socket beside that of gRPC, whose
// version 1.51 cannot pass descriptors on.
//
// A thread accepts, hears who asks and how much memory it wants, has the memory made by others, of
// each tenant some sessions' at a time, and hands the session to a poller. The rules for who may
// ask are those of the Unix socket; in addition a `unix_uid` of the tenants file counts, since here
// the kernel says which user calls. Thread-safe.
#ifndef BLOCKD_SERVER_TRANSPORT_SHM_SHM_PORT_H_
#define BLOCKD_SERVER_TRANSPORT_SHM_SHM_PORT_H_

#include <poll.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/descriptors.h"
#include "server/net/listener.h"
#include "server/transport/rpc/call.h"
#include "server/transport/rpc/executor.h"
#include "server/transport/shm/shm_opening.h"
#include "server/transport/shm/shm_places.h"
#include "server/transport/shm/shm_poller.h"

namespace blockd::server {

struct ShmStats {
  // Now; of sessions whose memory is being made or not back yet, too.
  int64_t sessions = 0, bytes = 0;
  int64_t refused = 0, max_bytes = 0;
};

class ShmPort {
 public:
  // `state` outlives it.
  ShmPort(ServiceState* state, Listener listener);
  ~ShmPort() { EndAll(); }
  ShmPort(const ShmPort&) = delete;
  ShmPort& operator=(const ShmPort&) = delete;

  void StopAccepting();
  void CancelAll();  // what is under way; the sessions stay
  void EndAll();
  ShmStats stats() const;

 private:
  // Somebody who has connected and not said yet what he wants.
  struct Guest {
    FileDescriptor socket;
    absl::Time until;
    std::optional<uid_t> user;
    std::string hello;  // what has come of it
  };

  void Loop();
  void Accept();
  // The oldest guest of the user who has most of them.
  std::vector<Guest>::iterator OneOfTheMost();
  // False once there is nothing to wait for any more.
  bool Hear(Guest& guest);
  void Greet(Guest& guest);
  absl::Status Open(const v1::ShmHello& hello, Guest& guest);
  absl::StatusOr<ContextPtr> Identify(const v1::ShmHello& hello, int socket) const;
  void Refuse(int socket, const absl::Status& status);
  void EndOpenings(const pollfd* watched);
  void StartOpenings();
  void Welcome(ShmOpening& opening);
  void Wake() const;

  ServiceState* const state_;
  Listener listener_;
  FileDescriptor wake_;  // an eventfd
  std::atomic<bool> stop_{false};
  const std::shared_ptr<ShmPlaces> places_;  // outlives the port where a session does
  std::atomic<int64_t> refused_{0};
  std::vector<std::unique_ptr<ShmPoller>> pollers_;
  size_t next_poller_ = 0;
  std::vector<Guest> guests_;  // of the thread, as are these, in the order in which they asked
  std::vector<std::shared_ptr<ShmOpening>> openings_;
  std::unique_ptr<Executor> makers_;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_SHM_SHM_PORT_H_
