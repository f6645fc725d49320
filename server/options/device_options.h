// Which devices the server computes on: their flags, and how they are opened.
//
// Plain data with the defaults that serve, as ServerOptions is, of which it is a part.
#ifndef BLOCKD_SERVER_OPTIONS_DEVICE_OPTIONS_H_
#define BLOCKD_SERVER_OPTIONS_DEVICE_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "blockd/engine/backend.h"
#include "blockd/engine/backend_registry.h"

namespace blockd::server {

struct DeviceOptions {
  std::string backend = "auto";  // of the devices that do not name theirs
  // "all", or a list: "0,1", "cuda:0,cuda:1", "cpu,cpu". Without a backend's name an index is of
  // `backend`.
  std::string devices = "0";
  // Options of each device. CPUs share the threads, and the memory if its size is not given.
  BackendOptions device = {.host_memory_bytes = int64_t{256} << 20};
};

// One of the list.
struct DeviceChoice {
  std::string backend;  // "auto" too
  int32_t index = 0;

  friend bool operator==(const DeviceChoice&, const DeviceChoice&) = default;
};

// The list; of `all` the first. INVALID_ARGUMENT for what is no list, for a backend that --backend
// contradicts, and for a device that is named twice. A CPU has no index: each name of it is a
// device.
absl::StatusOr<std::vector<DeviceChoice>> ParseDevices(const DeviceOptions& options);

// Puts numbers where 0 means "fit the machine". INVALID_ARGUMENT names the flag.
absl::Status CheckDevices(DeviceOptions* options);

struct OpenedDevices {
  std::vector<std::unique_ptr<Backend>> backends;
  std::string passed_over;  // why "auto" did not take what it would rather have; empty: it did
};
// INVALID_ARGUMENT, NOT_FOUND or RESOURCE_EXHAUSTED, as CreateBackend says them.
absl::StatusOr<OpenedDevices> OpenDevices(const DeviceOptions& options);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_OPTIONS_DEVICE_OPTIONS_H_
