// blockctl plan
#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/blockctl/command.h"
#include "client/blockctl/text/cost_text.h"
#include "client/blockctl/text/exit_code.h"
#include "client/blockctl/text/json.h"

ABSL_DECLARE_FLAG(int64_t, num_blocks);
ABSL_DECLARE_FLAG(int64_t, block_size);
ABSL_DECLARE_FLAG(int64_t, arrow_size);
ABSL_DECLARE_FLAG(int64_t, num_rhs);
ABSL_FLAG(int64_t, systems, 1, "K, the systems of a Factor.");
ABSL_FLAG(std::string, scalar, "float64", "The systems' numbers: float64 or float32.");

namespace blockd::blockctl {
namespace {

std::string FlopsText(double flops) {
  if (flops >= 1e9) return absl::StrFormat("%.3g GFLOP", flops / 1e9);
  return absl::StrFormat("%.3g MFLOP", flops / 1e6);
}

std::string Counted(int64_t count, const char* what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

void PrintPlan(const v1::Plan& plan, const v1::GetPlanRequest& asked, const std::string& scalar) {
  std::string text = absl::StrFormat("%-6s %10s %10s %10s %10s %10s %10s\n", "LEVEL", "CHAIN",
                                     "SEGMENTS", "LONGEST", "INTERIORS", "FILLS", "SEPARATORS");
  for (int i = 0; i < plan.level_size(); ++i) {
    const v1::PlanLevel& level = plan.level(i);
    absl::StrAppendFormat(&text, "%-6d %10d %10d %10d %10d %10d %10d\n", i, level.chain_blocks(),
                          level.segments(), level.longest_segment_blocks(), level.interior_blocks(),
                          level.fill_blocks(), level.separator_blocks());
  }
  const v1::SystemSpec& spec = asked.spec();
  absl::StrAppendFormat(&text, "\nN=%d n=%d %s%s on %s, %s; times as its cost model predicts\n",
                        spec.num_blocks(), spec.block_size(), scalar, BorderText(spec.arrow_size()),
                        plan.backend(), plan.device_name());
  absl::StrAppendFormat(
      &text, "factor %-22s %10s %12s  %s held for each, %s while it runs\n",
      Counted(asked.num_systems(), "system"), SecondsText(plan.predicted_factor_seconds()),
      FlopsText(plan.factor_flops()), BytesText(static_cast<double>(plan.factor_bytes())),
      BytesText(static_cast<double>(plan.factor_workspace_bytes())));
  absl::StrAppendFormat(&text, "solve  %-22s %10s %12s  %s while it runs\n",
                        Counted(asked.num_rhs(), "right-hand side"),
                        SecondsText(plan.predicted_solve_seconds()), FlopsText(plan.solve_flops()),
                        BytesText(static_cast<double>(plan.solve_workspace_bytes())));
  Print(text);
}

void PrintPlanJson(const v1::Plan& plan, const v1::GetPlanRequest& asked,
                   const std::string& scalar) {
  JsonWriter json;
  json.BeginObject().Field("num_blocks", asked.spec().num_blocks());
  json.Field("block_size", asked.spec().block_size());
  json.Field("arrow_size", asked.spec().arrow_size()).Field("scalar", scalar);
  json.Field("systems", asked.num_systems()).Field("num_rhs", asked.num_rhs());
  json.Field("backend", plan.backend()).Field("device_name", plan.device_name());
  json.Key("levels").BeginArray();
  for (const v1::PlanLevel& level : plan.level()) {
    json.BeginObject().Field("chain_blocks", level.chain_blocks());
    json.Field("segments", level.segments());
    json.Field("longest_segment_blocks", level.longest_segment_blocks());
    json.Field("interior_blocks", level.interior_blocks());
    json.Field("fill_blocks", level.fill_blocks());
    json.Field("separator_blocks", level.separator_blocks()).EndObject();
  }
  json.EndArray().Field("factor_bytes", plan.factor_bytes());
  json.Field("factor_workspace_bytes", plan.factor_workspace_bytes());
  json.Field("solve_workspace_bytes", plan.solve_workspace_bytes());
  json.Field("factor_flops", plan.factor_flops()).Field("solve_flops", plan.solve_flops());
  json.Field("predicted_factor_seconds", plan.predicted_factor_seconds());
  json.Field("predicted_solve_seconds", plan.predicted_solve_seconds());
  Print(json.EndObject().text() + "\n");
}

absl::Status RunPlan(const std::vector<std::string>& arguments) {
  if (absl::Status status = RefuseArguments(arguments); !status.ok()) return status;
  const std::string scalar = absl::GetFlag(FLAGS_scalar);
  if (scalar != "float64" && scalar != "float32") {
    return UsageError(absl::StrCat("--scalar=", scalar, ": expected float64 or float32"));
  }
  v1::GetPlanRequest asked;
  asked.mutable_spec()->set_num_blocks(absl::GetFlag(FLAGS_num_blocks));
  asked.mutable_spec()->set_block_size(absl::GetFlag(FLAGS_block_size));
  asked.mutable_spec()->set_arrow_size(absl::GetFlag(FLAGS_arrow_size));
  asked.set_num_systems(absl::GetFlag(FLAGS_systems));
  asked.set_num_rhs(absl::GetFlag(FLAGS_num_rhs));
  if (asked.spec().num_blocks() < 1 || asked.spec().block_size() < 1 || asked.num_systems() < 1 ||
      asked.num_rhs() < 1) {
    return UsageError("give --num_blocks and --block_size, all numbers at least 1");
  }
  const absl::StatusOr<client::SolverClient> client = ConnectFromFlags();
  if (!client.ok()) return client.status();
  const absl::StatusOr<v1::Plan> plan =
      client->Plan(asked.spec().num_blocks(), asked.spec().block_size(),
                   scalar == "float64" ? client::Scalar::kFloat64 : client::Scalar::kFloat32,
                   asked.num_systems(), asked.num_rhs(), asked.spec().arrow_size());
  if (!plan.ok()) return plan.status();
  if (JsonAsked()) {
    PrintPlanJson(*plan, asked, scalar);
  } else {
    PrintPlan(*plan, asked, scalar);
  }
  return absl::OkStatus();
}

}  // namespace

Command PlanCommand() {
  return {
      "plan",
      "",
      "Show how the server would factor and solve a shape, and how long it should take",
      "Nothing is sent, reserved or run. Segments of a level are eliminated in parallel; their\n"
      "separators are the next level's chain.\n"
      "  blockctl plan --num_blocks=1024 --block_size=64 --num_rhs=16\n",
      {"num_blocks", "block_size", "arrow_size", "num_rhs", "systems", "scalar"},
      RunPlan};
}

}  // namespace blockd::blockctl
