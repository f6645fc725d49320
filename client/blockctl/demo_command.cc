// blockctl demo
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/blockctl/command.h"
#include "client/blockctl/formats/files.h"
#include "client/blockctl/progress.h"
#include "client/blockctl/text/cost_text.h"
#include "client/blockctl/text/exit_code.h"
#include "client/blockctl/text/handle_table.h"
#include "client/blockctl/text/json.h"
#include "client/blockctl/text/level_plot.h"
#include "client/blockctl/text/metrics_page.h"
#include "engine/problems/problems.h"
#include "engine/problems/series.h"

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

// A series, its model, and how to draw the first state of that.
struct Series {
  const char* key;
  const char* description;
  problems::SeriesModel model;
  LevelSeries drawn;  // without level and deviation
};

Series Nile() {
  return {"nile",
          "1. The Nile at Aswan, 1871-1970: a local level, 100 years of one state\n"
          "   (observation variance 15099, level variance 1469.1)\n\n",
          problems::NileModel(),
          {.title = "Annual flow of the Nile at Aswan, 1871-1970",
           .unit = "1e8 cubic metres a year",
           .first_year = problems::kNileFirstYear,
           .values = {problems::NileFlow().begin(), problems::NileFlow().end()}}};
}

Series MaunaLoa() {
  return {
      "co2",
      "2. Carbon dioxide at Mauna Loa, 1958-2001: a trend and three harmonics of the year, 2284 "
      "weeks\n   of 8 states; 59 weeks are missing\n\n",
      problems::MaunaLoaModel(),
      {.title = "Carbon dioxide at Mauna Loa, weekly, and its level without the seasons",
       .unit = "parts per million",
       .first_year = problems::kMaunaLoaFirstYear,
       .values = problems::MaunaLoaCo2(),
       .years = problems::kWeekInYears}};
}

// The means and variances of the first state, from one Smooth.
absl::StatusOr<LevelSeries> SmoothLevel(const client::SolverClient& client, const Series& series,
                                        Story& story, client::FactorHandle& handle) {
  const problems::SeriesModel& given = series.model;
  client::StateSpaceModel model{.num_steps = std::ssize(series.drawn.values),
                                .state_size = given.state_size,
                                .observation_size = 1,
                                .transition = {given.transition},
                                .transition_covariance = {given.transition_covariance},
                                .observation = {given.observation},
                                .observation_covariance = {given.observation_covariance}};
  const Stopwatch watch;
  absl::StatusOr<client::SmoothResult> smoothed =
      client.Smooth(model, series.drawn.values,
                    {.covariances = client::SmoothedCovariances::kVariances, .keep = true});
  if (!smoothed.ok()) return smoothed.status();
  const double seconds = watch.seconds();
  LevelSeries drawn = series.drawn;
  for (int64_t t = 0; t < model.num_steps; ++t) {
    drawn.level.push_back(smoothed->means[t * given.state_size]);
    drawn.deviation.push_back(std::sqrt(smoothed->covariances[t * given.state_size]));
  }
  story.Say(
      absl::StrFormat("one Smooth (%s, %s); log-likelihood %.3f; backward error at most "
                      "%.1e\n\n",
                      SecondsText(seconds), CostText(smoothed->cost), smoothed->log_likelihood[0],
                      smoothed->backward_error_bound));
  story.json().Key(series.key).BeginObject().Field("smooth_seconds", seconds);
  story.json().Field("log_likelihood", smoothed->log_likelihood[0]).Key("level").BeginArray();
  for (const double level : drawn.level) story.json().Value(level);
  story.json().EndArray().EndObject();
  handle = std::move(smoothed->handles[0]);
  return drawn;
}

absl::Status SeriesStep(const client::SolverClient& client, const Series& series, Story& story,
                        client::FactorHandle& handle) {
  story.Say(series.description);
  const absl::StatusOr<LevelSeries> drawn = SmoothLevel(client, series, story, handle);
  if (!drawn.ok()) return drawn.status();
  const LevelSeries yearly = drawn->years == 1 ? *drawn : MeansOver(*drawn, 1);
  story.Say(TextPlot(yearly, 21));
  story.Say("\n  year  value  smoothed level  +- 2 deviations\n");
  for (size_t t = 0; t < yearly.level.size(); t += 9) {
    story.Say(absl::StrFormat("  %.0f  %5.0f  %14.4f  %15.2f\n", yearly.YearOf(t), yearly.values[t],
                              yearly.level[t], 2 * yearly.deviation[t]));
  }
  const std::string folder = absl::GetFlag(FLAGS_out);
  if (folder.empty()) {
    story.Say("  --out=FOLDER draws it and writes all numbers\n\n");
    return absl::OkStatus();
  }
  const std::string path = absl::StrCat(folder, "/", series.key);
  absl::Status status = WriteFile(path + ".svg", {SvgPlot(*drawn)});
  if (status.ok()) status = WriteFile(path + ".csv", {CsvTable(*drawn)});
  if (!status.ok()) return status;
  story.Say(absl::StrCat("  drawn in ", path, ".svg, all numbers in ", path, ".csv\n\n"));
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
      "3. Kalman smoothing of n=%d states from m=%d observations over N=%d steps (rho %.2f, "
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

absl::Status ShowServer(const client::SolverClient& client,
                        std::initializer_list<const client::FactorHandle*> handles, Story& story) {
  story.Say("4. What the server holds for this demo, and some of its metrics\n\n");
  int64_t held = 0;
  story.Say(HandleHeading());
  for (const client::FactorHandle* handle : handles) {
    std::string route = handle->get().route;
    const absl::StatusOr<v1::FactorizationInfo> info = client.Get(handle->get().handle, &route);
    if (absl::IsNotFound(info.status())) continue;  // evicted for others
    if (!info.ok()) return info.status();
    story.Say(HandleLine(*info, route));
    ++held;
  }
  story.Say("\n");
  story.json().Field("factorizations", held);
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
    client::FactorHandle nile, co2, kalman;
    status = SeriesStep(*client, Nile(), story, nile);
    if (status.ok()) status = SeriesStep(*client, MaunaLoa(), story, co2);
    if (status.ok()) status = KalmanStep(*client, story, kalman);
    if (status.ok()) status = ShowServer(*client, {&nile, &co2, &kalman}, story);
  }
  client->AwaitReleases(absl::Seconds(5));
  if (!status.ok()) return status;
  story.Say("\nAll handles went out of scope and were released.\n");
  story.End();
  return absl::OkStatus();
}

}  // namespace

Command DemoCommand() {
  return {"demo",
          "",
          "Smooth two real series and a large Kalman problem, with times",
          "Everything goes through gRPC to --server. With --out it writes nile.svg, nile.csv,\n"
          "co2.svg and co2.csv to that folder; without it, no files.\n",
          {"metrics", "out"},
          RunDemo};
}

}  // namespace blockd::blockctl
