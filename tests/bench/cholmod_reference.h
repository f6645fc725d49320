// CHOLMOD's supernodal Cholesky of a block-tridiagonal matrix, as a user of CHOLMOD would call it:
// the analysis once, then numeric factorizations and solves with everything allocated.
#ifndef BLOCKD_TESTS_BENCH_CHOLMOD_REFERENCE_H_
#define BLOCKD_TESTS_BENCH_CHOLMOD_REFERENCE_H_

#include <memory>
#include <string>
#include <vector>

#include "blockd/client/blockctl/problems.h"

namespace blockd::bench {

enum class Ordering { kNatural, kAmd, kMetis };

class CholmodReference {
 public:
  // Analyzes with each ordering, and keeps the one that factors fastest.
  CholmodReference(const problems::Problem& problem, const std::vector<Ordering>& orderings);
  ~CholmodReference();
  CholmodReference(const CholmodReference&) = delete;

  void Factor();  // warm: the analysis and the memory are reused
  void Solve();   // one right-hand side, the problem's
  const std::string& ordering() const { return ordering_; }
  std::vector<double> solution() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
  std::string ordering_;
};

}  // namespace blockd::bench

#endif  // BLOCKD_TESTS_BENCH_CHOLMOD_REFERENCE_H_
