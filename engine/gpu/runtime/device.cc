#include "engine/gpu/runtime/device.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/gpu/arch/host_device.h"

namespace blockd::gpu {
namespace {

Architecture ArchitectureOf(const DeviceProperties& properties) {
  if constexpr (kIsAmd) return HipArchitecture(InstructionSetOf(properties));
  return CudaArchitecture(properties.major, properties.minor);
}

// Why no device could be counted. Without a driver the runtime says that it is too old.
absl::Status NoDevice(Error error) {
  (void)BLOCKD_GPU(GetLastError)();  // or the next launch would seem to have failed so
  int driver = 0, runtime = 0;       // 13000 for CUDA 13.0
  (void)BLOCKD_GPU(DriverGetVersion)(&driver);
  (void)BLOCKD_GPU(RuntimeGetVersion)(&runtime);
  std::string why = BLOCKD_GPU(GetErrorString)(error);
  if (driver == 0) {
    why = "no driver";
  } else if (error == BLOCKD_GPU(ErrorInsufficientDriver)) {
    why = absl::StrCat("the driver is for version ", driver, ", needed is ", runtime);
  }
  return absl::NotFoundError(absl::StrCat("no ", kBackendName, " device: ", why));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> Device::Open(int32_t index, int64_t memory_bytes) {
  std::unique_ptr<Device> device(new Device);
  absl::Status status = device->Init(index, memory_bytes);
  if (!status.ok()) return status;
  return device;
}

absl::Status Device::Init(int32_t index, int64_t memory_bytes) {
  int devices = 0;
  const Error counted = BLOCKD_GPU(GetDeviceCount)(&devices);
  if (counted != kSuccess) return NoDevice(counted);
  if (index < 0 || index >= devices) {
    return absl::NotFoundError(
        absl::StrCat("no ", kBackendName, " device ", index, ", there are ", devices));
  }
  index_ = index;
  absl::Status status = Enter();
  if (!status.ok()) return status;
  DeviceProperties properties;
  status = ToStatus(BLOCKD_GPU(GetDeviceProperties)(&properties, index), "device properties");
  if (!status.ok()) return status;
  info_.backend = kBackendName;
  info_.name = properties.name;
  if (!IsCompiledFor(properties)) {
    return absl::NotFoundError(absl::StrCat("no ", kBackendName, " device that this build is for: ",
                                            info_.name, " is ", InstructionSetOf(properties)));
  }
  info_.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  info_.parallelism = properties.multiProcessorCount;
  architecture_ = ArchitectureOf(properties);
  size_t free = 0, total = 0;
  status = ToStatus(BLOCKD_GPU(MemGetInfo)(&free, &total), "free memory");
  if (!status.ok()) return status;
  pool_bytes_ = memory_bytes > 0 ? memory_bytes : static_cast<int64_t>(free / 4 * 3);
  pool_bytes_ = pool_bytes_ / MemoryPool::kAlignment * MemoryPool::kAlignment;
  if (pool_bytes_ > static_cast<int64_t>(free) - workspace::kBytes - kGraphBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("asked for a pool of ", pool_bytes_,
                                                     " bytes, the device has ", free, " free"));
  }
  status =
      ToStatus(BLOCKD_GPU(Malloc)(&slab_, static_cast<size_t>(pool_bytes_ + workspace::kBytes)),
               "device memory");
  // Somebody else may have taken it since.
  if (!status.ok()) return absl::ResourceExhaustedError(status.message());
  int last = 0, first = 0;  // priorities
  status = ToStatus(BLOCKD_GPU(DeviceGetStreamPriorityRange)(&last, &first), "stream");
  const auto make_stream = [&status](Stream* stream, int priority) {
    if (!status.ok()) return;
    status = ToStatus(
        BLOCKD_GPU(StreamCreateWithPriority)(stream, BLOCKD_GPU(StreamNonBlocking), priority),
        "stream");
  };
  make_stream(&stream_, first);
  make_stream(&side_stream_, last);
  make_stream(&upload_stream_, last);
  for (Event* event : {&uploaded_, &fork_, &join_, &ended_[0], &ended_[1]}) {
    if (!status.ok()) break;
    status =
        ToStatus(BLOCKD_GPU(EventCreateWithFlags)(event, BLOCKD_GPU(EventDisableTiming)), "event");
  }
  if (status.ok()) {
    status = ToStatus(BLOCKD_GPU(MemsetAsync)(workspace(), 0, workspace::kBytes, stream_),
                      "clearing the workspace");
  }
  if (status.ok()) status = ToStatus(AllocatePinned(&results_, kResultBytes), "pinned memory");
  if (status.ok()) status = ring_.Init();
  absl::MutexLock lock(&upload_mutex_);
  if (status.ok()) status = upload_ring_.Init();
  return status;
}

// Errors here have nobody to hear them.
Device::~Device() {
  if (!Enter().ok()) return;
  for (Stream stream : {stream_, side_stream_, upload_stream_}) {
    if (stream) (void)BLOCKD_GPU(StreamSynchronize)(stream);
  }
  for (Event event : {uploaded_, fork_, join_, ended_[0], ended_[1]}) {
    if (event) (void)BLOCKD_GPU(EventDestroy)(event);
  }
  for (Stream stream : {stream_, side_stream_, upload_stream_}) {
    if (stream) (void)BLOCKD_GPU(StreamDestroy)(stream);
  }
  if (results_) (void)FreePinned(results_);
  if (slab_) (void)BLOCKD_GPU(Free)(slab_);
}

absl::StatusOr<DeviceLimits> Device::Limits() const {
  int multiprocessor = 0, block = 0;
  absl::Status status = ToStatus(QueryShared(index_, &multiprocessor, &block), "shared memory");
  if (!status.ok()) return status;
  return DeviceLimits{info_.parallelism, multiprocessor, block, architecture_};
}

absl::Status Device::Enter() const {
  return ToStatus(BLOCKD_GPU(SetDevice)(index_), "choosing the device");
}

absl::Status Device::AwaitUploads() {
  absl::Status status = Enter();
  absl::MutexLock lock(&upload_mutex_);
  if (!status.ok() || !uploads_pending_) return status;
  uploads_pending_ = false;
  return ToStatus(BLOCKD_GPU(StreamWaitEvent)(stream_, uploaded_, 0), "waiting for uploads");
}

absl::Status Device::Upload(void* device, const void* host, int64_t bytes) {
  absl::Status status = Enter();
  absl::MutexLock lock(&upload_mutex_);
  uploads_pending_ = uploads_running_ = true;
  const Event behind = behind_.exchange(nullptr);
  if (status.ok() && behind != nullptr) {
    status = ToStatus(BLOCKD_GPU(StreamWaitEvent)(upload_stream_, behind, 0), "upload");
  }
  for (int64_t at = 0; status.ok() && at < bytes; at += kStagingBytes) {
    const int64_t part = std::min(kStagingBytes, bytes - at);
    const absl::StatusOr<void*> pinned = upload_ring_.Next();
    if (!pinned.ok()) return pinned.status();
    std::memcpy(*pinned, static_cast<const std::byte*>(host) + at, part);
    status = ToStatus(BLOCKD_GPU(MemcpyAsync)(static_cast<std::byte*>(device) + at, *pinned,
                                              static_cast<size_t>(part),
                                              BLOCKD_GPU(MemcpyHostToDevice), upload_stream_),
                      "upload");
    if (status.ok()) status = upload_ring_.Mark(upload_stream_);
  }
  if (status.ok()) status = ToStatus(BLOCKD_GPU(EventRecord)(uploaded_, upload_stream_), "upload");
  return status;
}

absl::StatusOr<void*> Device::NextPinned() {
  absl::StatusOr<void*> pinned = ring_.Next();
  if (!pinned.ok()) return Describe(pinned.status());
  return pinned;
}

absl::Status Device::MarkPinned() { return Describe(ring_.Mark(stream_)); }

absl::Status Device::UploadInOrder(void* device, int64_t bytes,
                                   absl::FunctionRef<void(void* to)> write) {
  absl::StatusOr<void*> pinned = NextPinned();
  if (!pinned.ok()) return pinned.status();
  write(*pinned);
  absl::Status status =
      Describe(ToStatus(BLOCKD_GPU(MemcpyAsync)(device, *pinned, static_cast<size_t>(bytes),
                                                BLOCKD_GPU(MemcpyHostToDevice), stream_),
                        "upload"));
  return status.ok() ? MarkPinned() : status;
}

absl::Status Device::Download(void* host, const void* device, int64_t bytes) {
  absl::Status status = AwaitUploads();
  for (int64_t at = 0; status.ok() && at < bytes; at += kStagingBytes) {
    const int64_t part = std::min(kStagingBytes, bytes - at);
    absl::StatusOr<void*> pinned = NextPinned();
    if (!pinned.ok()) return pinned.status();
    status = Describe(ToStatus(
        BLOCKD_GPU(MemcpyAsync)(*pinned, static_cast<const std::byte*>(device) + at,
                                static_cast<size_t>(part), BLOCKD_GPU(MemcpyDeviceToHost), stream_),
        "download"));
    if (status.ok()) status = Wait(stream_, "download");
    if (status.ok()) std::memcpy(static_cast<std::byte*>(host) + at, *pinned, part);
  }
  return status;
}

absl::Status Device::Synchronize() {
  absl::Status status = AwaitKernels();
  bool uploads = false;
  {
    absl::MutexLock lock(&upload_mutex_);
    uploads = std::exchange(uploads_running_, false);
  }
  if (!uploads) return status;
  const absl::Status uploaded = Wait(upload_stream_, "uploads");
  return status.ok() ? uploaded : status;
}

absl::Status Device::AwaitKernels() {
  absl::Status status = Enter();
  return status.ok() ? Wait(stream_, "kernels") : status;
}

absl::Status Device::AwaitResults(absl::FunctionRef<bool()> there) {
  const Event ended = ended_[turn_];
  absl::Status status =
      Describe(ToStatus(BLOCKD_GPU(EventRecord)(ended, stream_), "the end of kernels"));
  // A kernel that fails says nothing.
  constexpr int64_t kLooksAQuery = 1 << 14;
  for (int64_t looks = 1; status.ok() && !there(); ++looks) {
    if (looks % kLooksAQuery != 0) continue;
    if (BLOCKD_GPU(StreamQuery)(stream_) != BLOCKD_GPU(ErrorNotReady)) {
      status = Wait(stream_, "kernels");
      if (status.ok()) (void)there();
      return status;
    }
    (void)BLOCKD_GPU(GetLastError)();  // or the next launch would seem not to be ready
  }
  if (!status.ok()) return status;
  turn_ = 1 - turn_;
  behind_ = ended;
  return status;
}

absl::Status Device::Wait(Stream stream, absl::string_view what) {
  absl::Status status = Describe(ToStatus(BLOCKD_GPU(StreamSynchronize)(stream), what));
  if (status.ok() && stream == stream_) launched_.clear();
  return status;
}

absl::Status Device::Launched(const LaunchResult& result) {
  if (std::find(launched_.begin(), launched_.end(), result.kernel) == launched_.end()) {
    launched_.push_back(result.kernel);
  }
  return Describe(ToStatus(result.error, result.kernel));
}

absl::Status Device::Describe(absl::Status status) const {
  if (status.ok() || launched_.empty()) return status;
  return absl::InternalError(absl::StrCat(
      status.message(), "; launched since all was well: ", absl::StrJoin(launched_, ", ")));
}

}  // namespace blockd::gpu
