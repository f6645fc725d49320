#define BLOCKD_KERNEL_NAMESPACE generic

#include "engine/smoother/orthogonal/covariance_factor.h"

#include <algorithm>
#include <cmath>

#include "engine/smoother/orthogonal/numbers.h"

namespace blockd::orthogonal {
namespace {

using generic::Long;

// C, of which one column after another is taken away.
class Elimination {
 public:
  Elimination(int64_t n, const double* c) : n_(n), left_(static_cast<size_t>(n * n)) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = j; i < n; ++i) At(i, j) = At(j, i) = {c[j * n + i], 0};
      diagonal_.push_back(c[j * n + j]);
      is_left_.push_back(c[j * n + j] > 0);
    }
  }

  // The row whose pivot is largest beside its diagonal element; -1 if all that are left are zero.
  int64_t Pivot() const {
    int64_t best = -1;
    double most = Least();
    for (int64_t i = 0; i < n_; ++i) {
      const double share = is_left_[i] ? At(i, i).high / diagonal_[i] : 0;
      if (share > most) {
        most = share;
        best = i;
      }
    }
    return best;
  }

  void Take(int64_t pivot, std::vector<double>* factor, std::vector<double>* low) {
    const Long root = Root(At(pivot, pivot));
    std::vector<Long> column(static_cast<size_t>(n_));
    for (int64_t i = 0; i < n_; ++i) {
      if (is_left_[i]) column[i] = At(i, pivot) / root;
      factor->push_back(column[i].high);
      low->push_back(column[i].low);
    }
    is_left_[pivot] = false;
    for (int64_t j = 0; j < n_; ++j) {
      if (!is_left_[j] || column[j].high == 0) continue;
      for (int64_t i = 0; i < n_; ++i) {
        if (is_left_[i]) At(i, j) -= column[i] * column[j];
      }
    }
  }

  // The rest must be zero too, beside its diagonal elements; and the rows of zeros on the diagonal,
  // from which nothing is taken, beside the largest variance.
  std::optional<NotSemidefinite> Check() const {
    const double least = Least();
    const double largest = *std::max_element(diagonal_.begin(), diagonal_.end());
    for (int64_t i = 0; i < n_; ++i) {
      if (diagonal_[i] < 0) return NotSemidefinite{i};
    }
    for (int64_t i = 0; i < n_; ++i) {
      for (int64_t j = 0; j < n_; ++j) {
        const bool has_variances = diagonal_[i] > 0 && diagonal_[j] > 0;
        if (has_variances && (!is_left_[i] || !is_left_[j])) continue;
        const double size = has_variances ? std::sqrt(diagonal_[i] * diagonal_[j]) : largest;
        if (std::fabs(At(i, j).high) > 4 * least * size) return NotSemidefinite{i};
      }
    }
    return std::nullopt;
  }

 private:
  double Least() const { return 4 * static_cast<double>(n_) * 0x1p-53; }
  Long& At(int64_t i, int64_t j) { return left_[static_cast<size_t>(j * n_ + i)]; }
  const Long& At(int64_t i, int64_t j) const { return left_[static_cast<size_t>(j * n_ + i)]; }

  const int64_t n_;
  std::vector<Long> left_;
  std::vector<double> diagonal_;
  std::vector<bool> is_left_;
};

}  // namespace

std::optional<NotSemidefinite> AppendFactor(int64_t n, const double* c, std::vector<double>* factor,
                                            std::vector<double>* low, int32_t* rank) {
  Elimination elimination(n, c);
  *rank = 0;
  for (int64_t pivot = elimination.Pivot(); pivot >= 0; pivot = elimination.Pivot()) {
    elimination.Take(pivot, factor, low);
    ++*rank;
  }
  return elimination.Check();
}

void AppendRoot(double variance, std::vector<double>* root, std::vector<double>* low) {
  const Long made = Root(Long{variance, 0});
  root->push_back(made.high);
  low->push_back(made.low);
}

}  // namespace blockd::orthogonal
