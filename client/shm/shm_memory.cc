#include "client/shm/shm_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace blockd::client {
namespace {

constexpr uint64_t kLine = 64;

uint64_t RoundedUp(uint64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// True if the parts lie in the mapping, one after another.
bool IsInOrder(const v1::ShmWelcome& w) {
  const uint64_t requests = w.slots * sizeof(v1::ShmRequest);
  const uint64_t replies = w.slots * sizeof(v1::ShmReply);
  return w.slots >= v1::kShmMinSlots && w.slots <= v1::kShmMaxSlots &&
         std::has_single_bit(w.slots) && w.requests_offset == v1::kShmHeaderBytes &&
         w.replies_offset == w.requests_offset + requests &&
         w.data_offset >= w.replies_offset + replies && w.data_offset % kLine == 0 &&
         w.data_offset < w.mapping_bytes;
}

}  // namespace

ShmPiece::~ShmPiece() {
  if (memory_ != nullptr) memory_->Free(offset_, bytes_);
}

std::byte* ShmPiece::data() const { return memory_->at(offset_); }

absl::StatusOr<std::shared_ptr<ShmMemory>> ShmMemory::Map(int fd, const v1::ShmWelcome& welcome) {
  struct stat file {};
  // A file that could shrink would end this process.
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &file) != 0 ||
      static_cast<uint64_t>(file.st_size) != welcome.mapping_bytes || !IsInOrder(welcome)) {
    return absl::InternalError("the server's shared memory is not as it says");
  }
  void* const base =
      mmap(nullptr, welcome.mapping_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map ", welcome.mapping_bytes, " bytes: ", std::strerror(errno)));
  }
  madvise(base, welcome.mapping_bytes, MADV_HUGEPAGE);  // where refused, small pages serve
  return std::shared_ptr<ShmMemory>(new ShmMemory(static_cast<std::byte*>(base), welcome));
}

ShmMemory::ShmMemory(std::byte* base, const v1::ShmWelcome& welcome)
    : base_(base), welcome_(welcome) {
  free_[welcome.data_offset] = welcome.mapping_bytes - welcome.data_offset;
}

ShmMemory::~ShmMemory() { munmap(base_, welcome_.mapping_bytes); }

std::optional<ShmPiece> ShmMemory::Allocate(uint64_t bytes) {
  if (bytes == 0 || bytes > welcome_.mapping_bytes) return std::nullopt;
  bytes = RoundedUp(bytes);
  std::optional<uint64_t> offset;
  {
    absl::MutexLock lock(&mutex_);
    if (std::vector<uint64_t>& kept = kept_[bytes]; !kept.empty()) {
      offset = kept.back();
      kept.pop_back();
    } else {
      offset = Cut(bytes);
    }
  }
  if (!offset) return std::nullopt;
  return ShmPiece(shared_from_this(), *offset, bytes);
}

std::optional<uint64_t> ShmMemory::Cut(uint64_t bytes) {
  const auto fits = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto it = free_.begin();
    while (it != free_.end() && it->second < bytes) ++it;
    return it;
  };
  auto it = fits();
  if (it == free_.end()) {
    for (const auto& [size, offsets] : kept_) {
      for (const uint64_t offset : offsets) Join(offset, size);
    }
    kept_.clear();
    it = fits();
  }
  if (it == free_.end()) return std::nullopt;
  const auto [offset, left] = *it;
  free_.erase(it);
  if (left > bytes) free_.emplace(offset + bytes, left - bytes);
  return offset;
}

void ShmMemory::Join(uint64_t offset, uint64_t bytes) {
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + bytes) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_.emplace(offset, bytes);
}

void ShmMemory::Free(uint64_t offset, uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  kept_[bytes].push_back(offset);
}

std::optional<uint64_t> ShmMemory::OffsetOf(const void* memory, uint64_t bytes) const {
  const auto base = reinterpret_cast<uintptr_t>(base_);
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  if (begin < base + welcome_.data_offset || begin % v1::kShmAlignment != 0) return std::nullopt;
  const uint64_t offset = begin - base;
  if (offset > welcome_.mapping_bytes || bytes > welcome_.mapping_bytes - offset) {
    return std::nullopt;
  }
  return offset;
}

}  // namespace blockd::client
