// A matrix in chunks. Its first part waits on the host until it is whole.
#include <algorithm>
#include <atomic>
#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "server/core/common/checks.h"
#include "server/core/common/finite_scanner.h"
#include "server/core/operations/factor.h"
#include "server/core/operations/steps.h"

namespace blockd::server {

namespace {

constexpr int64_t kFirstPart = 64;  // of the matrix
constexpr int64_t kLeastFirstBytes = int64_t{64} << 10, kMostFirstBytes = int64_t{2} << 20;

}  // namespace

// Owns the task to be, and with it the reservation and the device memory.
class FactorOperation::Upload : public FactorUpload {
 public:
  // `indices` holds the host memory of the palette's indices.
  Upload(FactorOperation* operation, FactorTaskPtr task, std::vector<uint32_t> palette_diagonal,
         std::vector<uint32_t> palette_coupling, Reservation indices)
      : operation_(operation),
        shard_(task->shard),
        task_(std::move(task)),
        form_(task_->params.form),
        expected_(form_.bytes() * task_->params.num_systems),
        first_bytes_(std::min(
            expected_, std::clamp(expected_ / kFirstPart, kLeastFirstBytes, kMostFirstBytes))),
        held_(std::move(indices)),
        palette_diagonal_(std::move(palette_diagonal)),
        palette_coupling_(std::move(palette_coupling)) {
    ranges_.push_back({0, expected_, 0, FiniteScanner(form_, 0)});
  }
  ~Upload() override {
    if (task_ != nullptr && !task_->staged.empty()) shard_->Note(shard_->solver().AwaitWrites());
  }

  bool staged() const override { return staged_.load(std::memory_order_acquire); }
  int64_t expected_bytes() const override { return expected_; }
  int64_t received_bytes() const override { return received_.load(std::memory_order_acquire); }

  absl::StatusOr<int> Join(int64_t first, int64_t bytes) override {
    if (!staged()) return absl::FailedPreconditionError("the upload's first part is not here yet");
    if (first < 0 || first >= expected_ || first % kCut != 0) {
      return InvalidFieldError("join.first_byte", absl::StrCat(first),
                               absl::StrCat("a multiple of ", kCut, " below ", expected_));
    }
    if (bytes < 1 || bytes > expected_ - first) {
      return InvalidFieldError("join.num_bytes", absl::StrCat(bytes),
                               absl::StrCat("1 to ", expected_ - first, " from byte ", first));
    }
    absl::MutexLock lock(&mutex_);
    if (ranges_.size() >= kMostRanges) {
      return absl::ResourceExhaustedError(
          absl::StrCat("an upload has at most ", kMostRanges, " ranges"));
    }
    Range& begun = ranges_[kFirstRange];
    bool met = first < begun.next;
    for (size_t i = 1; i < ranges_.size(); ++i) {
      met |= first < ranges_[i].end && ranges_[i].first < first + bytes;
    }
    if (met) {
      return InvalidFieldError("join", absl::StrCat("bytes ", first, " to ", first + bytes),
                               "bytes that no other stream of the upload brings");
    }
    begun.end = std::min(begun.end, first);
    ranges_.push_back({first, first + bytes, first,
                       FiniteScanner::AtByte(form_, first / form_.bytes(), first % form_.bytes())});
    return static_cast<int>(ranges_.size()) - 1;
  }

  absl::StatusOr<int64_t> Place(int range,
                                std::span<const std::span<const std::byte>> pieces) override {
    if (absl::Status status = task_->context->CheckOngoing(shard_->Now()); !status.ok()) {
      return status;
    }
    int64_t size = 0;
    for (const auto piece : pieces) size += std::ssize(piece);
    Range* taken;
    int64_t place;
    {
      absl::MutexLock lock(&mutex_);
      taken = &ranges_[static_cast<size_t>(range)];
      if (size > taken->end - taken->next) return TooMuch(*taken);
      place = std::exchange(taken->next, taken->next + size);
    }
    if (!task_->params.check_finite) return place;
    int64_t at = place;
    for (const auto piece : pieces) {
      if (absl::Status status = Scan(taken->scanner, at, piece); !status.ok()) return status;
      at += std::ssize(piece);
    }
    return place;
  }

  absl::Status WriteAt(int64_t place, std::span<const std::span<const std::byte>> pieces) override {
    int64_t size = 0;
    for (const auto piece : pieces) size += std::ssize(piece);
    absl::Status status = staged() ? Send(place, pieces) : WriteFirst(place, pieces);
    if (status.ok()) received_.fetch_add(size, std::memory_order_acq_rel);
    return status;
  }

