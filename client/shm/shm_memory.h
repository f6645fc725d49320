// The memory of a shared-memory session, as its caller gives it out. Internal to the client.
//
// Thread-safe. Pieces keep it alive, whatever becomes of the session.
#ifndef BLOCKD_CLIENT_SHM_SHM_MEMORY_H_
#define BLOCKD_CLIENT_SHM_SHM_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/blockd/v1/shared_memory.h"

namespace blockd::client {

class ShmMemory;

// RAII; movable, empty after a move.
class ShmPiece {
 public:
  ShmPiece(std::shared_ptr<ShmMemory> memory, uint64_t offset, uint64_t bytes)
      : memory_(std::move(memory)), offset_(offset), bytes_(bytes) {}
  ShmPiece(ShmPiece&& other) noexcept = default;
  ShmPiece& operator=(ShmPiece&&) = delete;
  ~ShmPiece();

  uint64_t offset() const { return offset_; }  // in the mapping
  std::byte* data() const;

 private:
  std::shared_ptr<ShmMemory> memory_;
  uint64_t offset_, bytes_;
};

class ShmMemory : public std::enable_shared_from_this<ShmMemory> {
 public:
  // Maps `fd`, which stays the caller's. INTERNAL if the welcome does not describe it.
  static absl::StatusOr<std::shared_ptr<ShmMemory>> Map(int fd, const v1::ShmWelcome& welcome);
  ~ShmMemory();

  v1::ShmHeader& header() const { return *reinterpret_cast<v1::ShmHeader*>(base_); }
  v1::ShmRequest& request(uint64_t position) const {
    return At<v1::ShmRequest>(welcome_.requests_offset)[position & (slots() - 1)];
  }
  const v1::ShmReply& reply(uint64_t position) const {
    return At<v1::ShmReply>(welcome_.replies_offset)[position & (slots() - 1)];
  }
  uint32_t slots() const { return welcome_.slots; }
  std::byte* at(uint64_t offset) const { return base_ + offset; }

  // nullopt if there is no such piece now. Aligned to cache lines, not initialised.
  std::optional<ShmPiece> Allocate(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Where these bytes lie; nullopt if that is not here, or not aligned as requests must be.
  std::optional<uint64_t> OffsetOf(const void* memory, uint64_t bytes) const;

 private:
  friend class ShmPiece;
  ShmMemory(std::byte* base, const v1::ShmWelcome& welcome);
  template <typename T>
  T* At(uint64_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }
  void Free(uint64_t offset, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<uint64_t> Cut(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Join(uint64_t offset, uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::byte* const base_;
  const v1::ShmWelcome welcome_;
  absl::Mutex mutex_;
  std::map<uint64_t, uint64_t> free_ ABSL_GUARDED_BY(mutex_);  // offset to bytes; no two touch
  // Pieces that were given back, by their bytes: calls ask for the same sizes again and again.
  absl::flat_hash_map<uint64_t, std::vector<uint64_t>> kept_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_SHM_SHM_MEMORY_H_
