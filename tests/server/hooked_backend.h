// The CPU backend with a gate before every step, so that a test can hold the device or make it
// fail.
#ifndef BLOCKD_TESTS_SERVER_HOOKED_BACKEND_H_
#define BLOCKD_TESTS_SERVER_HOOKED_BACKEND_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "blockd/engine/backend.h"

namespace blockd::test {

// Thread-safe; shared by the test and the backend.
class Gate {
 public:
  void Close() {
    absl::MutexLock lock(&mutex_);
    open_ = false;
  }
  void Open() {
    absl::MutexLock lock(&mutex_);
    open_ = true;
  }
  // Waits until the device stands before the closed gate.
  void WaitForDevice() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&waiting_));
  }
  // Every step from now on fails with this; OK: none.
  void FailWith(absl::Status status) {
    absl::MutexLock lock(&mutex_);
    failure_ = std::move(status);
  }

  absl::Status Pass() {
    absl::MutexLock lock(&mutex_);
    waiting_ = !open_;
    mutex_.Await(absl::Condition(&open_));
    waiting_ = false;
    return failure_;
  }

 private:
  absl::Mutex mutex_;
  bool open_ ABSL_GUARDED_BY(mutex_) = true;
  bool waiting_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

class HookedBackend : public Backend {
 public:
  HookedBackend(std::unique_ptr<Backend> inner, const CostModel& costs, std::shared_ptr<Gate> gate)
      : inner_(std::move(inner)), costs_(costs), gate_(std::move(gate)) {}

  const DeviceInfo& device() const override { return inner_->device(); }
  const CostModel& costs() const override { return costs_; }
  MemoryPool& pool() override { return inner_->pool(); }
  bool reads_host_memory() const override { return inner_->reads_host_memory(); }
  absl::Status Upload(void* device, const void* host, int64_t bytes) override {
    return inner_->Upload(device, host, bytes);
  }
  absl::Status Download(void* host, const void* device, int64_t bytes) override {
    return inner_->Download(host, device, bytes);
  }
  absl::Status PackColumns(Scalar scalar, void* packed, const void* columns_in, int64_t n,
                           int64_t rows, int64_t columns, int64_t first_column,
                           int64_t total_columns) override {
    return inner_->PackColumns(scalar, packed, columns_in, n, rows, columns, first_column,
                               total_columns);
  }
  absl::Status UnpackColumns(Scalar scalar, void* columns_out, const void* packed, int64_t n,
                             int64_t rows, int64_t columns, int64_t first_column,
                             int64_t total_columns) override {
    return inner_->UnpackColumns(scalar, columns_out, packed, n, rows, columns, first_column,
                                 total_columns);
  }
  absl::Status Synchronize() override { return inner_->Synchronize(); }
  int64_t FactorScratchBytes(const EliminationPlan& plan, int64_t systems) const override {
    return inner_->FactorScratchBytes(plan, systems);
  }
  absl::Status BeginFactor(const FactorBatch& batch) override { return inner_->BeginFactor(batch); }
  absl::Status Eliminate(const FactorBatch& batch, int64_t level) override {
    absl::Status status = gate_->Pass();
    return status.ok() ? inner_->Eliminate(batch, level) : status;
  }
  absl::StatusOr<std::vector<PivotFailure>> FinishFactor(const FactorBatch& batch) override {
    return inner_->FinishFactor(batch);
  }
  absl::StatusOr<PivotFailure> FactorInNaturalOrder(const BlockTridiagonalView& matrix) override {
    return inner_->FactorInNaturalOrder(matrix);
  }
  absl::Status Forward(const SolveBatch& batch, int64_t level) override {
    absl::Status status = gate_->Pass();
    return status.ok() ? inner_->Forward(batch, level) : status;
  }
  absl::Status Backward(const SolveBatch& batch, int64_t level) override {
    return inner_->Backward(batch, level);
  }
  absl::StatusOr<double> LogDeterminant(const EliminationPlan& plan, const void* factor) override {
    return inner_->LogDeterminant(plan, factor);
  }
  absl::StatusOr<std::vector<ResidualNorms>> Residual(const BlockTridiagonalView& matrix,
                                                      const void* x, const void* b, void* r,
                                                      int64_t num_rhs) override {
    return inner_->Residual(matrix, x, b, r, num_rhs);
  }
  absl::Status Add(Scalar scalar, void* y, const void* x, int64_t scalars) override {
    return inner_->Add(scalar, y, x, scalars);
  }

 private:
  const std::unique_ptr<Backend> inner_;
  const CostModel costs_;
  const std::shared_ptr<Gate> gate_;
};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SERVER_HOOKED_BACKEND_H_
