// A backend with a gate before the work of each track, and one that fails, or has no memory, at the
// step that a test chooses.
#ifndef BLOCKD_TESTS_SUPPORT_HOOKED_BACKEND_H_
#define BLOCKD_TESTS_SUPPORT_HOOKED_BACKEND_H_

#include <cstdint>
#include <limits>
#include <map>
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
  // Waits until the device stands before the closed gate, on so many of its tracks.
  void WaitForDevice(int tracks = 1) {
    absl::MutexLock lock(&mutex_);
    const auto stands = [this, tracks]()
                            ABSL_NO_THREAD_SAFETY_ANALYSIS { return !open_ && waiting_ >= tracks; };
    mutex_.Await(absl::Condition(&stands));
  }
  // Once `steps` more have passed, every step fails with INTERNAL and names itself.
  void FailAfter(int64_t steps) {
    absl::MutexLock lock(&mutex_);
    left_ = steps;
    failed_ = false;
  }
  // True if a step has failed since FailAfter.
  bool failed() const {
    absl::MutexLock lock(&mutex_);
    return failed_;
  }
  // Once the pool was asked for so many times more, it has nothing for those who ask the next
  // `empty` times.
  void EmptyPoolAfter(int64_t times, int64_t empty = 1) {
    absl::MutexLock lock(&mutex_);
    pools_left_ = times;
    empty_left_ = empty;
    was_empty_ = false;
  }
  bool was_empty() const {
    absl::MutexLock lock(&mutex_);
    return was_empty_;
  }
  bool IsPoolEmpty() {
    absl::MutexLock lock(&mutex_);
    const bool empty = pools_left_-- <= 0 && empty_left_-- > 0;
    was_empty_ |= empty;
    return empty;
  }

  // Waits for the gate to be open.
  void Pass() {
    absl::MutexLock lock(&mutex_);
    if (passes_left_-- <= 0) open_ = false;
    ++passes_;
    ++waiting_;
    mutex_.Await(absl::Condition(&open_));
    --waiting_;
  }
  // How often the device has come to the gate.
  int64_t passes() const {
    absl::MutexLock lock(&mutex_);
    return passes_;
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
  // The gate before solves counts them; the other gate does not.
  void CountPendingSolves(int32_t change) {
    absl::MutexLock lock(&mutex_);
    pending_solves_ += change;
  }
  int32_t pending_solves() const {
    absl::MutexLock lock(&mutex_);
    return pending_solves_;
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
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t passes_left_ ABSL_GUARDED_BY(mutex_) = std::numeric_limits<int64_t>::max();
  int64_t passes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t factorizations_ ABSL_GUARDED_BY(mutex_) = 0;
  int32_t pending_solves_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t left_ ABSL_GUARDED_BY(mutex_) = std::numeric_limits<int64_t>::max();
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t pools_left_ ABSL_GUARDED_BY(mutex_) = std::numeric_limits<int64_t>::max();
  int64_t empty_left_ ABSL_GUARDED_BY(mutex_) = 0;
  bool was_empty_ ABSL_GUARDED_BY(mutex_) = false;
};

// `gate` is before both tracks, or before that of factorizations only where solves have one of
// their own.
class HookedBackend : public Backend {
 public:
  HookedBackend(std::unique_ptr<Backend> inner, const CostModel& costs, std::shared_ptr<Gate> gate,
                const std::shared_ptr<Gate>& solve_gate = nullptr)
      : inner_(std::move(inner)),
        costs_(costs),
        gate_(std::move(gate)),
        solve_gate_(solve_gate ? solve_gate : gate_) {}

  // From now on work is in flight until it is awaited, and that passes a gate of its own first:
  // only then solutions are there.
  void Fly(std::shared_ptr<Gate> landing) { landing_ = std::move(landing); }

  const DeviceInfo& device() const override { return inner_->device(); }
  CostModel costs(const Shape&) const override { return costs_; }
  MemoryPool& pool() override { return gate_->IsPoolEmpty() ? empty_pool_ : inner_->pool(); }
  bool reads_host_memory() const override { return !landing_ && inner_->reads_host_memory(); }
  absl::Status Write(void* device, std::span<const HostPiece> pieces) override {
    return Step(Track::kFactor, "Upload", [&] { return inner_->Write(device, pieces); });
  }
  absl::Status AwaitWrites() override { return inner_->AwaitWrites(); }
  absl::Status Upload(Track track, void* device, const void* host, int64_t bytes) override {
    return Step(track, "Upload", [&] { return inner_->Upload(track, device, host, bytes); });
  }
  absl::Status Download(Track track, void* host, const void* device, int64_t bytes) override {
    return Step(track, "Download", [&] { return inner_->Download(track, host, device, bytes); });
  }
  absl::Status PackColumns(Track track, const Shape& shape,
                           std::span<const HostColumns> columns) override {
    return Step(track, "PackColumns", [&] { return inner_->PackColumns(track, shape, columns); });
  }
  absl::Status UnpackColumns(Track track, const Shape& shape,
                             std::span<const HostColumns> columns) override {
    return Step(track, "UnpackColumns", [&] {
      if (!landing_) return inner_->UnpackColumns(track, shape, columns);
      absl::MutexLock lock(&mutex_);
      flights_[{track, next_mark_}].push_back({shape, {columns.begin(), columns.end()}});
      return absl::OkStatus();
    });
  }
  void CountPendingSolves(int32_t change) override {
    solve_gate_->CountPendingSolves(change);
    inner_->CountPendingSolves(change);
  }
  std::shared_ptr<MemoryPool> host_memory() override { return inner_->host_memory(); }
  absl::StatusOr<int64_t> Mark(Track track) override {
    return Step(track, "Mark", [&]() -> absl::StatusOr<int64_t> {
      if (!landing_) return inner_->Mark(track);
      absl::MutexLock lock(&mutex_);
      return next_mark_++;
    });
  }
  absl::StatusOr<std::optional<TrackTimes>> Await(Track track, int64_t mark) override {
    if (landing_) landing_->Pass();
    return Step(track, "Await", [&]() -> absl::StatusOr<std::optional<TrackTimes>> {
      if (!landing_) return inner_->Await(track, mark);
      absl::MutexLock lock(&mutex_);
      for (const Columns& columns : flights_[{track, mark}]) {
        absl::Status status = inner_->UnpackColumns(track, columns.shape, columns.columns);
        if (!status.ok()) return status;
      }
      flights_.erase({track, mark});
      return std::nullopt;
    });
  }
  absl::Status Synchronize(Track track) override {
    return Step(track, "Synchronize", [&] { return inner_->Synchronize(track); });
  }
  absl::Status FormInformation(const InformationSteps& steps) override {
    return Step(Track::kFactor, "FormInformation", [&] { return inner_->FormInformation(steps); });
  }
  int64_t FactorScratchBytes(const EliminationPlan& plan, int64_t systems) const override {
    return inner_->FactorScratchBytes(plan, systems);
  }
  // A step before each time that work can end, and one at the end.
  absl::StatusOr<std::vector<FactorReport>> Factor(const FactorBatch& batch,
                                                   absl::FunctionRef<bool()> wanted) override {
    gate_->BeginFactorization();
    return Run(Track::kFactor, "Factor", wanted, [&](absl::FunctionRef<bool()> still_wanted) {
      return inner_->Factor(batch, still_wanted);
    });
  }
  absl::Status Solve(Track track, const SolveBatch& batch,
                     absl::FunctionRef<bool()> wanted) override {
    return Run(track, "Solve", wanted, [&](absl::FunctionRef<bool()> still_wanted) {
      return inner_->Solve(track, batch, still_wanted);
    });
  }
  absl::Status InvertTriangles(Track track, const EliminationPlan& plan, const void* factor,
                               void* out) override {
    return Step(track, "InvertTriangles",
                [&] { return inner_->InvertTriangles(track, plan, factor, out); });
  }
  int64_t InverseScratchBytes(const EliminationPlan& plan, int64_t first_block,
                              int64_t num_blocks) const override {
    return inner_->InverseScratchBytes(plan, first_block, num_blocks);
  }
  absl::Status SelectedInverse(Track track, const InverseRequest& request,
                               absl::FunctionRef<bool()> wanted) override {
    return Run(track, "SelectedInverse", wanted, [&](absl::FunctionRef<bool()> still_wanted) {
      return inner_->SelectedInverse(track, request, still_wanted);
    });
  }
  absl::StatusOr<double> LogDeterminant(Track track, const EliminationPlan& plan,
                                        const void* factor) override {
    return Step(track, "LogDeterminant",
                [&] { return inner_->LogDeterminant(track, plan, factor); });
  }
  absl::StatusOr<std::vector<ResidualNorms>> Residual(Track track,
                                                      const BlockTridiagonalView& matrix,
                                                      const void* x, const void* b, void* r,
                                                      int64_t num_rhs) override {
    return Step(track, "Residual",
                [&] { return inner_->Residual(track, matrix, x, b, r, num_rhs); });
  }
  absl::Status CopyColumns(Track track, const Shape& shape, void* to, const void* from,
                           const std::vector<bool>& columns) override {
    return Step(track, "CopyColumns",
                [&] { return inner_->CopyColumns(track, shape, to, from, columns); });
  }
  absl::Status Add(Track track, Scalar scalar, void* y, const void* x, int64_t scalars) override {
    return Step(track, "Add", [&] { return inner_->Add(track, scalar, y, x, scalars); });
  }
  absl::Status MultiplyBorder(Track track, const BorderColumns& y, const void* v, int64_t columns,
                              double* products) override {
    return Step(track, "MultiplyBorder",
                [&] { return inner_->MultiplyBorder(track, y, v, columns, products); });
  }
  absl::Status AddBorder(Track track, const BorderColumns& y, const double* x, void* v,
                         int64_t columns, bool add) override {
    return Step(track, "AddBorder",
                [&] { return inner_->AddBorder(track, y, x, v, columns, add); });
  }
  absl::Status AddBorderSquares(Track track, const BorderColumns& h, InverseParts parts,
                                void* diagonal, void* coupling) override {
    return Step(track, "AddBorderSquares",
                [&] { return inner_->AddBorderSquares(track, h, parts, diagonal, coupling); });
  }

 private:
  Gate& GateOf(Track track) const { return track == Track::kSolve ? *solve_gate_ : *gate_; }

  template <typename Call>
  auto Step(Track track, const char* name, Call call) -> decltype(call()) {
    absl::Status status = GateOf(track).Step(name);
    if (!status.ok()) return status;
    return call();
  }

  // A call that asks in between whether it is still wanted: each time the gate is passed first, and
  // may fail.
  template <typename Call>
  auto Run(Track track, const char* name, absl::FunctionRef<bool()> wanted, Call call)
      -> decltype(call(wanted)) {
    Gate& gate = GateOf(track);
    absl::Status status;
    const auto still_wanted = [&] {
      gate.Pass();
      status = gate.Step(name);
      return status.ok() && wanted();
    };
    auto result = call(still_wanted);
    if (!status.ok()) return status;
    return result;
  }

  struct Columns {
    Shape shape;
    std::vector<HostColumns> columns;
  };

  const std::unique_ptr<Backend> inner_;
  const CostModel costs_;
  const std::shared_ptr<Gate> gate_, solve_gate_;
  std::shared_ptr<Gate> landing_;  // null: nothing flies
  absl::Mutex mutex_;
  int64_t next_mark_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::pair<Track, int64_t>, std::vector<Columns>> flights_ ABSL_GUARDED_BY(mutex_);
  MemoryPool empty_pool_{nullptr, 0};
};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SUPPORT_HOOKED_BACKEND_H_
