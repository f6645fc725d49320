// cuDSS on the same system, for engine_bench --peer=cudss: its library is looked for when that is
// asked for. Compiled where cudss.h is found.
#ifndef BLOCKD_TESTS_BENCH_REFERENCE_CUDSS_REFERENCE_H_
#define BLOCKD_TESTS_BENCH_REFERENCE_CUDSS_REFERENCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/problems/problems.h"

namespace blockd::bench {

// One system in FP64: its upper triangle in compressed rows, symmetric positive definite, cuDSS's
// default ordering, data on the device. For one thread; an error ends the program with its reason.
class CudssReference {
 public:
  // Null, and the reason in *why, where there is no cuDSS.
  static std::unique_ptr<CudssReference> Make(const problems::Problem& problem, std::string* why);
  virtual ~CudssReference() = default;

  // Seconds that the analysis and the first factorization took.
  virtual double analysis_seconds() const = 0;
  virtual double first_factor_seconds() const = 0;
  // The same pattern again; seconds, until the device has done it.
  virtual double Refactor() = 0;
  // X for the columns of b, one after the other.
  virtual double Solve(const std::vector<double>& b, int64_t columns) = 0;
  virtual std::vector<double> Solution() const = 0;
};

}  // namespace blockd::bench

#endif  // BLOCKD_TESTS_BENCH_REFERENCE_CUDSS_REFERENCE_H_
