// A table of a batch's systems in the device's workspace, where kernels find their addresses.
#ifndef BLOCKD_ENGINE_GPU_RUNTIME_SYSTEM_TABLE_H_
#define BLOCKD_ENGINE_GPU_RUNTIME_SYSTEM_TABLE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/gpu/runtime/device.h"
#include "engine/gpu/runtime/workspace.h"

namespace blockd::gpu {

// From one thread at a time.
template <typename Entry>
class SystemTable {
 public:
  static_assert(workspace::kSystemsALaunch * sizeof(Entry) <= workspace::kTableBytes);

  SystemTable(Device& device, int64_t offset) : device_(device), offset_(offset) {}
  SystemTable(const SystemTable&) = delete;

  // On the device.
  const Entry* entries() const {
    return reinterpret_cast<const Entry*>(device_.workspace() + offset_);
  }
  // Puts them into the table in the order of the device's stream, unless they are there already; at
  // most kSystemsALaunch.
  absl::Status Set(std::span<const Entry> entries) {
    const auto bytes = std::as_bytes(entries);
    if (std::equal(bytes.begin(), bytes.end(), contents_.begin(), contents_.end())) {
      return absl::OkStatus();
    }
    contents_.clear();
    absl::Status status =
        device_.UploadInOrder(device_.workspace() + offset_, static_cast<int64_t>(bytes.size()),
                              [&](void* to) { std::memcpy(to, bytes.data(), bytes.size()); });
    if (status.ok()) contents_.assign(bytes.begin(), bytes.end());
    return status;
  }

 private:
  Device& device_;
  const int64_t offset_;
  std::vector<std::byte> contents_;
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_RUNTIME_SYSTEM_TABLE_H_
