#include "engine/gpu/gpu_backend.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "engine/gpu/factor_calls.h"
#include "engine/gpu/information/information_calls.h"
#include "engine/gpu/information/launch.h"
#include "engine/gpu/inverse/inverse_calls.h"
#include "engine/gpu/inverse/launch.h"
#include "engine/gpu/lockstep/launch.h"
#include "engine/gpu/lockstep/lockstep.h"
#include "engine/gpu/lockstep/runner.h"
#include "engine/gpu/method.h"
#include "engine/gpu/runtime/card.h"
#include "engine/gpu/runtime/device.h"
#include "engine/gpu/runtime/gathered_upload.h"
#include "engine/gpu/runtime/reachable_memory.h"
#include "engine/gpu/segment/launch.h"
#include "engine/gpu/segment/runner.h"
#include "engine/gpu/solve_calls.h"
#include "engine/gpu/substitution/launch.h"
#include "engine/gpu/substitution/runner.h"
#include "engine/gpu/task_list/launch.h"
#include "engine/gpu/task_list/runner.h"
#include "engine/gpu/vectors/border_calls.h"
#include "engine/gpu/vectors/border_launch.h"
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

// The objects that one track works with. Only the factor track factors.
struct TrackOnGpu {
  // early: kernels may be started before the one before has ended.
  TrackOnGpu(std::unique_ptr<Device> opened, const DeviceLimits& limits, bool early)
      : device(std::move(opened)),
        solve_calls(*device, limits, counters),
        inverse_calls(*device, limits) {
    At(Method::kSegment) = gpu::segment::MakeRunner(*device, limits);
    At(Method::kLockstep) = gpu::lockstep::MakeRunner(*device, limits, early);
    At(Method::kTaskList) = gpu::task_list::MakeRunner(*device, limits, counters);
    At(Method::kSubstitution) = gpu::substitution::MakeRunner(*device);
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
  gpu::BorderCalls border{*device};
  gpu::inverse::InverseCalls inverse_calls;
};

class GpuBackend : public Backend {
 public:
  GpuBackend(std::unique_ptr<Card> card, const DeviceLimits& limits)
      : card_(std::move(card)), limits_(limits), pool_(card_->pool_base(), card_->pool_bytes()) {}

