// How long small solves take alone, and beside factorizations back to back: from host memory and
// back, one caller who waits for each answer and then a little.
//
//   beside_bench [--backend=NAME] [--seconds=S] [--gap_us=T] [--only=WORDS] [--json=FILE
//                --commit=NAME] [--quick]
//
// Every answer is compared with the first one: exit code 1 if a bit differs, or if a residual is
// too large.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "blockd/engine/backend_registry.h"
#include "blockd/engine/solver.h"
#include "engine/problems/problems.h"
#include "tests/bench/bench_flags.h"
#include "tests/bench/bench_table.h"
#include "tests/bench/must.h"
#include "tests/bench/result_file.h"
#include "tests/support/host_matrix.h"
#include "tests/support/oracle.h"

ABSL_FLAG(std::string, backend, "auto", "Which backend: auto, cpu, cuda, rocm.");
ABSL_FLAG(std::string, only, "", "Only loads whose name contains this.");
ABSL_FLAG(double, seconds, 3, "Of each measurement.");
ABSL_FLAG(int32_t, gap_us, 1000, "Between an answer and the next solve.");
ABSL_FLAG(int32_t, cpu_threads, 0, "Of the CPU's backend; 0: one a processor.");

namespace blockd::bench {
namespace {

struct Size {
  int64_t num_blocks, block_size, systems = 1;
};
std::string NameOf(const Size& size) {
  return absl::StrCat(size.systems > 1 ? absl::StrCat(size.systems, " of ") : "",
                      "N=", size.num_blocks, " n=", size.block_size);
}

// A time-invariant system in the palette form: large to factor, small to upload.
problems::Problem ProblemOf(const Size& size) {
  problems::Problem problem = problems::Mpc(2, size.block_size, 1);
  const int64_t square = size.block_size * size.block_size;
  problem.num_blocks = size.num_blocks;
  problem.diagonal.resize(square);
  problem.coupling.resize(square);
  // Dominant, whatever its neighbours.
  for (int64_t i = 0; i < square; ++i) problem.coupling[i] = 0.1 / static_cast<double>(1 + i % 7);
  const double weight = static_cast<double>(size.block_size);
  for (int64_t i = 0; i < size.block_size; ++i) {
    problem.diagonal[i * (size.block_size + 1)] += weight;
  }
  problem.diagonal_index.assign(size.num_blocks, 0);
  problem.coupling_index.assign(size.num_blocks - 1, 0);
  return problem;
}

// Systems of one shape, factored again and again in the memory of the last time.
class Load {
 public:
  Load(Solver& solver, const Size& size)
      : solver_(solver),
        size_(size),
        matrix_(ProblemOf(size), Scalar::kFloat64, {.palette = true}) {
    auto plan = solver.Plan(matrix_.shape(), size.systems);
    if (!plan.ok()) Die(plan.status().ToString());
    plan_ = *std::move(plan);
    memory_.resize(size.systems);
  }

  void Factor() {
    std::vector<FactorItem> items(size_.systems);
    for (int64_t i = 0; i < size_.systems; ++i) {
      items[i].matrix = matrix_.view();
      items[i].recycle = &memory_[i];
    }
    const double start = Now();
    std::vector<FactorOutcome> outcomes = solver_.Factor(plan_, items);
    samples_.seconds.push_back(Now() - start);
    for (int64_t i = 0; i < size_.systems; ++i) {
      if (!outcomes[i].status.ok()) Die(outcomes[i].status.ToString());
      memory_[i] = Factorization::Recycle(std::move(outcomes[i].factorization));
    }
  }
  // Seconds of each since the last time that they were taken.
  Samples Take() { return std::exchange(samples_, {}); }

 private:
  Solver& solver_;
  const Size size_;
  const test::HostMatrix matrix_;
  std::shared_ptr<const EliminationPlan> plan_;
  std::vector<DeviceBuffer> memory_;
  Samples samples_;
};

// One system, solved again and again.
class Caller {
 public:
  Caller(Solver& solver, const Size& size)
      : solver_(solver),
        matrix_(problems::Mpc(size.num_blocks, size.block_size, 2), Scalar::kFloat64),
        rhs_(problems::RandomColumns(matrix_.shape().rows(), 1, 3)),
        x_(rhs_.size()) {
    auto plan = solver.Plan(matrix_.shape());
    if (!plan.ok()) Die(plan.status().ToString());
    FactorItem item;
    item.matrix = matrix_.view();
    std::vector<FactorOutcome> outcomes = solver.Factor(*plan, {&item, 1});
    if (!outcomes[0].status.ok()) Die(outcomes[0].status.ToString());
    factorization_ = std::move(outcomes[0].factorization);
    Solve();
    first_ = x_;
    const double error = test::BackwardError(matrix_.view(), x_, rhs_);
    if (!(error <= BackwardErrorGoal(matrix_.shape()))) Die("a residual above its bound");
  }

