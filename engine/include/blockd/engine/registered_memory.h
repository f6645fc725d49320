// Host memory that its owner lets GPUs read and write where it lies.
#ifndef BLOCKD_ENGINE_REGISTERED_MEMORY_H_
#define BLOCKD_ENGINE_REGISTERED_MEMORY_H_

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"

namespace blockd {

// Memory that is registered with the driver, for all devices, until this goes: before the memory
// does, and after all work that uses it. What is in it then needs no copy of its own on the way to
// a device (Backend::PackColumns). Movable. Any thread.
class RegisteredMemory {
 public:
  RegisteredMemory() = default;  // of nothing
  // Whole pages. UNIMPLEMENTED in a build without a GPU backend; what the driver says where it
  // refuses. Both cost no more than that copy.
  static absl::StatusOr<RegisteredMemory> Register(void* begin, int64_t bytes);
  RegisteredMemory(RegisteredMemory&& other) noexcept
      : begin_(std::exchange(other.begin_, nullptr)) {}
  RegisteredMemory& operator=(RegisteredMemory&& other) noexcept {
    std::swap(begin_, other.begin_);
    return *this;
  }
  ~RegisteredMemory();

 private:
  explicit RegisteredMemory(void* begin) : begin_(begin) {}
  void* begin_ = nullptr;
};

}  // namespace blockd

#endif  // BLOCKD_ENGINE_REGISTERED_MEMORY_H_
