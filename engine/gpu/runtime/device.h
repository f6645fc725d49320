// A track's side of the device: its streams, its workspace, its pinned staging buffers, taken once,
// and the copies that go through them. Tracks share nothing but the card.
#ifndef BLOCKD_ENGINE_GPU_RUNTIME_DEVICE_H_
#define BLOCKD_ENGINE_GPU_RUNTIME_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/gpu/arch/launch_result.h"
#include "engine/gpu/runtime/card.h"
#include "engine/gpu/runtime/marks.h"
#include "engine/gpu/runtime/pinned_ring.h"
#include "engine/gpu/runtime/workspace.h"

namespace blockd::gpu {

// From one thread at a time.
class Device {
 public:
  static constexpr int64_t kStagingBytes = int64_t{4} << 20;
  static constexpr size_t kStagingPieces = 8;  // what two batches in flight have, and a third fills
  static constexpr int64_t kResultBytes = int64_t{512} << 10;

  // The card outlives it. Solves come before factorizations where both are ready to run.
  static absl::StatusOr<std::unique_ptr<Device>> Open(Card& card, Track track);
  ~Device();
  Device(const Device&) = delete;

  // Device memory for what calls need, as workspace.h lays it out, used in the order of stream();
  // zero at first.
  std::byte* workspace() const { return card_.workspace(track_); }
  // The part of the workspace that is for one call at a time.
  std::byte* call_memory() const { return workspace() + workspace::kCall; }

  // True if `data` is memory of the pool.
  bool InPool(const void* data) const {
    const auto* const base = static_cast<const std::byte*>(card_.pool_base());
    const auto* const at = static_cast<const std::byte*>(data);
    return !std::less<>()(at, base) && std::less<>()(at, base + card_.pool_bytes());
  }

  // Flags that a launch on stream() raises, and a ticket that it takes; zero before and after.
  uint32_t* flags() const { return reinterpret_cast<uint32_t*>(workspace() + workspace::kFlags); }
  uint32_t* ticket() const { return reinterpret_cast<uint32_t*>(workspace() + workspace::kTicket); }
  // A number that no flag has, for the next launch.
  absl::StatusOr<uint32_t> NextEpoch();

  // For MoveArgs::counter.
  unsigned* move_counter() const {
    return reinterpret_cast<unsigned*>(workspace() + workspace::kMoveCounter);
  }

  Stream stream() const { return stream_; }
  // The factor track's stream for kernels that run beside those of stream(), after them where both
  // are ready; and events to join the two.
  Stream side_stream() const { return side_stream_; }
  Event fork() const { return fork_; }
  Event join() const { return join_; }
  // Host calls that use the device begin with this: the calling thread may be a new one, and
  // factorizations of the other track, which it knows to have ended, not quite have.
  absl::Status Begin();

  // The host memory has been read when it returns.
  absl::Status Upload(void* device, const void* host, int64_t bytes);
  // Waits for stream().
  absl::Status Download(void* host, const void* device, int64_t bytes);
  // Copies the bytes that `write` writes to the device, in the order of stream(); at most
  // kStagingBytes.
  absl::Status UploadInOrder(void* device, int64_t bytes, absl::FunctionRef<void(void* to)> write);
  // Pinned memory that kernels reach, kStagingPieces pieces of kStagingBytes in turn; waits until
  // what the stream last did with the piece is over. Mark it after the launch that uses it.
  absl::StatusOr<void*> NextPinned();
  absl::Status MarkPinned();
  // Before a launch of many, and after it: waits for the launch before the last one, so that the
  // host may still change its mind.
  absl::Status AwaitTurn();
  absl::Status MarkTurn();
  // More of it, kResultBytes, for what kernels of the factor track say to the host at the end of a
  // call.
  void* results() const { return results_; }
  // Waits for stream().
  absl::Status Synchronize();
  // Waits until there() is true, because a kernel on stream() has written to results(), or stream()
  // has ended. That is sooner, by the end of a kernel and what the driver does then; what the other
  // track does later waits for that end, on the device.
  absl::Status AwaitResults(absl::FunctionRef<bool()> there);
  // The marks that tell the host of batches.
  Marks& marks() { return marks_; }
  absl::StatusOr<int64_t> Mark() { return marks_.Close(stream_, launched_); }
  // Takes the result of a launch on one of these streams. A kernel's own failure shows only later,
  // so every failure names the kernels that were launched since stream() was last waited for.
  absl::Status Launched(const LaunchResult& result);
  // A failure, with those names.
  absl::Status Describe(absl::Status status) const;

 private:
  Device(Card& card, Track track) : card_(card), track_(track) {}
  absl::Status Init();
  absl::Status Wait(absl::string_view what);
  // To memory that the device reaches, in the order of stream().
  absl::Status Fetch(void* pinned, const void* device, int64_t bytes);
  // To any other, where it is when this returns.
  absl::Status FetchInParts(void* host, const void* device, int64_t bytes);

  Card& card_;
  const Track track_;
  Stream stream_ = nullptr, side_stream_ = nullptr;
  Event fork_ = nullptr, join_ = nullptr;
  PinnedRing ring_{kStagingBytes, kStagingPieces};
  PinnedRing turns_{0};
  Marks marks_;
  void* results_ = nullptr;
  int64_t ends_seen_ = 0;
  uint32_t epoch_ = 0;                 // of the last launch that raised flags
  std::vector<const char*> launched_;  // since stream_ was last waited for, each once
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_RUNTIME_DEVICE_H_
