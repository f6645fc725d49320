// blockctl solve
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/blockctl/command.h"
#include "client/blockctl/matrix_flags.h"
#include "client/blockctl/text/cost_text.h"
#include "client/blockctl/text/exit_code.h"
#include "client/blockctl/text/handle_table.h"
#include "client/blockctl/text/json.h"

ABSL_DECLARE_FLAG(std::string, handle);
ABSL_DECLARE_FLAG(bool, log_determinant);
ABSL_DECLARE_FLAG(bool, check_finite);
ABSL_FLAG(std::string, rhs, "",
          "The right-hand sides: .npy of shape (N*n,) or (N*n, d), or by block rows (N, n) or "
          "(N, n, d); or a Matrix Market array of N*n rows.");
ABSL_FLAG(std::string, out, "",
          "Where results go. `solve`: the solution's file, .npy in the shape of --rhs or .mtx; "
          "without it the numbers go to standard output. `smooth`: a folder for the results. "
          "`demo`: a folder for the drawings.");
ABSL_FLAG(bool, residual, false,
          "Report the backward error ||b - A x|| / (||A|| ||x|| + ||b||); with --handle, that must "
          "have been factored with --keep_matrix.");
ABSL_FLAG(int32_t, refinements, 0,
          "Steps of iterative refinement, at most 10; as --residual, needs --keep_matrix.");

