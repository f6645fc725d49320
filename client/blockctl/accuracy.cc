#include "client/blockctl/accuracy.h"

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "client/blockctl/command.h"

ABSL_FLAG(std::string, accuracy, "standard",
          "standard: solutions as accurate as the growth of the blocks' factors lets them be; "
          "guaranteed: a backward error of at most 4 n eps, for which the server keeps the matrix "
          "where it must.");

namespace blockd::blockctl {

absl::StatusOr<client::Accuracy> AccuracyFromFlag() {
  const std::string accuracy = absl::GetFlag(FLAGS_accuracy);
  if (accuracy == "standard") return client::Accuracy::kStandard;
  if (accuracy == "guaranteed") return client::Accuracy::kGuaranteed;
  return UsageError("--accuracy must be standard or guaranteed");
}

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
