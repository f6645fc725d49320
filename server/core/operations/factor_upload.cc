// A matrix in chunks. Its first part waits on the host until it is whole.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/finite_scanner.h"
#include "server/core/heap_reserve.h"
#include "server/core/operations/checks.h"
#include "server/core/operations/factor.h"
#include "server/core/operations/factor_outcome.h"

namespace blockd::server {

namespace {

constexpr int64_t kFirstPart = 64;  // of the matrix
constexpr int64_t kLeastFirstBytes = int64_t{64} << 10, kMostFirstBytes = int64_t{16} << 20;

}  // namespace

// Owns the task to be, and with it the reservation and the device memory.
class FactorOperation::Upload : public FactorUpload {
 public:
  // `indices` holds the host memory of the palette's indices.
  Upload(FactorOperation* operation, FactorTaskPtr task, std::vector<uint32_t> palette_diagonal,
         std::vector<uint32_t> palette_coupling, Reservation indices)
      : operation_(operation),
        shard_(operation->shard_),
        task_(std::move(task)),
        form_(task_->params.form),
        scanner_(form_, 0),
        expected_(form_.bytes() * task_->params.num_systems),
        first_bytes_(std::min(
            expected_, std::clamp(expected_ / kFirstPart, kLeastFirstBytes, kMostFirstBytes))),
        held_(std::move(indices)),
        palette_diagonal_(std::move(palette_diagonal)),
        palette_coupling_(std::move(palette_coupling)) {}

  int64_t expected_bytes() const override { return expected_; }
  int64_t received_bytes() const override { return received_; }

  absl::Status Write(std::span<const std::byte> bytes) override {
    const absl::Time now = shard_->Now();
    if (task_->ended(now)) return task_->EndStatus(now);
    const int64_t size = static_cast<int64_t>(bytes.size());
    if (size > expected_ - received_) return WrongLength(absl::StrCat("more than ", expected_));
    absl::Status status = Scan(bytes);
    if (!status.ok()) return status;
    received_ += size;
    if (staged_) return WriteAll(bytes);
    const auto missing = static_cast<size_t>(first_bytes_) - first_.size();
    const std::span<const std::byte> first = bytes.first(std::min(missing, bytes.size()));
    status = Keep(first);
    if (!status.ok() || std::ssize(first_) < first_bytes_) return status;
    status = Stage();
    return status.ok() ? WriteAll(bytes.subspan(first.size())) : status;
  }

  absl::Status CheckComplete() const {
    return received_ == expected_ ? absl::OkStatus() : WrongLength(absl::StrCat(received_));
  }

  FactorTaskPtr TakeTask() { return std::move(task_); }

 private:
  absl::Status WrongLength(const std::string& came) const {
    return InvalidFieldError("chunk", came + " bytes",
                             absl::StrCat(expected_, " bytes in all chunks together"));
  }

  absl::Status Keep(std::span<const std::byte> bytes) {
    absl::Status status =
        operation_->host_->Extend(task_->permit.tenant, std::ssize(bytes), &held_);
    const HeapMayFail may_fail;
    if (status.ok()) first_.insert(first_.end(), bytes.begin(), bytes.end());
    return status;
  }

  // Takes all that the call needs on the device, and gives back what it had on the host.
  absl::Status Stage() {
    absl::StatusOr<Reservation> device = shard_->device().Reserve(
        task_->permit.tenant, operation_->DeviceBytes(*task_, /*staged=*/true));
    if (!device.ok()) return device.status();
    task_->permit.device = *std::move(device);
    absl::Status status = operation_->StageAll(*task_, palette_diagonal_, palette_coupling_);
    shard_->Note(status);
    if (!status.ok()) return status;
    staged_ = true;
    status = WriteAll(first_);
    first_ = {};
    palette_diagonal_ = palette_coupling_ = {};
    held_.Reset();
    return status;
  }

  // Calls `use` with the pieces of what lies at `at` in the stream: each is of one part, diagonal
  // or coupling, of one system.
  template <typename Use>
  absl::Status ForPieces(int64_t at, std::span<const std::byte> bytes, Use use) {
    while (!bytes.empty()) {
      const int64_t in_system = at % form_.bytes();
      const bool diagonal = in_system < form_.diagonal_bytes();
      const int64_t left = (diagonal ? form_.diagonal_bytes() : form_.bytes()) - in_system;
      const auto piece = bytes.first(std::min(static_cast<size_t>(left), bytes.size()));
      absl::Status status = use(at / form_.bytes(), in_system, piece);
      if (!status.ok()) return status;
      at += std::ssize(piece);
      bytes = bytes.subspan(piece.size());
    }
    return absl::OkStatus();
  }

