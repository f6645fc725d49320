// The cost of a guaranteed backward error: each system factored and solved with Accuracy::kStandard
// and with kGuaranteed, in turn in one run, from host memory and back.
//
//   accuracy_bench [--backend=NAME] [--json=FILE --commit=NAME] [--quick]
//
// The errors are those of b = A x with x = ones, in units of 4 n eps. Exit code 1 if one is above
// what its solve promises.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "blockd/engine/backend_registry.h"
#include "blockd/engine/solver.h"
#include "engine/problems/problems.h"
#include "tests/bench/bench_flags.h"
#include "tests/bench/bench_table.h"
#include "tests/bench/must.h"
#include "tests/bench/result_file.h"
#include "tests/support/adversarial.h"
#include "tests/support/host_matrix.h"
#include "tests/support/oracle.h"

ABSL_FLAG(std::string, backend, "auto", "Which backend: auto, cpu, cuda, rocm.");

namespace blockd::bench {
namespace {

struct Case {
  std::string name;
  problems::Problem problem;
};

// A block L L' with L = I - c (strictly lower ones), whose inverse grows like (1 + c)^n.
problems::Problem Growing(int64_t num_blocks, int64_t n, double c) {
  std::vector<double> factor(n * n);
  for (int64_t j = 0; j < n; ++j) {
    factor[j * n + j] = 1;
    for (int64_t i = j + 1; i < n; ++i) factor[j * n + i] = -c;
  }
  return test::RepeatBlock(factor, n, num_blocks);
}
// The same problem, whose blocks are all equal, as a palette with one block of each kind.
problems::Problem Palette(problems::Problem problem) {
  const int64_t n = problem.block_size;
  problem.diagonal.resize(n * n);
  problem.coupling.resize(n * n);
  problem.diagonal_index.assign(problem.num_blocks, 0);
  problem.coupling_index.assign(problem.num_blocks - 1, 0);
  return problem;
}

std::vector<Case> Cases(bool quick) {
  const int64_t length = quick ? 8 : 100, states = quick ? 20 : 128;
  const problems::KalmanOptions kalman = {
      .states = states, .observations = 2 * states, .steps = length};
  const auto name = [&](const std::string& what, const problems::Problem& problem) {
    return absl::StrCat(what, ", N = ", problem.num_blocks, ", n = ", problem.block_size,
                        problem.diagonal_index.empty() ? "" : ", palette");
  };
  std::vector<Case> cases;
  const auto add = [&](const std::string& what, const problems::Problem& problem) {
    cases.push_back({name(what, problem), problem});
  };
  add("MPC", problems::Mpc(quick ? 24 : 2048, 16, 1));
  add("Kalman", problems::Kalman(kalman));
  add("Kalman", problems::KalmanPalette(kalman));
  const problems::Problem growing = Growing(length, 64, 0.2);
  add("I - 0.2 below", growing);
  add("I - 0.2 below", Palette(growing));
  return cases;
}

// One system with one accuracy.
class Contender {
 public:
  Contender(Solver& solver, const test::HostMatrix& matrix, Accuracy accuracy,
            const std::vector<double>& b)
      : solver_(solver), b_(b), x_(b.size()) {
    item_.matrix = matrix.view();
    item_.accuracy = accuracy;
    auto plan = solver_.Plan(matrix.shape());
    if (!plan.ok()) Die(plan.status().ToString());
    plan_ = *std::move(plan);
    Factor();
    Solve();
  }

  void Factor() {
    factorization_ = nullptr;
    std::vector<FactorOutcome> outcomes = solver_.Factor(plan_, {&item_, 1});
    if (!outcomes[0].status.ok()) Die(outcomes[0].status.ToString());
    factorization_ = std::move(outcomes[0].factorization);
  }
  void Solve() {
    SolveItem item;
    item.factorization = factorization_;
    item.rhs = b_.data();
    item.solution = x_.data();
    outcome_ = solver_.Solve({&item, 1})[0];
    if (!outcome_.status.ok()) Die(outcome_.status.ToString());
  }