  absl::Status Open(bool early, int64_t host_memory_bytes) {
    if (host_memory_bytes > 0) {
      absl::StatusOr<std::shared_ptr<MemoryPool>> pinned = gpu::MakePinnedPool(host_memory_bytes);
      if (!pinned.ok()) return pinned.status();
      host_memory_ = *std::move(pinned);
    }
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

  absl::Status Write(void* device, std::span<const HostPiece> pieces) override {
    return card_->Write(device, pieces);
  }
  absl::Status AwaitWrites() override { return card_->AwaitWrites(); }
  absl::Status Upload(Track track, void* device, const void* host, int64_t bytes) override {
    return On(track).device->Upload(device, host, bytes);
  }
  absl::Status UploadMany(Track track, std::span<const HostCopy> copies) override {
    return gpu::UploadGathered(*On(track).device, copies);
  }
  absl::Status Download(Track track, void* host, const void* device, int64_t bytes) override {
    return On(track).device->Download(host, device, bytes);
  }
  absl::Status Synchronize(Track track) override { return On(track).device->Synchronize(); }

  absl::StatusOr<int64_t> Mark(Track track) override { return On(track).device->Mark(); }
  absl::StatusOr<std::optional<TrackTimes>> Await(Track track, int64_t mark) override {
    absl::Status status = card_->Enter();
    if (!status.ok()) return status;
    return On(track).device->marks().Await(mark);
  }

  absl::Status PackColumns(Track track, const Shape& shape,
                           std::span<const HostColumns> columns) override {
    return On(track).vectors.Pack(shape, columns);
  }
  absl::Status UnpackColumns(Track track, const Shape& shape,
                             std::span<const HostColumns> columns) override {
    return On(track).vectors.Unpack(shape, columns);
  }
  std::shared_ptr<MemoryPool> host_memory() override { return host_memory_; }

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
  absl::Status MultiplyBorder(Track track, const BorderColumns& y, const void* v, int64_t columns,
                              double* products) override {
    return On(track).border.Multiply(y, v, columns, products);
  }
  absl::Status AddBorder(Track track, const BorderColumns& y, const double* x, void* v,
                         int64_t columns, bool add) override {
    return On(track).border.Add(y, x, v, columns, add);
  }
  absl::Status AddBorderSquares(Track track, const BorderColumns& h, InverseParts parts,
                                void* diagonal, void* coupling) override {
    return On(track).border.AddSquares(h, parts, diagonal, coupling);
  }

  absl::Status FormInformation(const InformationSteps& steps) override {
    return gpu::information::Run(*On(Track::kFactor).device, steps);
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
    absl::StatusOr<std::vector<FactorReport>> reports =
        track.factor_calls.Factor(batch, *track.At(method), wanted);
    if (!reports.ok()) return reports;
    absl::Status status = FactorBySubstitution(batch, wanted, *reports);
    if (!status.ok()) return status;
    return reports;
  }
  absl::Status Solve(Track on, const SolveBatch& batch, absl::FunctionRef<bool()> wanted) override {
    const Shape& shape = batch.plan->shape();
    const Method method = batch.part == SolvePart::kWhole ? gpu::SolveMethod(shape, limits_)
                                                          : gpu::HalfSolveMethod(shape);
    const auto substitutes = [](const SolveSystem& system) { return system.substitutes; };
    if (std::none_of(batch.systems.begin(), batch.systems.end(), substitutes)) {
      return SolveBy(method, on, batch, wanted);
    }
    std::vector<SolveSystem> systems(batch.systems.begin(), batch.systems.end());
    const auto others = std::stable_partition(systems.begin(), systems.end(), substitutes);
    SolveBatch part = batch;
    part.systems = {systems.begin(), others};
    absl::Status status = SolveBy(Method::kSubstitution, on, part, wanted);
    part.systems = {others, systems.end()};
    if (status.ok() && !part.systems.empty()) status = SolveBy(method, on, part, wanted);
    return status;
  }
  absl::Status InvertTriangles(Track track, const EliminationPlan& plan, const void* factor,
                               void* out) override {
    return gpu::substitution::InvertTriangles(*On(track).device, plan, factor, out);
  }
  int64_t InverseScratchBytes(const EliminationPlan& plan, int64_t first_block,
                              int64_t num_blocks) const override {
    return gpu::inverse::ScratchBytes(plan, first_block, num_blocks, limits_);
  }
  absl::Status SelectedInverse(Track on, const InverseRequest& request,
                               absl::FunctionRef<bool()> wanted) override {
    const int tile = gpu::lockstep::TileOf(request.plan->shape(), limits_);
    return On(on).inverse_calls.Run(request, tile, wanted);
  }

 private:
  absl::Status SolveBy(Method method, Track on, const SolveBatch& batch,
                       absl::FunctionRef<bool()> wanted) {
    TrackOnGpu& track = On(on);
    return track.solve_calls.Solve(batch, *track.At(method), wanted);
  }

  // Factors again the systems of a batch that are not accurate enough, or not positive definite, by
  // multiplication with inv(L).
  absl::Status FactorBySubstitution(const FactorBatch& batch, absl::FunctionRef<bool()> wanted,
                                    std::vector<FactorReport>& reports) {
    std::vector<FactorSystem> systems;
    std::vector<size_t> places;
    for (size_t i = 0; i < reports.size(); ++i) {
      if (!reports[i].failure && reports[i].growth <= kMostGrowth) continue;
      systems.push_back(batch.systems[i]);
      places.push_back(i);
    }
    if (systems.empty()) return absl::OkStatus();
    FactorBatch again = batch;
    again.systems = systems;
    TrackOnGpu& track = On(Track::kFactor);
    absl::StatusOr<std::vector<FactorReport>> better =
        track.factor_calls.Factor(again, *track.At(Method::kSubstitution), wanted);
    if (!better.ok()) return better.status();
    for (size_t i = 0; i < places.size(); ++i) reports[places[i]] = (*better)[i];
    return absl::OkStatus();
  }

  TrackOnGpu& On(Track track) { return *tracks_[static_cast<size_t>(track)]; }

  const std::unique_ptr<Card> card_;
  const DeviceLimits limits_;
  MemoryPool pool_;
  std::shared_ptr<MemoryPool> host_memory_;
  std::array<std::optional<TrackOnGpu>, kTracks> tracks_;
};

}  // namespace

const char* GpuBackendName() { return gpu::kBackendName; }

absl::StatusOr<int32_t> CountGpus() { return Card::Count(); }

absl::StatusOr<std::unique_ptr<Backend>> CreateGpuBackend(const BackendOptions& options) {
  absl::StatusOr<std::unique_ptr<Card>> card = Card::Open(options.device, options.memory_bytes);
  if (!card.ok()) return card.status();
  const absl::StatusOr<DeviceLimits> limits = (*card)->Limits();
  if (!limits.ok()) return limits.status();
  // These calls set attributes of the device that this thread has entered: each device has its own.
  bool early = false;
  for (const LaunchResult& result :
       {gpu::segment::PrepareFactor(*limits), gpu::segment::PrepareSolve(*limits),
        gpu::lockstep::PrepareFactor(*limits, &early), gpu::lockstep::PrepareSolve(*limits),
        gpu::task_list::PrepareFactor(*limits), gpu::task_list::PrepareSolve(),
        gpu::substitution::PrepareFactor(), gpu::substitution::PrepareSolve(),
        gpu::PrepareVectors(), gpu::PrepareBorder(), gpu::information::Prepare(),
        gpu::inverse::Prepare(*limits), gpu::inverse::PrepareSegments(*limits)}) {
    absl::Status status = gpu::ToStatus(result.error, result.kernel);
    if (!status.ok()) return status;
  }
  auto backend = std::make_unique<GpuBackend>(*std::move(card), *limits);
  absl::Status status = backend->Open(early, options.host_memory_bytes);
  if (!status.ok()) return status;
  return backend;
}

absl::Status RegisterHostMemory(void* begin, int64_t bytes) {
  return gpu::RegisterHost(begin, bytes);
}

void UnregisterHostMemory(void* begin) { gpu::UnregisterHost(begin); }

}  // namespace blockd
