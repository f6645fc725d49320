#include "engine/gpu/runtime/launch_graphs.h"

#include <algorithm>

namespace blockd::gpu {
namespace {

// Bytes that each launch in a graph, and the graph itself, are taken to need; and the multiple of
// this estimate up to which measured bytes are believed: others may have taken memory meanwhile.
constexpr int64_t kLaunchBytes = int64_t{8} << 10, kGraphBytes = int64_t{256} << 10;
constexpr int64_t kMostTimes = 8;

// 0 if the driver does not say.
int64_t FreeBytes() {
  size_t free = 0, total = 0;
  return BLOCKD_GPU(MemGetInfo)(&free, &total) == kSuccess ? static_cast<int64_t>(free) : 0;
}

// Records what `launch` puts on the stream as a graph. The stream is as before, whatever happens.
absl::Status Record(Stream stream, absl::FunctionRef<LaunchResult()> launch, Graph* graph) {
  // Other threads go on with what they do: uploads.
  absl::Status status =
      ToStatus(BLOCKD_GPU(StreamBeginCapture)(stream, BLOCKD_GPU(StreamCaptureModeThreadLocal)),
               "recording a graph");
  if (!status.ok()) return status;
  const LaunchResult result = launch();
  const Error ended = BLOCKD_GPU(StreamEndCapture)(stream, graph);
  // A launch that failed is why the recording did.
  if (!result.ok()) return ToStatus(result.error, result.kernel);
  return ToStatus(ended, "the end of recording a graph");
}

}  // namespace

// Errors here have nobody to hear them.
LaunchGraphs::~LaunchGraphs() {
  while (graphs_.size() > 0) (void)BLOCKD_GPU(GraphExecDestroy)(graphs_.TakeOldest().graph);
}

absl::Status LaunchGraphs::Run(std::span<const std::byte> key,
                               absl::FunctionRef<LaunchResult()> launch) {
  const Recorded* recorded = graphs_.Find(key);
  if (recorded == nullptr) {
    const absl::StatusOr<Recorded> made = Make(launch);
    if (!made.ok()) return made.status();
    recorded = graphs_.Add(key, *made);
    bytes_ += made->bytes;
  }
  return ToStatus(BLOCKD_GPU(GraphLaunch)(recorded->graph, device_.stream()), "launching a graph");
}

absl::StatusOr<LaunchGraphs::Recorded> LaunchGraphs::Make(
    absl::FunctionRef<LaunchResult()> launch) {
  Graph graph = nullptr;
  Recorded made;
  size_t launches = 0;
  absl::Status status = Record(device_.stream(), launch, &graph);
  if (status.ok()) {
    status = ToStatus(BLOCKD_GPU(GraphGetNodes)(graph, nullptr, &launches), "a graph's size");
  }
  if (status.ok()) {
    made.bytes = kGraphBytes + static_cast<int64_t>(launches) * kLaunchBytes;
    status = MakeRoom(made.bytes);
  }
  const int64_t free_before = FreeBytes();
  if (status.ok()) status = ToStatus(Instantiate(&made.graph, graph), "making a graph");
  made.bytes = std::clamp(free_before - FreeBytes(), made.bytes, kMostTimes * made.bytes);
  if (graph != nullptr) {
    const absl::Status destroyed = ToStatus(BLOCKD_GPU(GraphDestroy)(graph), "destroying a graph");
    if (status.ok()) status = destroyed;
  }
  if (status.ok()) return made;
  if (made.graph != nullptr) (void)BLOCKD_GPU(GraphExecDestroy)(made.graph);
  return status;
}

absl::Status LaunchGraphs::MakeRoom(int64_t bytes) {
  const auto is_full = [&] {
    return graphs_.size() >= kMostGraphs || (graphs_.size() > 0 && bytes_ + bytes > kMostBytes);
  };
  if (!is_full()) return absl::OkStatus();
  // They may be on the stream still.
  absl::Status status = ToStatus(BLOCKD_GPU(StreamSynchronize)(device_.stream()), "kernels");
  while (status.ok() && is_full()) {
    const Recorded oldest = graphs_.TakeOldest();
    bytes_ -= oldest.bytes;
    status = ToStatus(BLOCKD_GPU(GraphExecDestroy)(oldest.graph), "destroying a graph");
  }
  return status;
}

}  // namespace blockd::gpu
