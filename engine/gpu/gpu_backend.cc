#include "engine/gpu/gpu_backend.h"

#include <array>
#include <optional>
#include <utility>

#include "engine/gpu/factor_calls.h"
#include "engine/gpu/lockstep/launch.h"
#include "engine/gpu/lockstep/runner.h"
#include "engine/gpu/method.h"
#include "engine/gpu/runtime/card.h"
#include "engine/gpu/runtime/device.h"
#include "engine/gpu/segment/launch.h"
#include "engine/gpu/segment/runner.h"
#include "engine/gpu/solve_calls.h"
#include "engine/gpu/task_list/launch.h"
#include "engine/gpu/task_list/runner.h"
#include "engine/gpu/vectors/launch.h"
#include "engine/gpu/vectors/vector_calls.h"

namespace blockd {
namespace {

using gpu::Card;
using gpu::Device;
using gpu::DeviceLimits;
using gpu::LaunchResult;
using gpu::Method;
using gpu::Runner;

// What one track works with. Factorizations are of the factor track only.
struct TrackOnGpu {
  // early: kernels may be started before the one before has ended.
  TrackOnGpu(std::unique_ptr<Device> opened, const DeviceLimits& limits, bool early)
      : device(std::move(opened)), solve_calls(*device, limits, counters) {
    At(Method::kSegment) = gpu::segment::MakeRunner(*device, limits);
    At(Method::kLockstep) = gpu::lockstep::MakeRunner(*device, limits, early);
    At(Method::kTaskList) = gpu::task_list::MakeRunner(*device, limits, counters);
  }
  // Nothing may run when the graphs go, which is before the device does.
  ~TrackOnGpu() { device->Synchronize().IgnoreError(); }

  std::unique_ptr<Runner>& At(Method method) { return runners[static_cast<size_t>(method)]; }

  const std::unique_ptr<Device> device;
  gpu::Counters counters{*device};
  std::array<std::unique_ptr<Runner>, gpu::kMethods> runners;
  gpu::FactorCalls factor_calls{*device};
  gpu::SolveCalls solve_calls;
  gpu::VectorCalls vectors{*device};
};

class GpuBackend : public Backend {
 public:
  GpuBackend(std::unique_ptr<Card> card, const DeviceLimits& limits)
      : card_(std::move(card)), limits_(limits), pool_(card_->pool_base(), card_->pool_bytes()) {}

  absl::Status Open(bool early) {
    for (const Track track : {Track::kFactor, Track::kSolve}) {
      absl::StatusOr<std::unique_ptr<Device>> device = Device::Open(*card_, track);
      if (!device.ok()) return device.status();
      tracks_[static_cast<size_t>(track)].emplace(*std::move(device), limits_, early);
    }
    return absl::OkStatus();
  }

  const DeviceInfo& device() const override { return card_->info(); }
  CostModel costs(const Shape& shape) const override { return gpu::CostsOf(shape, limits_); }
  MemoryPool& pool() override { return pool_; }
  bool reads_host_memory() const override { return false; }

  absl::Status Write(void* device, const void* host, int64_t bytes) override {
    return card_->Write(device, host, bytes);
  }
  absl::Status Upload(Track track, void* device, const void* host, int64_t bytes) override {
    return On(track).device->Upload(device, host, bytes);
  }
  absl::Status Download(Track track, void* host, const void* device, int64_t bytes) override {
    return On(track).device->Download(host, device, bytes);
  }
  absl::Status Synchronize(Track track) override { return On(track).device->Synchronize(); }

