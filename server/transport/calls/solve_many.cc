// SolveMany: right-hand sides of many factorizations.
#include "server/transport/wire/solve_many.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/core/common/errors.h"
#include "server/transport/calls/core_calls.h"
#include "server/transport/calls/many_call.h"

namespace blockd::server {
namespace {

class SolveManyCall final : public ManyCallOf<v1::SolveManyRequest, SolveManyReply> {
 public:
  int lifted_field() const override { return v1::SolveManyRequest::kRhsFieldNumber; }

  absl::Status Read(int64_t lifted, std::span<const Handle> handles) override {
    bytes_ = lifted;
    priority_ = request_.options().priority();
    handles_ = handles;
    if (handles.empty()) {
      absl::Status status = AddHandles(request_, &own_handles_);
      if (!status.ok()) return status;
      handles_ = own_handles_;
    }
    const absl::StatusOr<int64_t> solves = CountSolves(request_, handles_.size(), lifted);
    if (!solves.ok()) return solves.status();
    more_bytes_ = *solves * kHostBytesPerSolve;
    solves_ = items_ = *solves;
    if (request_.num_rhs_size() > 0)
      items_ = std::accumulate(request_.num_rhs().begin(), request_.num_rhs().end(), int64_t{0});
    return absl::OkStatus();
  }
  void Place(std::span<std::byte> values) override {
    params_ = ToSolveManyParams(request_, handles_, values);
    columns_ = params_.solves;
    handles_ = {};
    v1::SolveManyRequest().Swap(&request_);  // gives its memory back
  }
  void Describe(CallRecord* record) const override {
    if (solves_ > 0) record->SetSolves(solves_, items_);
  }

  bool has_shared_message() const override { return false; }
  bool IsLong(const v1::ShmRequest& slot) const override {
    return ChecksFinite(slot) || slot.num_rhs > static_cast<int64_t>(kFewSolves);
  }
  bool ChecksFinite(const v1::ShmRequest& slot) const override {
    return (slot.flags & v1::kShmCheckFinite) != 0;
  }
  absl::Status ReadShared(const SharedRequest& request) override {
    const int64_t count = request.slot().num_rhs;
    priority_ = static_cast<v1::PriorityClass>(request.slot().priority);
    if (count < 1 || count > kMaxSolves) {
      return InvalidFieldError("num_rhs", absl::StrCat(count, " solves"),
                               absl::StrCat("1 to ", kMaxSolves));
    }
    absl::Status status = request.CheckReplyRoom(count);
    if (status.ok()) status = request.Take(count * kHostBytesPerSolve);
    if (status.ok()) status = request.ReadSolves(count, &params_.handles, &params_.solves);
    if (!status.ok()) return status;
    params_.residual = request.has_flag(v1::kShmResidual);
    params_.max_refinements = request.slot().max_refinements;
    params_.check_finite = request.has_flag(v1::kShmCheckFinite);
    columns_ = params_.solves;
    solves_ = count;
    for (const SolveManyParams::Columns& columns : columns_) items_ += ToItems(columns.num_rhs);
    return absl::OkStatus();
  }

  void Ask(SolverCore& core, const ContextPtr& context, Done done) override {
    core.SolveMany(context, std::move(params_), Take(std::move(done)));
  }

 private:
  // For the log; not checked yet.
  static int64_t ToItems(int64_t num_rhs) {
    return std::clamp<int64_t>(num_rhs, 0, std::numeric_limits<int32_t>::max());
  }

  SolveManyParams params_;
  int64_t solves_ = 0, items_ = 0;
  std::vector<Handle> own_handles_;
  std::span<const Handle> handles_;
};

}  // namespace

std::unique_ptr<CoreCall> NewSolveMany() { return std::make_unique<SolveManyCall>(); }

}  // namespace blockd::server