namespace blockd::blockctl {
namespace {

struct Solved {
  std::optional<double> backward_error;
  double backward_error_bound = 0;
  int refinements = 0;
  std::optional<double> log_determinant;
  v1::Cost cost;
};

template <typename T>
std::span<const T> Input(const Columns& columns) {
  return {reinterpret_cast<const T*>(columns.data.data()), columns.data.size() / sizeof(T)};
}

template <typename T>
std::span<T> Output(Columns& columns) {
  return {reinterpret_cast<T*>(columns.data.data()), columns.data.size() / sizeof(T)};
}

absl::StatusOr<client::Factorization> Find(const client::SolverClient& client, RoutedHandle name) {
  const absl::StatusOr<v1::FactorizationInfo> info = client.Get(name.handle, &name.route);
  if (!info.ok()) return info.status();
  client::Factorization held{
      name.handle, info->num_blocks(), info->block_size(),
      info->scalar() == v1::FLOAT32 ? client::Scalar::kFloat32 : client::Scalar::kFloat64,
      name.route};
  held.arrow_size = info->arrow_size();
  return held;
}

absl::StatusOr<Solved> SolveWithHandle(const client::SolverClient& client,
                                       const client::Factorization& factorization,
                                       const Columns& rhs, const client::SolveOptions& options,
                                       Columns& solution) {
  absl::StatusOr<client::SolveResult> result =
      rhs.scalar == client::Scalar::kFloat64
          ? client.Solve(factorization, Input<double>(rhs), Output<double>(solution), options)
          : client.Solve(factorization, Input<float>(rhs), Output<float>(solution), options);
  if (!result.ok()) return result.status();
  return Solved{result->backward_error, result->backward_error_bound, result->refinements,
                std::nullopt, std::move(result->cost)};
}

absl::StatusOr<Solved> SolveWithMatrix(const client::SolverClient& client, const Blocks& blocks,
                                       const Columns& rhs, const client::SolveOptions& options,
                                       Columns& solution) {
  client::FactorOptions factor;
  factor.log_determinant = absl::GetFlag(FLAGS_log_determinant);
  factor.check_finite = absl::GetFlag(FLAGS_check_finite);
  const absl::StatusOr<client::Accuracy> accuracy = AccuracyFromFlag();
  if (!accuracy.ok()) return accuracy.status();
  factor.accuracy = *accuracy;
  factor.priority = options.priority;
  absl::StatusOr<client::FactorSolveResult> result =
      rhs.scalar == client::Scalar::kFloat64
          ? client.FactorSolve(blocks.view(), Input<double>(rhs), Output<double>(solution), options,
                               factor)
          : client.FactorSolve(blocks.view(), Input<float>(rhs), Output<float>(solution), options,
                               factor);
  client.AwaitReleases(absl::Seconds(5));  // what a large FactorSolve held for a moment
  if (!result.ok()) return OfMatrix(blocks, result.status());
  return Solved{result->backward_error, result->backward_error_bound, result->refinements,
                WithoutPadding(blocks, result->log_determinant), std::move(result->cost)};
}

double ValueAt(const Columns& columns, int64_t index) {
  if (columns.scalar == client::Scalar::kFloat64) return Input<double>(columns)[index];
  return Input<float>(columns)[index];
}

void PrintNumbers(const Columns& solution) {
  const int digits = solution.scalar == client::Scalar::kFloat64 ? 17 : 9;
  for (int64_t r = 0; r < solution.rows; ++r) {
    for (int64_t c = 0; c < solution.count; ++c) {
      std::printf("%s%.*g", c > 0 ? " " : "", digits, ValueAt(solution, c * solution.rows + r));
    }
    std::printf("\n");
  }
}

void PrintJson(const Columns& solution, const Solved& solved, double seconds) {
  const std::string out = absl::GetFlag(FLAGS_out);
  JsonWriter json;
  json.BeginObject().Field("rows", solution.rows).Field("num_rhs", solution.count);
  if (solved.backward_error) json.Field("backward_error", *solved.backward_error);
  json.Field("backward_error_bound", solved.backward_error_bound);
  json.Field("refinements", solved.refinements);
  if (solved.log_determinant) json.Field("log_determinant", *solved.log_determinant);
  json.Field("seconds", seconds).Key("cost");
  WriteCost(solved.cost, json);
  if (!out.empty()) {
    json.Field("out", out);
  } else {
    json.Key("solution").BeginArray();  // d columns of N*n numbers
    for (int64_t c = 0; c < solution.count; ++c) {
      json.BeginArray();
      for (int64_t r = 0; r < solution.rows; ++r) {
        json.Value(ValueAt(solution, c * solution.rows + r));
      }
      json.EndArray();
    }
    json.EndArray();
  }
  Print(json.EndObject().text() + "\n");
}

absl::Status CheckUsage(const std::vector<std::string>& arguments) {
  if (absl::Status status = RefuseArguments(arguments); !status.ok()) return status;
  const bool handle = !absl::GetFlag(FLAGS_handle).empty();
  if (!handle && !MatrixGiven()) {
    return UsageError("solve with what? Give --handle, or a matrix to factor, solve and forget");
  }
  if (handle && MatrixGiven()) return UsageError("give --handle or a matrix, not both");
  if (handle) {
    const absl::StatusOr<RoutedHandle> parsed = ParseHandle(absl::GetFlag(FLAGS_handle));
    if (!parsed.ok()) return parsed.status();
  }
  if (handle && absl::GetFlag(FLAGS_log_determinant)) {
    return UsageError("--log_determinant is for `factor`, or for `solve` with a matrix");
  }
  if (absl::GetFlag(FLAGS_rhs).empty()) return UsageError("no right-hand side: give --rhs=b.npy");
  if (absl::Status status = CheckName(absl::GetFlag(FLAGS_rhs), "rhs"); !status.ok()) return status;
  const int refinements = absl::GetFlag(FLAGS_refinements);
  if (refinements < 0 || refinements > 10) return UsageError("--refinements must be 0 to 10");
  const std::string out = absl::GetFlag(FLAGS_out);
  return out.empty() ? absl::OkStatus() : CheckName(out, "out");
}

// The right-hand sides of --rhs, with zeros in the rows of the padding.
absl::StatusOr<Columns> PaddedRhs(const Array& array, const MatrixShape& shape) {
  absl::StatusOr<Columns> rhs = RhsColumns(absl::GetFlag(FLAGS_rhs), array, shape);
  if (!rhs.ok() || shape.padding == 0) return rhs;
  return rhs->WithRows(shape.padding_row(), shape.padding);
}

void DropPadding(const MatrixShape& shape, Columns& solution) {
  if (shape.padding > 0) solution = solution.WithoutRows(shape.padding_row(), shape.padding);
}

// Each reads what it needs, connects and solves. `start`: when the server was first asked.
absl::StatusOr<Solved> RunWithMatrix(const Array& array, const client::SolveOptions& options,
                                     Columns& solution, absl::Time& start) {
  const absl::StatusOr<Blocks> blocks = ReadMatrix();
  if (!blocks.ok()) return blocks.status();
  const MatrixShape shape{blocks->num_blocks, blocks->block_size, blocks->arrow_size,
                          blocks->padding};
  absl::StatusOr<Columns> rhs = PaddedRhs(array, shape);
  if (!rhs.ok()) return rhs.status();
  const absl::StatusOr<client::SolverClient> client = ConnectFromFlags();
  if (!client.ok()) return client.status();
  solution = *rhs;
  start = absl::Now();
  absl::StatusOr<Solved> solved = SolveWithMatrix(*client, *blocks, *rhs, options, solution);
  DropPadding(shape, solution);
  return solved;
}

absl::StatusOr<Solved> RunWithHandle(const Array& array, const client::SolveOptions& options,
                                     Columns& solution, absl::Time& start) {
  absl::StatusOr<RoutedHandle> handle = ParseHandle(absl::GetFlag(FLAGS_handle));
  if (!handle.ok()) return handle.status();
  const absl::StatusOr<client::SolverClient> client = ConnectFromFlags();
  if (!client.ok()) return client.status();
  start = absl::Now();
  const absl::StatusOr<client::Factorization> factorization = Find(*client, *handle);
  if (!factorization.ok()) return factorization.status();
  if (handle->padding >= factorization->block_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("a padding of ", handle->padding, " rows, and blocks of ",
                     factorization->block_size, "; name the handle as `factor` printed it"));
  }
  const MatrixShape shape{factorization->num_blocks, factorization->block_size,
                          factorization->arrow_size, handle->padding};
  absl::StatusOr<Columns> rhs = PaddedRhs(array, shape);
  if (!rhs.ok()) return rhs.status();
  solution = *rhs;
  absl::StatusOr<Solved> solved = SolveWithHandle(*client, *factorization, *rhs, options, solution);
  DropPadding(shape, solution);
  return solved;
}

absl::Status RunSolve(const std::vector<std::string>& arguments) {
  if (absl::Status status = CheckUsage(arguments); !status.ok()) return status;
  client::SolveOptions options;
  options.residual = absl::GetFlag(FLAGS_residual);
  options.max_refinements = absl::GetFlag(FLAGS_refinements);
  options.check_finite = absl::GetFlag(FLAGS_check_finite);
  const absl::StatusOr<client::Priority> priority = PriorityFromFlag();
  if (!priority.ok()) return priority.status();
  options.priority = *priority;
  const absl::StatusOr<Array> array = ReadRhs(absl::GetFlag(FLAGS_rhs));
  if (!array.ok()) return array.status();
  Columns solution;
  absl::Time start;
  const absl::StatusOr<Solved> solved = MatrixGiven()
                                            ? RunWithMatrix(*array, options, solution, start)
                                            : RunWithHandle(*array, options, solution, start);
  if (!solved.ok()) return solved.status();
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);

