// A capped pool of device memory: one slab, taken from the driver once, cut into pieces.
//
// MemoryPool hands out pieces of its slab, best fit first, and joins a returned piece with its free
// neighbours. It never grows and never calls the driver. Any thread may allocate and free.
//
// A piece stays where it is. With pieces of many sizes, kept for long and returned in any order,
// the pool has room that no piece has: Allocate then fails, and whoever can give pieces back
// chooses those that lie beside free ones (FreePieces), as the server does. Where within the free
// piece that fits best a short-lived piece lies made no difference there, so the pool does not ask.
//
// Ordering: a piece may be handed out again as soon as its DeviceBuffer is destroyed. Whoever
// launches asynchronous work on a piece therefore keeps the DeviceBuffer until that work is done,
// or uses it again only from the same stream, where the order of the stream protects it.
#ifndef BLOCKD_ENGINE_MEMORY_POOL_H_
#define BLOCKD_ENGINE_MEMORY_POOL_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace blockd {

class MemoryPool;

// RAII piece of a pool. Movable; empty after a move. The pool outlives its buffers.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer() { Reset(); }

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }  // as asked for, not as rounded up
  explicit operator bool() const { return data_ != nullptr; }
  void Reset();

 private:
  friend class MemoryPool;
  DeviceBuffer(MemoryPool* pool, std::byte* data, int64_t bytes)
      : pool_(pool), data_(data), bytes_(bytes) {}
  MemoryPool* pool_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

struct PoolStats {
  int64_t capacity_bytes = 0;
  int64_t used_bytes = 0;  // rounded up to kAlignment a piece
  int64_t peak_used_bytes = 0;
  int64_t free_bytes = 0;
  int64_t largest_free_bytes = 0;
  int64_t pieces = 0;  // handed out now
};

struct FreePiece {
  const std::byte* data = nullptr;
  int64_t bytes = 0;  // a multiple of kAlignment

  const std::byte* end() const { return data + bytes; }
};

class MemoryPool {
 public:
  static constexpr int64_t kAlignment = 256;  // bytes; every piece starts at a multiple of it
  // The bytes of the pool that a piece of `bytes` takes.
  static constexpr int64_t Rounded(int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  // `slab` is aligned to kAlignment, holds `capacity_bytes`, and outlives the pool. It is never
  // dereferenced here, so it may be device memory.
  MemoryPool(void* slab, int64_t capacity_bytes);
  ~MemoryPool();  // CHECKs that every piece is back
  MemoryPool(const MemoryPool&) = delete;

  // RESOURCE_EXHAUSTED, with the bytes asked, free, largest and total, if no free piece is large
  // enough; INVALID_ARGUMENT if bytes < 0. A piece of 0 bytes is an empty buffer.
  absl::StatusOr<DeviceBuffer> Allocate(int64_t bytes);
  // At most `most` free pieces, ordered by address, that begin at `from` or later (null: any). The
  // pool is locked meanwhile, so ask for few at a time; other threads may change it between calls.
  std::vector<FreePiece> FreePieces(const std::byte* from, size_t most) const;
  PoolStats stats() const;
  int64_t capacity_bytes() const { return capacity_; }

 private:
  friend class DeviceBuffer;
  void Free(std::byte* data);

  std::byte* const slab_;
  const int64_t capacity_;
  mutable absl::Mutex mutex_;
  std::map<int64_t, int64_t> free_by_offset_ ABSL_GUARDED_BY(mutex_);           // offset -> bytes
  std::set<std::pair<int64_t, int64_t>> free_by_size_ ABSL_GUARDED_BY(mutex_);  // (bytes, offset)
  std::map<int64_t, int64_t> used_ ABSL_GUARDED_BY(mutex_);                     // offset -> bytes
  int64_t used_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t peak_used_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace blockd

#endif  // BLOCKD_ENGINE_MEMORY_POOL_H_
