#include "client/blockctl/text/accuracy.h"

#include "absl/strings/str_format.h"

namespace blockd::blockctl {

std::string ConditioningText(const client::Conditioning& conditioning) {
  std::string text = absl::StrFormat("growth %.3g, backward errors of at most %.3g%s",
                                     conditioning.growth, conditioning.backward_error_bound,
                                     conditioning.matrix_kept ? " before refinement" : "");
  if (conditioning.condition_estimate) {
    absl::StrAppendFormat(&text, ", condition number about %.3g", *conditioning.condition_estimate);
  }
  return text;
}

void WriteConditioning(const client::Conditioning& conditioning, JsonWriter& json) {
  json.Field("growth", conditioning.growth);
  json.Field("backward_error_bound", conditioning.backward_error_bound);
  if (conditioning.condition_estimate) {
    json.Field("condition_estimate", *conditioning.condition_estimate);
  }
}

}  // namespace blockd::blockctl
