// Solve: right-hand sides of one factorization.
#include "absl/strings/str_cat.h"
#include "server/transport/calls/core_calls.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {
namespace {

class SolveCall final : public CoreCallWith<v1::SolveRequest, SolveReply> {
 public:
  int lifted_field() const override { return v1::SolveRequest::kRhsFieldNumber; }
  int solution_field() const override { return v1::SolveReply::kSolutionFieldNumber; }

  absl::Status Read(const RequestData& data) override {
    bytes_ = data.lifted;
    priority_ = request_.options().priority();
    const absl::StatusOr<SolveParams> params = ToSolveParams(request_);
    if (!params.ok()) return params.status();
    params_ = *params;
    has_handle_ = true;
    absl::Status status;
    if (data.shared != nullptr) status = TakeColumns(*data.shared);
    v1::SolveRequest().Swap(&request_);  // gives its memory back
    return status;
  }
  bool checks_finite() const override { return params_.check_finite; }
  absl::StatusOr<int64_t> BytesToCome(SolverCore& core, const std::string& caller) override {
    const absl::StatusOr<BorderedShape> shape = core.ShapeOf(caller, params_.handle);
    if (!shape.ok()) return shape.status();
    const absl::StatusOr<int64_t> expected = RhsBytes(*shape, params_.num_rhs, "num_rhs");
    if (!expected.ok()) return expected.status();
    if (bytes_ != 0 && bytes_ != *expected) {
      return InvalidFieldError("rhs", absl::StrCat(bytes_, " bytes"),
                               absl::StrCat(*expected, " bytes, or none where chunks follow"));
    }
    return bytes_ = *expected;
  }
  void Describe(CallRecord* record) const override {
    if (has_handle_) record->SetSolve(params_.handle, params_.num_rhs);
  }
  const Handle* replaceable() const override { return &params_.handle; }
  void Place(std::span<std::byte> values) override { params_.rhs = params_.solution = values; }

  void Ask(SolverCore& core, const ContextPtr& context, Done done) override {
    core.Solve(context, params_, Take(std::move(done)));
  }
  std::unique_ptr<google::protobuf::Message> Reply(size_t /*room*/) override {
    auto wire = std::make_unique<v1::SolveReply>();
    ToWire(reply_, wire.get());
    return wire;
  }

 private:
  absl::Status TakeColumns(SharedData& data) {
    absl::Status status = CheckNoData(!request_.rhs().empty(), "rhs");
    SolveManyParams::Columns columns;
    if (status.ok()) status = data.TakeColumns(&columns);
    params_.rhs = columns.rhs;
    params_.solution = columns.solution;
    return status;
  }

  SolveParams params_;
  bool has_handle_ = false;
};

}  // namespace

std::unique_ptr<CoreCall> NewSolve() { return std::make_unique<SolveCall>(); }

}  // namespace blockd::server
