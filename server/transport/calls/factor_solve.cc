// FactorSolve, and FactorSolveMany: systems, factored and solved for in one request.
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/core/common/errors.h"
#include "server/transport/calls/core_calls.h"
#include "server/transport/calls/many_call.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {
namespace {

// `Base`: what a call of this message has beside what is the same for both.
template <typename Base>
class FactorSolveCallOf : public Base {
 public:
  bool IsLong(const grpc::ByteBuffer* /*message*/) const final { return true; }
  absl::Status Read(const RequestData& data) final {
    const absl::StatusOr<int64_t> rhs_bytes = ReadHead();
    if (!rhs_bytes.ok()) return rhs_bytes.status();
    return data.shared == nullptr ? ReadData(*rhs_bytes) : TakeData(*data.shared);
  }
  bool checks_finite() const final { return params_.check_finite_rhs; }
  void Describe(CallRecord* record) const final {
    if (!params_.matrices.empty()) record->SetShape(params_.form.shape, systems());
  }

 protected:
  int64_t systems() const { return std::ssize(params_.matrices); }

  // Adds the handles of the message to the parameters, if there are any.
  virtual absl::Status ReadHandles() = 0;
  // How many right-hand sides each system has.
  virtual int64_t num_rhs() const { return this->request_.num_rhs(); }
  virtual size_t CountSystems() const = 0;
  // Reads matrices and right-hand sides that are in the message; so many bytes of the latter a
  // system.
  virtual absl::Status ReadData(int64_t rhs_bytes) = 0;
  virtual absl::Status CheckNoDataInMessage() const = 0;

  absl::Status ReadHandle(std::string_view path, std::string_view bytes) {
    const absl::StatusOr<Handle> handle = ToHandle(path, bytes);
    if (handle.ok()) params_.handles.push_back(*handle);
    return handle.status();
  }

  FactorSolveParams params_;

