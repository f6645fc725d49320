// The engine on the CPU against CHOLMOD and against this machine's ceilings: one table, every ratio
// measured within this run, two threads each. Every row checks the residual of what it timed.
//
//   cpu_bench [--json=FILE --commit=NAME] [--noheader] [--quick]
//
// --quick: small sizes, one repetition; its times mean nothing, its residuals do. Exit code 1 if a
// residual is too large. A goal that is not reached does not change the exit code.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "blockd/engine/backend_registry.h"
#include "blockd/engine/solver.h"
#include "engine/problems/problems.h"
#include "tests/bench/bench_flags.h"
#include "tests/bench/bench_table.h"
#include "tests/bench/machine.h"
#include "tests/bench/must.h"
#include "tests/bench/reference/cholmod_reference.h"

namespace blockd::bench {
namespace {

constexpr int kThreads = 2;

struct Options : Flags {
  int repetitions() const { return quick ? 1 : 9; }
  int64_t rows() const { return quick ? 2048 : 65536; }
};

void CheckResidual(const std::string& what, const problems::Problem& problem,
                   const std::vector<double>& x, const std::vector<double>& b, int64_t columns) {
  const double error = problems::BackwardError(problem, x, b, columns);
  const double bound = 4 * static_cast<double>(problem.block_size) * 0x1p-52;
  if (!(error <= bound)) {
    Die(what + ": backward error " + std::to_string(error / bound) + " times the bound");
  }
}

// The engine with one system: warm factorizations in the memory of the last one, and solves.
class Ours {
 public:
  Ours(Solver& solver, const problems::Problem& problem) : solver_(solver) {
    item_.matrix.form.shape = {problem.num_blocks, problem.block_size, Scalar::kFloat64};
    item_.matrix.diagonal = problem.diagonal.data();
    item_.matrix.coupling = problem.coupling.data();
    auto plan = solver_.Plan(item_.matrix.form.shape);
    if (!plan.ok()) Die(plan.status().ToString());
    plan_ = *std::move(plan);
  }

  void Factor() {
    DeviceBuffer recycled = Factorization::Recycle(std::exchange(factorization_, nullptr));
    item_.recycle = &recycled;
    std::vector<FactorOutcome> outcomes = solver_.Factor(plan_, {&item_, 1});
    if (!outcomes[0].status.ok()) Die(outcomes[0].status.ToString());
    factorization_ = std::move(outcomes[0].factorization);
  }
  void Solve(const std::vector<double>& b, std::vector<double>& x, int64_t columns) {
    SolveItem item;
    item.factorization = factorization_;
    item.rhs = b.data();
    item.solution = x.data();
    item.num_rhs = columns;
    const std::vector<SolveOutcome> outcomes = solver_.Solve({&item, 1});
    if (!outcomes[0].status.ok()) Die(outcomes[0].status.ToString());
  }
  const EliminationPlan& plan() const { return *plan_; }

 private:
  Solver& solver_;
  FactorItem item_;
  std::shared_ptr<const EliminationPlan> plan_;
  std::shared_ptr<Factorization> factorization_;
};

struct Ceilings {
  double flops = 0;  // a second
  double bytes = 0;  // a second
};

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options), table_(options) {
    BackendOptions backend;
    backend.memory_bytes = int64_t{options.quick ? 256 : 2048} << 20;
    backend.cpu_threads = kThreads;
    backend.cpu_lanes = kThreads;
    auto created = CreateBackend("cpu", backend);
    if (!created.ok()) Die(created.status().ToString());
    solver_ = std::make_unique<Solver>(*std::move(created));
  }

  void Run() {
    MeasureCeilings();
    for (const int64_t n :
         options_.quick ? std::vector<int64_t>{4, 32} : std::vector<int64_t>{4, 8, 16, 32, 64}) {
      FactorAndSolve(n);
    }
    for (const int64_t n :
         options_.quick ? std::vector<int64_t>{128} : std::vector<int64_t>{128, 256, 512}) {
      LargeBlocks(n);
    }
  }

 private:
  static void OurThreads() { SetBlasThreads(1); }
  static void TheirThreads() { SetBlasThreads(kThreads); }
  static std::string Sizes(const problems::Problem& p) {
    return "N=" + std::to_string(p.num_blocks) + " n=" + std::to_string(p.block_size);
  }

  void MeasureCeilings() {
    Dgemm dgemm(options_.quick ? 256 : 2048);
    MemoryReader reader(int64_t{options_.quick ? 16 : 1024} << 20, kThreads);
    const std::vector<Samples> samples =
        Interleave(options_.repetitions(),
                   {{TheirThreads, [&] { dgemm.Run(); }}, {OurThreads, [&] { reader.Run(); }}});
    ceilings_.flops = dgemm.flops() / samples[0].median();
    ceilings_.bytes = reader.bytes() / samples[1].median();
    Row row;
    row.work = "this machine: dgemm, 2 threads";
    row.reference = Format(ceilings_.flops / 1e9, "GFLOP/s");
    row.spread = samples[0].spread();
    table_.Add(row);
    row.work = "this machine: reading memory, 2 threads";
    row.reference = Format(ceilings_.bytes / 1e9, "GB/s");
    row.spread = samples[1].spread();
    table_.Add(row);
  }

