#include "engine/condition.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "engine/stopwatch.h"

namespace blockd {
namespace {

constexpr Track kTrack = Track::kFactor;

// Solves with one column, for vectors of the host.
class Inverse {
 public:
  Inverse(Backend& backend, const EliminationPlan& plan, const FactorRef& factor,
          const std::atomic<bool>* cancelled)
      : backend_(backend), plan_(plan), factor_(factor), cancelled_(cancelled) {}

  absl::Status Allocate() {
    const int64_t scalar = ScalarBytes(plan_.shape().scalar);
    const std::pair<DeviceBuffer*, int64_t> wanted[] = {{&x_, plan_.shape().rows()},
                                                        {&residual_, plan_.shape().rows()},
                                                        {&chains_, plan_.solve_chain_scalars(1)}};
    for (const auto& [buffer, scalars] : wanted) {
      absl::StatusOr<DeviceBuffer> piece = backend_.pool().Allocate(scalars * scalar);
      if (!piece.ok()) return piece.status();
      *buffer = *std::move(piece);
    }
    return absl::OkStatus();
  }

  // x = inv(A) x. With one column the layout of the device is that of the host.
  absl::Status Apply(std::vector<double>& x) {
    return plan_.shape().scalar == Scalar::kFloat64 ? ApplyAs<double>(x) : ApplyAs<float>(x);
  }

  // ||A||, of A's symmetry the 1-norm too.
  absl::StatusOr<double> MatrixNorm(const BlockTridiagonalView& matrix) {
    absl::StatusOr<std::vector<Backend::ResidualNorms>> norms =
        backend_.Residual(kTrack, matrix, x_.data(), x_.data(), residual_.data(), 1);
    if (!norms.ok()) return norms.status();
    return (*norms)[0].matrix;
  }

 private:
  template <typename T>
  absl::Status ApplyAs(std::vector<double>& x) {
    std::vector<T> host(x.begin(), x.end());
    const int64_t bytes = static_cast<int64_t>(host.size() * sizeof(T));
    const SolveSystem system = {factor_.data, x_.data(), 1, chains_.data(), factor_.substitutes};
    absl::Status status = backend_.Upload(kTrack, x_.data(), host.data(), bytes);
    if (status.ok()) {
      status = backend_.Solve(kTrack, {&plan_, {&system, 1}, cancelled_},
                              [this] { return !IsCancelled(cancelled_); });
    }
    if (status.ok()) status = backend_.Synchronize(kTrack);
    if (status.ok()) status = backend_.Download(kTrack, host.data(), x_.data(), bytes);
    // Host memory and the device's are given back: nothing may use them any more.
    absl::Status synchronized = backend_.Synchronize(kTrack);
    if (status.ok()) status = std::move(synchronized);
    if (status.ok() && IsCancelled(cancelled_)) {
      status = absl::CancelledError("cancelled while estimating the condition number");
    }
    if (status.ok()) x.assign(host.begin(), host.end());
    return status;
  }

  Backend& backend_;
  const EliminationPlan& plan_;
  const FactorRef factor_;
  const std::atomic<bool>* const cancelled_;
  DeviceBuffer x_, residual_, chains_;
};

double OneNorm(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += std::abs(value);
  return sum;
}

// The signs of x, and whether they are those of `signs` already.
bool TakeSigns(std::vector<double>& x, std::vector<double>& signs) {
  bool same = !signs.empty();
  signs.resize(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double sign = x[i] >= 0 ? 1 : -1;
    same = same && sign == signs[i];
    x[i] = signs[i] = sign;
  }
  return same;
}

size_t LargestEntry(const std::vector<double>& x) {
  return std::max_element(x.begin(), x.end(),
                          [](double a, double b) { return std::abs(a) < std::abs(b); }) -
         x.begin();
}

// ||inv(A)||. inv(A) is symmetric, so that it serves for its transpose.
absl::StatusOr<double> InverseNorm(Inverse& inverse, int64_t rows) {
  constexpr int kMostSteps = 5;
  std::vector<double> x(rows, 1.0 / static_cast<double>(rows)), signs;
  absl::Status status = inverse.Apply(x);
  double estimate = OneNorm(x);
  size_t entry = rows;
  for (int step = 0; status.ok() && rows > 1 && step < kMostSteps; ++step) {
    if (TakeSigns(x, signs)) break;
    status = inverse.Apply(x);
    const size_t largest = LargestEntry(x);
    if (!status.ok() || largest == entry) break;
    entry = largest;
    std::fill(x.begin(), x.end(), 0.0);
    x[entry] = 1;
    status = inverse.Apply(x);
    const double last = std::exchange(estimate, std::max(estimate, OneNorm(x)));
    if (estimate <= last) break;
  }
  if (!status.ok()) return status;
  // A vector that finds what cancels in the others.
  if (rows > 1) {
    for (int64_t i = 0; i < rows; ++i) {
      const double size = 1 + static_cast<double>(i) / static_cast<double>(rows - 1);
      x[i] = i % 2 == 0 ? size : -size;
    }
    status = inverse.Apply(x);
    if (!status.ok()) return status;
    estimate = std::max(estimate, 2 * OneNorm(x) / (3 * static_cast<double>(rows)));
  }
  return estimate;
}

}  // namespace

int64_t ConditionWorkspaceBytes(const EliminationPlan& plan) {
  const int64_t scalar = ScalarBytes(plan.shape().scalar);
  return 2 * MemoryPool::Rounded(plan.shape().rows() * scalar) +
         MemoryPool::Rounded(plan.solve_chain_scalars(1) * scalar);
}

absl::StatusOr<double> EstimateCondition(Backend& backend, const EliminationPlan& plan,
                                         const BlockTridiagonalView& matrix,
                                         const FactorRef& factor,
                                         const std::atomic<bool>* cancelled) {
  Inverse inverse(backend, plan, factor, cancelled);
  absl::Status status = inverse.Allocate();
  if (!status.ok()) return status;
  absl::StatusOr<double> inverse_norm = InverseNorm(inverse, plan.shape().rows());
  if (!inverse_norm.ok()) return inverse_norm.status();
  absl::StatusOr<double> norm = inverse.MatrixNorm(matrix);
  if (!norm.ok()) return norm.status();
  return *norm * *inverse_norm;
}

}  // namespace blockd
