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
  bool IsLong(const grpc::ByteBuffer& /*message*/) const override { return true; }

  absl::Status Read(int64_t /*lifted*/, std::span<const Handle> /*handles*/) override {
    const absl::StatusOr<int64_t> expected = ReadHead();
    if (!expected.ok()) return expected.status();
    const absl::StatusOr<BlockTridiagonalView> view =
        ToView(params_.matrix.form, request_.spec(), request_.system(), "system");
    if (!view.ok()) return view.status();
    params_.matrix = *view;
    params_.rhs = AsBytes(request_.rhs());
    bytes_ = std::ssize(params_.rhs);
    if (*expected == bytes_) return absl::OkStatus();
    return InvalidFieldError("rhs", absl::StrCat(bytes_, " bytes"),
                             absl::StrCat(*expected, " bytes"));
  }
  void Describe(CallRecord* record) const override {
    if (has_form_) record->SetShape(params_.matrix.form.shape, 1);
  }
  void Place(std::span<std::byte> values) override { params_.solution = values; }

  bool IsLong(const v1::ShmRequest& /*slot*/) const override { return true; }
  bool ChecksFinite(const v1::ShmRequest& /*slot*/) const override {
    return request_.check_finite() || request_.options().check_finite();
  }
  absl::Status ReadShared(const SharedRequest& request) override {
    absl::Status status =
        CheckNoData(request_.has_system() || !request_.rhs().empty(), "system, rhs");
    if (status.ok()) status = ReadHead().status();
    if (!status.ok()) return status;
    SolveManyParams::Columns columns{.num_rhs = params_.num_rhs, .rhs = {}, .solution = {}};
    status = request.ReadSystems({&params_.matrix, 1}, params_.check_finite, {&columns, 1});
    params_.rhs = columns.rhs;
    params_.solution = columns.solution;
    return status;
  }

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

  FactorSolveParams params_;
  bool has_form_ = false;
};

}  // namespace

std::unique_ptr<CoreCall> NewFactorSolve() { return std::make_unique<FactorSolveCall>(); }

}  // namespace blockd::server
