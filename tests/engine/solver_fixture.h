// The fixture of the tests of the Solver: a solver for each backend, and short ways to call it.
#ifndef BLOCKD_TESTS_ENGINE_SOLVER_FIXTURE_H_
#define BLOCKD_TESTS_ENGINE_SOLVER_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "blockd/engine/solver.h"
#include "engine/problems/problems.h"
#include "tests/support/backends.h"
#include "tests/support/host_matrix.h"
#include "tests/support/oracle.h"

namespace blockd::test {

struct Target {
  std::string backend;
  Scalar scalar = Scalar::kFloat64;
};
std::vector<Target> Targets();     // every backend to test, with both scalars
std::vector<Target> GpuTargets();  // those of them that are no CPU
std::string ToString(const Target& target);
inline void PrintTo(const Target& target, std::ostream* out) { *out << ToString(target); }
std::string TargetName(const ::testing::TestParamInfo<Target>& info);

using PlanPtr = std::shared_ptr<const EliminationPlan>;

// The plan with these separators, level by level; a failed expectation if there is none.
PlanPtr Cut(const Shape& shape, const std::vector<int64_t>& separators);

// Thin calls that expect success, `where` in their messages being the caller's traces.
FactorOutcome FactorOne(Solver& solver, const HostMatrix& matrix, PlanPtr plan = nullptr,
                        bool keep_matrix = false);
std::shared_ptr<Factorization> MustFactor(Solver& solver, const HostMatrix& matrix,
                                          PlanPtr plan = nullptr, bool keep_matrix = false);

// A right-hand side or a solution as the solver takes it.
class Columns {
 public:
  Columns(std::span<const double> values, Scalar scalar)
      : scalar_(scalar), bytes_(ToScalars(values, scalar)) {}
  Columns(int64_t scalars, Scalar scalar)
      : scalar_(scalar), bytes_(scalars * ScalarBytes(scalar)) {}
  void* data() { return bytes_.data(); }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  std::vector<double> values() const { return ToDoubles(bytes_, scalar_); }
  friend bool operator==(const Columns& a, const Columns& b) { return a.bytes_ == b.bytes_; }
  friend void PrintTo(const Columns& columns, std::ostream* out) {
    *out << columns.bytes_.size() / ScalarBytes(columns.scalar_) << " scalars";
  }

 private:
  Scalar scalar_;
  std::vector<std::byte> bytes_;
};

// Solves for `num_rhs` columns and expects success.
Columns MustSolve(Solver& solver, std::shared_ptr<const Factorization> factorization, Columns rhs,
                  int64_t num_rhs);

// One solver a backend for all tests of a suite; each test must give all device memory back.
template <typename Param>
class SharedSolverTest : public ::testing::TestWithParam<Param> {
 public:
  static void TearDownTestSuite() { slot().reset(); }

 protected:
  static Solver& SolverOf(const Target& target) {
    if (slot() == nullptr || slot()->backend().device().backend != target.backend) {
      slot() = nullptr;
      slot() = MakeSolver(target.backend);
    }
    return *slot();
  }
  static PoolStats Pool() { return slot()->backend().pool().stats(); }
  void TearDown() override {
    if (slot() == nullptr) return;
    EXPECT_EQ(Pool().used_bytes, 0) << "device memory that was not given back";
    EXPECT_EQ(Pool().largest_free_bytes, Pool().capacity_bytes);
  }

 private:
  static std::unique_ptr<Solver>& slot() {
    static std::unique_ptr<Solver> solver;
    return solver;
  }
};

class SolverTest : public SharedSolverTest<Target> {
 protected:
  // Made before a test starts threads that ask for it.
  void SetUp() override { SolverOf(GetParam()); }
  Scalar scalar() const { return GetParam().scalar; }
  Solver& solver() const { return SolverOf(GetParam()); }
  // Device code that runs on the host, where a multiply-add takes nanoseconds.
  bool is_emulated() const { return GetParam().backend.starts_with("host_"); }
};

// The goal for backward errors, 4 n eps.
double ErrorBound(const Shape& shape);

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_ENGINE_SOLVER_FIXTURE_H_
