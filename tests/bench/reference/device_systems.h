// Systems on a device, for benchmarks: factored, solved and inverted through the backend's own
// calls.
#ifndef BLOCKD_TESTS_BENCH_REFERENCE_DEVICE_SYSTEMS_H_
#define BLOCKD_TESTS_BENCH_REFERENCE_DEVICE_SYSTEMS_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "blockd/engine/backend.h"
#include "blockd/engine/factorization.h"
#include "engine/problems/problems.h"
#include "tests/bench/bench_table.h"
#include "tests/bench/must.h"

namespace blockd::bench {

struct Cell {
  std::string name;
  int64_t num_blocks, block_size, systems;
};

// Systems on the device, factored and solved through the backend's own calls: no uploads and no
// downloads beside what these calls themselves do.
class Engine {
 public:
  Engine(Backend& backend, const Cell& cell, std::shared_ptr<const EliminationPlan> plan)
      : backend_(backend), cell_(cell), plan_(std::move(plan)) {
    MakeSystems();
    scratch_ = Take(backend_.FactorScratchBytes(*plan_, cell_.systems));
    factor_batch_ = {plan_.get(), factor_systems_, scratch_.data()};
  }

  const EliminationPlan& plan() const { return *plan_; }

  void Factor() {
    const auto reports = backend_.Factor(factor_batch_, [] { return true; });
    Must(reports.status());
    for (const FactorReport& report : *reports) {
      if (report.failure) Die(cell_.name + " is not positive definite");
    }
  }

  // Solves and says how long that took: the right-hand sides are brought back before. `enqueued` is
  // how long the host was busy before it waited.
  double Solve(int64_t columns, double* enqueued = nullptr) {
    for (int64_t k = 0; k < cell_.systems; ++k) {
      Pack(x_[k].data(), k, columns);
    }
    Must(backend_.Synchronize(Track::kSolve));
    std::vector<SolveSystem> systems;
    for (int64_t k = 0; k < cell_.systems; ++k) {
      systems.push_back({factor_[k].data(), x_[k].data(), columns, solve_chains_[k].data()});
    }
    const SolveBatch batch{plan_.get(), systems};
    const double start = Now();
    Must(backend_.Solve(Track::kSolve, batch, [] { return true; }));
    if (enqueued) *enqueued = Now() - start;
    Must(backend_.Synchronize(Track::kSolve));
    return Now() - start;
  }

  // The largest backward error of the last solve over the bound 4 n eps, from the device.
  double Error(int64_t columns) {
    double largest = 0;
    for (const int64_t k : {int64_t{0}, cell_.systems - 1}) {
      DeviceBuffer b = Take(rows() * columns * ScalarBytes(scalar()));
      DeviceBuffer r = Take(rows() * columns * ScalarBytes(scalar()));
      Pack(b.data(), k, columns);
      const auto norms = backend_.Residual(Track::kSolve, matrices_[k].view(), x_[k].data(),
                                           b.data(), r.data(), columns);
      Must(norms.status());
      for (const Backend::ResidualNorms& norm : *norms) {
        const double epsilon = scalar() == Scalar::kFloat64 ? 0x1p-52 : 0x1p-23;
        const double error = norm.backward_error() / (4 * static_cast<double>(n()) * epsilon);
        if (!(error <= largest)) largest = error;
      }
      if (!(norms->front().solution > 0)) Die(cell_.name + ": the solution is zero");
    }
    return largest;
  }

  // Z(i,i) of the first system, on the factor track; says how long that took.
  double SelectedInverse() {
    InverseRequest request{plan_.get(), factor_[0].data()};
    request.num_blocks = shape().num_blocks;
    DeviceBuffer blocks = Take(shape().rows() * n() * ScalarBytes(scalar()));
    DeviceBuffer scratch = Take(backend_.InverseScratchBytes(*plan_, 0, request.num_blocks));
    request.diagonal = blocks.data();
    request.scratch = scratch.data();
    const double start = Now();
    Must(backend_.SelectedInverse(Track::kFactor, request, [] { return true; }));
    Must(backend_.Synchronize(Track::kFactor));
    return Now() - start;
  }

