#include "engine/gpu/runtime/launch_graphs.h"

#include <algorithm>
#include <utility>

#include "engine/gpu/runtime/device.h"

namespace blockd::gpu {
namespace {

// What `launch` puts on the stream, as a graph. The stream is as before, whatever happens.
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
  for (const Recorded& recorded : graphs_) (void)BLOCKD_GPU(GraphExecDestroy)(recorded.graph);
}

absl::Status LaunchGraphs::Run(std::span<const std::byte> key, Stream stream,
                               absl::FunctionRef<LaunchResult()> launch) {
  auto found = std::find_if(graphs_.begin(), graphs_.end(), [key](const Recorded& recorded) {
    return std::equal(key.begin(), key.end(), recorded.key.begin(), recorded.key.end());
  });
  if (found == graphs_.end()) {
    absl::Status status = MakeRoom(stream);
    Graph graph = nullptr;
    if (status.ok()) status = Record(stream, launch, &graph);
    Recorded recorded;
    if (status.ok()) status = ToStatus(Instantiate(&recorded.graph, graph), "making a graph");
    if (graph != nullptr) {
      const absl::Status destroyed =
          ToStatus(BLOCKD_GPU(GraphDestroy)(graph), "destroying a graph");
      if (status.ok()) status = destroyed;
    }
    if (recorded.graph != nullptr) {
      recorded.key.assign(key.begin(), key.end());
      found = graphs_.insert(graphs_.end(), std::move(recorded));
    }
    if (!status.ok()) return status;
  }
  found->last_use = ++uses_;
  return ToStatus(BLOCKD_GPU(GraphLaunch)(found->graph, stream), "launching a graph");
}

absl::Status LaunchGraphs::MakeRoom(Stream stream) {
  if (graphs_.size() < kMostGraphs) return absl::OkStatus();
  const auto oldest = std::min_element(
      graphs_.begin(), graphs_.end(),
      [](const Recorded& a, const Recorded& b) { return a.last_use < b.last_use; });
  // It may be on the stream still.
  absl::Status status = ToStatus(BLOCKD_GPU(StreamSynchronize)(stream), "kernels");
  if (!status.ok()) return status;
  status = ToStatus(BLOCKD_GPU(GraphExecDestroy)(oldest->graph), "destroying a graph");
  graphs_.erase(oldest);
  return status;
}

}  // namespace blockd::gpu
