#include "blockd/engine/memory_pool.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace blockd {

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  pool_ = std::exchange(other.pool_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void DeviceBuffer::Reset() {
  if (data_ != nullptr) pool_->Free(data_);
  pool_ = nullptr;
  data_ = nullptr;
  bytes_ = 0;
}

MemoryPool::MemoryPool(void* slab, int64_t capacity_bytes)
    : slab_(static_cast<std::byte*>(slab)), capacity_(capacity_bytes / kAlignment * kAlignment) {
  if (capacity_ == 0) return;
  absl::MutexLock lock(&mutex_);
  free_by_offset_[0] = capacity_;
  free_by_size_.insert({capacity_, 0});
}

MemoryPool::~MemoryPool() {
  absl::MutexLock lock(&mutex_);
  if (used_.empty()) return;
  std::fprintf(stderr, "MemoryPool destroyed with %zu pieces still in use\n", used_.size());
  std::abort();
}

absl::StatusOr<DeviceBuffer> MemoryPool::Allocate(int64_t bytes) {
  if (bytes < 0)
    return absl::InvalidArgumentError(absl::StrCat("cannot allocate ", bytes, " bytes"));
  if (bytes == 0) return DeviceBuffer();
  absl::MutexLock lock(&mutex_);
  // A size above the capacity is refused before it is rounded, which could overflow.
  const int64_t rounded = bytes > capacity_ ? capacity_ + 1 : Rounded(bytes);
  const auto fit = free_by_size_.lower_bound({rounded, 0});
  if (fit == free_by_size_.end()) {
    const int64_t largest = free_by_size_.empty() ? 0 : free_by_size_.rbegin()->first;
    return absl::ResourceExhaustedError(
        absl::StrCat("device memory: asked for ", bytes, " bytes, free ", capacity_ - used_bytes_,
                     ", largest free piece ", largest, ", total ", capacity_));
  }
  const auto [piece, offset] = *fit;
  free_by_size_.erase(fit);
  free_by_offset_.erase(offset);
  if (piece > rounded) {
    free_by_offset_[offset + rounded] = piece - rounded;
    free_by_size_.insert({piece - rounded, offset + rounded});
  }
  used_[offset] = rounded;
  used_bytes_ += rounded;
  peak_used_bytes_ = std::max(peak_used_bytes_, used_bytes_);
  return DeviceBuffer(this, slab_ + offset, bytes);
}

void MemoryPool::Free(std::byte* data) {
  absl::MutexLock lock(&mutex_);
  const auto used = used_.find(data - slab_);
  int64_t offset = used->first;
  int64_t bytes = used->second;
  used_.erase(used);
  used_bytes_ -= bytes;
  auto next = free_by_offset_.lower_bound(offset);
  if (next != free_by_offset_.end() && next->first == offset + bytes) {
    bytes += next->second;
    free_by_size_.erase({next->second, next->first});
    next = free_by_offset_.erase(next);
  }
  if (next != free_by_offset_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      bytes += previous->second;
      free_by_size_.erase({previous->second, previous->first});
      free_by_offset_.erase(previous);
    }
  }
  free_by_offset_[offset] = bytes;
  free_by_size_.insert({bytes, offset});
}

std::vector<FreePiece> MemoryPool::FreePieces(const std::byte* from, size_t most) const {
  std::vector<FreePiece> pieces;
  absl::MutexLock lock(&mutex_);
  auto next = from == nullptr ? free_by_offset_.begin() : free_by_offset_.lower_bound(from - slab_);
  for (; next != free_by_offset_.end() && pieces.size() < most; ++next) {
    pieces.push_back({slab_ + next->first, next->second});
  }
  return pieces;
}

PoolStats MemoryPool::stats() const {
  absl::MutexLock lock(&mutex_);
  PoolStats stats;
  stats.capacity_bytes = capacity_;
  stats.used_bytes = used_bytes_;
  stats.peak_used_bytes = peak_used_bytes_;
  stats.free_bytes = capacity_ - used_bytes_;
  stats.largest_free_bytes = free_by_size_.empty() ? 0 : free_by_size_.rbegin()->first;
  stats.pieces = static_cast<int64_t>(used_.size());
  return stats;
}

}  // namespace blockd
