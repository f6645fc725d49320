// CHOLMOD's supernodal Cholesky of a block-tridiagonal matrix, as a user of CHOLMOD would call it:
// the analysis once, then numeric factorizations and solves with everything allocated.
#ifndef BLOCKD_TESTS_BENCH_REFERENCE_CHOLMOD_REFERENCE_H_
#define BLOCKD_TESTS_BENCH_REFERENCE_CHOLMOD_REFERENCE_H_

#include <memory>
#include <string>
#include <vector>

#include "engine/problems/problems.h"

namespace blockd::bench {

enum class Ordering { kNatural, kAmd, kMetis };

class CholmodReference {
 public:
  // Analyzes with each ordering and with 1 to max_threads (1 or 2) BLAS threads, and keeps what
  // factors fastest.
  CholmodReference(const problems::Problem& problem, const std::vector<Ordering>& orderings,
                   int max_threads);
  ~CholmodReference();
  CholmodReference(const CholmodReference&) = delete;

  void Factor();                                     // warm: the analysis and the memory are reused
  void Solve();                                      // one right-hand side, the problem's
  const std::string& name() const { return name_; }  // "AMD, 1 BLAS thread"
  int threads() const { return threads_; }
  std::vector<double> solution() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
  std::string name_;
  int threads_ = 1;
};

}  // namespace blockd::bench

#endif  // BLOCKD_TESTS_BENCH_REFERENCE_CHOLMOD_REFERENCE_H_
