// A program outside the project that links only the installed engine: it solves the second
// difference equation -x(i-1) + 2 x(i) - x(i+1) = 0 with x(0) = 0 and x(N+1) = 1, whose solution is
// a line.
#include <cmath>
#include <cstdio>
#include <vector>

#include "blockd/engine/backend_registry.h"
#include "blockd/engine/solver.h"

int main() {
  constexpr int64_t kBlocks = 1000;
  auto backend =
      blockd::CreateBackend("cpu", {.memory_bytes = int64_t{64} << 20, .cpu_threads = 2});
  if (!backend.ok()) {
    std::fprintf(stderr, "%s\n", std::string(backend.status().message()).c_str());
    return 1;
  }
  blockd::Solver solver(*std::move(backend));

  const std::vector<double> diagonal(kBlocks, 2.0), coupling(kBlocks - 1, -1.0);
  blockd::FactorItem item;
  item.matrix.form.shape = {.num_blocks = kBlocks, .block_size = 1};
  item.matrix.diagonal = diagonal.data();
  item.matrix.coupling = coupling.data();
  auto plan = solver.Plan(item.matrix.shape());
  if (!plan.ok()) return 1;
  const auto factored = solver.Factor(*plan, {&item, 1});
  if (!factored[0].status.ok()) return 1;

  std::vector<double> x(kBlocks, 0.0);
  x.back() = 1.0;
  const blockd::SolveItem solve{
      .factorization = factored[0].factorization, .rhs = x.data(), .solution = x.data()};
  if (!solver.Solve({&solve, 1})[0].status.ok()) return 1;
  for (int64_t i = 0; i < kBlocks; ++i) {
    if (std::abs(x[i] - (i + 1.0) / (kBlocks + 1.0)) > 1e-9) return 1;
  }
  std::puts("a line, as it should be");
  return 0;
}
