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

  absl::Status Read(int64_t lifted, std::span<const Handle> /*handles*/) override {
    bytes_ = lifted;
    priority_ = request_.options().priority();
    const absl::StatusOr<SolveParams> params = ToSolveParams(request_);
    if (!params.ok()) return params.status();
    params_ = *params;
    has_handle_ = true;
    v1::SolveRequest().Swap(&request_);  // gives its memory back
    return absl::OkStatus();
  }
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

  bool has_shared_message() const override { return false; }
  bool IsLong(const v1::ShmRequest& slot) const override {
    return (slot.flags & v1::kShmCheckFinite) != 0 && slot.bytes > kShortMessageBytes;
  }
  bool ChecksFinite(const v1::ShmRequest& slot) const override { return IsLong(slot); }
  absl::Status ReadShared(const SharedRequest& request) override {
    const v1::ShmRequest& slot = request.slot();
    params_.handle = request.handle();
    has_handle_ = true;
    params_.num_rhs = slot.num_rhs;
    params_.residual = request.has_flag(v1::kShmResidual);
    params_.max_refinements = slot.max_refinements;
    params_.check_finite = request.has_flag(v1::kShmCheckFinite);
    priority_ = static_cast<v1::PriorityClass>(slot.priority);
    const auto columns = request.Columns();
    if (!columns.ok()) return columns.status();
    params_.rhs = columns->rhs;
    params_.solution = columns->solution;
    return absl::OkStatus();
  }
  bool ReplyInSlot(v1::ShmReply* slot) const override {
    slot->backward_error = reply_.backward_error.value_or(-1);
    slot->backward_error_bound = reply_.backward_error_bound;
    slot->refinements = reply_.refinements;
    const Cost& cost = reply_.cost;
    slot->queue_seconds = absl::ToDoubleSeconds(cost.queue);
    slot->upload_seconds = absl::ToDoubleSeconds(cost.upload);
    slot->compute_seconds = absl::ToDoubleSeconds(cost.compute);
    slot->download_seconds = absl::ToDoubleSeconds(cost.download);
    slot->batch_requests = cost.batch_requests;
    slot->batch_items = cost.batch_items;
    return true;
  }

  void Ask(SolverCore& core, const ContextPtr& context, Done done) override {
    core.Solve(context, params_, Take(std::move(done)));
  }
  std::unique_ptr<google::protobuf::Message> Reply(size_t /*room*/) override {
    auto wire = std::make_unique<v1::SolveReply>();
    ToWire(reply_, wire.get());
    return wire;
  }

 private:
  SolveParams params_;
  bool has_handle_ = false;
};

}  // namespace

std::unique_ptr<CoreCall> NewSolve() { return std::make_unique<SolveCall>(); }

}  // namespace blockd::server