  static constexpr int64_t kMostColumns = 16;

  // The first columns of the k-th system's right-hand sides.
  void Pack(void* packed, int64_t k, int64_t columns) {
    const HostColumns one = {rhs_[k].data(), packed, columns, 0, columns};
    Must(backend_.PackColumns(Track::kSolve, plan_->shape(), {&one, 1}));
  }

  // Right-hand sides of the k-th system.
  static std::vector<double> Columns(int64_t rows, int64_t k) {
    return problems::RandomColumns(rows, kMostColumns, 7 + k);
  }
  // The same problem serves all plans of a sweep.
  static const problems::Problem& ProblemOf(const Shape& shape, uint64_t seed) {
    static std::vector<std::pair<uint64_t, problems::Problem>>* const made =
        new std::vector<std::pair<uint64_t, problems::Problem>>;
    for (const auto& [known, problem] : *made) {
      if (known == seed && problem.num_blocks == shape.num_blocks &&
          problem.block_size == shape.block_size) {
        return problem;
      }
    }
    if (!made->empty() && made->front().second.rows() != shape.rows()) made->clear();
    made->emplace_back(seed, problems::Mpc(shape.num_blocks, shape.block_size, seed));
    return made->back().second;
  }

 private:
  const Shape& shape() const { return plan_->shape(); }
  Scalar scalar() const { return shape().scalar; }
  int64_t n() const { return shape().block_size; }
  int64_t rows() const { return shape().rows(); }

  DeviceBuffer Take(int64_t bytes) {
    auto buffer = backend_.pool().Allocate(bytes);
    Must(buffer.status());
    return *std::move(buffer);
  }
  std::vector<std::byte> ToScalars(const std::vector<double>& values) const {
    std::vector<std::byte> bytes(values.size() * ScalarBytes(scalar()));
    for (size_t i = 0; i < values.size(); ++i) {
      const float single = static_cast<float>(values[i]);
      if (scalar() == Scalar::kFloat64) {
        std::memcpy(bytes.data() + i * 8, &values[i], 8);
      } else {
        std::memcpy(bytes.data() + i * 4, &single, 4);
      }
    }
    return bytes;
  }

  void MakeSystems() {
    for (int64_t k = 0; k < cell_.systems; ++k) {
      const problems::Problem& problem = ProblemOf(shape(), 1 + k);
      MatrixForm form;
      form.shape = shape();
      const std::vector<std::byte> diagonal = ToScalars(problem.diagonal);
      const std::vector<std::byte> coupling = ToScalars(problem.coupling);
      StagedMatrix matrix(form, Take(StagedMatrix::BufferBytes(form)));
      const Backend::HostPiece blocks(diagonal), below(coupling);
      Must(backend_.Write(matrix.data(), {&blocks, 1}));
      Must(backend_.Write(matrix.data() + StagedMatrix::Offset(form, MatrixPart::kCoupling),
                          {&below, 1}));
      Must(backend_.AwaitWrites());
      matrices_.push_back(std::move(matrix));
      rhs_.push_back(ToScalars(Columns(rows(), k)));
      factor_.push_back(Take(plan_->factor_bytes()));
      chains_.push_back(Take(plan_->chain_scalars() * ScalarBytes(scalar())));
      solve_chains_.push_back(
          Take(plan_->solve_chain_scalars(kMostColumns) * ScalarBytes(scalar())));
      x_.push_back(Take(rows() * kMostColumns * ScalarBytes(scalar())));
      factor_systems_.push_back(
          {matrices_.back().view(), factor_.back().data(), chains_.back().data()});
    }
  }

  Backend& backend_;
  const Cell cell_;
  const std::shared_ptr<const EliminationPlan> plan_;
  std::vector<StagedMatrix> matrices_;
  std::vector<std::vector<std::byte>> rhs_;
  std::vector<DeviceBuffer> factor_, chains_, solve_chains_, x_;
  std::vector<FactorSystem> factor_systems_;
  DeviceBuffer scratch_;
  FactorBatch factor_batch_;
};

}  // namespace blockd::bench

#endif  // BLOCKD_TESTS_BENCH_REFERENCE_DEVICE_SYSTEMS_H_
