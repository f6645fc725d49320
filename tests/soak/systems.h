// The systems that the soak factors, and what is right of an answer.
#ifndef BLOCKD_TESTS_SOAK_SYSTEMS_H_
#define BLOCKD_TESTS_SOAK_SYSTEMS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "blockd/v1/blockd.pb.h"
#include "engine/problems/problems.h"

namespace blockd::soak {

// One system with right-hand sides. Immutable; any thread.
struct System {
  problems::Problem problem;
  v1::SystemSpec spec;
  v1::SystemData data;
  static constexpr int64_t kColumns = 3;
  std::vector<double> rhs;  // of kColumns columns

  int64_t rows() const { return problem.rows(); }
  std::string RhsBytes(int64_t columns) const;
  // "" where the bytes are a solution for the first `columns` right-hand sides: as many as there
  // should be, with a residual that is as small as was promised. Else what is wrong.
  std::string CheckSolution(const std::string& bytes, int64_t columns, double promised) const;
};

// Some of several shapes and kinds; always the same ones.
const std::vector<System>& Systems();
// One that is not positive definite.
const System& NotPositiveDefinite();
// One whose upload and solutions take a while.
const System& LargeSystem();

}  // namespace blockd::soak

#endif  // BLOCKD_TESTS_SOAK_SYSTEMS_H_
