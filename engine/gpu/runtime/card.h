// A GPU as all tracks share it: its memory, taken once, writes to it from any thread, and what one
// track has to know of the other.
#ifndef BLOCKD_ENGINE_GPU_RUNTIME_CARD_H_
#define BLOCKD_ENGINE_GPU_RUNTIME_CARD_H_

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "blockd/engine/backend.h"
#include "engine/gpu/device_limits.h"
#include "engine/gpu/runtime/card_writes.h"
#include "engine/gpu/runtime/workspace.h"

namespace blockd::gpu {

// Ends of factorizations that were reported before their last kernel had ended: their memory may be
// given to others, and their factors read, while it ends. So whatever else uses the card comes
// after them, on the card. Any thread; recorded by one.
class ReportedEnds {
 public:
  ReportedEnds() = default;
  ~ReportedEnds();  // nothing uses them any more
  ReportedEnds(const ReportedEnds&) = delete;

  absl::Status Init();
  // After the last kernel, which is on this stream.
  absl::Status Record(Stream stream);
  // Notes that the end that was recorded last has been reported.
  void Report();
  // Makes all later work on the stream wait for the reported ends, but never for a factorization
  // that goes on. *seen: the number of reports that the stream has waited for so far.
  absl::Status Await(Stream stream, int64_t* seen);

 private:
  absl::Mutex mutex_;
  // In turn: while the next one is recorded, the last one that was reported stays as it is.
  Event events_[2] ABSL_GUARDED_BY(mutex_) = {};
  int64_t reported_ ABSL_GUARDED_BY(mutex_) = 0;
};

class Card {
 public:
  // Left free beside the pool for what the driver takes for graphs.
  static constexpr int64_t kGraphBytes = int64_t{128} << 20;
  // Copies to the card, a track's too, go in parts of so many bytes.
  static constexpr int64_t kCopyBytes = CardWrites::kPieceBytes;

  // NOT_FOUND, with the reason, if there is none.
  static absl::StatusOr<int32_t> Count();
  // NOT_FOUND without a device of this index, RESOURCE_EXHAUSTED if memory_bytes is too much;
  // 0: three quarters of what is free.
  static absl::StatusOr<std::unique_ptr<Card>> Open(int32_t index, int64_t memory_bytes);
  ~Card();
  Card(const Card&) = delete;

  const DeviceInfo& info() const { return info_; }
  absl::StatusOr<DeviceLimits> Limits() const;
  void* pool_base() const { return slab_; }
  int64_t pool_bytes() const { return pool_bytes_; }
  // Device memory for what a track's calls need, as workspace.h lays it out.
  std::byte* workspace(Track track) const {
    return static_cast<std::byte*>(slab_) + pool_bytes_ +
           static_cast<int64_t>(track) * workspace::kBytes;
  }
  // Host calls that use the device begin with this: the calling thread may be a new one.
  absl::Status Enter() const;
  // As Backend says them.
  absl::Status Write(void* device, std::span<const Backend::HostPiece> pieces);
  absl::Status AwaitWrites();
  ReportedEnds& ends() { return ends_; }

 private:
  Card() = default;
  absl::Status Init(int32_t index, int64_t memory_bytes);

  int32_t index_ = 0;
  DeviceInfo info_;
  Architecture architecture_;
  void* slab_ = nullptr;
  int64_t pool_bytes_ = 0;
  ReportedEnds ends_;
  std::unique_ptr<CardWrites> writes_;
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_RUNTIME_CARD_H_
