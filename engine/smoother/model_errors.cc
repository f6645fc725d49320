#include "blockd/engine/model_errors.h"

#include "absl/strings/str_cat.h"
#include "blockd/engine/status_payload.h"

namespace blockd {
namespace {

constexpr char kInvalidFieldUrl[] = "blockd.engine/InvalidField";
constexpr char kSingularUrl[] = "blockd.engine/SingularCovariance";
constexpr char kNotSmoothableUrl[] = "blockd.engine/NotSmoothable";

absl::Status WithSingular(const absl::Status& status, const SingularCovariance& singular) {
  return PayloadWriter()
      .Text(singular.matrix)
      .Int(singular.step)
      .Int(singular.row)
      .AddTo(status, kSingularUrl);
}

std::string ReasonOf(const NotSmoothable& why) {
  switch (why.reason) {
    case NotSmoothable::Reason::kNotIdentified:
      return absl::StrCat(
          "the observations do not tell ", why.directions,
          why.directions == 1 ? " direction" : " directions",
          " of x(1), of which nothing else is known: give m and P, or observe more");
    case NotSmoothable::Reason::kContradiction:
      return absl::StrCat("element ", why.row, " of y at step ", why.step,
                          " has no noise of its own and contradicts the other observations");
    case NotSmoothable::Reason::kInaccurate:
      break;
  }
  return absl::StrCat("its numbers would be wrong even in double-double: means by ",
                      why.means_error, " standard deviations, variances by a share of ",
                      why.variances_error, ", the log-likelihood by ", why.log_likelihood_error,
                      " (estimates)");
}

}  // namespace

absl::Status InvalidFieldError(std::string_view field, std::string_view came,
                               std::string_view expected) {
  const std::string message =
      std::string(field) + ": came " + std::string(came) + ", expected " + std::string(expected);
  return WithInvalidField(absl::InvalidArgumentError(message),
                          {std::string(field), std::string(came), std::string(expected)});
}

absl::Status WithInvalidField(const absl::Status& status, const InvalidField& field) {
  return PayloadWriter()
      .Text(field.field)
      .Text(field.came)
      .Text(field.expected)
      .AddTo(status, kInvalidFieldUrl);
}

absl::Status SingularCovarianceError(const SingularCovariance& singular) {
  return WithSingular(
      absl::InvalidArgumentError(absl::StrCat(
          singular.matrix, " of step ", singular.step, " is not positive definite: row ",
          singular.row,
          singular.matrix == "P"
              ? "; where nothing is known of x(1), leave m and P out (diffuse)"
              : "; give what has no noise a little, or move it out of the state: into d or c")),
      singular);
}

absl::Status NotSemidefiniteError(const SingularCovariance& where) {
  return WithSingular(
      absl::InvalidArgumentError(absl::StrCat(where.matrix, " of step ", where.step,
                                              " is not positive semidefinite: row ", where.row,
                                              "; no noise has such a covariance")),
      where);
}

absl::Status NotSmoothableError(const NotSmoothable& why) {
  return PayloadWriter()
      .Int(static_cast<int64_t>(why.reason))
      .Int(why.system)
      .Int(why.step)
      .Int(why.row)
      .Int(why.directions)
      .Double(why.means_error)
      .Double(why.variances_error)
      .Double(why.log_likelihood_error)
      .AddTo(absl::InvalidArgumentError(
                 absl::StrCat("system ", why.system, " cannot be smoothed: ", ReasonOf(why))),
             kNotSmoothableUrl);
}

std::optional<InvalidField> InvalidFieldOf(const absl::Status& status) {
  PayloadReader in(status, kInvalidFieldUrl);
  if (!in.found()) return std::nullopt;
  InvalidField detail;
  detail.field = in.Text();
  detail.came = in.Text();
  detail.expected = in.Text();
  return detail;
}

std::optional<SingularCovariance> SingularCovarianceOf(const absl::Status& status) {
  PayloadReader in(status, kSingularUrl);
  if (!in.found()) return std::nullopt;
  SingularCovariance singular;
  singular.matrix = in.Text();
  singular.step = in.Int();
  singular.row = in.Int();
  return singular;
}

std::optional<NotSmoothable> NotSmoothableOf(const absl::Status& status) {
  PayloadReader in(status, kNotSmoothableUrl);
  if (!in.found()) return std::nullopt;
  NotSmoothable why;
  why.reason = static_cast<NotSmoothable::Reason>(in.Int());
  why.system = in.Int();
  why.step = in.Int();
  why.row = in.Int();
  why.directions = in.Int();
  why.means_error = in.Double();
  why.variances_error = in.Double();
  why.log_likelihood_error = in.Double();
  return why;
}

}  // namespace blockd
