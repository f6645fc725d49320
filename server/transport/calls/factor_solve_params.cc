#include "server/transport/calls/factor_solve_params.h"

#include "server/transport/wire/factor_solve_many.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {
namespace {

template <typename Request>
absl::Status ReadOptions(const Request& request, RequestContext* context,
                         FactorSolveOptions* options) {
  const absl::Status status = ReadFactorSolveOptions(request, options);
  if (!status.ok()) return status;
  return ReadPriority("options.priority", request.options().priority(), context);
}

}  // namespace

absl::StatusOr<FactorSolveParams> ReadHead(const v1::FactorSolveRequest& request,
                                           CallRecord* record) {
  absl::StatusOr<MatrixForm> form = ToForm(request.spec());
  if (!form.ok()) return form.status();
  record->SetShape(form->shape, 1);
  FactorSolveParams params;
  params.matrix = ViewWithoutBlocks(*form, request.spec());
  if (!request.handle().empty()) {
    absl::StatusOr<Handle> handle = ToHandle("handle", request.handle());
    if (!handle.ok()) return handle.status();
    params.handle = *handle;
  }
  params.num_rhs = request.num_rhs();
  params.log_determinant = request.log_determinant();
  absl::Status status = RhsBytes(form->bordered_shape(), params.num_rhs, "num_rhs").status();
  if (status.ok()) status = ReadOptions(request, record->context().get(), &params);
  if (!status.ok()) return status;
  return params;
}

absl::StatusOr<FactorSolveManyParams> ReadHead(const v1::FactorSolveManyRequest& request,
                                               CallRecord* record) {
  FactorSolveManyParams params;
  absl::StatusOr<MatrixForm> form = ToForm(request.spec());
  if (!form.ok()) return form.status();
  params.form = *form;
  record->SetShape(form->shape, request.handle_size());
  absl::Status status = ReadHandles(request, &params);
  if (!status.ok()) return status;
  const size_t systems = params.handles.size();
  params.matrices.assign(systems, ViewWithoutBlocks(*form, request.spec()));
  const int64_t num_rhs = NumRhs(request);
  params.solves.assign(systems, {.num_rhs = num_rhs, .rhs = {}, .solution = {}});
  status = RhsBytes(form->bordered_shape(), num_rhs, "num_rhs").status();
  if (status.ok()) status = ReadOptions(request, record->context().get(), &params);
  if (!status.ok()) return status;
  return params;
}

}  // namespace blockd::server
