#include "engine/gpu/runtime/device.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/gpu/runtime/reachable_memory.h"

namespace blockd::gpu {
namespace {

absl::Status MakeStream(int priority, Stream* stream) {
  return ToStatus(
      BLOCKD_GPU(StreamCreateWithPriority)(stream, BLOCKD_GPU(StreamNonBlocking), priority),
      "stream");
}
absl::Status MakeEvent(Event* event) {
  return ToStatus(BLOCKD_GPU(EventCreateWithFlags)(event, BLOCKD_GPU(EventDisableTiming)), "event");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> Device::Open(Card& card, Track track) {
  std::unique_ptr<Device> device(new Device(card, track));
  absl::Status status = device->Init();
  if (!status.ok()) return status;
  return device;
}

absl::Status Device::Init() {
  absl::Status status = Begin();
  int last = 0, first = 0;  // priorities, of which the first is the smallest number
  if (status.ok()) {
    status = ToStatus(BLOCKD_GPU(DeviceGetStreamPriorityRange)(&last, &first), "stream");
  }
  if (status.ok() && track_ == Track::kSolve) status = MakeStream(first, &stream_);
  if (status.ok() && track_ == Track::kFactor) {
    // Between the two, where there is something between.
    status = MakeStream(last - first > 1 ? first + 1 : first, &stream_);
    if (status.ok()) status = MakeStream(last, &side_stream_);
    for (Event* event : {&fork_, &join_}) {
      if (status.ok()) status = MakeEvent(event);
    }
    if (status.ok()) status = ToStatus(AllocatePinned(&results_, kResultBytes), "pinned memory");
  }
  if (status.ok()) {
    status = ToStatus(BLOCKD_GPU(MemsetAsync)(workspace(), 0, workspace::kBytes, stream_),
                      "clearing the workspace");
  }
  if (status.ok()) status = turns_.Init();
  if (status.ok()) status = marks_.Init();
  return status.ok() ? ring_.Init() : status;
}

// Errors here have nobody to hear them.
Device::~Device() {
  if (!card_.Enter().ok()) return;
  for (Stream stream : {stream_, side_stream_}) {
    if (stream) (void)BLOCKD_GPU(StreamSynchronize)(stream);
  }
  for (Event event : {fork_, join_}) {
    if (event) (void)BLOCKD_GPU(EventDestroy)(event);
  }
  for (Stream stream : {stream_, side_stream_}) {
    if (stream) (void)BLOCKD_GPU(StreamDestroy)(stream);
  }
  if (results_) (void)FreePinned(results_);
}

absl::Status Device::Begin() {
  absl::Status status = card_.Enter();
  // On the factor track it is the order of the stream.
  if (!status.ok() || track_ == Track::kFactor) return status;
  return card_.ends().Await(stream_, &ends_seen_);
}

absl::StatusOr<uint32_t> Device::NextEpoch() {
  if (++epoch_ != 0) return epoch_;
  absl::Status status = ToStatus(
      BLOCKD_GPU(MemsetAsync)(flags(), 0, workspace::kNumFlags * sizeof(uint32_t), stream_),
      "clearing the flags");
  if (!status.ok()) return status;
  return ++epoch_;
}

absl::Status Device::Upload(void* device, const void* host, int64_t bytes) {
  absl::Status status = Begin();
  for (int64_t at = 0; status.ok() && at < bytes; at += Card::kCopyBytes) {
    const int64_t part = std::min(Card::kCopyBytes, bytes - at);
    status = UploadInOrder(static_cast<std::byte*>(device) + at, part, [&](void* to) {
      std::memcpy(to, static_cast<const std::byte*>(host) + at, part);
    });
  }
  return status;
}

absl::StatusOr<void*> Device::NextPinned() {
  absl::StatusOr<void*> pinned = ring_.Next();
  if (!pinned.ok()) return Describe(pinned.status());
  return pinned;
}

absl::Status Device::MarkPinned() { return Describe(ring_.Mark(stream_)); }

absl::Status Device::AwaitTurn() { return Describe(turns_.Next().status()); }

absl::Status Device::MarkTurn() { return Describe(turns_.Mark(stream_)); }

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

absl::Status Device::Fetch(void* pinned, const void* device, int64_t bytes) {
  return Describe(ToStatus(BLOCKD_GPU(MemcpyAsync)(pinned, device, static_cast<size_t>(bytes),
                                                   BLOCKD_GPU(MemcpyDeviceToHost), stream_),
                           "download"));
}

absl::Status Device::Download(void* host, const void* device, int64_t bytes) {
  absl::Status status = Begin();
  if (status.ok()) {
    status = ReachableMemory::Look().Has(host, bytes) ? Fetch(host, device, bytes)
                                                      : FetchInParts(host, device, bytes);
  }
  return status.ok() ? Wait("download") : status;
}

absl::Status Device::FetchInParts(void* host, const void* device, int64_t bytes) {
  struct Part {
    const void* pinned = nullptr;
    Event there = nullptr;
    int64_t at = 0, bytes = 0;
  };
  const auto take = [&](const Part& part) {
    if (part.bytes == 0) return absl::OkStatus();
    absl::Status status = Describe(ToStatus(BLOCKD_GPU(EventSynchronize)(part.there), "download"));
    if (status.ok()) std::memcpy(static_cast<std::byte*>(host) + part.at, part.pinned, part.bytes);
    return status;
  };
  Part last;
  for (int64_t at = 0; at < bytes; at += kStagingBytes) {
    absl::StatusOr<void*> pinned = NextPinned();
    if (!pinned.ok()) return pinned.status();
    Part part{.pinned = *pinned, .at = at, .bytes = std::min(kStagingBytes, bytes - at)};
    absl::Status status = Fetch(*pinned, static_cast<const std::byte*>(device) + at, part.bytes);
    if (status.ok()) status = MarkPinned();
    part.there = ring_.last();
    // The host takes one out of its piece while the next one comes.
    if (status.ok()) status = take(std::exchange(last, part));
    if (!status.ok()) return status;
  }
  return take(last);
}

absl::Status Device::Synchronize() {
  absl::Status status = card_.Enter();
  return status.ok() ? Wait("kernels") : status;
}

absl::Status Device::AwaitResults(absl::FunctionRef<bool()> there) {
  absl::Status status = Describe(card_.ends().Record(stream_));
  // A kernel that fails says nothing.
  constexpr int64_t kLooksAQuery = 1 << 14;
  for (int64_t looks = 1; status.ok() && !there(); ++looks) {
    if (looks % kLooksAQuery != 0) continue;
    if (BLOCKD_GPU(StreamQuery)(stream_) != BLOCKD_GPU(ErrorNotReady)) {
      status = Wait("kernels");
      if (status.ok()) (void)there();
      return status;
    }
    (void)BLOCKD_GPU(GetLastError)();  // or the next launch would seem not to be ready
  }
  if (status.ok()) card_.ends().Report();
  return status;
}

absl::Status Device::Wait(absl::string_view what) {
  absl::Status status = Describe(ToStatus(BLOCKD_GPU(StreamSynchronize)(stream_), what));
  if (status.ok()) launched_.clear();
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
