#include "client/blockctl/text/cost_text.h"

#include "absl/strings/str_cat.h"
#include "client/blockctl/text/text.h"

namespace blockd::blockctl {

std::string CostText(const v1::Cost& cost) {
  return absl::StrCat("queue ", SecondsText(cost.queue_seconds()), ", upload ",
                      SecondsText(cost.upload_seconds()), ", compute ",
                      SecondsText(cost.compute_seconds()), ", download ",
                      SecondsText(cost.download_seconds()));
}

void WriteCost(const v1::Cost& cost, JsonWriter& json) {
  json.BeginObject().Field("queue_seconds", cost.queue_seconds());
  json.Field("batch_requests", cost.batch_requests()).Field("batch_items", cost.batch_items());
  json.Field("upload_seconds", cost.upload_seconds());
  json.Field("compute_seconds", cost.compute_seconds());
  json.Field("download_seconds", cost.download_seconds()).EndObject();
}

std::string ScalarText(client::Scalar scalar) {
  return scalar == client::Scalar::kFloat64 ? "float64" : "float32";
}

std::string ScalarText(v1::ScalarType scalar) {
  return scalar == v1::FLOAT64 ? "float64" : scalar == v1::FLOAT32 ? "float32" : "?";
}

std::string BorderText(int64_t arrow_size) {
  return arrow_size > 0 ? absl::StrCat(" p=", arrow_size) : "";
}

}  // namespace blockd::blockctl
