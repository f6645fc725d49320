// FactorSolve: one system, factored and solved for in one request.
#include "absl/strings/str_cat.h"
#include "server/core/common/errors.h"
#include "server/transport/calls/core_calls.h"
#include "server/transport/calls/factor_solve_options.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {
namespace {

class FactorSolveCall final : public CoreCallWith<v1::FactorSolveRequest, SolveReply> {
 public:
  int solution_field() const override { return v1::FactorSolveReply::kSolutionFieldNumber; }
  bool IsLong(const grpc::ByteBuffer* /*message*/) const override { return true; }

  absl::Status Read(const RequestData& data) override {
    const absl::StatusOr<int64_t> expected = ReadHead();
    if (!expected.ok()) return expected.status();
    return data.shared == nullptr ? ReadData(*expected) : TakeData(*data.shared);
  }
  bool checks_finite() const override { return params_.check_finite_rhs; }
  void Describe(CallRecord* record) const override {
    if (has_form_) record->SetShape(params_.matrix.form.shape, 1);
  }
  void Place(std::span<std::byte> values) override { params_.solution = values; }

  void Ask(SolverCore& core, const ContextPtr& context, Done done) override {
    core.FactorSolve(context, params_, Take(std::move(done)));
  }
  std::unique_ptr<google::protobuf::Message> Reply(size_t /*room*/) override {
    auto wire = std::make_unique<v1::FactorSolveReply>();
    ToWire(reply_, wire.get());
    return wire;
  }

 private:
  // All but the data. The bytes of the right-hand sides.
  absl::StatusOr<int64_t> ReadHead() {
    const absl::StatusOr<MatrixForm> form = ToForm(request_.spec());
    if (!form.ok()) return form.status();
    params_.matrix = ViewWithoutBlocks(*form, request_.spec());
    has_form_ = true;
    if (!request_.handle().empty()) {
      const absl::StatusOr<Handle> handle = ToHandle("handle", request_.handle());
      if (!handle.ok()) return handle.status();
      params_.handle = *handle;
    }
    params_.num_rhs = request_.num_rhs();
    params_.log_determinant = request_.log_determinant();
    priority_ = request_.options().priority();
    const absl::Status status = ReadFactorSolveOptions(request_, &params_);
    if (!status.ok()) return status;
    return RhsBytes(form->bordered_shape(), params_.num_rhs, "num_rhs");
  }

  absl::Status ReadData(int64_t rhs_bytes) {
    const absl::StatusOr<BlockTridiagonalView> view =
        ToView(params_.matrix.form, request_.spec(), request_.system(), "system");
    if (!view.ok()) return view.status();
    params_.matrix = *view;
    params_.rhs = AsBytes(request_.rhs());
    bytes_ = std::ssize(params_.rhs);
    if (rhs_bytes == bytes_) return absl::OkStatus();
    return InvalidFieldError("rhs", absl::StrCat(bytes_, " bytes"),
                             absl::StrCat(rhs_bytes, " bytes"));
  }
  absl::Status TakeData(SharedData& data) {
    absl::Status status =
        CheckNoData(request_.has_system() || !request_.rhs().empty(), "system, rhs");
    if (status.ok()) status = data.TakeMatrix(&params_.matrix);
    SolveManyParams::Columns columns;
    if (status.ok()) status = data.TakeColumns(&columns);
    params_.rhs = columns.rhs;
    params_.solution = columns.solution;
    return status;
  }

  FactorSolveParams params_;
  bool has_form_ = false;
};

}  // namespace

std::unique_ptr<CoreCall> NewFactorSolve() { return std::make_unique<FactorSolveCall>(); }

}  // namespace blockd::server
