// The engine on a GPU, or on any backend: 18 cells, the factorization and the solves of nine
// shapes, data on the device, beside the time that the machine's arithmetic and memory allow.
//
//   engine_bench --help says which flags there are.
//
// Every cell's answer is checked by its residual; exit code 1 if one is too large.
//
// Beside each factorization: the first one of its shape. Beside each solve: how long the host takes
// to put one on the device's queue ("host").
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "blockd/engine/backend_registry.h"
#include "engine/problems/problems.h"
#include "tests/bench/bench_flags.h"
#include "tests/bench/bench_table.h"
#include "tests/bench/must.h"
#include "tests/bench/reference/cudss_reference.h"
#include "tests/bench/reference/device_ceilings.h"
#include "tests/bench/reference/device_systems.h"
#include "tests/bench/reference/published.h"
#include "tests/bench/result_file.h"

ABSL_FLAG(std::string, backend, "auto", "Which backend: auto, cpu, cuda, rocm.");
ABSL_FLAG(std::string, only, "", "Only cells whose name contains this.");
ABSL_FLAG(int32_t, repetitions, 15, "Of each measurement.");
ABSL_FLAG(double, seconds, 1.5, "At most, for the repetitions of one measurement; three at least.");
ABSL_FLAG(bool, float32, false, "Single precision.");
ABSL_FLAG(std::string, plan, "",
          "N,n,K,S1,S2,...: one shape with these numbers of separators; more of them after ';'.");
ABSL_FLAG(bool, print_plan, false, "Each cell's plan before its rows.");
ABSL_FLAG(bool, sweep, false, "Many plans of each shape, to fit a cost model.");
ABSL_FLAG(std::string, peer, "",
          "cudss: cuDSS on the same systems in the same run, where it is installed.");
ABSL_FLAG(bool, selected_inverse, false,
          "All Z(i,i) of inv(A) too, with their time in multiples of the factorization's.");
ABSL_FLAG(bool, paper, false, "Then the figures of the BlockDSS paper beside ours.");