  const std::string out = absl::GetFlag(FLAGS_out);
  if (!out.empty()) {
    if (absl::Status status = WriteSolution(out, solution); !status.ok()) return status;
  }
  if (JsonAsked()) {
    PrintJson(solution, *solved, seconds);
    return absl::OkStatus();
  }
  if (out.empty()) PrintNumbers(solution);
  Note(absl::StrFormat("solved %d right-hand side%s of %d rows in %s (%s)", solution.count,
                       solution.count == 1 ? "" : "s", solution.rows, SecondsText(seconds),
                       CostText(solved->cost)));
  if (solved->backward_error) {
    Note(absl::StrFormat("backward error %.3g after %d refinements", *solved->backward_error,
                         solved->refinements));
  } else {
    Note(absl::StrFormat("backward error at most %.3g", solved->backward_error_bound));
  }
  if (solved->log_determinant) {
    Note(absl::StrFormat("log det A = %.17g", *solved->log_determinant));
  }
  return absl::OkStatus();
}

}  // namespace

Command SolveCommand() {
  std::vector<std::string_view> flags = {"handle", "rhs", "out", "residual", "refinements"};
  flags.insert(flags.end(), MatrixFlags().begin(), MatrixFlags().end());
  flags.insert(flags.end(), {"log_determinant", "check_finite", "accuracy", "priority"});
  return {"solve",
          "",
          "Solve with a handle, or factor, solve and keep nothing",
          "Numbers go to --out, or to standard output: a line a row, a column a right-hand side.\n"
          "  blockctl solve --handle=$H --rhs=b.npy --out=x.npy\n"
          "  blockctl solve --matrix=A.mtx --rhs=b.mtx --residual\n",
          flags,
          RunSolve};
}

}  // namespace blockd::blockctl
