// FactorSolveMany: many systems of one form, factored and solved for in one request.
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/core/common/errors.h"
#include "server/transport/calls/core_calls.h"
#include "server/transport/calls/factor_solve_options.h"
#include "server/transport/calls/many_call.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {
namespace {

class FactorSolveManyCall final
    : public ManyCallOf<v1::FactorSolveManyRequest, FactorSolveManyReply> {
 public:
  bool IsLong(const grpc::ByteBuffer* /*message*/) const override { return true; }

  absl::Status Read(const RequestData& data) override {
    const absl::StatusOr<int64_t> each = ReadHead();
    if (!each.ok()) return each.status();
    return data.shared == nullptr ? ReadData(*each) : TakeData(*data.shared);
  }
  bool checks_finite() const override { return params_.check_finite_rhs; }
  int64_t data_bytes() const override {
    return static_cast<int64_t>(request_.matrix().size() + request_.rhs().size());
  }
  void Describe(CallRecord* record) const override {
    if (has_form_) record->SetShape(params_.form.shape, systems());
  }
  void Place(std::span<std::byte> values) override {
    const std::span<const std::byte> rhs = AsBytes(request_.rhs());
    const size_t each = rhs.size() / params_.solves.size();
    for (size_t i = 0; i < params_.solves.size(); ++i) {
      params_.solves[i].rhs = rhs.subspan(i * each, each);
      params_.solves[i].solution = values.subspan(i * each, each);
    }
    columns_ = params_.solves;
  }

  void Ask(SolverCore& core, const ContextPtr& context, Done done) override {
    core.FactorSolveMany(context, std::move(params_), Take(std::move(done)));
  }

 private:
  int64_t systems() const { return request_.handle_size(); }

  // All but the data. The bytes of the right-hand sides of one system.
  absl::StatusOr<int64_t> ReadHead() {
    priority_ = request_.options().priority();
    more_bytes_ = systems() * kHostBytesPerSolve;
    const absl::StatusOr<MatrixForm> form = ToForm(request_.spec());
    if (!form.ok()) return form.status();
    params_.form = *form;
    has_form_ = true;
    absl::Status status = ReadHandles();
    if (status.ok()) status = ReadFactorSolveOptions(request_, &params_);
    if (!status.ok()) return status;
    const int64_t num_rhs = request_.num_rhs() == 0 ? 1 : request_.num_rhs();
    params_.matrices.assign(params_.handles.size(), ViewWithoutBlocks(*form, request_.spec()));
    params_.solves.assign(params_.handles.size(), {.num_rhs = num_rhs, .rhs = {}, .solution = {}});
    return RhsBytes(form->bordered_shape(), num_rhs, "num_rhs");
  }

  absl::Status ReadHandles() {
    if (systems() == 0) return InvalidFieldError("handle", "0 handles", "at least 1");
    params_.handles.reserve(static_cast<size_t>(systems()));
    for (int i = 0; i < request_.handle_size(); ++i) {
      const absl::StatusOr<Handle> handle =
          ToHandle(absl::StrCat("handle[", i, "]"), request_.handle(i));
      if (!handle.ok()) return handle.status();
      params_.handles.push_back(*handle);
    }
    return absl::OkStatus();
  }

  absl::Status ReadData(int64_t rhs_bytes_each) {
    absl::Status status = ReadMatrices();
    if (!status.ok()) return status;
    bytes_ = static_cast<int64_t>(request_.rhs().size());
    const absl::StatusOr<int64_t> all = CheckedProduct(rhs_bytes_each, systems());
    if (all.ok() && *all == bytes_) return absl::OkStatus();
    return InvalidFieldError(
        "rhs", absl::StrCat(bytes_, " bytes"),
        absl::StrCat(rhs_bytes_each, " bytes for each of ", systems(), " systems"));
  }
  absl::Status TakeData(SharedData& data) {
    absl::Status status =
        CheckNoData(!request_.matrix().empty() || !request_.rhs().empty(), "matrix, rhs");
    for (size_t i = 0; status.ok() && i < params_.matrices.size(); ++i) {
      status = data.TakeMatrix(&params_.matrices[i]);
      if (status.ok()) status = data.TakeColumns(&params_.solves[i]);
    }
    columns_ = params_.solves;
    return status;
  }

  absl::Status ReadMatrices() {
    const MatrixForm& form = params_.form;
    const absl::StatusOr<int64_t> bytes = CheckedProduct(form.bytes(), systems());
    if (!bytes.ok()) return InvalidFieldError("spec", ToString(form.shape), "fewer bytes in all");
    if (*bytes != static_cast<int64_t>(request_.matrix().size())) {
      return InvalidFieldError("matrix", absl::StrCat(request_.matrix().size(), " bytes"),
                               absl::StrCat(*bytes, " bytes"));
    }
    const char* next = request_.matrix().data();
    for (BlockTridiagonalView& matrix : params_.matrices) {
      matrix.SetParts(next);
      next += form.bytes();
    }
    return absl::OkStatus();
  }

  FactorSolveManyParams params_;
  bool has_form_ = false;
};

}  // namespace

std::unique_ptr<CoreCall> NewFactorSolveMany() { return std::make_unique<FactorSolveManyCall>(); }

}  // namespace blockd::server
