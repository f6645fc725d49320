#include "server/transport/wire/factor_solve_many.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "server/transport/wire/solve_many.h"

namespace blockd::server {

absl::Status ReadHandles(const v1::FactorSolveManyRequest& request, FactorSolveManyParams* params) {
  if (request.handle().empty()) return InvalidFieldError("handle", "0 handles", "at least 1");
  params->handles.reserve(static_cast<size_t>(request.handle_size()));
  for (int i = 0; i < request.handle_size(); ++i) {
    absl::StatusOr<Handle> handle = ToHandle(absl::StrCat("handle[", i, "]"), request.handle(i));
    if (!handle.ok()) return handle.status();
    params->handles.push_back(*handle);
  }
  return absl::OkStatus();
}

int64_t NumRhs(const v1::FactorSolveManyRequest& request) {
  return request.num_rhs() == 0 ? 1 : request.num_rhs();
}

namespace {

absl::Status ReadMatrices(const v1::FactorSolveManyRequest& request,
                          FactorSolveManyParams* params) {
  const MatrixForm& form = params->form;
  const int64_t systems = request.handle_size();
  const absl::StatusOr<int64_t> bytes = CheckedProduct(form.bytes(), systems);
  if (!bytes.ok()) return InvalidFieldError("spec", ToString(form.shape), "fewer bytes in all");
  if (*bytes != static_cast<int64_t>(request.matrix().size())) {
    return InvalidFieldError("matrix", absl::StrCat(request.matrix().size(), " bytes"),
                             absl::StrCat(*bytes, " bytes"));
  }
  params->matrices.reserve(static_cast<size_t>(systems));
  for (int64_t k = 0; k < systems; ++k) {
    BlockTridiagonalView& view =
        params->matrices.emplace_back(ViewWithoutBlocks(form, request.spec()));
    view.SetParts(request.matrix().data() + k * form.bytes());
  }
  return absl::OkStatus();
}

absl::Status CheckRhsBytes(const v1::FactorSolveManyRequest& request, const BorderedShape& shape) {
  const int64_t systems = request.handle_size();
  const absl::StatusOr<int64_t> each = RhsBytes(shape, NumRhs(request), "num_rhs");
  if (!each.ok()) return each.status();
  const absl::StatusOr<int64_t> all = CheckedProduct(*each, systems);
  if (all.ok() && *all == static_cast<int64_t>(request.rhs().size())) return absl::OkStatus();
  return InvalidFieldError("rhs", absl::StrCat(request.rhs().size(), " bytes"),
                           absl::StrCat(*each, " bytes for each of ", systems, " systems"));
}

}  // namespace

absl::StatusOr<FactorSolveManyParams> ToFactorSolveManyParams(
    const v1::FactorSolveManyRequest& request) {
  FactorSolveManyParams params;
  absl::StatusOr<MatrixForm> form = ToForm(request.spec());
  if (!form.ok()) return form.status();
  params.form = *form;
  absl::Status status = ReadHandles(request, &params);
  if (status.ok()) status = ReadMatrices(request, &params);
  if (status.ok()) status = CheckRhsBytes(request, form->bordered_shape());
  if (status.ok()) status = ReadFactorSolveOptions(request, &params);
  if (!status.ok()) return status;
  return params;
}

void AddSolves(const v1::FactorSolveManyRequest& request, std::span<std::byte> solutions,
               FactorSolveManyParams* params) {
  const std::span<const std::byte> rhs = AsBytes(request.rhs());
  const size_t each = rhs.size() / params->handles.size();
  params->solves.reserve(params->handles.size());
  for (size_t at = 0; at < rhs.size(); at += each) {
    params->solves.push_back({NumRhs(request), rhs.subspan(at, each), solutions.subspan(at, each)});
  }
}

void ToWire(const FactorSolveManyReply& reply, v1::SolveManyReply* wire) {
  SolveManyReply solved;
  solved.cost = reply.cost;
  solved.outcomes.reserve(reply.systems.size());
  for (const FactorSolveOutcome& system : reply.systems) solved.outcomes.push_back(system.solve);
  ToWire(solved, wire);
  bool kept = false;
  for (const FactorSolveOutcome& system : reply.systems) {
    wire->add_growth(system.solve.status.ok() ? system.growth : 0);
    kept |= system.matrix_kept;
  }
  for (const FactorSolveOutcome& system : reply.systems) {
    if (kept) wire->add_matrix_kept(system.matrix_kept);
  }
}

void ClearFailed(const FactorSolveManyReply& reply,
                 std::span<const SolveManyParams::Columns> solves) {
  for (size_t i = 0; i < solves.size(); ++i) {
    if (reply.systems[i].solve.status.ok()) continue;
    std::ranges::fill(solves[i].solution, std::byte{0});
  }
}

}  // namespace blockd::server