  double growth() const { return factorization_->conditioning().growth; }
  int64_t bytes() const { return factorization_->bytes(); }
  int32_t refinements() const { return outcome_.refinements; }
  // The backward error of the last solve, in units of 4 n eps.
  double Error() const {
    const double error = test::BackwardError(item_.matrix, x_, b_);
    if (!(error <= outcome_.backward_error_bound)) Die("an error above its bound");
    return error / BackwardErrorGoal(plan_->shape());
  }

 private:
  Solver& solver_;
  const std::vector<double>& b_;
  std::vector<double> x_;
  FactorItem item_;
  std::shared_ptr<const EliminationPlan> plan_;
  std::shared_ptr<Factorization> factorization_;
  SolveOutcome outcome_;
};

class Bench {
 public:
  explicit Bench(const Flags& flags) : flags_(flags) {
    BackendOptions options;
    options.memory_bytes = int64_t{1} << 30;
    auto backend = CreateBackend(absl::GetFlag(FLAGS_backend), options);
    if (!backend.ok()) Die(backend.status().ToString());
    const DeviceInfo& device = (*backend)->device();
    file_ = std::make_unique<ResultFile>(flags,
                                         device.backend == "cpu" ? DescribeMachine() : device.name);
    solver_ = std::make_unique<Solver>(*std::move(backend));
  }

  void Run() {
    for (const Case& chosen : Cases(flags_.quick)) Measure(chosen);
  }

 private:
  using Cells = std::vector<std::pair<std::string, std::string>>;

  void Measure(const Case& chosen) {
    const test::HostMatrix matrix(chosen.problem, Scalar::kFloat64,
                                  {.palette = !chosen.problem.diagonal_index.empty()});
    const std::vector<double> ones(chosen.problem.rows(), 1.0);
    const std::vector<double> b = test::Multiply(matrix.view(), ones);
    Contender standard(*solver_, matrix, Accuracy::kStandard, b);
    Contender guaranteed(*solver_, matrix, Accuracy::kGuaranteed, b);
    const int repetitions = flags_.quick ? 1 : 15;
    const auto factor = Interleave(repetitions, {{nullptr, [&] { standard.Factor(); }},
                                                 {nullptr, [&] { guaranteed.Factor(); }}});
    const auto solve = Interleave(repetitions, {{nullptr, [&] { standard.Solve(); }},
                                                {nullptr, [&] { guaranteed.Solve(); }}});
    const auto ratio = [](const std::vector<Samples>& samples) {
      return Format(samples[1].median() / samples[0].median(), "x");
    };
    Add({{"system", chosen.name},
         {"growth", absl::StrFormat("%.2g", guaranteed.growth())},
         {"memory, guaranteed",
          absl::StrFormat("%.2fx", static_cast<double>(guaranteed.bytes()) /
                                       static_cast<double>(standard.bytes()))},
         {"factor", FormatSeconds(factor[0].median())},
         {"factor, guaranteed", ratio(factor)},
         {"solve", FormatSeconds(solve[0].median())},
         {"solve, guaranteed", ratio(solve)},
         {"steps", absl::StrCat(guaranteed.refinements())},
         {"error", absl::StrFormat("%.2g", standard.Error())},
         {"error, guaranteed", absl::StrFormat("%.2g", guaranteed.Error())}});
  }

  void Add(const Cells& cells) {
    const auto join = [&](const auto& text) {
      return absl::StrCat("| ", absl::StrJoin(cells, " | ", text), " |");
    };
    if (std::exchange(first_, false)) {
      std::puts(join([](std::string* out, const auto& cell) { *out += cell.first; }).c_str());
      std::puts(join([](std::string* out, const auto&) { *out += "---"; }).c_str());
    }
    std::puts(join([](std::string* out, const auto& cell) { *out += cell.second; }).c_str());
    std::fflush(stdout);
    file_->Add(absl::StrCat("{",
                            absl::StrJoin(cells, ", ",
                                          [](std::string* out, const auto& cell) {
                                            absl::StrAppend(out, Quoted(cell.first), ": ",
                                                            Quoted(cell.second));
                                          }),
                            "}"));
  }

  const Flags flags_;
  std::unique_ptr<ResultFile> file_;
  std::unique_ptr<Solver> solver_;
  bool first_ = true;
};

}  // namespace
}  // namespace blockd::bench

int main(int argc, char** argv) {
  blockd::bench::Bench(blockd::bench::ParseFlags(argc, argv)).Run();
  return 0;
}