  void FactorAndSolve(int64_t n) {
    const problems::Problem problem = problems::Mpc(options_.rows() / n, n, 1);
    Ours ours(*solver_, problem);
    TheirThreads();
    CholmodReference theirs(problem, {Ordering::kNatural, Ordering::kAmd, Ordering::kMetis},
                            kThreads);
    const auto their_best = [&] { SetBlasThreads(theirs.threads()); };
    std::vector<double> x(problem.rows());
    const std::vector<Samples> samples =
        Interleave(options_.repetitions(), {{OurThreads,
                                             [&] {
                                               ours.Factor();
                                               ours.Solve(problem.rhs, x, 1);
                                             }},
                                            {their_best, [&] {
                                               theirs.Factor();
                                               theirs.Solve();
                                             }}});
    CheckResidual("blockd", problem, x, problem.rhs, 1);
    CheckResidual("CHOLMOD", problem, theirs.solution(), problem.rhs, 1);
    Row row;
    row.work = "factor and solve, " + Sizes(problem);
    row.ours = FormatSeconds(samples[0].median());
    row.reference = FormatSeconds(samples[1].median()) + " CHOLMOD (" + theirs.name() + ")";
    row.spread = samples[0].spread();
    table_.AddAtLeast(row, samples[1].median() / samples[0].median(), 3);
  }

  // Factor against dgemm and CHOLMOD, then the solves against the memory, all of one size.
  void LargeBlocks(int64_t n) {
    const problems::Problem problem = problems::Mpc(options_.rows() / n, n, 1);
    Ours ours(*solver_, problem);
    CompareFactor(problem, ours);
    CompareSolve(problem, ours);
  }

  void CompareFactor(const problems::Problem& problem, Ours& ours) {
    TheirThreads();
    Dgemm dgemm(options_.quick ? 256 : 2048);
    // A nested dissection of such wide blocks has more flops than the natural order, and takes
    // minutes to find.
    CholmodReference theirs(problem, {Ordering::kNatural, Ordering::kAmd}, kThreads);
    const auto their_best = [&] { SetBlasThreads(theirs.threads()); };
    const std::vector<Samples> samples = Interleave(options_.repetitions(),
                                                    {{OurThreads, [&] { ours.Factor(); }},
                                                     {their_best, [&] { theirs.Factor(); }},
                                                     {TheirThreads, [&] { dgemm.Run(); }}},
                                                    /*warm=*/true);
    std::vector<double> x(problem.rows());
    ours.Solve(problem.rhs, x, 1);
    theirs.Solve();
    CheckResidual("blockd", problem, x, problem.rhs, 1);
    CheckResidual("CHOLMOD", problem, theirs.solution(), problem.rhs, 1);

    const double n = static_cast<double>(problem.block_size);
    const double flops = 7.0 / 3.0 * n * n * n * static_cast<double>(problem.num_blocks);
    const double rate = flops / samples[0].median();
    const double dgemm_rate = dgemm.flops() / samples[2].median();
    Row row;
    row.work = "factor, " + Sizes(problem);
    row.ours = Format(rate / 1e9, "GFLOP/s");
    row.reference = Format(dgemm_rate / 1e9, "GFLOP/s dgemm");
    row.spread = samples[0].spread();
    table_.AddAtLeast(row, rate / dgemm_rate, 0.7, "%");
    row.ours = FormatSeconds(samples[0].median());
    row.reference = FormatSeconds(samples[1].median()) + " CHOLMOD (" + theirs.name() + ")";
    table_.AddAtLeast(row, samples[1].median() / samples[0].median(), 1.5);
  }

  void CompareSolve(const problems::Problem& problem, Ours& ours) {
    MemoryReader reader(int64_t{options_.quick ? 16 : 512} << 20, kThreads);
    const std::vector<double> b = problems::RandomColumns(problem.rows(), 16, 2);
    std::vector<double> x1(problem.rows()), x16(b.size());
    const std::vector<Samples> samples =
        Interleave(options_.repetitions(), {{OurThreads, [&] { ours.Solve(b, x1, 1); }},
                                            {OurThreads, [&] { reader.Run(); }},
                                            {OurThreads, [&] { ours.Solve(b, x16, 16); }}});
    CheckResidual("blockd", problem, x16, b, 16);
    const std::vector<double> b1(b.begin(), b.begin() + problem.rows());
    CheckResidual("blockd", problem, x1, b1, 1);

    const double rate = ours.plan().solve_bytes(1) / samples[0].median();
    const double limit = reader.bytes() / samples[1].median();
    Row row;
    row.work = "solve d=1, " + Sizes(problem);
    row.ours = Format(rate / 1e9, "GB/s");
    row.reference = Format(limit / 1e9, "GB/s read");
    row.spread = samples[0].spread();
    table_.AddAtLeast(row, rate / limit, 0.7, "%");
    row.work = "solve d=16, " + Sizes(problem);
    row.ours = FormatSeconds(samples[2].median());
    row.reference = FormatSeconds(samples[0].median()) + " d=1";
    row.spread = samples[2].spread();
    table_.AddAtMost(row, samples[2].median() / samples[0].median(), 3);
  }

  const Options options_;
  Table table_;
  std::unique_ptr<Solver> solver_;
  Ceilings ceilings_;
};

}  // namespace
}  // namespace blockd::bench

int main(int argc, char** argv) {
  blockd::bench::Bench({blockd::bench::ParseFlags(argc, argv)}).Run();
  return 0;
}