  // OK if all bytes are here. Call it once no thread writes any more.
  absl::Status Complete() {
    const int64_t received = received_bytes();
    if (received != expected_) return WrongLength(absl::StrCat(received));
    absl::Status status = shard_->solver().AwaitWrites();
    shard_->Note(status);
    return status;
  }

  FactorTaskPtr TakeTask() { return std::move(task_); }

 private:
  // Ranges begin where a scalar does, whatever its type.
  static constexpr int64_t kCut = 8;

  // The bytes that one stream brings, in order.
  struct Range {
    int64_t first, end, next;
    FiniteScanner scanner;  // of what is next; of the thread that calls Place
  };

  absl::Status WrongLength(const std::string& came) const {
    return InvalidFieldError("chunk", came + " bytes",
                             absl::StrCat(expected_, " bytes in all chunks together"));
  }

  absl::Status TooMuch(const Range& range) const {
    const int64_t bytes = range.end - range.first;
    if (bytes == expected_) return WrongLength(absl::StrCat("more than ", expected_));
    return InvalidFieldError("chunk", absl::StrCat("more than ", bytes, " bytes"),
                             absl::StrCat(bytes, " bytes on this stream"));
  }

  absl::Status WriteFirst(int64_t place, std::span<const std::span<const std::byte>> pieces) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      const auto missing = static_cast<size_t>(first_bytes_) - first_.size();
      const auto first = pieces[i].first(std::min(missing, pieces[i].size()));
      absl::Status status = Keep(first);
      place += std::ssize(first);
      if (status.ok() && std::ssize(first_) < first_bytes_) continue;
      if (status.ok()) status = Stage();
      const auto rest = pieces[i].subspan(first.size());
      if (status.ok()) status = Send(place, {&rest, 1});
      return status.ok() ? Send(place + std::ssize(rest), pieces.subspan(i + 1)) : status;
    }
    return absl::OkStatus();
  }

  absl::Status Keep(std::span<const std::byte> bytes) {
    absl::Status status =
        operation_->host_->Extend(task_->permit.tenant, std::ssize(bytes), &held_);
    if (!status.ok()) return status;
    if (const size_t size = first_.size() + bytes.size(); size > first_.capacity()) {
      // Never more than will be needed.
      first_.reserve(
          std::min(static_cast<size_t>(first_bytes_), std::max(size, 2 * first_.size())));
    }
    first_.insert(first_.end(), bytes.begin(), bytes.end());
    return status;
  }

  // Takes all that the call needs on the device, and gives back what it had on the host.
  absl::Status Stage() {
    const int64_t needed = operation_->DeviceBytes(*task_, /*staged=*/true);
    absl::Status status =
        shard_->device().Extend(task_->permit.tenant, needed, &task_->permit.device);
    if (!status.ok()) return status;
    status = operation_->StageAll(*task_, palette_diagonal_, palette_coupling_);
    shard_->Note(status);
    if (!status.ok()) return status;
    const std::span<const std::byte> first = first_;
    status = Send(0, {&first, 1});
    // An assignment of {} would keep their memory.
    first_ = std::vector<std::byte>();
    palette_diagonal_ = std::vector<uint32_t>();
    palette_coupling_ = std::vector<uint32_t>();
    held_.Reset();
    staged_.store(status.ok(), std::memory_order_release);
    return status;
  }

  // Calls `use` with the pieces of what lies at `at` in the stream, each of one part of one system:
  // (system, where in the system, part, where in the part, piece).
  template <typename Use>
  absl::Status ForPieces(int64_t at, std::span<const std::byte> bytes, Use use) {
    while (!bytes.empty()) {
      const int64_t in_system = at % form_.bytes();
      int64_t in_part = in_system;
      size_t part = 0;
      while (in_part >= form_.bytes(kMatrixParts[part]))
        in_part -= form_.bytes(kMatrixParts[part++]);
      const int64_t left = form_.bytes(kMatrixParts[part]) - in_part;
      const auto piece = bytes.first(std::min(static_cast<size_t>(left), bytes.size()));
      absl::Status status = use(at / form_.bytes(), in_system, kMatrixParts[part], in_part, piece);
      if (!status.ok()) return status;
      at += std::ssize(piece);
      bytes = bytes.subspan(piece.size());
    }
    return absl::OkStatus();
  }

  absl::Status Scan(FiniteScanner& scanner, int64_t at, std::span<const std::byte> bytes) {
    return ForPieces(at, bytes,
                     [&](int64_t system, int64_t in_system, MatrixPart, int64_t, auto piece) {
                       if (in_system == 0) scanner = FiniteScanner(form_, system);
                       return scanner.Scan(piece);
                     });
  }

  // Writes bytes that are adjacent on the device together, in whatever pieces the client sent them.
  absl::Status Send(int64_t at, std::span<const std::span<const std::byte>> pieces) {
    absl::InlinedVector<std::span<const std::byte>, 64> together;  // no more: it takes no heap
    int64_t system = 0, first = 0, end = -1;                       // where they belong
    const auto write = [&]() -> absl::Status {
      if (together.empty()) return absl::OkStatus();
      absl::Status status = shard_->solver().Write(task_->staged[static_cast<size_t>(system)],
                                                   first, std::span(together));
      shard_->Note(status);
      together.clear();
      return status;
    };
    for (const auto piece : pieces) {
      absl::Status status = ForPieces(
          at, piece,
          [&](int64_t of, int64_t, MatrixPart part, int64_t in_part, auto bytes) -> absl::Status {
            const int64_t place = StagedMatrix::Offset(form_, part) + in_part;
            if (of != system || place != end || together.size() == together.capacity()) {
              if (absl::Status status = write(); !status.ok()) return status;
              system = of;
              first = place;
            }
            end = place + std::ssize(bytes);
            together.push_back(bytes);
            return absl::OkStatus();
          });
      if (!status.ok()) return status;
      at += std::ssize(piece);
    }
    return write();
  }

  FactorOperation* const operation_;
  Shard* const shard_;
  FactorTaskPtr task_;
  const MatrixForm form_;
  const int64_t expected_, first_bytes_;
  std::atomic<int64_t> received_ = 0;
  std::atomic<bool> staged_ = false;
  absl::Mutex mutex_;
  std::deque<Range> ranges_ ABSL_GUARDED_BY(mutex_);  // whose elements stay where they are
  // Until it is staged:
  Reservation held_;  // host memory of what follows
  std::vector<std::byte> first_;
  std::vector<uint32_t> palette_diagonal_, palette_coupling_;
};

