// blockctl demo
#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/blockctl/command.h"
#include "client/blockctl/cost_text.h"
#include "client/blockctl/exit_code.h"
#include "client/blockctl/files.h"
#include "client/blockctl/handle_table.h"
#include "client/blockctl/json.h"
#include "client/blockctl/level_plot.h"
#include "client/blockctl/metrics_page.h"
#include "client/blockctl/progress.h"
#include "engine/problems/problems.h"

ABSL_DECLARE_FLAG(std::string, out);
ABSL_FLAG(std::string, metrics, "127.0.0.1:7118",
          "Where the server's metrics are served, as host:port; empty: do not show them.");

namespace blockd::blockctl {
namespace {

// Far above what a backward stable solve leaves, far below what a wrong one does.
constexpr double kLargestBackwardError = 1e-12;

class Stopwatch {
 public:
  double seconds() const { return absl::ToDoubleSeconds(absl::Now() - start_); }

 private:
  absl::Time start_ = absl::Now();
};

// Text for people as it comes, or one JSON object at the end.
class Story {
 public:
  Story() { json_.BeginObject(); }
  void Say(const std::string& text) {
    if (!JsonAsked()) Print(text);
  }
  JsonWriter& json() { return json_; }
  void End() {
    if (JsonAsked()) Print(json_.EndObject().text() + "\n");
  }

