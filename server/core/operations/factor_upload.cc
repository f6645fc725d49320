// A matrix in chunks: everything is reserved and staged before the first byte.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/finite_scanner.h"
#include "server/core/operations/checks.h"
#include "server/core/operations/factor.h"
#include "server/core/operations/factor_outcome.h"

namespace blockd::server {

// Owns the task to be, and with it the reservation and the device memory.
class FactorOperation::Upload : public FactorUpload {
 public:
  Upload(Shard* shard, FactorTaskPtr task)
      : shard_(shard),
        task_(std::move(task)),
        form_(task_->params.form),
        scanner_(form_, 0),
        expected_(form_.bytes() * task_->params.num_systems) {}

  int64_t expected_bytes() const override { return expected_; }
  int64_t received_bytes() const override { return received_; }

  absl::Status Write(std::span<const std::byte> bytes) override {
    const absl::Time now = shard_->Now();
    if (task_->ended(now)) return task_->EndStatus(now);
    const int64_t size = static_cast<int64_t>(bytes.size());
    if (size > expected_ - received_) return WrongLength(absl::StrCat("more than ", expected_));
    while (!bytes.empty()) {
      const size_t piece =
          static_cast<size_t>(std::min<int64_t>(LeftInPart(), static_cast<int64_t>(bytes.size())));
      absl::Status status = WritePiece(bytes.first(piece));
      if (!status.ok()) return status;
      bytes = bytes.subspan(piece);
    }
    return absl::OkStatus();
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

  int64_t system() const { return received_ / form_.bytes(); }
  int64_t in_system() const { return received_ % form_.bytes(); }

  int64_t LeftInPart() const {
    const int64_t at = in_system();
    return (at < form_.diagonal_bytes() ? form_.diagonal_bytes() : form_.bytes()) - at;
  }

  // Bytes of one part of one system.
  absl::Status WritePiece(std::span<const std::byte> bytes) {
    if (task_->params.check_finite) {
      if (in_system() == 0) scanner_ = FiniteScanner(form_, system());
      absl::Status status = scanner_.Scan(bytes);
      if (!status.ok()) return status;
    }
    const int64_t at = in_system();
    const int64_t offset = at < form_.diagonal_bytes()
                               ? at
                               : StagedMatrix::CouplingOffset(form_) + at - form_.diagonal_bytes();
    absl::Status status =
        shard_->solver().Write(task_->staged[static_cast<size_t>(system())], offset, bytes);
    shard_->Note(status);
    received_ += static_cast<int64_t>(bytes.size());
    return status;
  }

  Shard* const shard_;
  FactorTaskPtr task_;
  const MatrixForm form_;
  FiniteScanner scanner_;
  const int64_t expected_;
  int64_t received_ = 0;
};

absl::Status FactorOperation::StageAll(FactorTask& task, std::span<const uint32_t> palette_diagonal,
                                       std::span<const uint32_t> palette_coupling) {
  const MatrixForm& form = task.params.form;
  for (int64_t i = 0; i < task.params.num_systems; ++i) {
    absl::StatusOr<StagedMatrix> staged = shard_->solver().Stage(form);
    // The budget has room, so the pool is in pieces.
    if (absl::IsResourceExhausted(staged.status()) &&
        shard_->Defragment(Shard::MatrixCharge(form))) {
      staged = shard_->solver().Stage(form);
    }
    if (!staged.ok()) return SayInPieces(*shard_, staged.status(), Shard::MatrixCharge(form));
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
  status = Admit(*task, /*staged=*/true);
  if (status.ok()) status = StageAll(*task, palette_diagonal, palette_coupling);
  shard_->Note(status);
  if (!status.ok()) return status;
  return std::unique_ptr<FactorUpload>(std::make_unique<Upload>(shard_, std::move(task)));
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
