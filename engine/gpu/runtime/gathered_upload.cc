#include "engine/gpu/runtime/gathered_upload.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "blockd/engine/memory_pool.h"
#include "engine/gpu/runtime/card.h"
#include "engine/gpu/runtime/pinned_ring.h"
#include "engine/gpu/runtime/reachable_memory.h"

namespace blockd::gpu {
namespace {

class Gatherer {
 public:
  explicit Gatherer(Device& device) : device_(device) {}

  absl::Status Add(const HostCopy& copy) {
    auto* to = static_cast<std::byte*>(copy.device);
    const auto* from = static_cast<const std::byte*>(copy.host);
    absl::Status status;
    for (int64_t left = copy.bytes; status.ok() && left > 0;) {
      status = Reach(to);
      if (!status.ok()) break;
      const int64_t part = std::min(left, kPieceBytes - filled_);
      std::memcpy(pinned_ + filled_, from, static_cast<size_t>(part));
      filled_ += part;
      to += part;
      from += part;
      left -= part;
      if (filled_ == kPieceBytes) status = End();
    }
    return status;
  }

  // Starts to copy all that has been gathered, and gives up the pinned memory.
  absl::Status End() {
    absl::Status status = Copy();
    if (pinned_ == nullptr) return status;
    pinned_ = nullptr;
    filled_ = run_ = 0;
    return status.ok() ? device_.MarkPinned() : status;
  }

 private:
  static constexpr int64_t kPieceBytes = Card::kCopyBytes;
  static_assert(kPieceBytes <= Device::kStagingBytes);

  // The next byte that is gathered goes to `to`.
  absl::Status Reach(std::byte* to) {
    if (pinned_ != nullptr && filled_ > run_) {
      const int64_t gap = to - (run_to_ + (filled_ - run_));
      if (gap >= 0 && gap < MemoryPool::kAlignment && filled_ + gap < kPieceBytes) {
        std::memset(pinned_ + filled_, 0, static_cast<size_t>(gap));
        filled_ += gap;
        return absl::OkStatus();
      }
      // Aligned as what it is copied to.
      const int64_t next = MemoryPool::Rounded(filled_);
      absl::Status status = next < kPieceBytes ? Copy() : End();
      if (!status.ok()) return status;
      if (pinned_ != nullptr) filled_ = run_ = next;
    }
    if (pinned_ == nullptr) {
      absl::StatusOr<void*> pinned = device_.NextPinned();
      if (!pinned.ok()) return pinned.status();
      pinned_ = static_cast<std::byte*>(*pinned);
      filled_ = run_ = 0;
    }
    run_to_ = to;
    return absl::OkStatus();
  }

  // Copies the run.
  absl::Status Copy() {
    if (pinned_ == nullptr || filled_ == run_) return absl::OkStatus();
    return device_.Describe(ToStatus(
        BLOCKD_GPU(MemcpyAsync)(run_to_, pinned_ + run_, static_cast<size_t>(filled_ - run_),
                                BLOCKD_GPU(MemcpyHostToDevice), device_.stream()),
        "upload"));
  }

  Device& device_;
  std::byte* pinned_ = nullptr;  // null: none is being filled
  int64_t filled_ = 0;           // bytes of it
  int64_t run_ = 0;              // where in it what goes to `run_to_` begins
  std::byte* run_to_ = nullptr;
};

// Smaller ones are cheaper to copy than to wait for.
constexpr int64_t kDirectBytes = int64_t{1} << 20;

// From where it lies, in parts between which others' copies may go.
absl::Status UploadDirectly(Device& device, const HostCopy& copy) {
  absl::Status status;
  for (int64_t at = 0; status.ok() && at < copy.bytes; at += Card::kCopyBytes) {
    const int64_t part = std::min(Card::kCopyBytes, copy.bytes - at);
    status = device.Describe(
        ToStatus(BLOCKD_GPU(MemcpyAsync)(static_cast<std::byte*>(copy.device) + at,
                                         static_cast<const std::byte*>(copy.host) + at,
                                         static_cast<size_t>(part), BLOCKD_GPU(MemcpyHostToDevice),
                                         device.stream()),
                 "upload"));
  }
  return status;
}

}  // namespace

absl::Status UploadGathered(Device& device, std::span<const HostCopy> copies) {
  if (copies.empty()) return absl::OkStatus();
  absl::Status status = device.Begin();
  Gatherer gatherer(device);
  bool direct = false;
  for (const HostCopy& copy : copies) {
    if (!status.ok()) break;
    if (copy.bytes >= kDirectBytes && ReachableMemory::Look().Has(copy.host, copy.bytes)) {
      direct = true;
      status = UploadDirectly(device, copy);
    } else {
      status = gatherer.Add(copy);
    }
  }
  if (status.ok()) status = gatherer.End();
  return direct && status.ok() ? device.Synchronize() : status;
}

}  // namespace blockd::gpu
