// Uses of half a solve: quadratic forms of inv(A), and samples of N(0, inv(A)).
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "blockd/engine/samples.h"
#include "blockd/engine/solver.h"

namespace blockd {
namespace {

template <typename T>
double SumOfSquares(const std::byte* column, int64_t rows) {
  const T* const y = reinterpret_cast<const T*>(column);
  double sum = 0;
  for (int64_t i = 0; i < rows; ++i) sum += static_cast<double>(y[i]) * static_cast<double>(y[i]);
  return sum;
}

absl::Status SolveHalf(Solver& solver, SolveItem item, Track track) {
  return solver.Solve({&item, 1}, nullptr, track)[0].status;
}

}  // namespace

absl::Status Solver::QuadraticForms(std::shared_ptr<const Factorization> factorization,
                                    const void* rhs, std::span<double> values,
                                    const std::atomic<bool>* cancelled, Track track) {
  if (values.empty()) return absl::OkStatus();
  const Scalar scalar = factorization->shape().scalar;
  const int64_t rows = factorization->rows(), column = rows * ScalarBytes(scalar);
  std::vector<std::byte> y(column * static_cast<int64_t>(values.size()));
  SolveItem item;
  item.factorization = std::move(factorization);
  item.rhs = rhs;
  item.solution = y.data();
  item.num_rhs = static_cast<int64_t>(values.size());
  item.part = SolvePart::kForward;
  item.cancelled = cancelled;
  absl::Status status = SolveHalf(*this, std::move(item), track);
  if (!status.ok()) return status;
  for (size_t c = 0; c < values.size(); ++c) {
    const std::byte* const at = y.data() + static_cast<int64_t>(c) * column;
    values[c] =
        scalar == Scalar::kFloat64 ? SumOfSquares<double>(at, rows) : SumOfSquares<float>(at, rows);
  }
  return status;
}

absl::Status Solver::Sample(const SampleItem& sample, void* samples, Track track) {
  if (sample.num_samples < 1) {
    return absl::InvalidArgumentError("num_samples is less than 1");
  }
  StandardNormals(sample.factorization->shape(), sample.seed, sample.first_sample,
                  sample.num_samples, samples, sample.factorization->border().rows());
  SolveItem item;
  item.factorization = sample.factorization;
  item.rhs = item.solution = samples;
  item.num_rhs = sample.num_samples;
  item.part = SolvePart::kBackward;
  item.cancelled = sample.cancelled;
  return SolveHalf(*this, std::move(item), track);
}

}  // namespace blockd
