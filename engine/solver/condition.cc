#include "engine/solver/condition.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "blockd/engine/factorization.h"
#include "engine/solver/stopwatch.h"

namespace blockd {
namespace {

constexpr Track kTrack = Track::kFactor;

double OneNorm(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += std::abs(value);
  return sum;
}

// Products of inv(A) and A with one column, for vectors of the host.
class Products {
 public:
  Products(Backend& backend, const EliminationPlan& plan, const BlockTridiagonalView& matrix,
           const FactorRef& factor, const std::atomic<bool>* cancelled)
      : backend_(backend), plan_(plan), matrix_(matrix), factor_(factor), cancelled_(cancelled) {}

  absl::Status Begin() {
    const int64_t rows = plan_.shape().rows();
    const std::pair<DeviceBuffer*, int64_t> wanted[] = {
        {&x_, rows}, {&zeros_, rows}, {&product_, rows}, {&chains_, plan_.solve_chain_scalars(1)}};
    for (const auto& [buffer, scalars] : wanted) {
      absl::StatusOr<DeviceBuffer> piece =
          backend_.pool().Allocate(scalars * ScalarBytes(plan_.shape().scalar));
      if (!piece.ok()) return piece.status();
      *buffer = *std::move(piece);
    }
    std::vector<double> zeros(rows);
    absl::Status status = Upload(zeros, zeros_);
    if (status.ok()) status = Multiply(zeros);
    if (!status.ok()) return status;
    // With right-hand sides of about this size, and not far above 1, solutions are as large as the
    // condition number at most, however large or small A is.
    const bool wide = plan_.shape().scalar == Scalar::kFloat64;
    using Wide = std::numeric_limits<double>;
    using Narrow = std::numeric_limits<float>;
    const int least = wide ? Wide::min_exponent : Narrow::min_exponent;
    const int most = (wide ? Wide::max_exponent : Narrow::max_exponent) / 2;
    scale_ = std::ldexp(1.0, std::clamp(std::ilogb(norm_), least, most));
    return absl::OkStatus();
  }

  // ||A||, of A's symmetry the 1-norm too; the largest number if it is larger.
  double norm() const { return norm_; }
  double scale() const { return scale_; }

  // x = scale inv(A) x. Entries of x are of size 1, or 0.
  absl::Status Solve(std::vector<double>& x) {
    for (double& value : x) value *= scale_;
    absl::Status status = Upload(x, x_);
    const SolveSystem system = {factor_.data, x_.data(), 1, chains_.data(), factor_.substitutes};
    if (status.ok()) {
      status = backend_.Solve(kTrack, {&plan_, {&system, 1}, cancelled_},
                              [this] { return !IsCancelled(cancelled_); });
    }
    if (status.ok()) status = Download(x_, x);
    // Host memory and the device's are given back: nothing may use them any more.
    absl::Status synchronized = backend_.Synchronize(kTrack);
    if (status.ok()) status = std::move(synchronized);
    if (status.ok() && IsCancelled(cancelled_)) {
      status = absl::CancelledError("cancelled while estimating the condition number");
    }
    return status;
  }

  // x = -A x, summed in double.
  absl::Status Multiply(std::vector<double>& x) {
    absl::Status status = Upload(x, x_);
    if (!status.ok()) return status;
    const absl::StatusOr<std::vector<Backend::ResidualNorms>> norms =
        backend_.Residual(kTrack, matrix_, x_.data(), zeros_.data(), product_.data(), 1);
    if (!norms.ok()) return norms.status();
    norm_ = std::min((*norms)[0].matrix, std::numeric_limits<double>::max());
    return Download(product_, x);
  }

 private:
  // With one column the layout of the device is that of the host.
  absl::Status Upload(const std::vector<double>& x, const DeviceBuffer& to) {
    return plan_.shape().scalar == Scalar::kFloat64 ? UploadAs<double>(x, to)
                                                    : UploadAs<float>(x, to);
  }
  absl::Status Download(const DeviceBuffer& from, std::vector<double>& x) {
    return plan_.shape().scalar == Scalar::kFloat64 ? DownloadAs<double>(from, x)
                                                    : DownloadAs<float>(from, x);
  }
  template <typename T>
  absl::Status UploadAs(const std::vector<double>& x, const DeviceBuffer& to) {
    const std::vector<T> host(x.begin(), x.end());
    return backend_.Upload(kTrack, to.data(), host.data(),
                           static_cast<int64_t>(host.size() * sizeof(T)));
  }
  template <typename T>
  absl::Status DownloadAs(const DeviceBuffer& from, std::vector<double>& x) {
    std::vector<T> host(x.size());
    absl::Status status = backend_.Download(kTrack, host.data(), from.data(),
                                            static_cast<int64_t>(host.size() * sizeof(T)));
    // Also where it failed: nothing may write the host's memory any more.
    absl::Status synchronized = backend_.Synchronize(kTrack);
    if (status.ok()) status = std::move(synchronized);
    if (status.ok()) x.assign(host.begin(), host.end());
    return status;
  }