 private:
  // All but the data. The bytes of the right-hand sides of one system.
  absl::StatusOr<int64_t> ReadHead() {
    const auto& request = this->request_;
    this->priority_ = request.options().priority();
    const absl::StatusOr<MatrixForm> form = ToForm(request.spec());
    if (!form.ok()) return form.status();
    params_.form = *form;
    const size_t count = CountSystems();
    params_.matrices.assign(count, ViewWithoutBlocks(*form, request.spec()));
    params_.solves.assign(count, {.num_rhs = num_rhs(), .rhs = {}, .solution = {}});
    absl::Status status = ReadHandles();
    if (status.ok()) status = ReadOptions();
    if (!status.ok()) return status;
    return RhsBytes(form->bordered_shape(), num_rhs(), "num_rhs");
  }
  absl::Status ReadOptions() {
    const auto& request = this->request_;
    params_.overwrite = request.overwrite();
    params_.keep_matrix = request.keep_matrix();
    params_.residual = request.options().residual();
    params_.max_refinements = request.options().max_refinements();
    params_.check_finite = request.check_finite();
    params_.check_finite_rhs = request.check_finite() || request.options().check_finite();
    const absl::StatusOr<Accuracy> accuracy = ToAccuracy("accuracy", request.accuracy());
    if (accuracy.ok()) params_.accuracy = *accuracy;
    return accuracy.status();
  }
  absl::Status TakeData(SharedData& data) {
    absl::Status status = CheckNoDataInMessage();
    for (size_t i = 0; status.ok() && i < params_.matrices.size(); ++i) {
      status = data.TakeMatrix(&params_.matrices[i], params_.check_finite);
      if (status.ok()) status = data.TakeColumns(&params_.solves[i]);
    }
    return status;
  }
};

class FactorSolveCall final
    : public FactorSolveCallOf<CoreCallWith<v1::FactorSolveRequest, FactorSolveReply>> {
 public:
  int solution_field() const override { return v1::FactorSolveReply::kSolutionFieldNumber; }
  void Place(std::span<std::byte> values) override { params_.solves[0].solution = values; }
  void Ask(SolverCore& core, const ContextPtr& context, Done done) override {
    core.FactorSolve(context, std::move(params_),
                     Take([this, done = std::move(done)](const absl::Status& status) mutable {
                       // The system's failure is the call's.
                       done(status.ok() ? reply_.systems[0].solve.status : status);
                     }));
  }
  std::unique_ptr<google::protobuf::Message> Reply(size_t /*room*/) override {
    auto wire = std::make_unique<v1::FactorSolveReply>();
    ToWire(reply_, wire.get());
    return wire;
  }

 private:
  size_t CountSystems() const override { return 1; }
  absl::Status ReadHandles() override {
    params_.log_determinant = request_.log_determinant();
    return request_.handle().empty() ? absl::OkStatus() : ReadHandle("handle", request_.handle());
  }
  absl::Status ReadData(int64_t rhs_bytes) override {
    const absl::StatusOr<BlockTridiagonalView> view =
        ToView(params_.form, request_.spec(), request_.system(), "system");
    if (!view.ok()) return view.status();
    params_.matrices[0] = *view;
    params_.solves[0].rhs = AsBytes(request_.rhs());
    bytes_ = static_cast<int64_t>(request_.rhs().size());
    if (rhs_bytes == bytes_) return absl::OkStatus();
    return InvalidFieldError("rhs", absl::StrCat(bytes_, " bytes"),
                             absl::StrCat(rhs_bytes, " bytes"));
  }
  absl::Status CheckNoDataInMessage() const override {
    return CheckNoData(request_.has_system() || !request_.rhs().empty(), "system, rhs");
  }
};

class FactorSolveManyCall final
    : public FactorSolveCallOf<ManyCallOf<v1::FactorSolveManyRequest, FactorSolveReply>> {
 public:
  int64_t data_bytes() const override {
    return static_cast<int64_t>(request_.matrix().size() + request_.rhs().size());
  }
  void Place(std::span<std::byte> values) override {
    const std::span<const std::byte> rhs = AsBytes(request_.rhs());
    const size_t each = rhs.size() / params_.solves.size();
    for (size_t i = 0; i < params_.solves.size(); ++i) {
      params_.solves[i].rhs = rhs.subspan(i * each, each);
      params_.solves[i].solution = values.subspan(i * each, each);
    }
  }
  void Ask(SolverCore& core, const ContextPtr& context, Done done) override {
    if (!context->method) context->method = Method::kFactorSolveMany;
    columns_ = params_.solves;
    core.FactorSolve(context, std::move(params_), Take(std::move(done)));
  }

 private:
  int64_t num_rhs() const override { return request_.num_rhs() == 0 ? 1 : request_.num_rhs(); }
  size_t CountSystems() const override { return static_cast<size_t>(request_.handle_size()); }
  absl::Status ReadHandles() override {
    more_bytes_ = systems() * kHostBytesPerSolve;
    if (systems() == 0) return InvalidFieldError("handle", "0 handles", "at least 1");
    absl::Status status;
    for (int i = 0; status.ok() && i < request_.handle_size(); ++i) {
      status = ReadHandle(absl::StrCat("handle[", i, "]"), request_.handle(i));
    }
    return status;
  }
  absl::Status ReadData(int64_t rhs_bytes) override {
    absl::Status status = ReadMatrices();
    if (!status.ok()) return status;
    bytes_ = static_cast<int64_t>(request_.rhs().size());
    const absl::StatusOr<int64_t> all = CheckedProduct(rhs_bytes, systems());
    if (all.ok() && *all == bytes_) return absl::OkStatus();
    return InvalidFieldError("rhs", absl::StrCat(bytes_, " bytes"),
                             absl::StrCat(rhs_bytes, " bytes for each of ", systems(), " systems"));
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
  absl::Status CheckNoDataInMessage() const override {
    return CheckNoData(!request_.matrix().empty() || !request_.rhs().empty(), "matrix, rhs");
  }
};

}  // namespace

std::unique_ptr<CoreCall> NewFactorSolve() { return std::make_unique<FactorSolveCall>(); }
std::unique_ptr<CoreCall> NewFactorSolveMany() { return std::make_unique<FactorSolveManyCall>(); }

}  // namespace blockd::server
