// blockctl factor, blockctl refactor
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/blockctl/command.h"
#include "client/blockctl/matrix_flags.h"
#include "client/blockctl/progress.h"
#include "client/blockctl/text/accuracy.h"
#include "client/blockctl/text/cost_text.h"
#include "client/blockctl/text/exit_code.h"
#include "client/blockctl/text/handle_table.h"
#include "client/blockctl/text/json.h"

ABSL_FLAG(bool, keep_matrix, false,
          "Keep the matrix on the server too, which --residual and --refinements of `solve` need.");
ABSL_FLAG(bool, check_finite, false,
          "Refuse NaN and infinities in what is sent, saying where they are.");
ABSL_FLAG(absl::Duration, lease, absl::ZeroDuration(),
          "Time after its last use in which it is not evicted, as 10m; 0: the server's default.");
ABSL_FLAG(bool, pin, false, "Never evict it and never let it expire.");
ABSL_FLAG(bool, log_determinant, false, "Report log det A.");
ABSL_FLAG(bool, condition_estimate, false, "Estimate A's condition number; costs some solves.");
ABSL_FLAG(std::string, idempotency_key, "",
          "A name for the content, at most 256 bytes: factoring the same key again returns the "
          "factorization that is there.");
ABSL_FLAG(bool, overwrite, false,
          "Refactor in the old factors' memory: needs half of it, and a failure loses the handle.");
ABSL_FLAG(std::string, handle, "",
          "The handle, as `blockctl factor` printed it: HEX, or HEX@ROUTE.");