namespace blockd::bench {
namespace {

struct Options : Flags {
  std::string backend = absl::GetFlag(FLAGS_backend), only = absl::GetFlag(FLAGS_only);
  int repetitions = absl::GetFlag(FLAGS_repetitions);
  double seconds = absl::GetFlag(FLAGS_seconds);
  bool sweep = absl::GetFlag(FLAGS_sweep), print_plan = absl::GetFlag(FLAGS_print_plan);
  bool selected_inverse = absl::GetFlag(FLAGS_selected_inverse);
  bool paper = absl::GetFlag(FLAGS_paper), cudss = absl::GetFlag(FLAGS_peer) == "cudss";
  Scalar scalar = absl::GetFlag(FLAGS_float32) ? Scalar::kFloat32 : Scalar::kFloat64;
  std::vector<std::vector<int64_t>> plans;
};

std::vector<Cell> Cells(bool quick, bool selected_inverse) {
  if (quick) {
    return {{"n=16", 24, 16, 1}, {"n=40", 20, 40, 2}, {"n=100", 9, 100, 1}, {"n=200", 5, 200, 1}};
  }
  std::vector<Cell> cells = {
      {"n=1024", 256, 1024, 1}, {"n=512", 512, 512, 1}, {"n=256", 1024, 256, 1},
      {"n=128", 2048, 128, 1},  {"n=64", 4096, 64, 1},  {"n=32", 8192, 32, 1},
      {"kalman", 100, 256, 1},  {"mpc K=1", 64, 16, 1}, {"mpc K=256", 64, 16, 256}};
  // Sizes that smoothers of few states invert.
  if (selected_inverse) {
    cells.push_back({"n=4", 1000, 4, 1});
    cells.push_back({"n=4 long", 100000, 4, 1});
  }
  return cells;
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {
    BackendOptions backend;
    if (options.quick) backend.memory_bytes = int64_t{256} << 20;
    auto created = CreateBackend(options.backend, backend);
    Must(created.status());
    backend_ = *std::move(created);
    file_ = std::make_unique<ResultFile>(options, backend_->device().name);
  }

  void Run() {
    if (backend_->device().backend != "cpu") ceilings_ = MeasureCeilings(*backend_, options_.quick);
    if (options_.header) {
      std::printf("%s: dgemm %.1f TFLOP/s, copy %.2f TB/s\n", backend_->device().name.c_str(),
                  ceilings_.flops / 1e12, ceilings_.bytes / 1e12);
      std::printf(
          "| cell | work | median ms | spread | limit ms | x limit | predicted ms | GFLOP | GB | "
          "error/bound |\n");
      std::printf("|---|---|---|---|---|---|---|---|---|---|\n");
    }
    for (const std::vector<int64_t>& plan : options_.plans) RunPlan(plan);
    if (!options_.plans.empty()) return;
    for (const Cell& cell : Cells(options_.quick, options_.selected_inverse)) {
      if (cell.name.find(options_.only) == std::string::npos) continue;
      if (options_.sweep) {
        Sweep(cell);
      } else {
        auto plan =
            EliminationPlan::Make(ShapeOf(cell), cell.systems, backend_->costs(ShapeOf(cell)));
        Must(plan.status());
        RunCell(cell, *std::move(plan), "");
      }
    }
    if (options_.paper) PrintPaper();
  }

 private:
  Shape ShapeOf(const Cell& cell) const {
    return {cell.num_blocks, cell.block_size, options_.scalar};
  }

  template <typename Body>
  static double Time(const Body& body) {
    const double start = Now();
    body();
    return Now() - start;
  }

  template <typename Body>
  Samples Repeat(const Body& body) const {
    Samples samples;
    body();
    const double start = Now();
    const int repetitions = options_.quick ? 1 : options_.repetitions;
    for (int i = 0; i < repetitions && (i < 3 || Now() - start < options_.seconds); ++i) {
      samples.seconds.push_back(body());
    }
    return samples;
  }

  void RunCell(const Cell& cell, EliminationPlan made, const std::string& note) {
    const auto plan = std::make_shared<const EliminationPlan>(std::move(made));
    if (options_.print_plan) std::printf("%s", plan->DebugString().c_str());
    Engine engine(*backend_, cell, plan);
    Samples first;
    first.seconds.push_back(Time([&] { engine.Factor(); }));
    const Samples factor = Repeat([&] { return Time([&] { engine.Factor(); }); });
    const double k = static_cast<double>(cell.systems), n = static_cast<double>(cell.block_size);
    const double blocks = static_cast<double>(cell.num_blocks),
                 scalar = ScalarBytes(options_.scalar);
    // Read D's triangle and E, write inv(L) and C; a solve reads inv(L) and C twice.
    const double flops = 7.0 / 3.0 * n * n * n * blocks * k;
    const double bytes = 3 * n * n * blocks * k * scalar;
    engine.Solve(1);
    const double error = engine.Error(1);
    Line line{cell, absl::StrCat("factor", note), error};
    line.limit = std::max(Over(flops, ceilings_.flops), Over(bytes, ceilings_.bytes));
    line.predicted = PredictedFactorSeconds(*plan, backend_->costs(ShapeOf(cell)), cell.systems);
    line.flops = plan->factor_flops() * k;
    // Each block once, the chains of the levels above written and read.
    line.bytes = k * (1.5 * n * n * blocks * scalar + static_cast<double>(plan->factor_bytes()) +
                      2 * static_cast<double>(plan->chain_scalars()) * scalar);
    Print(line, factor);
    Remember(cell, factor.median(), 0);
    if (!options_.sweep) {
      Print({cell, absl::StrCat("first factor", note), error}, first);
      const Samples host = Repeat([&] {
        double enqueued = 0;
        engine.Solve(1, &enqueued);
        return enqueued;
      });
      Print({cell, absl::StrCat("solve d=1, host", note), error}, host);
    }
    for (const int64_t columns : {1, 16}) {
      if (options_.sweep && columns > 1) break;
      const Samples solve = Repeat([&] { return engine.Solve(columns); });
      Line solved{cell, absl::StrCat("solve d=", columns), engine.Error(columns)};
      const double moved = (3 * n * n + 4 * n * static_cast<double>(columns)) * blocks * k * scalar;
      solved.limit = Over(moved, ceilings_.bytes);
      solved.predicted =
          PredictedSolveSeconds(*plan, columns, backend_->costs(ShapeOf(cell)), cell.systems);
      solved.flops = plan->solve_flops(columns) * k;
      solved.bytes = plan->solve_bytes(columns) * k;
      Print(solved, solve);
      if (columns == 1) Remember(cell, 0, solve.median());
    }
    if (options_.selected_inverse) {
      const Samples inverse = Repeat([&] { return engine.SelectedInverse(); });
      const double ratio = k * inverse.median() / factor.median();
      Print({cell, absl::StrFormat("selected inverse, %.2f factors%s", ratio, note), 0}, inverse);
    }
    if (options_.cudss && cell.systems == 1) RunCudss(cell);
  }

  void RunCudss(const Cell& cell) {
    const problems::Problem& problem = Engine::ProblemOf(ShapeOf(cell), 1);
    std::string why;
    const auto cudss = CudssReference::Make(problem, &why);
    if (!cudss) Die("--peer=cudss: " + why);
    const std::vector<double> all = Engine::Columns(problem.rows(), 0);
    const auto solve = [&](int64_t columns) {
      const std::vector<double> b(all.begin(), all.begin() + problem.rows() * columns);
      const Samples samples = Repeat([&] { return cudss->Solve(b, columns); });
      const double bound = 4 * static_cast<double>(cell.block_size) * 0x1p-52;
      const double error = problems::BackwardError(problem, cudss->Solution(), b, columns) / bound;
      Print({cell, absl::StrCat("cuDSS solve d=", columns), error}, samples);
    };
    Samples once;
    once.seconds = {cudss->analysis_seconds()};
    Print({cell, "cuDSS analysis", 0}, once);
    once.seconds = {cudss->first_factor_seconds()};
    Print({cell, "cuDSS first factor", 0}, once);
    Print({cell, "cuDSS factor", 0}, Repeat([&] { return cudss->Refactor(); }));
    solve(1);
    solve(Engine::kMostColumns);
  }

  // One level with some number of segments, the rest as the cost model would have it.
  void Sweep(const Cell& cell) {
    const int64_t first = std::max<int64_t>(1, cell.num_blocks / 80);
    for (int64_t s = first; s <= (cell.num_blocks - 1) / 2; s = s + std::max<int64_t>(1, s / 2)) {
      std::vector<int64_t> separators = {s};
      if (s > 2) {
        auto rest = EliminationPlan::Make({s, cell.block_size, options_.scalar}, cell.systems,
                                          backend_->costs(ShapeOf(cell)));
        Must(rest.status());
        for (const Level& level : rest->levels()) {
          if (!level.separators.empty()) {
            separators.push_back(static_cast<int64_t>(level.separators.size()));
          }
        }
      }
      auto plan = EliminationPlan::MakeWithSeparators(ShapeOf(cell), separators,
                                                      backend_->costs(ShapeOf(cell)));
      Must(plan.status());
      std::string note;
      for (const int64_t count : separators) absl::StrAppend(&note, " ", count);
      RunCell(cell, *std::move(plan), note);
    }
  }

  void RunPlan(const std::vector<int64_t>& p) {
    const Cell cell{absl::StrCat("plan n=", p[1]), p[0], p[1], p[2]};
    const std::vector<int64_t> separators(p.begin() + 3, p.end());
    auto plan = EliminationPlan::MakeWithSeparators(ShapeOf(cell), separators,
                                                    backend_->costs(ShapeOf(cell)));
    Must(plan.status());
    RunCell(cell, *std::move(plan), absl::StrCat(" ", absl::StrJoin(separators, " ")));
  }

  // Seconds, flops and bytes; 0: not known.
  struct Line {
    const Cell& cell;
    std::string work;
    double error;
    double limit = 0, predicted = 0, flops = 0, bytes = 0;
  };

  void Print(const Line& line, const Samples& samples) {
    const double median = samples.median();
    std::printf("| %s | %s | %.4f | %.1f%% | %s | %s | %s | %s | %s | %.3f |\n",
                line.cell.name.c_str(), line.work.c_str(), median * 1e3, samples.spread() * 100,
                Known(line.limit * 1e3, 4).c_str(),
                Known(line.limit > 0 ? median / line.limit : 0, 1).c_str(),
                Known(line.predicted * 1e3, 4).c_str(), Known(line.flops / 1e9, 3).c_str(),
                Known(line.bytes / 1e9, 3).c_str(), line.error);
    file_->Add(absl::StrFormat(
        "{\"N\": %d, \"n\": %d, \"K\": %d, \"work\": %s, \"median_s\": %.4g, \"spread\": %.2g, "
        "\"limit_s\": %.3g, \"predicted_s\": %.3g, \"error_over_bound\": %.3g}",
        line.cell.num_blocks, line.cell.block_size, line.cell.systems, Quoted(line.work), median,
        samples.spread(), line.limit, line.predicted, line.error));
    std::fflush(stdout);
    if (!(line.error <= 1)) {
      Die(line.cell.name + " " + line.work + ": the backward error is above its bound");
    }
  }
  static double Over(double amount, double rate) { return rate > 0 ? amount / rate : 0; }
  static std::string Known(double value, int digits) {
    if (value <= 0) return "-";
    char text[32];
    std::snprintf(text, sizeof(text), "%.*f", digits, value);
    return text;
  }

  // Seconds of this run, for the paper's table; 0: leave what is there.
  void Remember(const Cell& cell, double factor, double solve) {
    for (size_t i = 0; i < std::size(kPublished); ++i) {
      if (kPublished[i].num_blocks != cell.num_blocks ||
          kPublished[i].block_size != cell.block_size) {
        continue;
      }
      if (factor > 0) ours_[i].first = factor;
      if (solve > 0) ours_[i].second = solve;
    }
  }
  void PrintPaper() const {
    std::printf(
        "\n| N, n | factor: cuDSS | BlockDSS | blockd | solve: cuDSS | BlockDSS | blockd |\n");
    std::printf("|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < std::size(kPublished); ++i) {
      const Published& p = kPublished[i];
      std::printf("| %lld, %lld | %g | %g | %s | %g | %g | %s |\n",
                  static_cast<long long>(p.num_blocks), static_cast<long long>(p.block_size),
                  p.cudss_factor, p.blockdss_factor, Known(ours_[i].first * 1e3, 3).c_str(),
                  p.cudss_solve, p.blockdss_solve, Known(ours_[i].second * 1e3, 3).c_str());
    }
  }

  const Options options_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<ResultFile> file_;
  Ceilings ceilings_;
  std::array<std::pair<double, double>, std::size(kPublished)> ours_ = {};  // factor, solve
};

Options Parse(int argc, char** argv) {
  const Flags shared = ParseFlags(argc, argv);
  Options options;
  static_cast<Flags&>(options) = shared;
  const std::string peer = absl::GetFlag(FLAGS_peer);
  if (!peer.empty() && peer != "cudss") Die("--peer is " + peer + ", expected cudss");
  if (options.cudss && options.scalar != Scalar::kFloat64) Die("--peer=cudss is in FP64");
  for (const auto plan : absl::StrSplit(absl::GetFlag(FLAGS_plan), ';', absl::SkipEmpty())) {
    std::vector<int64_t>& numbers = options.plans.emplace_back();
    for (const auto part : absl::StrSplit(plan, ',')) {
      if (!absl::SimpleAtoi(part, &numbers.emplace_back())) Die("--plan takes numbers");
    }
    if (numbers.size() < 3) Die("--plan needs N,n,K");
  }
  return options;
}

}  // namespace
}  // namespace blockd::bench

int main(int argc, char** argv) {
  blockd::bench::Bench(blockd::bench::Parse(argc, argv)).Run();
  return 0;
}
