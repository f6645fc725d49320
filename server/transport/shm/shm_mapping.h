// The memory of a shared-memory session: made by the server, so that nobody can change its size.
//
// The other side may write at any time: wire/shared_data.h says how it is read.
#ifndef BLOCKD_SERVER_TRANSPORT_SHM_SHM_MAPPING_H_
#define BLOCKD_SERVER_TRANSPORT_SHM_SHM_MAPPING_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockd/engine/registered_memory.h"
#include "proto/blockd/v1/shared_memory.h"
#include "server/base/descriptors.h"
#include "server/transport/wire/shared_data.h"

namespace blockd::server {

// Movable; unmaps itself. Thread-safe, but for what the memory says.
class ShmMapping {
 public:
  // `slots` and the bytes of the data are checked by the caller: the sum does not overflow.
  static constexpr uint64_t kPage = 4096;
  static uint64_t BytesFor(uint32_t slots, uint64_t data_bytes);

  // Nothing of it is there yet. RESOURCE_EXHAUSTED if the host has not that much.
  static absl::StatusOr<ShmMapping> Create(uint32_t slots, uint64_t data_bytes);
  // Makes the next `most` bytes, whole pages. True once every page is there, so that none is
  // missing later; nobody uses it before. RESOURCE_EXHAUSTED as above.
  absl::StatusOr<bool> Populate(uint64_t most);
  ShmMapping(ShmMapping&& other) noexcept { *this = std::move(other); }
  ShmMapping& operator=(ShmMapping&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    std::swap(populated_, other.populated_);
    std::swap(slots_, other.slots_);
    std::swap(memory_, other.memory_);
    std::swap(registered_, other.registered_);
    return *this;
  }
  ~ShmMapping();

  int fd() const { return memory_.get(); }
  // Lets devices read and write it where it lies.
  absl::Status RegisterWithDevices();
  void CloseDescriptor() { memory_.Reset(-1); }  // once the other side has it
  uint64_t bytes() const { return bytes_; }
  uint32_t slots() const { return slots_; }
  uint64_t requests_offset() const { return v1::kShmHeaderBytes; }
  uint64_t replies_offset() const { return requests_offset() + slots_ * sizeof(v1::ShmRequest); }
  uint64_t data_offset() const { return DataOffset(slots_); }

  v1::ShmHeader& header() const { return *reinterpret_cast<v1::ShmHeader*>(base_); }
  v1::ShmRequest& request(uint64_t position) const {
    return reinterpret_cast<v1::ShmRequest*>(base_ + requests_offset())[position & (slots_ - 1)];
  }
  v1::ShmReply& reply(uint64_t position) const {
    return reinterpret_cast<v1::ShmReply*>(base_ + replies_offset())[position & (slots_ - 1)];
  }

  SharedMemory memory() const { return {{base_, bytes_}, data_offset()}; }

 private:
  ShmMapping() = default;
  static uint64_t DataOffset(uint32_t slots);

  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0, populated_ = 0;
  uint32_t slots_ = 0;
  FileDescriptor memory_;
  RegisteredMemory registered_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_SHM_SHM_MAPPING_H_
