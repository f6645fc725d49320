// A backend with a gate before its work, and one that fails at the step that a test chooses.
#ifndef BLOCKD_TESTS_SUPPORT_HOOKED_BACKEND_H_
#define BLOCKD_TESTS_SUPPORT_HOOKED_BACKEND_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
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
  // Lets the device pass so many times more and then closes.
  void CloseAfter(int64_t passes) {
    absl::MutexLock lock(&mutex_);
    passes_left_ = passes;
  }
  void Open() {
    absl::MutexLock lock(&mutex_);
    open_ = true;
    passes_left_ = std::numeric_limits<int64_t>::max();
  }
  // Waits until the device stands before the closed gate.
  void WaitForDevice() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&waiting_));
  }
  // Once `steps` more have passed, every step fails with INTERNAL and names itself.
  void FailAfter(int64_t steps) {
    absl::MutexLock lock(&mutex_);
    left_ = steps;
    failed_ = false;
  }
  // Whether a step has failed since.
  bool failed() const {
    absl::MutexLock lock(&mutex_);
    return failed_;
  }

  // Waits for the gate to be open.
  void Pass() {
    absl::MutexLock lock(&mutex_);
    if (passes_left_-- <= 0) open_ = false;
    waiting_ = !open_;
    mutex_.Await(absl::Condition(&open_));
    waiting_ = false;
  }
  // How many batches the device has begun to factor.
  int64_t factorizations() const {
    absl::MutexLock lock(&mutex_);
    return factorizations_;
  }
  void BeginFactorization() {
    absl::MutexLock lock(&mutex_);
    ++factorizations_;
  }
  absl::Status Step(const char* name) {
    absl::MutexLock lock(&mutex_);
    if (left_-- > 0) return absl::OkStatus();
    left_ = 0;
    failed_ = true;
    return absl::InternalError(absl::StrCat("the device fell off at ", name));
  }

 private:
  mutable absl::Mutex mutex_;
  bool open_ ABSL_GUARDED_BY(mutex_) = true;
  bool waiting_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t passes_left_ ABSL_GUARDED_BY(mutex_) = std::numeric_limits<int64_t>::max();
  int64_t factorizations_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t left_ ABSL_GUARDED_BY(mutex_) = std::numeric_limits<int64_t>::max();
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;
};

class HookedBackend : public Backend {
 public:
  HookedBackend(std::unique_ptr<Backend> inner, const CostModel& costs, std::shared_ptr<Gate> gate)
      : inner_(std::move(inner)), costs_(costs), gate_(std::move(gate)) {}

  const DeviceInfo& device() const override { return inner_->device(); }
  CostModel costs(const Shape&) const override { return costs_; }
  MemoryPool& pool() override { return inner_->pool(); }
  bool reads_host_memory() const override { return inner_->reads_host_memory(); }
  absl::Status Upload(void* device, const void* host, int64_t bytes) override {
    return Step("Upload", [&] { return inner_->Upload(device, host, bytes); });
  }
  absl::Status Download(void* host, const void* device, int64_t bytes) override {
    return Step("Download", [&] { return inner_->Download(host, device, bytes); });
  }
  absl::Status PackColumns(Scalar scalar, void* packed, const void* columns_in, int64_t n,
                           int64_t rows, int64_t columns, int64_t first_column,
                           int64_t total_columns) override {
    return Step("PackColumns", [&] {
      return inner_->PackColumns(scalar, packed, columns_in, n, rows, columns, first_column,
                                 total_columns);
    });
  }
  absl::Status UnpackColumns(Scalar scalar, void* columns_out, const void* packed, int64_t n,
                             int64_t rows, int64_t columns, int64_t first_column,
                             int64_t total_columns) override {
    return Step("UnpackColumns", [&] {
      return inner_->UnpackColumns(scalar, columns_out, packed, n, rows, columns, first_column,
                                   total_columns);
    });
  }
  absl::Status Synchronize() override {
    return Step("Synchronize", [&] { return inner_->Synchronize(); });
  }
  int64_t FactorScratchBytes(const EliminationPlan& plan, int64_t systems) const override {
    return inner_->FactorScratchBytes(plan, systems);
  }
  // A step before each time that work can end, and one at the end.
  absl::StatusOr<std::vector<FactorReport>> Factor(const FactorBatch& batch,
                                                   absl::FunctionRef<bool()> wanted) override {
    gate_->BeginFactorization();
    return Run("Factor", wanted, [&](absl::FunctionRef<bool()> still_wanted) {
      return inner_->Factor(batch, still_wanted);
    });
  }
  absl::Status Solve(const SolveBatch& batch, absl::FunctionRef<bool()> wanted) override {
    return Run("Solve", wanted, [&](absl::FunctionRef<bool()> still_wanted) {
      return inner_->Solve(batch, still_wanted);
    });
  }
  absl::StatusOr<double> LogDeterminant(const EliminationPlan& plan, const void* factor) override {
    return Step("LogDeterminant", [&] { return inner_->LogDeterminant(plan, factor); });
  }
  absl::StatusOr<std::vector<ResidualNorms>> Residual(const BlockTridiagonalView& matrix,
                                                      const void* x, const void* b, void* r,
                                                      int64_t num_rhs) override {
    return Step("Residual", [&] { return inner_->Residual(matrix, x, b, r, num_rhs); });
  }
  absl::Status CopyColumns(const Shape& shape, void* to, const void* from,
                           const std::vector<bool>& columns) override {
    return Step("CopyColumns", [&] { return inner_->CopyColumns(shape, to, from, columns); });
  }
  absl::Status Add(Scalar scalar, void* y, const void* x, int64_t scalars) override {
    return Step("Add", [&] { return inner_->Add(scalar, y, x, scalars); });
  }

 private:
  template <typename Call>
  auto Step(const char* name, Call call) -> decltype(call()) {
    absl::Status status = gate_->Step(name);
    if (!status.ok()) return status;
    return call();
  }

  // A call that asks in between whether it is still wanted: each time the gate is passed first, and
  // may fail.
  template <typename Call>
  auto Run(const char* name, absl::FunctionRef<bool()> wanted, Call call)
      -> decltype(call(wanted)) {
    absl::Status status;
    const auto still_wanted = [&] {
      gate_->Pass();
      status = gate_->Step(name);
      return status.ok() && wanted();
    };
    auto result = call(still_wanted);
    if (!status.ok()) return status;
    return result;
  }

  const std::unique_ptr<Backend> inner_;
  const CostModel costs_;
  const std::shared_ptr<Gate> gate_;
};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SUPPORT_HOOKED_BACKEND_H_
