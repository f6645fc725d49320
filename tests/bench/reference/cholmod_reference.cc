#include "tests/bench/reference/cholmod_reference.h"

#include <cholmod.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "tests/bench/machine.h"

namespace blockd::bench {
namespace {

std::string Name(Ordering ordering) {
  switch (ordering) {
    case Ordering::kNatural:
      return "natural";
    case Ordering::kAmd:
      return "AMD";
    case Ordering::kMetis:
      return "METIS";
  }
  return "";
}

int Method(Ordering ordering) {
  switch (ordering) {
    case Ordering::kNatural:
      return CHOLMOD_NATURAL;
    case Ordering::kAmd:
      return CHOLMOD_AMD;
    case Ordering::kMetis:
      return CHOLMOD_METIS;
  }
  return CHOLMOD_NATURAL;
}

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The lower triangle, column by column: of A(i,i), then all of A(i+1,i).
cholmod_sparse* Assemble(const problems::Problem& problem, cholmod_common* common) {
  const int64_t n = problem.block_size, rows = problem.rows();
  const int64_t nonzeros = problem.num_blocks * n * (n + 1) / 2 + (problem.num_blocks - 1) * n * n;
  cholmod_sparse* a = cholmod_allocate_sparse(rows, rows, nonzeros, 1, 1, -1, CHOLMOD_REAL, common);
  int* starts = static_cast<int*>(a->p);
  int* indices = static_cast<int*>(a->i);
  double* values = static_cast<double*>(a->x);
  int next = 0;
  for (int64_t column = 0; column < rows; ++column) {
    starts[column] = next;
    const int64_t block = column / n, c = column % n;
    const auto take = [&](const double* from, int64_t row_block, int64_t first) {
      for (int64_t r = first; r < n; ++r) {
        indices[next] = static_cast<int>(row_block * n + r);
        values[next++] = from[c * n + r];
      }
    };
    take(problem.DiagonalBlock(block), block, c);
    if (block + 1 < problem.num_blocks) take(problem.CouplingBlock(block), block + 1, 0);
  }
  starts[rows] = next;
  return a;
}

}  // namespace

struct CholmodReference::State {
  cholmod_common common;
  cholmod_sparse* a = nullptr;
  cholmod_factor* factor = nullptr;
  cholmod_dense* b = nullptr;
  cholmod_dense *x = nullptr, *y = nullptr, *e = nullptr;

  cholmod_factor* Analyze(Ordering ordering) {
    common.nmethods = 1;
    common.method[0].ordering = Method(ordering);
    return cholmod_analyze(a, &common);
  }
};

CholmodReference::CholmodReference(const problems::Problem& problem,
                                   const std::vector<Ordering>& orderings, int max_threads)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  cholmod_start(&s.common);
  s.common.supernodal = CHOLMOD_SUPERNODAL;
  s.a = Assemble(problem, &s.common);
  s.b = cholmod_allocate_dense(problem.rows(), 1, problem.rows(), CHOLMOD_REAL, &s.common);
  std::copy_n(problem.rhs.data(), problem.rows(), static_cast<double*>(s.b->x));
  double best = 0;
  // BLAS threads help large supernodes and harm small ones: each count gets its try.
  std::vector<std::pair<Ordering, int>> trials;
  for (const Ordering ordering : orderings) {
    for (int threads = 1; threads <= max_threads; ++threads) trials.push_back({ordering, threads});
  }
  for (const auto& [ordering, threads] : trials) {
    SetBlasThreads(threads);
    cholmod_factor* factor = s.Analyze(ordering);
    if (factor == nullptr || !cholmod_factorize(s.a, factor, &s.common)) continue;
    double seconds = 0;
    for (int trial = 0; trial < 2; ++trial) {
      const double start = Seconds();
      cholmod_factorize(s.a, factor, &s.common);
      seconds = trial == 0 ? Seconds() - start : std::min(seconds, Seconds() - start);
    }
    if (s.factor == nullptr || seconds < best) {
      std::swap(s.factor, factor);
      best = seconds;
      threads_ = threads;
      name_ = Name(ordering) + (threads == 1 ? ", 1 BLAS thread" : ", 2 BLAS threads");
    }
    if (factor != nullptr) cholmod_free_factor(&factor, &s.common);
  }
  if (s.factor == nullptr) {
    std::fprintf(stderr, "CHOLMOD: no ordering worked, status %d\n", s.common.status);
    std::exit(1);
  }
}

CholmodReference::~CholmodReference() {
  State& s = *state_;
  cholmod_free_dense(&s.x, &s.common);
  cholmod_free_dense(&s.y, &s.common);
  cholmod_free_dense(&s.e, &s.common);
  cholmod_free_dense(&s.b, &s.common);
  cholmod_free_factor(&s.factor, &s.common);
  cholmod_free_sparse(&s.a, &s.common);
  cholmod_finish(&s.common);
}

void CholmodReference::Factor() { cholmod_factorize(state_->a, state_->factor, &state_->common); }

void CholmodReference::Solve() {
  State& s = *state_;
  cholmod_solve2(CHOLMOD_A, s.factor, s.b, nullptr, &s.x, nullptr, &s.y, &s.e, &s.common);
}

std::vector<double> CholmodReference::solution() const {
  const double* x = static_cast<const double*>(state_->x->x);
  return std::vector<double>(x, x + state_->x->nrow);
}

}  // namespace blockd::bench