  absl::Status PackColumns(Track track, Scalar scalar, void* packed, const void* columns_in,
                           int64_t n, int64_t rows, int64_t columns, int64_t first_column,
                           int64_t total_columns) override {
    return On(track).vectors.Pack(
        packed, columns_in, {n * ScalarBytes(scalar), rows / n, 0, 0, first_column, total_columns},
        columns);
  }
  absl::Status UnpackColumns(Track track, Scalar scalar, void* columns_out, const void* packed,
                             int64_t n, int64_t rows, int64_t columns, int64_t first_column,
                             int64_t total_columns) override {
    return On(track).vectors.Unpack(
        columns_out, packed, {n * ScalarBytes(scalar), rows / n, 0, 0, first_column, total_columns},
        columns);
  }
  absl::StatusOr<double> LogDeterminant(Track track, const EliminationPlan& plan,
                                        const void* factor) override {
    return On(track).vectors.LogDeterminant(plan, factor);
  }
  absl::StatusOr<std::vector<ResidualNorms>> Residual(Track track,
                                                      const BlockTridiagonalView& matrix,
                                                      const void* x, const void* b, void* r,
                                                      int64_t num_rhs) override {
    return On(track).vectors.Residual(matrix, x, b, r, num_rhs);
  }
  absl::Status CopyColumns(Track track, const Shape& shape, void* to, const void* from,
                           const std::vector<bool>& columns) override {
    return On(track).vectors.CopyColumns(shape, to, from, columns);
  }
  absl::Status Add(Track track, Scalar scalar, void* y, const void* x, int64_t scalars) override {
    return On(track).vectors.Add(scalar, y, x, scalars);
  }

  int64_t FactorScratchBytes(const EliminationPlan& plan, int64_t systems) const override {
    const Method method = gpu::FactorMethod(plan.shape(), limits_);
    const TrackOnGpu& track = *tracks_[static_cast<size_t>(Track::kFactor)];
    return track.factor_calls.ScratchBytes(plan, systems,
                                           *track.runners[static_cast<size_t>(method)]);
  }
  absl::StatusOr<std::vector<FactorReport>> Factor(const FactorBatch& batch,
                                                   absl::FunctionRef<bool()> wanted) override {
    const Method method = gpu::FactorMethod(batch.plan->shape(), limits_);
    TrackOnGpu& track = On(Track::kFactor);
    return track.factor_calls.Factor(batch, *track.At(method), wanted);
  }
  absl::Status Solve(Track on, const SolveBatch& batch, absl::FunctionRef<bool()> wanted) override {
    const Method method = gpu::SolveMethod(batch.plan->shape(), limits_);
    TrackOnGpu& track = On(on);
    return track.solve_calls.Solve(batch, *track.At(method), wanted);
  }

 private:
  TrackOnGpu& On(Track track) { return *tracks_[static_cast<size_t>(track)]; }

  const std::unique_ptr<Card> card_;
  const DeviceLimits limits_;
  MemoryPool pool_;
  std::array<std::optional<TrackOnGpu>, kTracks> tracks_;
};

}  // namespace

const char* GpuBackendName() { return gpu::kBackendName; }

absl::StatusOr<std::unique_ptr<Backend>> CreateGpuBackend(const BackendOptions& options) {
  absl::StatusOr<std::unique_ptr<Card>> card = Card::Open(options.device, options.memory_bytes);
  if (!card.ok()) return card.status();
  const absl::StatusOr<DeviceLimits> limits = (*card)->Limits();
  if (!limits.ok()) return limits.status();
  bool early = false;
  for (const LaunchResult& result :
       {gpu::segment::PrepareFactor(*limits), gpu::segment::PrepareSolve(*limits),
        gpu::lockstep::PrepareFactor(*limits, &early), gpu::lockstep::PrepareSolve(*limits),
        gpu::task_list::PrepareFactor(*limits), gpu::task_list::PrepareSolve(),
        gpu::PrepareVectors()}) {
    absl::Status status = gpu::ToStatus(result.error, result.kernel);
    if (!status.ok()) return status;
  }
  auto backend = std::make_unique<GpuBackend>(*std::move(card), *limits);
  absl::Status status = backend->Open(early);
  if (!status.ok()) return status;
  return backend;
}

}  // namespace blockd
