#include "server/net/ports.h"

#include <cstdio>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/blockd/v1/shared_memory.h"

namespace blockd::server {
namespace {

absl::Status CannotServe(absl::string_view what, absl::string_view where, const absl::Status& why,
                         absl::string_view flags) {
  return absl::AlreadyExistsError(
      absl::StrCat("cannot serve ", what, " on ", where, ": ", why.message(), " (", flags, ")"));
}

// None for a negative port. SO_REUSEPORT is off: two servers on one port would split the handles.
absl::StatusOr<Listener> ListenFor(absl::string_view what, absl::string_view flags,
                                   const std::string& address, int port, absl::Duration silence) {
  if (port < 0) return Listener();
  absl::StatusOr<Listener> listener = Listen(address, port, silence);
  if (listener.ok()) return listener;
  return CannotServe(what, HostPort(address, port), listener.status(), flags);
}

absl::StatusOr<Listener> ListenOnFile(absl::string_view what, const std::string& path,
                                      const AccessOptions& access) {
  const absl::StatusOr<mode_t> mode = ParseSocketMode(access.unix_socket_mode);
  if (!mode.ok()) return mode.status();
  absl::StatusOr<Listener> listener = ListenOnUnixSocket(path, *mode);
  if (listener.ok()) return listener;
  return CannotServe(what, path, listener.status(), "--unix_socket");
}

// Beside what `calls` has.
absl::Status AddUnixSocket(const AccessOptions& access, Listener* calls) {
  if (access.unix_socket.empty()) return absl::OkStatus();
  absl::StatusOr<Listener> listener = ListenOnFile("gRPC", access.unix_socket, access);
  if (!listener.ok()) return listener.status();
  for (FileDescriptor& socket_fd : listener->sockets) {
    calls->sockets.push_back(std::move(socket_fd));
  }
  calls->file = std::move(listener->file);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Ports> ListenOnPorts(const ServerOptions& options) {
  const absl::Duration silence = options.keepalive_timeout;
  absl::StatusOr<Listener> calls = ListenFor("gRPC", "--address, --port; 0 takes any free port",
                                             options.address, options.port, silence);
  if (!calls.ok()) return calls.status();
  if (absl::Status status = AddUnixSocket(options.access, &*calls); !status.ok()) return status;
  absl::StatusOr<Listener> probes =
      ListenFor("health checks", "--address, --health_port; -1 turns it off", options.address,
                options.access.health_port, silence);
  if (!probes.ok()) return probes.status();
  absl::StatusOr<Listener> scrapes =
      ListenFor("metrics", "--metrics_address, --metrics_port; -1 turns metrics off",
                options.metrics_address, options.metrics_port, silence);
  if (!scrapes.ok()) return scrapes.status();
  Ports ports{*std::move(calls), *std::move(probes), *std::move(scrapes), {}};
  if (!options.shared_memory.enabled) return ports;
  absl::StatusOr<Listener> memory = ListenOnFile(
      "shared memory", options.access.unix_socket + v1::kShmSocketSuffix, options.access);
  if (!memory.ok()) return memory.status();
  ports.shared_memory = *std::move(memory);
  return ports;
}

absl::Status WritePortFile(const ServerOptions& options, int grpc_port, int metrics_port) {
  const std::string& path = options.port_file;
  if (path.empty()) return absl::OkStatus();
  const std::string draft = path + ".new";
  std::ofstream file(draft);
  file << "grpc=" << grpc_port << "\nmetrics=" << metrics_port << "\n";
  file.close();
  if (!file || std::rename(draft.c_str(), path.c_str()) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--port_file=", path, ": expected a path that can be written"));
  }
  return absl::OkStatus();
}

}  // namespace blockd::server
