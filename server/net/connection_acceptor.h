// Accepts connections, as many as there may be, and hands them to whoever serves them.
//
// gRPC 1.51 accepts by itself as long as a descriptor is free. Where none is, it stops listening
// for good. Here a connection beyond the limit is accepted and closed at once, so that its client
// knows, and where not even that is possible the next try follows soon. Thread-safe.
#ifndef BLOCKD_SERVER_NET_CONNECTION_ACCEPTOR_H_
#define BLOCKD_SERVER_NET_CONNECTION_ACCEPTOR_H_

#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/descriptors.h"
#include "server/net/connection_table.h"
#include "server/net/listener.h"

namespace blockd::server {

struct ConnectionLimits {
  std::string name;         // what the log calls the first
  int64_t connections = 0;  // at once
  // One whose descriptor has this number or a higher one is closed: a new descriptor gets the
  // lowest number that is free, so fewer than the rest are left.
  int64_t descriptors = 0;
  bool ends_oldest = false;  // for one too many; else that is closed
};

struct Accepted {
  int listening_fd = -1;
  int fd = -1;
  bool is_unix = false;  // a Unix domain socket
  std::string peer;      // its name
};

class ConnectionAcceptor {
 public:
  // Owns `fd` from then on.
  using HandOver = std::function<void(const Accepted&)>;
  // Connections are refused from now on, or none has been for a while and there is room again.
  using OnFull = std::function<void(bool full)>;

  ConnectionAcceptor(Listener listener, const ConnectionLimits& limits, HandOver hand_over,
                     OnFull on_full);
  void Start();  // accepts from now on
  ~ConnectionAcceptor() { Stop(); }
  ConnectionAcceptor(const ConnectionAcceptor&) = delete;
  ConnectionAcceptor& operator=(const ConnectionAcceptor&) = delete;

  int port() const { return port_; }  // -1: none of TCP
  void Stop();                        // nothing listens any more; what was accepted is not touched

  // Ends a connection that it has accepted, by the peer's name; nothing if there is none.
  void End(const std::string& peer, const std::string& why);

  int64_t open();
  int64_t ended() const;
  int64_t refused() const;  // also each try to accept that the machine had nothing left for

 private:
  void Loop();
  bool AcceptSome(int listening_fd);
  bool HasRoom(int fd);
  bool HasPlace();
  bool EndOldest();
  bool HasRoomForOneMore();
  void Refuse(const std::string& why);
  void SetFull(bool full);
  void SayRefused();

  const ConnectionLimits limits_;
  const HandOver hand_over_;
  const OnFull on_full_;
  const int port_;
  Listener listener_;
  FileDescriptor stop_;  // an eventfd

  mutable absl::Mutex mutex_;
  ConnectionTable table_ ABSL_GUARDED_BY(mutex_);
  int64_t refused_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t ended_ ABSL_GUARDED_BY(mutex_) = 0;

  // Only the thread uses these.
  bool full_ = false;
  int64_t unsaid_ = 0;  // refused since the log was told
  std::string why_;
  absl::Time refused_at_ = absl::InfinitePast();
  absl::Time said_ = absl::InfinitePast();
  absl::Time next_count_ = absl::InfinitePast();

  std::thread thread_;  // the last member: it uses the others
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_NET_CONNECTION_ACCEPTOR_H_
