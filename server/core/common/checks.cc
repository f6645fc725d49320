#include "server/core/common/checks.h"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/core/common/errors.h"

namespace blockd::server {
namespace {

constexpr size_t kMaxKeyBytes = 256;
constexpr int32_t kMaxRefinements = 10;

absl::Status OutOfRange(std::string_view field, int64_t came, int64_t least, int64_t most) {
  return InvalidFieldError(field, absl::StrCat(came), absl::StrCat(least, " to ", most));
}

absl::Status CheckIndex(const char* field, std::span<const uint32_t> index, int64_t expected,
                        int64_t palette) {
  if (static_cast<int64_t>(index.size()) != expected) {
    return InvalidFieldError(field, absl::StrCat(index.size(), " entries"),
                             absl::StrCat(expected, " entries"));
  }
  for (size_t i = 0; i < index.size(); ++i) {
    if (index[i] >= palette) {
      return InvalidFieldError(absl::StrCat(field, "[", i, "]"), absl::StrCat(index[i]),
                               absl::StrCat("0 to ", palette - 1));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLease(absl::Duration lease, const CoreLimits& limits) {
  if (lease >= absl::ZeroDuration() && lease <= limits.max_lease) return absl::OkStatus();
  return InvalidFieldError("options.lease", absl::FormatDuration(lease),
                           absl::StrCat("0 to ", absl::FormatDuration(limits.max_lease)));
}

}  // namespace

absl::Status CheckSpec(const MatrixForm& form) {
  const Shape& shape = form.shape;
  if (shape.block_size < 1 || shape.block_size > kMaxBlockSize) {
    return OutOfRange("spec.block_size", shape.block_size, 1, kMaxBlockSize);
  }
  if (shape.num_blocks < 1 || shape.num_blocks > kMaxRows / shape.block_size) {
    return OutOfRange("spec.num_blocks", shape.num_blocks, 1, kMaxRows / shape.block_size);
  }
  if (form.border_rows < 0 || form.border_rows > kMaxBorderRows) {
    return OutOfRange("spec.arrow_size", form.border_rows, 0, kMaxBorderRows);
  }
  const absl::Status status = blockd::CheckForm(form);
  if (status.ok()) return status;
  return InvalidFieldError("spec", ToString(shape), std::string(status.message()));
}

absl::Status CheckNoBorder(const BorderedShape& shape, std::string_view option, bool asked) {
  if (shape.border_rows == 0 || !asked) return absl::OkStatus();
  return InvalidFieldError(option, absl::StrCat("given with arrow_size ", shape.border_rows),
                           "its default with a border");
}

absl::Status CheckSystems(int64_t num_systems, const CoreLimits& limits) {
  if (num_systems >= 1 && num_systems <= limits.max_systems) return absl::OkStatus();
  return OutOfRange("num_systems", num_systems, 1, limits.max_systems);
}

absl::Status CheckColumns(int64_t num_rhs, const CoreLimits& limits) {
  if (num_rhs >= 1 && num_rhs <= limits.max_rhs) return absl::OkStatus();
  return OutOfRange("num_rhs", num_rhs, 1, limits.max_rhs);
}

absl::Status CheckFactor(const FactorParams& params, const CoreLimits& limits) {
  absl::Status status = CheckSpec(params.form);
  if (!status.ok()) return status;
  if (!(status = CheckSystems(params.num_systems, limits)).ok()) return status;
  if (!(status = CheckLease(params.lease, limits)).ok()) return status;
  const BorderedShape shape = params.form.bordered_shape();
  status = CheckNoBorder(shape, "options.keep_matrix", params.keep_matrix);
  status.Update(CheckNoBorder(shape, "options.accuracy", params.accuracy == Accuracy::kGuaranteed));
  status.Update(CheckNoBorder(shape, "options.condition_estimate", params.condition_estimate));
  if (!status.ok()) return status;
  if (params.idempotency_key.size() > kMaxKeyBytes) {
    return InvalidFieldError("options.idempotency_key",
                             absl::StrCat(params.idempotency_key.size(), " bytes"),
                             absl::StrCat("at most ", kMaxKeyBytes, " bytes"));
  }
  const int64_t handles = static_cast<int64_t>(params.handles.size());
  if (handles == 0) return absl::OkStatus();
  if (handles != params.num_systems) {
    return InvalidFieldError("options.handle", absl::StrCat(handles, " handles"),
                             absl::StrCat(params.num_systems, ", one a system, or none"));
  }
  if (!params.idempotency_key.empty()) {
    return InvalidFieldError("options.idempotency_key", "a key together with handles",
                             "one of the two");
  }
  return CheckDistinct(params.handles, "options.handle");
}

absl::Status CheckDistinct(std::span<const Handle> handles, std::string_view field) {
  std::vector<Handle> sorted(handles.begin(), handles.end());
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice == sorted.end()) return absl::OkStatus();
  return InvalidFieldError(field, twice->hex() + " twice", "distinct handles");
}

absl::Status CheckRhs(const BorderedShape& shape, int64_t num_rhs, int64_t rhs_bytes,
                      int64_t solution_bytes, int32_t max_refinements, const CoreLimits& limits) {
  if (absl::Status status = CheckColumns(num_rhs, limits); !status.ok()) return status;
  const absl::StatusOr<int64_t> expected =
      CheckedProduct(shape.rows() * ScalarBytes(shape.chain.scalar), num_rhs);
  if (!expected.ok() || rhs_bytes != *expected) {
    return InvalidFieldError(
        "rhs", absl::StrCat(rhs_bytes, " bytes"),
        absl::StrCat(expected.ok() ? *expected : std::numeric_limits<int64_t>::max(), " bytes (",
                     shape.rows(), " rows x ", num_rhs, " right-hand sides x ",
                     ScalarBytes(shape.chain.scalar), ")"));
  }
  if (solution_bytes != rhs_bytes) {
    return InvalidFieldError("solution", absl::StrCat(solution_bytes, " bytes"),
                             absl::StrCat(rhs_bytes, " bytes"));
  }
  if (max_refinements < 0 || max_refinements > kMaxRefinements) {
    return OutOfRange("options.max_refinements", max_refinements, 0, kMaxRefinements);
  }
  return absl::OkStatus();
}

absl::Status CheckPalette(const MatrixForm& form, std::span<const uint32_t> diagonal_index,
                          std::span<const uint32_t> coupling_index) {
  const int64_t blocks = form.shape.num_blocks;
  absl::Status status = CheckIndex("spec.palette.diagonal_index", diagonal_index,
                                   form.diagonal_palette > 0 ? blocks : 0, form.diagonal_palette);
  if (!status.ok()) return status;
  return CheckIndex("spec.palette.coupling_index", coupling_index,
                    form.coupling_palette > 0 ? blocks - 1 : 0, form.coupling_palette);
}

absl::Status CheckMatrices(std::span<const BlockTridiagonalView> matrices, const MatrixForm& form) {
  const int64_t blocks = form.shape.num_blocks;
  for (size_t k = 0; k < matrices.size(); ++k) {
    const BlockTridiagonalView& view = matrices[k];
    const std::string system = absl::StrCat("system[", k, "]");
    if (!(view.form == form)) {
      return InvalidFieldError(system, ToString(view.form.bordered_shape()),
                               ToString(form.bordered_shape()));
    }
    if (std::any_of(kMatrixParts.begin(), kMatrixParts.end(), [&](MatrixPart part) {
          return view.part(part) == nullptr && form.bytes(part) > 0;
        })) {
      return InvalidFieldError(system, "no data", absl::StrCat(form.bytes(), " bytes"));
    }
    // Systems of a request usually share the positions, which then are checked once.
    if (k == 0 || view.diagonal_index != matrices[k - 1].diagonal_index ||
        view.coupling_index != matrices[k - 1].coupling_index) {
      const auto entries = [](const uint32_t* index, int64_t count) {
        return index ? std::span(index, static_cast<size_t>(count)) : std::span<const uint32_t>();
      };
      absl::Status status = CheckPalette(form, entries(view.diagonal_index, blocks),
                                         entries(view.coupling_index, blocks - 1));
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace blockd::server