  double Solve() {
    SolveItem item{.factorization = factorization_, .rhs = rhs_.data(), .solution = x_.data()};
    const double start = Now();
    const SolveOutcome outcome = solver_.Solve({&item, 1})[0];
    const double seconds = Now() - start;
    if (!outcome.status.ok()) Die(outcome.status.ToString());
    if (!first_.empty() && x_ != first_) Die("an answer that differs from the first one");
    return seconds;
  }

 private:
  Solver& solver_;
  const test::HostMatrix matrix_;
  const std::vector<double> rhs_;
  std::vector<double> x_, first_;
  std::shared_ptr<const Factorization> factorization_;
};

class Bench {
 public:
  explicit Bench(const Flags& flags)
      : seconds_(flags.quick ? 0.05 : absl::GetFlag(FLAGS_seconds)), quick_(flags.quick) {
    BackendOptions options;
    options.cpu_threads = absl::GetFlag(FLAGS_cpu_threads);
    const std::string backend = absl::GetFlag(FLAGS_backend);
    auto created = CreateBackend(backend, options);
    if (!created.ok()) Die(created.status().ToString());
    is_cpu_ = (*created)->device().backend == "cpu";
    file_ = std::make_unique<ResultFile>(flags, (*created)->device().name);
    solver_ = std::make_unique<Solver>(*std::move(created));
  }

  void Run() {
    std::printf(
        "| solve | beside factorizations of | solves | p50 | p99 | max | p99 / alone | "
        "factor alone | beside solves |\n|---|---|---|---|---|---|---|---|---|\n");
    for (const Size& size : Callers()) {
      Caller caller(*solver_, size);
      const Samples alone = Measure(caller);
      Print(size, nullptr, alone, alone, {});
      for (const Size& load_size : Loads()) {
        if (!absl::StrContains(NameOf(load_size), absl::GetFlag(FLAGS_only))) continue;
        Load load(*solver_, load_size);
        for (int i = 0; i < 3; ++i) load.Factor();
        const double factor_alone = load.Take().median();
        std::atomic<bool> stop = false;
        std::thread loader([&] {
          while (!stop.load()) load.Factor();
        });
        const Samples beside = Measure(caller);
        stop = true;
        loader.join();
        Print(size, &load_size, beside, alone, {factor_alone, load.Take().median()});
      }
    }
  }

 private:
  std::vector<Size> Callers() const {
    if (quick_) return {{8, 16}, {6, 40}};
    return {{64, 16}, {100, 256}, {64, 512}};
  }
  std::vector<Size> Loads() const {
    if (quick_) return {{40, 48}, {30, 16, 8}};
    if (is_cpu_) return {{128, 512}, {256, 256}, {4096, 64}, {64, 16, 256}};
    return {{256, 1024}, {256, 512}, {4096, 64}, {65536, 64}, {64, 16, 256}};
  }

  Samples Measure(Caller& caller) const {
    Samples samples;
    for (int i = 0; i < 5; ++i) caller.Solve();
    for (const double end = Now() + seconds_; Now() < end;) {
      samples.seconds.push_back(caller.Solve());
      absl::SleepFor(absl::Microseconds(absl::GetFlag(FLAGS_gap_us)));
    }
    return samples;
  }

  // `factor`: the median times of factorizations, alone and beside solves.
  void Print(const Size& size, const Size* load, const Samples& solves, const Samples& alone,
             const std::pair<double, double>& factor) {
    const double p99 = solves.quantile(0.99), ratio = p99 / alone.quantile(0.99);
    std::printf("| %s | %s | %zu | %s | %s | %s | %.2f | %s | %s |\n", NameOf(size).c_str(),
                load ? NameOf(*load).c_str() : "", solves.seconds.size(),
                FormatSeconds(solves.median()).c_str(), FormatSeconds(p99).c_str(),
                FormatSeconds(solves.quantile(1)).c_str(), ratio,
                load ? FormatSeconds(factor.first).c_str() : "",
                load ? FormatSeconds(factor.second).c_str() : "");
    std::fflush(stdout);
    file_->Add(absl::StrFormat(
        "{\"solve\": %s, \"beside\": %s, \"p50_s\": %.4g, \"p99_s\": %.4g, \"max_s\": %.4g, "
        "\"factor_alone_s\": %.4g, \"factor_beside_s\": %.4g}",
        Quoted(NameOf(size)), Quoted(load ? NameOf(*load) : ""), solves.median(), p99,
        solves.quantile(1), factor.first, factor.second));
  }

  const double seconds_;
  const bool quick_;
  bool is_cpu_ = false;
  std::unique_ptr<Solver> solver_;
  std::unique_ptr<ResultFile> file_;
};

}  // namespace
}  // namespace blockd::bench

int main(int argc, char** argv) {
  blockd::bench::Bench(blockd::bench::ParseFlags(argc, argv)).Run();
  return 0;
}
