// SolveMany: right-hand sides of many factorizations.
#include "server/transport/wire/solve_many.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "server/transport/calls/core_calls.h"
#include "server/transport/calls/many_call.h"

namespace blockd::server {
namespace {

class SolveManyCall final : public ManyCallOf<v1::SolveManyRequest, SolveManyReply> {
 public:
  int lifted_field() const override { return v1::SolveManyRequest::kRhsFieldNumber; }

  absl::Status Read(const RequestData& data) override {
    bytes_ = data.lifted;
    priority_ = request_.options().priority();
    const absl::StatusOr<int64_t> solves = CountSolves(request_);
    if (!solves.ok()) return solves.status();
    more_bytes_ = *solves * kHostBytesPerSolve;
    solves_ = items_ = *solves;
    if (request_.num_rhs_size() > 0) {
      items_ = 0;
      for (const int64_t num_rhs : request_.num_rhs()) items_ += ToItems(num_rhs);
    }
    return data.shared == nullptr ? CheckRhsBytes(request_, *solves, bytes_)
                                  : TakeColumns(*data.shared);
  }
  bool checks_finite() const override { return params_.check_finite; }
  void Place(std::span<std::byte> values) override {
    SetParams(ToSolveManyParams(request_, values));
  }
  void Describe(CallRecord* record) const override {
    if (solves_ > 0) record->SetSolves(solves_, items_);
  }

  void Ask(SolverCore& core, const ContextPtr& context, Done done) override {
    core.SolveMany(context, std::move(params_), Take(std::move(done)));
  }

 private:
  // For the log; not checked yet.
  static int64_t ToItems(int64_t num_rhs) {
    return std::clamp<int64_t>(num_rhs, 0, std::numeric_limits<int32_t>::max());
  }

  absl::Status TakeColumns(SharedData& data) {
    absl::Status status =
        CheckNoData(!request_.rhs().empty() || request_.rhs_bytes_size() > 0, "rhs, rhs_bytes");
    if (status.ok()) status = data.CheckCount(solves_ * kPlacesOfColumns);
    if (!status.ok()) return status;
    SolveManyParams params = ToSolveManyParams(request_, {});
    for (SolveManyParams::Columns& columns : params.solves) {
      if (status = data.TakeColumns(&columns); !status.ok()) return status;
    }
    SetParams(std::move(params));
    return absl::OkStatus();
  }
  void SetParams(SolveManyParams params) {
    params_ = std::move(params);
    columns_ = params_.solves;
    v1::SolveManyRequest().Swap(&request_);  // gives its memory back
  }

  SolveManyParams params_;
  int64_t solves_ = 0, items_ = 0;
};

}  // namespace

std::unique_ptr<CoreCall> NewSolveMany() { return std::make_unique<SolveManyCall>(); }

}  // namespace blockd::server
