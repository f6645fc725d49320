// A TCP connection between a client and a server of the same machine that can be cut, as when the
// client's machine vanishes, and that keeps what the client has sent.
#ifndef BLOCKD_TESTS_INTEGRATION_HOSTILE_WIRE_BETWEEN_H_
#define BLOCKD_TESTS_INTEGRATION_HOSTILE_WIRE_BETWEEN_H_

#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace blockd::test {

class WireBetween {
 public:
  // `keep`: what the client sends, for sent().
  explicit WireBetween(int server_port, bool keep = false);
  ~WireBetween();
  int port() const { return port_; }  // for the client, one connection
  void Cut();
  std::string sent() const;

 private:
  void Run(int server_port);
  const bool keep_;
  int listener_ = -1;
  int cut_[2] = {-1, -1};  // a pipe: a byte in it cuts
  int port_ = 0;
  mutable absl::Mutex mutex_;
  std::string sent_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

// A TCP connection to the loopback address, from one such address; the caller closes it. -1 if
// there is none.
int ConnectTo(int port, const char* from = "127.0.0.1");

// The answer to `request` of a server on that port, until it closes the connection; empty if no
// server listens there.
std::string Ask(int port, const std::string& request);
std::string HttpGet(int port, const std::string& path);

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_INTEGRATION_HOSTILE_WIRE_BETWEEN_H_
