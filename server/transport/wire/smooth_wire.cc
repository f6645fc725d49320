#include "server/transport/wire/smooth_wire.h"

#include <limits>
#include <string>
#include <string_view>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "server/core/common/errors.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {
namespace {

constexpr int64_t kMostDoubles = std::numeric_limits<int64_t>::max() / 16;

absl::Status CheckCount(std::string_view field, int64_t count) {
  if (count >= 1) return absl::OkStatus();
  return InvalidFieldError(field, absl::StrCat(count), "at least 1");
}

// Doubles of an array of `steps` matrices, or of one.
absl::StatusOr<int64_t> SizeOf(const std::string& field, v1::ModelArray form, bool may_be_absent,
                               int64_t steps, int64_t rows, int64_t columns, ModelArray* array) {
  // A product of two fits 128 bits, one of three does not.
  absl::int128 size = absl::int128(rows) * columns;
  const auto check = [&]() -> absl::Status {
    if (size <= kMostDoubles) return absl::OkStatus();
    return InvalidFieldError(field, absl::StrCat(steps, " steps of ", rows, " x ", columns),
                             absl::StrCat("at most ", kMostDoubles, " numbers"));
  };
  switch (form) {
    case v1::MODEL_ARRAY_UNSPECIFIED:
      if (!may_be_absent) return InvalidFieldError(field, "nothing", "CONSTANT or PER_STEP");
      return 0;
    case v1::CONSTANT:
      if (steps == 0) size = 0;
      break;
    case v1::PER_STEP:
      if (absl::Status status = check(); !status.ok()) return status;
      size *= steps;
      break;
    default:
      return InvalidFieldError(field, absl::StrCat(static_cast<int>(form)), "a ModelArray");
  }
  array->per_step = form == v1::PER_STEP;
  if (absl::Status status = check(); !status.ok()) return status;
  return static_cast<int64_t>(size);
}

absl::StatusOr<SmoothedCovariances> ToCovariances(v1::SmoothedCovariances covariances) {
  switch (covariances) {
    case v1::SMOOTHED_COVARIANCES_UNSPECIFIED:
      return SmoothedCovariances::kNone;
    case v1::VARIANCES:
      return SmoothedCovariances::kVariances;
    case v1::COVARIANCES:
      return SmoothedCovariances::kFull;
    default:
      return InvalidFieldError("header.options.covariances",
                               absl::StrCat(static_cast<int>(covariances)),
                               "VARIANCES or COVARIANCES");
  }
}

absl::Status ReadOptions(const v1::SmoothOptions& options, SmoothParams* params, KeepModel* kept) {
  const absl::StatusOr<SmoothedCovariances> covariances = ToCovariances(options.covariances());
  if (!covariances.ok()) return covariances.status();
  params->covariances = *covariances;
  params->lag_one = options.lag_one_covariances();
  params->log_likelihood = options.log_likelihood();
  params->residuals = options.residuals();
  params->num_samples = options.num_samples();
  params->seed = options.seed();
  if (options.form() != v1::SMOOTH_FORM_UNSPECIFIED) {
    if (!v1::SmoothForm_IsValid(options.form())) {
      return InvalidFieldError("header.options.form",
                               absl::StrCat(static_cast<int>(options.form())), "a SmoothForm");
    }
    params->form = static_cast<SmoothForm>(options.form());  // the same numbers
  }
  for (const int output : options.output()) {  // the same numbers, and the core checks them
    params->outputs.push_back(static_cast<SmoothOutput>(output));
  }
  kept->keep = options.keep();
  if (params->num_samples < 0) {
    return InvalidFieldError("header.options.num_samples", absl::StrCat(params->num_samples),
                             "0 or more");
  }
  if (options.has_lease()) {
    const absl::StatusOr<absl::Duration> lease =
        ToDuration("header.options.lease", options.lease());
    if (!lease.ok()) return lease.status();
    if (!kept->keep) {
      return InvalidFieldError("header.options.lease", "a lease", "none without keep");
    }
    kept->lease = *lease;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SmoothLayout> SmoothLayout::Of(const v1::SmoothHeader& header) {
  SmoothLayout layout;
  SmoothParams& params = layout.params_;
  params.num_steps = header.num_steps();
  params.state_size = header.state_size();
  params.observation_size = header.observation_size();
  params.num_series = header.num_series() == 0 ? 1 : header.num_series();
  params.diffuse = header.diffuse();
  absl::Status status = CheckCount("header.num_steps", params.num_steps);
  status.Update(CheckCount("header.state_size", params.state_size));
  status.Update(CheckCount("header.observation_size", params.observation_size));
  status.Update(CheckCount("header.num_series", params.num_series));
  status.Update(ReadOptions(header.options(), &params, &layout.kept_));
  if (!status.ok()) return status;
  const int64_t steps = params.num_steps, n = params.state_size, ny = params.observation_size;
  size_t next = 0;
  const auto add = [&](const char* field, v1::ModelArray form, bool may_be_absent, int64_t count,
                       int64_t rows, int64_t columns, ModelArray* array) {
    if (!status.ok()) return;
    const absl::StatusOr<int64_t> size =
        SizeOf(absl::StrCat("header.", field), form, may_be_absent, count, rows, columns, array);
    if (!size.ok()) {
      status = size.status();
      return;
    }
    layout.sizes_[next++] = *size;
    layout.total_ += *size;  // each is at most an eighth of what an int64_t holds
    if (layout.total_ > kMostDoubles) {
      status = InvalidFieldError(absl::StrCat("header.", field), "more numbers in all",
                                 absl::StrCat("at most ", kMostDoubles));
    }
  };
  const bool one = steps == 1;  // no transitions: F and Q may be left out
  add("transition", header.transition(), one, steps - 1, n, n, &params.transition);
  add("transition_covariance", header.transition_covariance(), one, steps - 1, n, n,
      &params.transition_covariance);
  add("observation", header.observation(), false, steps, ny, n, &params.observation);
  add("observation_covariance", header.observation_covariance(), false, steps, ny, ny,
      &params.observation_covariance);
  add("transition_offset", header.transition_offset(), true, steps - 1, n, 1,
      &params.transition_offset);
  add("observation_offset", header.observation_offset(), true, steps, ny, 1,
      &params.observation_offset);
  const auto initial = params.diffuse ? v1::MODEL_ARRAY_UNSPECIFIED : v1::CONSTANT;
  ModelArray whole;
  add("state_size", initial, true, 1, n, 1, &whole);
  add("state_size", initial, true, 1, n, n, &whole);
  const int64_t directions = header.diffuse_columns(), most = params.diffuse ? 0 : n;
  if (directions < 0 || directions > most) {
    status.Update(InvalidFieldError("header.diffuse_columns", absl::StrCat(directions),
                                    absl::StrCat("0 to ", most)));
  }
  add("diffuse_columns", initial, true, 1, n, directions, &whole);
  if (absl::int128(steps) * params.num_series > kMostDoubles) {
    status.Update(InvalidFieldError("header.num_series", absl::StrCat(params.num_series),
                                    absl::StrCat("fewer series of ", steps, " steps")));
  }
  if (!status.ok()) return status;
  add("num_series", v1::PER_STEP, false, steps * params.num_series, ny, 1, &whole);
  if (!status.ok()) return status;
  return layout;
}

SmoothParams SmoothLayout::Bind(std::span<const double> values) const {
  SmoothParams params = params_;
  std::span<const double>* const arrays[kArrays] = {
      &params.transition.values,
      &params.transition_covariance.values,
      &params.observation.values,
      &params.observation_covariance.values,
      &params.transition_offset.values,
      &params.observation_offset.values,
      &params.initial_mean,
      &params.initial_covariance,
      &params.initial_diffuse,
      &params.observations,
  };
  size_t first = 0;
  for (size_t i = 0; i < kArrays; ++i) {
    const auto size = static_cast<size_t>(sizes_[i]);
    *arrays[i] = values.subspan(first, size);
    first += size;
  }
  return params;
}

SmoothResults CutResults(const SmoothSizes& sizes, std::span<double> values) {
  size_t first = 0;
  const auto next = [&](int64_t size) {
    const std::span<double> cut = values.subspan(first, static_cast<size_t>(size));
    first += cut.size();
    return cut;
  };
  SmoothResults results;
  results.means = next(sizes.means);
  results.covariances = next(sizes.covariances);
  results.lag_one = next(sizes.lag_one);
  results.residuals = next(sizes.residuals);
  results.samples = next(sizes.samples);
  for (const int64_t size : sizes.outputs) results.outputs.push_back(next(size));
  return results;
}

void ToWire(const SmoothReply& reply, const SmoothSizes& sizes, v1::SmoothHead* wire) {
  constexpr int64_t kBytes = sizeof(double);
  wire->set_num_systems(sizes.systems);
  wire->mutable_system_of_series()->Add(reply.system_of_series.begin(),
                                        reply.system_of_series.end());
  for (const Handle& handle : reply.handles) wire->add_handle(std::string(handle.view()));
  wire->set_found(reply.found);
  wire->mutable_log_likelihood()->Add(reply.log_likelihood.begin(), reply.log_likelihood.end());
  wire->mutable_observed()->Add(reply.observed.begin(), reply.observed.end());
  wire->set_growth(reply.growth);
  wire->set_backward_error_bound(reply.backward_error_bound);
  wire->set_means_bytes(sizes.means * kBytes);
  wire->set_covariances_bytes(sizes.covariances * kBytes);
  wire->set_lag_one_bytes(sizes.lag_one * kBytes);
  wire->set_residuals_bytes(sizes.residuals * kBytes);
  wire->set_samples_bytes(sizes.samples * kBytes);
  for (const int64_t size : sizes.outputs) wire->add_output_bytes(size * kBytes);
  ToWire(reply.cost, wire->mutable_cost());
  for (const SmoothedSystem& system : reply.systems) {
    v1::SmoothedSystem& to = *wire->add_system();
    to.set_form(static_cast<v1::SmoothForm>(system.form));  // these two have the same numbers
    to.set_reason(static_cast<v1::SmoothedSystem::Reason>(system.reason));
    to.set_means_error(system.errors.means);
    to.set_variances_error(system.errors.variances);
    to.set_log_likelihood_error(system.errors.log_likelihood);
  }
}

}  // namespace blockd::server