 private:
  JsonWriter json_;
};

client::SystemView View(const problems::Problem& problem) {
  client::SystemView view = client::MakeSystemView(
      problem.num_blocks, problem.block_size, problem.diagonal.data(), problem.coupling.data());
  if (!problem.diagonal_index.empty()) {
    const int64_t scalars = problem.block_size * problem.block_size;
    view.num_diagonal = static_cast<int64_t>(problem.diagonal.size()) / scalars;
    view.num_coupling = static_cast<int64_t>(problem.coupling.size()) / scalars;
    view.diagonal_index = problem.diagonal_index;
    view.coupling_index = problem.coupling_index;
  }
  return view;
}

absl::Status CheckBackwardError(double error) {
  if (error <= kLargestBackwardError) return absl::OkStatus();
  return absl::InternalError(
      absl::StrFormat("the server's solution is wrong: its backward error is %.3g", error));
}

// The smoothed level and its standard deviation, from one Factor and two Solves.
absl::StatusOr<LevelSeries> SmoothNile(const client::SolverClient& client, Story& story,
                                       client::FactorHandle& handle) {
  const problems::Problem problem = problems::LocalLevel(
      problems::NileFlow(), problems::kNileObservationVariance, problems::kNileLevelVariance);
  absl::StatusOr<client::FactorResult> factored = client.Factor(View(problem));
  if (!factored.ok()) return factored.status();
  const int64_t rows = problem.rows();
  LevelSeries nile{.title = "Annual flow of the Nile at Aswan, 1871-1970",
                   .unit = "1e8 cubic metres a year",
                   .first_year = problems::kNileFirstYear,
                   .values = {problems::NileFlow().begin(), problems::NileFlow().end()},
                   .level = std::vector<double>(rows),
                   .deviation = std::vector<double>(rows)};
  const Stopwatch watch;
  const auto solved = client.Solve(factored->handle, problem.rhs, nile.level);
  if (!solved.ok()) return solved.status();
  const double seconds = watch.seconds();
  // The variances are the diagonal of inv(A): its columns are the solutions of the unit vectors.
  std::vector<double> units(rows * rows), inverse(rows * rows);
  for (int64_t t = 0; t < rows; ++t) units[t * rows + t] = 1;
  const auto inverted = client.Solve(factored->handle, units, inverse);
  if (!inverted.ok()) return inverted.status();
  for (int64_t t = 0; t < rows; ++t) nile.deviation[t] = std::sqrt(inverse[t * rows + t]);

  const double error = problems::BackwardError(problem, nile.level, problem.rhs, 1);
  if (absl::Status status = CheckBackwardError(error); !status.ok()) return status;
  story.Say(
      absl::StrFormat("one Factor and one Solve (%s); backward error %.1e\none more Solve with 100 "
                      "right-hand sides "
                      "for the variances\n\n",
                      SecondsText(seconds), error));
  story.json().Key("nile").BeginObject().Field("solve_seconds", seconds);
  story.json().Field("backward_error", error).Key("level").BeginArray();
  for (const double level : nile.level) story.json().Value(level);
  story.json().EndArray().EndObject();
  handle = std::move(factored->handle);
  return nile;
}

absl::Status NileStep(const client::SolverClient& client, Story& story,
                      client::FactorHandle& handle) {
  story.Say(
      "1. The Nile at Aswan, 1871-1970: the local level model, as an SPD system of N=100 blocks\n"
      "   of n=1 (observation variance 15099, level variance 1469.1)\n\n");
  const absl::StatusOr<LevelSeries> nile = SmoothNile(client, story, handle);
  if (!nile.ok()) return nile.status();
  story.Say(TextPlot(*nile, 21));
  story.Say("\n  year  flow  smoothed level  +- 2 deviations\n");
  for (size_t t = 0; t < nile->level.size(); t += 9) {
    story.Say(absl::StrFormat("  %d  %4.0f  %14.4f  %15.1f\n",
                              nile->first_year + static_cast<int>(t), nile->values[t],
                              nile->level[t], 2 * nile->deviation[t]));
  }
  const std::string folder = absl::GetFlag(FLAGS_out).empty() ? "." : absl::GetFlag(FLAGS_out);
  if (absl::Status status = WriteFile(folder + "/nile.svg", {SvgPlot(*nile)}); !status.ok()) {
    return status;
  }
  if (absl::Status status = WriteFile(folder + "/nile.csv", {CsvTable(*nile)}); !status.ok()) {
    return status;
  }
  story.Say(
      absl::StrCat("  drawn in ", folder, "/nile.svg, all numbers in ", folder, "/nile.csv\n\n"));
  return absl::OkStatus();
}

absl::StatusOr<client::FactorHandle> FactorTimed(const client::SolverClient& client,
                                                 const problems::Problem& problem,
                                                 const std::string& form, Story& story) {
  const client::SystemView view = View(problem);
  const auto bytes = static_cast<double>(view.diagonal_bytes() + view.coupling_bytes());
  const Stopwatch watch;
  absl::StatusOr<client::FactorResult> factored =
      client.Factor(view, {.progress = MakeProgressBar()});
  if (!factored.ok()) return factored.status();
  const double seconds = watch.seconds();
  story.Say(absl::StrFormat("  Factor, %-12s %10s on the wire, %10s   (%s)\n", form + ":",
                            BytesText(bytes), SecondsText(seconds), CostText(factored->cost)));
  story.json().Key("factor_" + form).BeginObject().Field("wire_bytes", bytes);
  story.json().Field("seconds", seconds).Key("cost");
  WriteCost(factored->cost, story.json());
  story.json().EndObject();
  return std::move(factored->handle);
}

absl::Status SolveTimed(const client::SolverClient& client, const client::Factorization& handle,
                        const problems::Problem& problem, Story& story) {
  std::vector<double> together(problem.rhs.size()), alone(problem.rhs.size());
  const Stopwatch watch;
  const auto solved = client.Solve(handle, problem.rhs, together);
  if (!solved.ok()) return solved.status();
  const double seconds = watch.seconds();
  const Stopwatch one_by_one;
  for (int64_t c = 0; c < problem.num_rhs; ++c) {
    const auto one = client.Solve(
        handle, std::span<const double>(problem.rhs).subspan(c * problem.rows(), problem.rows()),
        std::span<double>(alone).subspan(c * problem.rows(), problem.rows()));
    if (!one.ok()) return one.status();
  }
  const double each = one_by_one.seconds() / static_cast<double>(problem.num_rhs);
  const double error =
      std::max(problems::BackwardError(problem, together, problem.rhs, problem.num_rhs),
               problems::BackwardError(problem, alone, problem.rhs, problem.num_rhs));
  story.Say(absl::StrFormat("  Solve, %d at once:%33s   (%s)\n", problem.num_rhs,
                            SecondsText(seconds), CostText(solved->cost)));
  story.Say(absl::StrFormat("  Solve, one after another:%26s   each\n", SecondsText(each)));
  story.Say(absl::StrFormat("  backward error of all %d, computed here: %.1e\n\n", problem.num_rhs,
                            error));
  story.json().Field("solve_seconds", seconds).Field("solve_each_seconds", each);
  story.json().Field("backward_error", error);
  return CheckBackwardError(error);
}

absl::Status KalmanStep(const client::SolverClient& client, Story& story,
                        client::FactorHandle& handle) {
  const problems::KalmanOptions model{.num_rhs = 50};
  story.Say(absl::StrFormat(
      "2. Kalman smoothing of n=%d states from m=%d observations over N=%d steps (rho %.2f, "
      "process\n"
      "   noise %.1f, observation noise %.1f), for %d new sequences of observations\n\n",
      model.states, model.observations, model.steps, model.rho, model.process_noise,
      model.observation_noise, model.num_rhs));
  const problems::Problem palette = problems::KalmanPalette(model);
  story.json().Key("kalman").BeginObject();
  {
    const absl::StatusOr<client::FactorHandle> full =
        FactorTimed(client, problems::Expand(palette), "full", story);
    if (!full.ok()) return full.status();  // goes out of scope here, which releases it
  }
  absl::StatusOr<client::FactorHandle> factored = FactorTimed(client, palette, "palette", story);
  if (!factored.ok()) return factored.status();
  handle = *std::move(factored);
  const absl::Status status = SolveTimed(client, handle, palette, story);
  story.json().EndObject();
  return status;
}

absl::Status ShowServer(const client::SolverClient& client, Story& story) {
  story.Say("3. What the server holds (blockctl list), and some of its metrics\n\n");
  const absl::StatusOr<std::vector<v1::FactorizationInfo>> held = client.List();
  if (!held.ok()) return held.status();
  story.Say(HandleTable(*held) + "\n");
  story.json().Field("factorizations", held->size());
  const std::string address = absl::GetFlag(FLAGS_metrics);
  if (address.empty()) return absl::OkStatus();
  const absl::StatusOr<std::string> page = FetchMetrics(address);
  if (!page.ok()) {
    story.Say(absl::StrCat("  ", std::string(page.status().message()), " (see --metrics)\n"));
    return absl::OkStatus();
  }
  story.Say(MetricsSummary(*page));
  return absl::OkStatus();
}

absl::Status RunDemo(const std::vector<std::string>& arguments) {
  if (absl::Status status = RefuseArguments(arguments); !status.ok()) return status;
  const absl::StatusOr<client::SolverClient> client = ConnectFromFlags();
  if (!client.ok()) return client.status();
  const absl::StatusOr<v1::ServerInfo> info = client->ServerInfo();
  if (!info.ok()) return info.status();
  Story story;
  story.Say(absl::StrFormat("blockd %s, backend %s on %s\n\n", info->version(), info->backend(),
                            info->device_name()));
  absl::Status status;
  {
    client::FactorHandle nile, kalman;
    status = NileStep(*client, story, nile);
    if (status.ok()) status = KalmanStep(*client, story, kalman);
    if (status.ok()) status = ShowServer(*client, story);
  }
  client->AwaitReleases(absl::Seconds(5));
  if (!status.ok()) return status;
  story.Say("\nBoth handles went out of scope and were released.\n");
  story.End();
  return absl::OkStatus();
}

}  // namespace

Command DemoCommand() {
  return {"demo",
          "",
          "Smooth the Nile's flow and a large Kalman problem, with times",
          "Everything goes through gRPC to --server. Writes nile.svg and nile.csv to --out, or to\n"
          "the current folder.\n",
          {"metrics", "out"},
          RunDemo};
}

}  // namespace blockd::blockctl
