// Where callers of the same host get shared memory: a Unix socket beside that of gRPC, whose
// version 1.51 cannot pass descriptors on.
//
// A thread accepts, hears who asks and how much memory it wants, makes the memory, and hands the
// session to a poller. The rules for who may ask are those of the Unix socket; in addition a
// `unix_uid` of the tenants file counts, since here the kernel says which user calls. Thread-safe.
#ifndef BLOCKD_SERVER_TRANSPORT_SHM_PORT_H_
#define BLOCKD_SERVER_TRANSPORT_SHM_PORT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/descriptors.h"
#include "server/listener.h"
#include "server/transport/call.h"
#include "server/transport/shm_poller.h"

namespace blockd::server {

struct ShmStats {
  int64_t sessions = 0, bytes = 0;  // now; of sessions whose memory is not back yet, too
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
    std::string hello;  // what has come of it
  };

  void Loop();
  void Accept();
  // False once there is nothing to wait for any more.
  bool Hear(Guest& guest);
  void Greet(Guest& guest);
  absl::Status Open(const v1::ShmHello& hello, Guest& guest);
  absl::StatusOr<ContextPtr> Identify(const v1::ShmHello& hello, int socket) const;
  absl::StatusOr<std::shared_ptr<const void>> TakePlace(uint64_t bytes);
  void Refuse(const Guest& guest, const absl::Status& status);

  // Outlives the port where the last request of a session does.
  struct Counts {
    std::atomic<int64_t> sessions{0}, bytes{0};
  };

  ServiceState* const state_;
  Listener listener_;
  FileDescriptor stop_;  // an eventfd
  const std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
  std::atomic<int64_t> refused_{0};
  std::vector<std::unique_ptr<ShmPoller>> pollers_;
  size_t next_poller_ = 0;
  std::vector<Guest> guests_;  // of the thread
  std::thread thread_;         // the last member: it uses the others
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_SHM_PORT_H_
