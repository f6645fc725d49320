#include "blockd/engine/model_errors.h"

#include "absl/strings/str_cat.h"
#include "blockd/engine/status_payload.h"

namespace blockd {
namespace {

constexpr char kInvalidFieldUrl[] = "blockd.engine/InvalidField";
constexpr char kSingularUrl[] = "blockd.engine/SingularCovariance";

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
  return PayloadWriter()
      .Text(singular.matrix)
      .Int(singular.step)
      .Int(singular.row)
      .AddTo(absl::InvalidArgumentError(absl::StrCat(
                 singular.matrix, " of step ", singular.step, " is not positive definite: row ",
                 singular.row,
                 singular.matrix == "P"
                     ? "; where nothing is known of x(1), leave m and P out (diffuse)"
                     : "; give what has no noise a little, or move it out of the state: into d or "
                       "c")),
             kSingularUrl);
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

}  // namespace blockd
