#include "server/transport/calls/factor_solve.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "blockd/v1/blockd.pb.h"
#include "server/transport/calls/factor_solve_params.h"
#include "server/transport/rpc/unary_call.h"
#include "server/transport/wire/factor_solve_many.h"
#include "server/transport/wire/raw_message.h"
#include "server/transport/wire/solve_many.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {
namespace {

class FactorSolveCall final : public CoreCallOf<v1::FactorSolveRequest, SolveReply> {
 public:
  using CoreCallOf::CoreCallOf;

 private:
  bool IsWork() const override { return true; }
  bool IsLong() const override { return true; }

  void Start() override {
    absl::StatusOr<FactorSolveParams> params = Params();
    if (!params.ok()) return Fail(params.status());
    core().FactorSolve(record().context(), *params, Done());
  }

  absl::StatusOr<FactorSolveParams> Params() {
    absl::StatusOr<FactorSolveParams> params = ReadHead(request_, &record());
    if (!params.ok()) return params.status();
    const MatrixForm form = params->matrix.form;
    absl::StatusOr<BlockTridiagonalView> view =
        ToView(form, request_.spec(), request_.system(), "system");
    if (!view.ok()) return view.status();
    params->matrix = *view;
    const absl::StatusOr<int64_t> bytes =
        RhsBytes(form.bordered_shape(), params->num_rhs, "num_rhs");
    if (!bytes.ok()) return bytes.status();
    if (*bytes != static_cast<int64_t>(request_.rhs().size())) {
      return InvalidFieldError("rhs", absl::StrCat(request_.rhs().size(), " bytes"),
                               absl::StrCat(*bytes, " bytes"));
    }
    absl::StatusOr<Payload> solution = Allocate(*bytes);
    if (!solution.ok()) return solution.status();
    solution_ = *std::move(solution);
    params->rhs = AsBytes(request_.rhs());
    params->solution = solution_.span();
    return params;
  }

  void Answer(const SolveReply& reply) override {
    v1::FactorSolveReply wire;
    ToWire(reply, &wire);
    Succeed(SerializeWithBytes(wire, v1::FactorSolveReply::kSolutionFieldNumber, solution_));
  }

  Payload solution_;
};

class FactorSolveManyCall final
    : public CoreCallOf<v1::FactorSolveManyRequest, FactorSolveManyReply> {
 public:
  using CoreCallOf::CoreCallOf;

 private:
  bool IsWork() const override { return true; }
  bool IsLong() const override { return true; }

  void Start() override {
    absl::StatusOr<FactorSolveManyParams> params = ToFactorSolveManyParams(request_);
    if (!params.ok()) return Fail(params.status());
    record().SetShape(params->form.shape, request_.handle_size());
    absl::Status status =
        ReadPriority("options.priority", request_.options().priority(), record().context().get());
    if (!status.ok()) return Fail(status);
    const auto bytes = static_cast<int64_t>(request_.rhs().size());
    absl::StatusOr<Payload> solutions =
        Allocate(bytes, request_.handle_size() * kHostBytesPerSolve);
    if (!solutions.ok()) return Fail(solutions.status());
    solutions_ = *std::move(solutions);
    AddSolves(request_, solutions_.span(), &*params);
    solves_ = params->solves;
    core().FactorSolveMany(record().context(), *std::move(params), Done());
  }

  void Answer(const FactorSolveManyReply& reply) override {
    ClearFailed(reply, solves_);
    v1::SolveManyReply wire;
    ToWire(reply, &wire);
    Succeed(SerializeWithBytes(wire, v1::SolveManyReply::kSolutionFieldNumber, solutions_));
  }

  Payload solutions_;
  std::vector<SolveManyParams::Columns> solves_;
};

}  // namespace

std::shared_ptr<ServerCall> MakeFactorSolve(ServiceState* state,
                                            std::unique_ptr<IncomingCall> incoming) {
  return std::make_shared<FactorSolveCall>(state, Method::kFactorSolve, std::move(incoming));
}

std::shared_ptr<ServerCall> MakeFactorSolveMany(ServiceState* state,
                                                std::unique_ptr<IncomingCall> incoming) {
  return std::make_shared<FactorSolveManyCall>(state, Method::kFactorSolveMany,
                                               std::move(incoming));
}

}  // namespace blockd::server