absl::Status FactorOperation::StageAll(FactorTask& task, std::span<const uint32_t> palette_diagonal,
                                       std::span<const uint32_t> palette_coupling) {
  Shard& shard = *task.shard;
  const MatrixForm& form = task.params.form;
  const int64_t matrix[] = {StagedMatrix::BufferBytes(form)};
  for (int64_t i = 0; i < task.params.num_systems; ++i) {
    absl::StatusOr<StagedMatrix> staged = shard.solver().Stage(form);
    // The budget has room, so the pool is in pieces.
    if (absl::IsResourceExhausted(staged.status()) && shard.Defragment(matrix)) {
      staged = shard.solver().Stage(form);
    }
    if (!staged.ok()) return SayInPieces(shard, staged.status(), matrix);
    // The task's from now on: what is written is awaited before the memory goes.
    StagedMatrix& mine = task.staged.emplace_back(*std::move(staged));
    absl::Status status;
    if (!palette_diagonal.empty()) {
      status = shard.solver().Write(mine, StagedMatrix::DiagonalIndexOffset(form),
                                    std::as_bytes(palette_diagonal));
    }
    if (status.ok() && !palette_coupling.empty()) {
      status = shard.solver().Write(mine, StagedMatrix::CouplingIndexOffset(form),
                                    std::as_bytes(palette_coupling));
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::variant<std::unique_ptr<FactorUpload>, FactorReply>>
FactorOperation::BeginUpload(ContextPtr context, const FactorParams& params,
                             std::span<const uint32_t> palette_diagonal,
                             std::span<const uint32_t> palette_coupling) {
  absl::StatusOr<Permit> permit = admission_->Admit(*context);
  if (!permit.ok()) return permit.status();
  auto task = std::make_unique<FactorTask>(this, std::move(context), *std::move(permit),
                                           admission_->Now(), params, nullptr);
  absl::Status status = CheckFactor(params, admission_->limits());
  if (status.ok()) status = CheckPalette(params.form, palette_diagonal, palette_coupling);
  if (!status.ok()) return status;
  absl::StatusOr<std::optional<FactorReply>> found = FindKey(*task->context, params);
  if (!found.ok()) return found.status();
  if (found->has_value()) return **std::move(found);
  const TenantPtr& tenant = task->permit.tenant;
  status = Admit(*task, /*staged=*/true, [&tenant](FactorTask& task, int64_t bytes) {
    return task.shard->device().Check(tenant, bytes);
  });
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
  absl::Status status = ours.Complete();
  if (!status.ok()) {
    upload.reset();
    return done(std::move(status));
  }
  FactorTaskPtr task = ours.TakeTask();
  upload.reset();
  const absl::Time now = admission_->Now();
  task->received = now - task->accepted;
  task->accepted = now;  // what follows is the queue's time
  task->done = std::move(done);
  Submit(std::move(task));
}

}  // namespace blockd::server