  absl::Status Scan(std::span<const std::byte> bytes) {
    if (!task_->params.check_finite) return absl::OkStatus();
    return ForPieces(received_, bytes, [this](int64_t system, int64_t in_system, auto piece) {
      if (in_system == 0) scanner_ = FiniteScanner(form_, system);
      return scanner_.Scan(piece);
    });
  }

  absl::Status WriteAll(std::span<const std::byte> bytes) {
    return ForPieces(written_, bytes, [this](int64_t system, int64_t in_system, auto piece) {
      const int64_t offset =
          in_system < form_.diagonal_bytes()
              ? in_system
              : StagedMatrix::CouplingOffset(form_) + in_system - form_.diagonal_bytes();
      absl::Status status =
          shard_->solver().Write(task_->staged[static_cast<size_t>(system)], offset, piece);
      shard_->Note(status);
      written_ += std::ssize(piece);
      return status;
    });
  }

  FactorOperation* const operation_;
  Shard* const shard_;
  FactorTaskPtr task_;
  const MatrixForm form_;
  FiniteScanner scanner_;
  const int64_t expected_, first_bytes_;
  int64_t received_ = 0, written_ = 0;
  bool staged_ = false;
  // Until it is staged:
  Reservation held_;  // host memory of what follows
  std::vector<std::byte> first_;
  std::vector<uint32_t> palette_diagonal_, palette_coupling_;
};

absl::Status FactorOperation::StageAll(FactorTask& task, std::span<const uint32_t> palette_diagonal,
                                       std::span<const uint32_t> palette_coupling) {
  const MatrixForm& form = task.params.form;
  const int64_t matrix[] = {StagedMatrix::BufferBytes(form)};
  for (int64_t i = 0; i < task.params.num_systems; ++i) {
    absl::StatusOr<StagedMatrix> staged = shard_->solver().Stage(form);
    // The budget has room, so the pool is in pieces.
    if (absl::IsResourceExhausted(staged.status()) && shard_->Defragment(matrix)) {
      staged = shard_->solver().Stage(form);
    }
    if (!staged.ok()) return SayInPieces(*shard_, staged.status(), matrix);
    absl::Status status;
    if (!palette_diagonal.empty()) {
      status = shard_->solver().Write(*staged, StagedMatrix::DiagonalIndexOffset(form),
                                      std::as_bytes(palette_diagonal));
    }
    if (status.ok() && !palette_coupling.empty()) {
      status = shard_->solver().Write(*staged, StagedMatrix::CouplingIndexOffset(form),
                                      std::as_bytes(palette_coupling));
    }
    if (!status.ok()) return status;
    task.staged.push_back(*std::move(staged));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::variant<std::unique_ptr<FactorUpload>, FactorReply>>
FactorOperation::BeginUpload(ContextPtr context, const FactorParams& params,
                             std::span<const uint32_t> palette_diagonal,
                             std::span<const uint32_t> palette_coupling) {
  absl::StatusOr<Permit> permit = shard_->Admit(*context);
  if (!permit.ok()) return permit.status();
  auto task = std::make_unique<FactorTask>(this, std::move(context), *std::move(permit),
                                           shard_->Now(), params, nullptr);
  absl::Status status = CheckFactor(params, shard_->limits());
  if (status.ok()) status = CheckPalette(params.form, palette_diagonal, palette_coupling);
  if (!status.ok()) return status;
  absl::StatusOr<std::optional<FactorReply>> found = FindKey(*task->context, params);
  if (!found.ok()) return found.status();
  if (found->has_value()) return **std::move(found);
  status = Admit(*task);
  const TenantPtr& tenant = task->permit.tenant;
  if (status.ok()) status = shard_->device().Check(tenant, DeviceBytes(*task, /*staged=*/true));
  Reservation indices;
  if (status.ok()) {
    status = host_->Extend(
        tenant,
        std::ssize(std::as_bytes(palette_diagonal)) + std::ssize(std::as_bytes(palette_coupling)),
        &indices);
  }
  if (!status.ok()) return status;
  return std::make_unique<Upload>(
      this, std::move(task),
      std::vector<uint32_t>(palette_diagonal.begin(), palette_diagonal.end()),
      std::vector<uint32_t>(palette_coupling.begin(), palette_coupling.end()), std::move(indices));
}

void FactorOperation::FinishUpload(std::unique_ptr<FactorUpload> upload, FactorDone done) {
  auto& ours = static_cast<Upload&>(*upload);
  absl::Status status = ours.CheckComplete();
  if (!status.ok()) {
    upload.reset();
    return done(std::move(status));
  }
  FactorTaskPtr task = ours.TakeTask();
  upload.reset();
  const absl::Time now = shard_->Now();
  task->received = now - task->accepted;
  task->accepted = now;  // what follows is the queue's time
  task->done = std::move(done);
  Submit(std::move(task));
}

}  // namespace blockd::server
