// The whole server in one object: device, core, gRPC, health, reflection, metrics port.
//
//   auto server = Server::Start(options);
//   ... (*server)->Drain();
//
// Thread-safe after Start.
#ifndef BLOCKD_SERVER_SERVER_H_
#define BLOCKD_SERVER_SERVER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockd/engine/backend.h"
#include "server/core/common/metrics.h"
#include "server/core/solver_core.h"
#include "server/options/options.h"

namespace blockd::server {

class Server {
 public:
  // Serves once it returns. INVALID_ARGUMENT for options out of range or unreadable files,
  // ALREADY_EXISTS if a port is taken, and what CreateBackend says.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);
  // The same on these devices, whatever the options name.
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      const ServerOptions& options, std::vector<std::unique_ptr<Backend>> devices);
  ~Server();  // drains, if Drain was not called
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int grpc_port() const;            // -1: none
  int metrics_port() const;         // -1: none
  int health_port() const;          // -1: none
  std::string grpc_target() const;  // "127.0.0.1:7117", or "unix:PATH" without a port

  // Reads the tenants file and the TLS files again; a line of the log says what came of it. What is
  // wrong is said, and leaves the old in force.
  absl::Status Reload();

  // Health turns NOT_SERVING, and new work is refused with UNAVAILABLE and ServerDraining. What is
  // accepted goes on, and so does everything that asks for no work. Returns at once.
  void StartDrain();
  // That, and the end: connections are told to go away (GOAWAY) and none is accepted, accepted work
  // finishes, or is cancelled after --drain_timeout. Returns when all is over; false if work had to
  // be cancelled.
  bool Drain();

  // Called once, from any thread, if a call of blockd.v1.Admin has begun a drain: whoever runs the
  // server then ends it, by Drain. At once if that is so already.
  void OnDrainAsked(std::function<void()> callback);

  SolverCore& core();
  Metrics& metrics();

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_SERVER_H_
