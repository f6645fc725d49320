#include "engine/gpu/gpu_backend.h"

#include <array>
#include <utility>

#include "engine/gpu/factor_calls.h"
#include "engine/gpu/lockstep/launch.h"
#include "engine/gpu/lockstep/runner.h"
#include "engine/gpu/method.h"
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

using gpu::Device;
using gpu::DeviceLimits;
using gpu::LaunchResult;
using gpu::Method;
using gpu::Runner;

class GpuBackend : public Backend {
 public:
  // early: kernels may be started before the one before has ended.
  GpuBackend(std::unique_ptr<Device> device, const DeviceLimits& limits, bool early)
      : device_(std::move(device)),
        limits_(limits),
        pool_(device_->pool_base(), device_->pool_bytes()) {
    At(Method::kSegment) = gpu::segment::MakeRunner(*device_, limits_);
    At(Method::kLockstep) = gpu::lockstep::MakeRunner(*device_, limits_, early);
    At(Method::kTaskList) = gpu::task_list::MakeRunner(*device_, limits_, counters_);
  }

  // Nothing may run when the graphs go, which is before the device does.
  ~GpuBackend() override { device_->Synchronize().IgnoreError(); }

  const DeviceInfo& device() const override { return device_->info(); }
  CostModel costs(const Shape& shape) const override { return gpu::CostsOf(shape, limits_); }
  MemoryPool& pool() override { return pool_; }
  bool reads_host_memory() const override { return false; }

  absl::Status Upload(void* device, const void* host, int64_t bytes) override {
    return device_->Upload(device, host, bytes);
  }
  absl::Status Download(void* host, const void* device, int64_t bytes) override {
    return device_->Download(host, device, bytes);
  }
  absl::Status Synchronize() override { return device_->Synchronize(); }

  absl::Status PackColumns(Scalar scalar, void* packed, const void* columns_in, int64_t n,
                           int64_t rows, int64_t columns, int64_t first_column,
                           int64_t total_columns) override {
    return vectors_.Pack(packed, columns_in,
                         {n * ScalarBytes(scalar), rows / n, 0, 0, first_column, total_columns},
                         columns);
  }
  absl::Status UnpackColumns(Scalar scalar, void* columns_out, const void* packed, int64_t n,
                             int64_t rows, int64_t columns, int64_t first_column,
                             int64_t total_columns) override {
    return vectors_.Unpack(columns_out, packed,
                           {n * ScalarBytes(scalar), rows / n, 0, 0, first_column, total_columns},
                           columns);
  }
  absl::StatusOr<double> LogDeterminant(const EliminationPlan& plan, const void* factor) override {
    return vectors_.LogDeterminant(plan, factor);
  }
  absl::StatusOr<std::vector<ResidualNorms>> Residual(const BlockTridiagonalView& matrix,
                                                      const void* x, const void* b, void* r,
                                                      int64_t num_rhs) override {
    return vectors_.Residual(matrix, x, b, r, num_rhs);
  }
  absl::Status CopyColumns(const Shape& shape, void* to, const void* from,
                           const std::vector<bool>& columns) override {
    return vectors_.CopyColumns(shape, to, from, columns);
  }
  absl::Status Add(Scalar scalar, void* y, const void* x, int64_t scalars) override {
    return vectors_.Add(scalar, y, x, scalars);
  }

  int64_t FactorScratchBytes(const EliminationPlan& plan, int64_t systems) const override {
    const Method method = gpu::FactorMethod(plan.shape(), limits_);
    return factor_calls_.ScratchBytes(plan, systems, *runners_[static_cast<size_t>(method)]);
  }
  absl::StatusOr<std::vector<FactorReport>> Factor(const FactorBatch& batch,
                                                   absl::FunctionRef<bool()> wanted) override {
    const Method method = gpu::FactorMethod(batch.plan->shape(), limits_);
    return factor_calls_.Factor(batch, *At(method), wanted);
  }
  absl::Status Solve(const SolveBatch& batch, absl::FunctionRef<bool()> wanted) override {
    const Method method = gpu::SolveMethod(batch.plan->shape(), limits_);
    return solve_calls_.Solve(batch, *At(method), wanted);
  }

 private:
  std::unique_ptr<Runner>& At(Method method) { return runners_[static_cast<size_t>(method)]; }

  const std::unique_ptr<Device> device_;
  const DeviceLimits limits_;
  MemoryPool pool_;
  gpu::Counters counters_{*device_};
  std::array<std::unique_ptr<Runner>, gpu::kMethods> runners_;
  gpu::FactorCalls factor_calls_{*device_};
  gpu::SolveCalls solve_calls_{*device_, limits_, counters_};
  gpu::VectorCalls vectors_{*device_};
};

}  // namespace

const char* GpuBackendName() { return gpu::kBackendName; }

absl::StatusOr<std::unique_ptr<Backend>> CreateGpuBackend(const BackendOptions& options) {
  absl::StatusOr<std::unique_ptr<Device>> device =
      Device::Open(options.device, options.memory_bytes);
  if (!device.ok()) return device.status();
  const absl::StatusOr<DeviceLimits> limits = (*device)->Limits();
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
  return std::make_unique<GpuBackend>(*std::move(device), *limits, early);
}

}  // namespace blockd
