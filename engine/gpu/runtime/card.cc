#include "engine/gpu/runtime/card.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "engine/gpu/arch/host_device.h"
#include "engine/gpu/runtime/pinned_ring.h"

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

// Errors here have nobody to hear them.
ReportedEnds::~ReportedEnds() {
  absl::MutexLock lock(&mutex_);
  for (Event event : events_) {
    if (event) (void)BLOCKD_GPU(EventDestroy)(event);
  }
}

absl::Status ReportedEnds::Init() {
  absl::MutexLock lock(&mutex_);
  absl::Status status;
  for (Event& event : events_) {
    if (!status.ok()) break;
    status =
        ToStatus(BLOCKD_GPU(EventCreateWithFlags)(&event, BLOCKD_GPU(EventDisableTiming)), "event");
  }
  return status;
}

absl::Status ReportedEnds::Record(Stream stream) {
  absl::MutexLock lock(&mutex_);
  return ToStatus(BLOCKD_GPU(EventRecord)(events_[(reported_ + 1) % 2], stream),
                  "the end of kernels");
}

void ReportedEnds::Report() {
  absl::MutexLock lock(&mutex_);
  ++reported_;
}

absl::Status ReportedEnds::Await(Stream stream, int64_t* seen) {
  absl::MutexLock lock(&mutex_);
  if (*seen == reported_) return absl::OkStatus();
  absl::Status status = ToStatus(BLOCKD_GPU(StreamWaitEvent)(stream, events_[reported_ % 2], 0),
                                 "the end of kernels");
  if (status.ok()) *seen = reported_;
  return status;
}

absl::StatusOr<int32_t> Card::Count() {
  int devices = 0;
  const Error counted = BLOCKD_GPU(GetDeviceCount)(&devices);
  if (counted != kSuccess) return NoDevice(counted);
  if (devices == 0) return absl::NotFoundError(absl::StrCat("no ", kBackendName, " device"));
  return devices;
}

absl::StatusOr<std::unique_ptr<Card>> Card::Open(int32_t index, int64_t memory_bytes) {
  std::unique_ptr<Card> card(new Card);
  absl::Status status = card->Init(index, memory_bytes);
  if (!status.ok()) return status;
  return card;
}

absl::Status Card::Init(int32_t index, int64_t memory_bytes) {
  const absl::StatusOr<int32_t> devices = Count();
  if (!devices.ok()) return devices.status();
  if (index < 0 || index >= *devices) {
    return absl::NotFoundError(
        absl::StrCat("no ", kBackendName, " device ", index, ", there are ", *devices));
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
  constexpr int64_t kWorkspaces = kTracks * workspace::kBytes;
  if (pool_bytes_ > static_cast<int64_t>(free) - kWorkspaces - kGraphBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("asked for a pool of ", pool_bytes_,
                                                     " bytes, the device has ", free, " free"));
  }
  status = ToStatus(BLOCKD_GPU(Malloc)(&slab_, static_cast<size_t>(pool_bytes_ + kWorkspaces)),
                    "device memory");
  // Somebody else may have taken it since.
  if (!status.ok()) return absl::ResourceExhaustedError(status.message());
  status = ends_.Init();
  if (!status.ok()) return status;
  writes_ = std::make_unique<CardWrites>(&ends_);
  return writes_->Init();
}

// Errors here have nobody to hear them.
Card::~Card() {
  if (!Enter().ok()) return;
  writes_.reset();
  if (slab_) (void)BLOCKD_GPU(Free)(slab_);
}

absl::StatusOr<DeviceLimits> Card::Limits() const {
  int multiprocessor = 0, block = 0;
  absl::Status status = ToStatus(QueryShared(index_, &multiprocessor, &block), "shared memory");
  if (!status.ok()) return status;
  return DeviceLimits{info_.parallelism, multiprocessor, block, architecture_};
}

absl::Status Card::Enter() const {
  return ToStatus(BLOCKD_GPU(SetDevice)(index_), "choosing the device");
}

absl::Status Card::Write(void* device, std::span<const Backend::HostPiece> pieces) {
  absl::Status status = Enter();
  if (!status.ok()) return status;
  return writes_->Write(static_cast<std::byte*>(device), pieces);
}

absl::Status Card::AwaitWrites() {
  absl::Status status = Enter();
  return status.ok() ? writes_->Await() : status;
}

}  // namespace blockd::gpu
