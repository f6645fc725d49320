#include "server/transport/wire/shared_request.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/core/common/errors.h"

namespace blockd::server {

absl::StatusOr<std::span<std::byte>> SharedMemory::Data(std::string_view name, uint64_t offset,
                                                        uint64_t bytes) const {
  const uint64_t end = mapping.size();
  if (offset % v1::kShmAlignment == 0 && offset >= data_offset && offset <= end &&
      bytes <= end - offset) {
    return mapping.subspan(offset, bytes);
  }
  return InvalidFieldError(name, absl::StrCat(bytes, " bytes from ", offset, " on"),
                           absl::StrCat("a multiple of ", v1::kShmAlignment, ", and bytes from ",
                                        data_offset, " to ", end));
}

absl::StatusOr<SolveManyParams::Columns> SharedRequest::Columns() const {
  return ColumnsAt(slot_.num_rhs, slot_.rhs_offset, slot_.solution_offset, slot_.bytes);
}

// In place, or from one place to another: a copy between two that overlap is undefined.
absl::StatusOr<SolveManyParams::Columns> SharedRequest::ColumnsAt(int64_t num_rhs,
                                                                  uint64_t rhs_offset,
                                                                  uint64_t solution_offset,
                                                                  uint64_t bytes) const {
  const auto rhs = Data("rhs_offset", rhs_offset, bytes);
  if (!rhs.ok()) return rhs.status();
  const auto solution = Data("solution_offset", solution_offset, bytes);
  if (!solution.ok()) return solution.status();
  const uint64_t apart =
      rhs_offset > solution_offset ? rhs_offset - solution_offset : solution_offset - rhs_offset;
  if (apart != 0 && apart < bytes) {
    return InvalidFieldError("solution_offset", "a part of the right-hand sides",
                             "their place, or another");
  }
  return SolveManyParams::Columns{num_rhs, *rhs, *solution};
}

absl::Status SharedRequest::CheckTogether(std::span<const SolveManyParams::Columns> solves) const {
  const uint64_t most = memory_.mapping.size();
  uint64_t bytes = 0;  // never more than twice the memory
  for (const SolveManyParams::Columns& columns : solves) {
    bytes += columns.solution.size();
    if (bytes > most) {
      return InvalidFieldError("bytes", "solutions that overlap",
                               "solutions in places of their own");
    }
  }
  return absl::OkStatus();
}

absl::Status SharedRequest::CheckReplyRoom(int64_t items) const {
  const uint64_t least = v1::kShmReplyBytes + static_cast<uint64_t>(items) * v1::kShmReplyBytesEach;
  if (slot_.reply_bytes >= least) return absl::OkStatus();
  return InvalidFieldError("reply_bytes", absl::StrCat(slot_.reply_bytes),
                           absl::StrCat(">= ", least));
}

absl::Status SharedRequest::ReadSolves(int64_t count, std::vector<Handle>* handles,
                                       std::vector<SolveManyParams::Columns>* solves) const {
  const auto size = static_cast<size_t>(count);
  const auto described = Data("rhs_offset", slot_.rhs_offset, size * sizeof(v1::ShmSolve));
  if (!described.ok()) return described.status();
  const auto* const all = reinterpret_cast<const v1::ShmSolve*>(described->data());
  handles->reserve(size);
  solves->reserve(size);
  for (size_t i = 0; i < size; ++i) {
    const v1::ShmSolve solve = CopyOnce(all[i]);
    const auto columns =
        ColumnsAt(solve.num_rhs, solve.rhs_offset, solve.solution_offset, solve.bytes);
    if (!columns.ok()) return columns.status();
    handles->push_back(HandleOf(solve.handle));
    solves->push_back(*columns);
  }
  return CheckTogether(*solves);
}

absl::Status SharedRequest::ReadMatrix(const v1::ShmFactorSolve& places,
                                       BlockTridiagonalView* matrix) const {
  const MatrixForm& form = matrix->form;
  const auto read = [&](std::string_view part, uint64_t offset, uint64_t bytes, int64_t expected,
                        const void** place) -> absl::Status {
    const std::string name(part);
    if (bytes != static_cast<uint64_t>(expected)) {
      return InvalidFieldError(name + "_bytes", absl::StrCat(bytes, " bytes"),
                               absl::StrCat(expected, " bytes"));
    }
    const auto data = Data(name + "_offset", offset, bytes);
    if (data.ok()) *place = data->data();
    return data.status();
  };
  absl::Status status = read("diagonal", places.diagonal_offset, places.diagonal_bytes,
                             form.diagonal_bytes(), &matrix->diagonal);
  if (status.ok()) {
    status = read("coupling", places.coupling_offset, places.coupling_bytes,
                  form.bytes() - form.diagonal_bytes(), &matrix->coupling);
  }
  if (!status.ok()) return status;
  matrix->border = static_cast<const std::byte*>(matrix->coupling) + form.coupling_bytes();
  matrix->corner = static_cast<const std::byte*>(matrix->border) + form.border_bytes();
  return status;
}

absl::Status SharedRequest::ReadSystems(std::span<BlockTridiagonalView> matrices, bool check_finite,
                                        std::span<SolveManyParams::Columns> solves) const {
  const size_t systems = matrices.size();
  if (slot_.num_rhs != static_cast<int64_t>(systems)) {
    return InvalidFieldError("num_rhs", absl::StrCat(slot_.num_rhs, " systems"),
                             absl::StrCat("as many as in the message: ", systems));
  }
  absl::Status status = CheckReplyRoom(slot_.num_rhs);
  if (!status.ok()) return status;
  const auto described = Data("rhs_offset", slot_.rhs_offset, systems * sizeof(v1::ShmFactorSolve));
  if (!described.ok()) return described.status();
  const auto* const all = reinterpret_cast<const v1::ShmFactorSolve*>(described->data());
  uint64_t looked_at = 0;
  for (size_t i = 0; i < systems; ++i) {
    const v1::ShmFactorSolve one = CopyOnce(all[i]);
    status = ReadMatrix(one, &matrices[i]);
    if (!status.ok()) return status;
    looked_at += check_finite ? static_cast<uint64_t>(matrices[i].form.bytes()) : 0;
    if (looked_at > memory_.mapping.size()) {
      return InvalidFieldError("diagonal_offset", "matrices that overlap",
                               "matrices in places of their own, with check_finite");
    }
    const auto columns =
        ColumnsAt(solves[i].num_rhs, one.rhs_offset, one.solution_offset, one.bytes);
    if (!columns.ok()) return columns.status();
    solves[i] = *columns;
  }
  return CheckTogether(solves);
}

}  // namespace blockd::server