  Backend& backend_;
  const EliminationPlan& plan_;
  const BlockTridiagonalView& matrix_;
  const FactorRef factor_;
  const std::atomic<bool>* const cancelled_;
  DeviceBuffer x_, zeros_, product_, chains_;
  double norm_ = 0, scale_ = 1;
};

// Makes x its signs. Returns whether they are those of `signs` already.
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

// The x = scale inv(A) b that is longest beside its b, 1-norms: almost ||inv(A)||.
struct Longest {
  std::vector<double> x, b;
  double growth = 0;

  // Returns the growth of this one.
  double Note(const std::vector<double>& solution, const std::vector<double>& rhs) {
    const double now = OneNorm(solution) / OneNorm(rhs);
    if (!(now <= growth)) {
      growth = now;
      x = solution;
      b = rhs;
    }
    return now;
  }
};

// Hager's method. inv(A) is symmetric, so that it serves for its transpose.
absl::StatusOr<Longest> FindLongest(Products& a, int64_t rows) {
  constexpr int kMostSteps = 5;
  Longest longest;
  std::vector<double> b(rows, 1.0), x = b, signs;
  absl::Status status = a.Solve(x);
  double estimate = longest.Note(x, b);
  size_t entry = rows;
  for (int step = 0; status.ok() && rows > 1 && step < kMostSteps; ++step) {
    if (TakeSigns(x, signs)) break;
    status = a.Solve(x);
    const size_t largest = LargestEntry(x);
    if (!status.ok() || largest == entry) break;
    entry = largest;
    std::fill(b.begin(), b.end(), 0.0);
    b[entry] = 1;
    x = b;
    status = a.Solve(x);
    const double last = std::exchange(estimate, longest.Note(x, b));
    if (!(estimate > last)) break;
  }
  if (!status.ok()) return status;
  // A vector that finds what cancels in the others.
  if (rows > 1) {
    for (int64_t i = 0; i < rows; ++i) {
      const double size = 1 + static_cast<double>(i) / static_cast<double>(rows - 1);
      b[i] = i % 2 == 0 ? size : -size;
    }
    x = b;
    status = a.Solve(x);
    if (!status.ok()) return status;
    longest.Note(x, b);
  }
  return longest;
}

// The largest ||A|| ||x|| / ||A x||, 1-norms, of this x and of what refinement makes of it. It is
// no more than the condition number, however far the solves are off. A x is known to some eps ||A||
// ||x||, in double.
absl::StatusOr<double> LowerBound(Products& a, const Longest& longest) {
  constexpr int kMostRefinements = 3;
  std::vector<double> x = longest.x;
  double most = 1;
  for (int step = 0;; ++step) {
    std::vector<double> r = x;
    absl::Status status = a.Multiply(r);
    if (!status.ok()) return status;
    const double length = OneNorm(x);
    const double rounding = std::numeric_limits<double>::epsilon() * length;
    const double bound = length / (OneNorm(r) / a.norm() + rounding);
    if (bound > most) most = bound;
    for (size_t i = 0; i < r.size(); ++i) r[i] = longest.b[i] + r[i] / a.scale();
    // Not far from b, A x could make the bound at most twice as large.
    if (step == kMostRefinements || !(OneNorm(r) > OneNorm(longest.b) / 2)) return most;
    status = a.Solve(r);
    if (!status.ok()) return status;
    for (size_t i = 0; i < x.size(); ++i) x[i] += r[i];
  }
}

}  // namespace

int64_t ConditionWorkspaceBytes(const EliminationPlan& plan) {
  const int64_t scalar = ScalarBytes(plan.shape().scalar);
  return 3 * MemoryPool::Rounded(plan.shape().rows() * scalar) +
         MemoryPool::Rounded(plan.solve_chain_scalars(1) * scalar);
}

absl::StatusOr<double> EstimateCondition(Backend& backend, const EliminationPlan& plan,
                                         const BlockTridiagonalView& matrix,
                                         const FactorRef& factor,
                                         const std::atomic<bool>* cancelled) {
  Products a(backend, plan, matrix, factor, cancelled);
  absl::Status status = a.Begin();
  if (!status.ok()) return status;
  absl::StatusOr<Longest> longest = FindLongest(a, plan.shape().rows());
  if (!longest.ok()) return longest.status();
  // It overflowed: a solve's own error hides how long it is.
  if (!std::isfinite(longest->growth)) return 1 / BackwardErrorGoal(plan.shape());
  return LowerBound(a, *longest);
}

}  // namespace blockd
