// The device's resources, taken once: a slab of memory, streams, pinned staging buffers. And the
// copies that go through them.
#ifndef BLOCKD_ENGINE_GPU_RUNTIME_DEVICE_H_
#define BLOCKD_ENGINE_GPU_RUNTIME_DEVICE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "blockd/engine/backend.h"
#include "engine/gpu/device_limits.h"
#include "engine/gpu/runtime/launch_result.h"
#include "engine/gpu/runtime/pinned_ring.h"
#include "engine/gpu/runtime/workspace.h"

namespace blockd::gpu {

// Upload may be called from any thread; all else from one at a time, the Solver's.
class Device {
 public:
  static constexpr int64_t kStagingBytes = PinnedRing::kPieceBytes;
  // Left free beside the pool for what the driver takes for graphs.
  static constexpr int64_t kGraphBytes = int64_t{128} << 20;
  static constexpr int64_t kResultBytes = int64_t{512} << 10;

  // NOT_FOUND without a device of this index, RESOURCE_EXHAUSTED if memory_bytes is too much;
  // 0: three quarters of what is free.
  static absl::StatusOr<std::unique_ptr<Device>> Open(int32_t index, int64_t memory_bytes);
  ~Device();
  Device(const Device&) = delete;

  const DeviceInfo& info() const { return info_; }
  absl::StatusOr<DeviceLimits> Limits() const;
  void* pool_base() const { return slab_; }
  int64_t pool_bytes() const { return pool_bytes_; }
  // Device memory for what calls need, as workspace.h lays it out, used in the order of stream();
  // zero at first.
  std::byte* workspace() const { return static_cast<std::byte*>(slab_) + pool_bytes_; }
  // Of it, what is for one call at a time.
  std::byte* call_memory() const { return workspace() + workspace::kCall; }

  Stream stream() const { return stream_; }
  // For kernels that run beside those of stream(), after them where both are ready, and events to
  // join them.
  Stream side_stream() const { return side_stream_; }
  Event fork() const { return fork_; }
  Event join() const { return join_; }
  // Host calls that use the device begin with this: the calling thread may be a new one.
  absl::Status Enter() const;
  // Work put on stream() after this sees every upload that was made before.
  absl::Status AwaitUploads();

  // The host memory has been read when it returns.
  absl::Status Upload(void* device, const void* host, int64_t bytes);
  // Waits for stream().
  absl::Status Download(void* host, const void* device, int64_t bytes);
  // What `write` puts there goes to the device in the order of stream(); at most kStagingBytes.
  absl::Status UploadInOrder(void* device, int64_t bytes, absl::FunctionRef<void(void* to)> write);
  // Pinned memory that kernels reach, two pieces of kStagingBytes in turn; waits until what the
  // stream last did with the piece is over. Mark it after the launch that uses it.
  absl::StatusOr<void*> NextPinned();
  absl::Status MarkPinned();
  // More of it, kResultBytes, for what kernels say to the host at the end of a call.
  void* results() const { return results_; }
  absl::Status Synchronize();
  // Waits for stream() alone.
  absl::Status AwaitKernels();
  // Waits until there() is true, because a kernel on stream() has written to results(), or stream()
  // has ended. That is sooner, by the end of a kernel and what the driver does then; uploads that
  // are made later wait for that end, on the device.
  absl::Status AwaitResults(absl::FunctionRef<bool()> there);
  // What a launch on one of these streams returned. A kernel that fails is known to have
  // failed later: every failure names the kernels that were launched since stream() was last
  // waited for.
  absl::Status Launched(const LaunchResult& result);
  // A failure, with those names.
  absl::Status Describe(absl::Status status) const;

 private:
  Device() = default;
  absl::Status Wait(Stream stream, absl::string_view what);
  absl::Status Init(int32_t index, int64_t memory_bytes);

  int32_t index_ = 0;
  DeviceInfo info_;
  Architecture architecture_;
  void* slab_ = nullptr;
  int64_t pool_bytes_ = 0;
  Stream stream_ = nullptr, side_stream_ = nullptr;
  Event fork_ = nullptr, join_ = nullptr;
  PinnedRing ring_;
  void* results_ = nullptr;
  Event ended_[2] = {};  // of what stream_ did for results, in turn
  int turn_ = 0;
  std::vector<const char*> launched_;  // since stream_ was last waited for, each once

  absl::Mutex upload_mutex_;
  Stream upload_stream_ = nullptr;
  Event uploaded_ = nullptr;
  std::atomic<Event> behind_ = nullptr;  // that the next upload comes after
  PinnedRing upload_ring_ ABSL_GUARDED_BY(upload_mutex_);
  bool uploads_pending_ ABSL_GUARDED_BY(upload_mutex_) = false;  // that stream_ does not wait for
  bool uploads_running_ ABSL_GUARDED_BY(upload_mutex_) = false;  // since the last Synchronize
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_RUNTIME_DEVICE_H_
