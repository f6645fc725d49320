// Memory that a client shares with a server on the same host (ClientOptions::shared_memory_bytes).
#ifndef BLOCKD_CLIENT_SHARED_BUFFER_H_
#define BLOCKD_CLIENT_SHARED_BUFFER_H_

#include <cstddef>
#include <memory>
#include <span>

#include "blockd/client/system.h"

namespace blockd::client {

// Right-hand sides, solutions and matrices that lie in it are not copied on their way: the server
// reads and writes them here. Copies share the memory, which stays until the last one is gone; it
// outlives its client. Do not write to what a call under way was given. Not initialised.
class SharedBuffer {
 public:
  SharedBuffer() = default;  // empty
  SharedBuffer(std::span<std::byte> bytes, std::shared_ptr<const void> owner)
      : bytes_(bytes), owner_(std::move(owner)) {}

  std::span<std::byte> bytes() const { return bytes_; }
  template <SolverScalar T>
  std::span<T> As() const {
    return {reinterpret_cast<T*>(bytes_.data()), bytes_.size() / sizeof(T)};
  }

 private:
  std::span<std::byte> bytes_;
  std::shared_ptr<const void> owner_;
};

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_SHARED_BUFFER_H_
