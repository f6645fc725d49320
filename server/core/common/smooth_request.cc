#include "server/core/common/smooth_request.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/core/common/errors.h"

namespace blockd::server {
namespace {

// The proto's path of a field of the engine's.
std::string PathOf(const std::string& field) {
  if (field == "observations" || absl::StartsWith(field, "initial_")) return "chunk";
  const bool is_option = field == "num_samples" || field == "output";
  return absl::StrCat(is_option ? "header.options." : "header.", field);
}

absl::Status WithPath(const absl::Status& status) {
  const std::optional<InvalidField> invalid = InvalidFieldOf(status);
  if (!invalid) return status;
  return InvalidFieldError(PathOf(invalid->field), invalid->came, invalid->expected);
}

}  // namespace

SmoothLimits SmoothLimitsOf(const CoreLimits& limits) {
  return {.max_columns = limits.max_rhs, .threads = std::max(1, limits.model_threads)};
}

absl::Status CheckSmoothHeader(const SmoothParams& params, const KeepModel& kept,
                               const RequestContext& context, const CoreLimits& limits) {
  if (absl::Status status = CheckSmoothSizes(params, SmoothLimitsOf(limits)); !status.ok()) {
    return WithPath(status);
  }
  if (kept.lease < absl::ZeroDuration() || kept.lease > limits.max_lease) {
    return InvalidFieldError("header.options.lease", absl::FormatDuration(kept.lease),
                             absl::StrCat("0 to ", absl::FormatDuration(limits.max_lease)));
  }
  if (context.priority == PriorityClass::kRealtime && context.deadline == absl::InfiniteFuture()) {
    return InvalidFieldError("header.options.priority", "REALTIME without a deadline",
                             "a deadline");
  }
  if (kept.keep && params.form.value_or(SmoothForm::kInformation) != SmoothForm::kInformation) {
    return InvalidFieldError("header.options.form", "an orthogonal form with keep", "INFORMATION");
  }
  if (!params.outputs.empty() && (kept.keep || params.form == SmoothForm::kInformation)) {
    return InvalidFieldError("header.options.output",
                             absl::StrCat("outputs with ", kept.keep ? "keep" : "INFORMATION"),
                             "none, which orthogonal forms alone have");
  }
  return absl::OkStatus();
}

absl::StatusOr<MeasuredSmooth> MeasureSmooth(const SmoothParams& params, const CoreLimits& limits) {
  absl::StatusOr<MeasuredSmooth> measured = blockd::MeasureSmooth(params, SmoothLimitsOf(limits));
  if (!measured.ok()) return WithPath(measured.status());
  return measured;
}

}  // namespace blockd::server