namespace blockd::blockctl {
namespace {

absl::StatusOr<client::FactorOptions> OptionsFromFlags() {
  client::FactorOptions options;
  options.keep_matrix = absl::GetFlag(FLAGS_keep_matrix);
  options.check_finite = absl::GetFlag(FLAGS_check_finite);
  options.lease = absl::GetFlag(FLAGS_lease);
  options.pin = absl::GetFlag(FLAGS_pin);
  const absl::StatusOr<client::Accuracy> accuracy = AccuracyFromFlag();
  if (!accuracy.ok()) return accuracy.status();
  options.accuracy = *accuracy;
  const absl::StatusOr<client::Priority> priority = PriorityFromFlag();
  if (!priority.ok()) return priority.status();
  options.priority = *priority;
  options.condition_estimate = absl::GetFlag(FLAGS_condition_estimate);
  options.log_determinant = absl::GetFlag(FLAGS_log_determinant);
  options.idempotency_key = absl::GetFlag(FLAGS_idempotency_key);
  options.overwrite = absl::GetFlag(FLAGS_overwrite);
  options.progress = MakeProgressBar();
  if (options.lease < absl::ZeroDuration()) return UsageError("--lease must not be negative");
  if (options.idempotency_key.size() > 256) {
    return UsageError("--idempotency_key is longer than 256 bytes");
  }
  return options;
}

struct Outcome {
  RoutedHandle name;
  int64_t factor_bytes = 0;  // 0: not known
  bool found = false;
  std::optional<double> log_determinant;
  client::Conditioning conditioning;
  v1::Cost cost;
  double seconds = 0;  // as seen here
};

std::string PaddingText(int64_t rows) {
  return rows > 0 ? absl::StrCat(" with ", rows, rows == 1 ? " row" : " rows", " of padding") : "";
}

void WriteOutcome(const Blocks& blocks, const Outcome& outcome) {
  const std::optional<double>& log_determinant = outcome.log_determinant;
  if (JsonAsked()) {
    JsonWriter json;
    json.BeginObject().Field("handle",
                             HandleText(outcome.name.handle, outcome.name.route, blocks.padding));
    json.Field("num_blocks", blocks.num_blocks).Field("block_size", blocks.block_size);
    json.Field("arrow_size", blocks.arrow_size).Field("padding", blocks.padding);
    json.Field("scalar", ScalarText(blocks.scalar)).Field("found", outcome.found);
    if (outcome.factor_bytes > 0) json.Field("factor_bytes", outcome.factor_bytes);
    if (log_determinant) json.Field("log_determinant", *log_determinant);
    WriteConditioning(outcome.conditioning, json);
    json.Field("matrix_kept", outcome.conditioning.matrix_kept);
    json.Field("seconds", outcome.seconds).Key("cost");
    WriteCost(outcome.cost, json);
    return Print(json.EndObject().text() + "\n");
  }
  Print(HandleText(outcome.name.handle, outcome.name.route, blocks.padding) + "\n");
  Note(absl::StrFormat("%s N=%d n=%d %s%s%s%s in %s (%s)", outcome.found ? "found" : "factored",
                       blocks.num_blocks, blocks.block_size, ScalarText(blocks.scalar),
                       BorderText(blocks.arrow_size), PaddingText(blocks.padding),
                       outcome.factor_bytes > 0
                           ? ", " + BytesText(static_cast<double>(outcome.factor_bytes)) + " held,"
                           : "",
                       SecondsText(outcome.seconds), CostText(outcome.cost)));
  if (log_determinant) Note(absl::StrFormat("log det A = %.17g", *log_determinant));
  Note(ConditioningText(outcome.conditioning));
}

absl::Status RunFactor(const std::vector<std::string>& arguments) {
  if (absl::Status status = RefuseArguments(arguments); !status.ok()) return status;
  const absl::StatusOr<client::FactorOptions> options = OptionsFromFlags();
  if (!options.ok()) return options.status();
  const absl::StatusOr<Blocks> blocks = ReadMatrix();
  if (!blocks.ok()) return blocks.status();
  const absl::StatusOr<client::SolverClient> client = ConnectFromFlags();
  if (!client.ok()) return client.status();
  const absl::Time start = absl::Now();
  absl::StatusOr<client::FactorResult> result = client->Factor(blocks->view(), *options);
  if (!result.ok()) return OfMatrix(*blocks, result.status());
  // The next command of the script uses it, so it is not released here.
  const client::Factorization made = result->handle.Detach();
  WriteOutcome(*blocks, {{made.handle, made.route},
                         result->factor_bytes,
                         result->found,
                         WithoutPadding(*blocks, result->log_determinant),
                         result->conditioning,
                         result->cost,
                         absl::ToDoubleSeconds(absl::Now() - start)});
  return absl::OkStatus();
}

absl::Status RunRefactor(const std::vector<std::string>& arguments) {
  if (absl::Status status = RefuseArguments(arguments); !status.ok()) return status;
  if (absl::GetFlag(FLAGS_handle).empty()) return UsageError("which one? Give --handle");
  const absl::StatusOr<RoutedHandle> name = ParseHandle(absl::GetFlag(FLAGS_handle));
  if (!name.ok()) return name.status();
  const absl::StatusOr<client::FactorOptions> options = OptionsFromFlags();
  if (!options.ok()) return options.status();
  const absl::StatusOr<Blocks> blocks = ReadMatrix();
  if (!blocks.ok()) return blocks.status();
  const absl::StatusOr<client::SolverClient> client = ConnectFromFlags();
  if (!client.ok()) return client.status();
  const absl::Time start = absl::Now();
  client::Factorization held{name->handle, blocks->num_blocks, blocks->block_size, blocks->scalar,
                             name->route};
  held.arrow_size = blocks->arrow_size;
  const absl::StatusOr<client::RefactorResult> result =
      client->Refactor(held, blocks->view(), *options);
  if (!result.ok()) return OfMatrix(*blocks, result.status());
  WriteOutcome(*blocks,
               {*name, 0, false, WithoutPadding(*blocks, result->log_determinants[0]),
                result->conditioning[0], result->cost, absl::ToDoubleSeconds(absl::Now() - start)});
  return absl::OkStatus();
}

std::vector<std::string_view> With(std::vector<std::string_view> flags) {
  flags.insert(flags.begin(), MatrixFlags().begin(), MatrixFlags().end());
  return flags;
}

}  // namespace

Command FactorCommand() {
  return {"factor",
          "",
          "Factor a matrix, keep it on the server, print its handle",
          "The handle alone goes to standard output, so that H=$(blockctl factor ...) works:\n"
          "  H=$(blockctl factor --diagonal=D.npy --coupling=E.npy)\n"
          "  blockctl solve --handle=$H --rhs=b.npy --out=x.npy\n",
          With({"keep_matrix", "check_finite", "lease", "pin", "log_determinant", "idempotency_key",
                "accuracy", "condition_estimate", "upload_connections", "priority"}),
          RunFactor};
}

Command RefactorCommand() {
  return {
      "refactor",
      "",
      "Give a held factorization new values; its handle stays",
      "The shape must be that of the handle. Where the new matrix is not positive definite the\n"
      "old factorization stays in force, unless --overwrite.\n",
      With({"handle", "overwrite", "keep_matrix", "check_finite", "lease", "pin", "log_determinant",
            "accuracy", "condition_estimate", "upload_connections", "priority"}),
      RunRefactor};
}

}  // namespace blockd::blockctl
