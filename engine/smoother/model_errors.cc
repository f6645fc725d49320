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
          " of x(1), of which nothing else is known: observe more, or say what is known before");
    case NotSmoothable::Reason::kContradiction:
      return absl::StrCat("element ", why.row, " of y at step ", why.step,
                          " has no noise of its own and contradicts the other observations");
    case NotSmoothable::Reason::kInaccurate:
      break;
  }
  const char* form = "even in double-double";
  if (why.form == SmoothForm::kInformation) form = "in information form";
  if (why.form == SmoothForm::kOrthogonal) form = "in orthogonal form in double";
  return absl::StrCat("its numbers would be wrong ", form, ": means by ", why.errors.means,
                      " standard deviations, variances by a share of ", why.errors.variances,
                      ", the log-likelihood by ", why.errors.log_likelihood, " (estimates)");
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
          "; only the information form needs that: ask for no form, and without `keep`")),
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
      .Int(static_cast<int64_t>(why.form))
      .Int(why.system)
      .Int(why.step)
      .Int(why.row)
      .Int(why.directions)
      .Double(why.errors.means)
      .Double(why.errors.variances)
      .Double(why.errors.log_likelihood)
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
  why.form = static_cast<SmoothForm>(in.Int());
  why.system = in.Int();
  why.step = in.Int();
  why.row = in.Int();
  why.directions = in.Int();
  why.errors.means = in.Double();
  why.errors.variances = in.Double();
  why.errors.log_likelihood = in.Double();
  return why;
}

}  // namespace blockd
