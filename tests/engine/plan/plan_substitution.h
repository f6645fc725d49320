// A solve by the formulas alone, for factors that no backend has made.
#ifndef BLOCKD_TESTS_ENGINE_PLAN_PLAN_SUBSTITUTION_H_
#define BLOCKD_TESTS_ENGINE_PLAN_PLAN_SUBSTITUTION_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "blockd/engine/elimination_plan.h"

namespace blockd::test {

// A x = b, with a factor of this plan.
template <typename T>
class Substitution {
 public:
  Substitution(const EliminationPlan& plan, const std::vector<T>& factor)
      : plan_(plan), factor_(factor), n_(plan.shape().block_size) {}

  std::vector<double> Solve(std::span<const double> b) const {
    std::vector<double> x(b.begin(), b.end());
    Solve(0, x);
    return x;
  }

 private:
  using Vector = std::span<double>;

  // Solves with the chain of a level: x has the right-hand side, and then the solution.
  void Solve(size_t index, std::vector<double>& x) const {
    const Level& level = plan_.levels()[index];
    const auto block = [&](int64_t i) { return Vector(x).subspan(i * n_, n_); };
    const auto separator = [&](int64_t i) { return block(level.separators[i]); };
    const auto next = [&](const Segment& segment, int64_t k) {
      if (k + 1 < segment.count) return block(segment.block(k + 1));
      if (segment.reversed && segment.left_separator >= 0) return separator(segment.left_separator);
      return segment.right_separator >= 0 ? separator(segment.right_separator) : Vector();
    };
    for (const Segment& segment : level.segments) {
      for (int64_t k = 0; k < segment.count; ++k) {
        const Vector y = block(segment.block(k));
        MultiplyInverse(level, segment, k, false, y);
        Subtract(level.next_offset, segment.slot + k, false, y, next(segment, k));
        if (!segment.has_fill()) continue;
        Subtract(level.fill_offset, segment.fill_slot + k, false, y,
                 separator(segment.left_separator));
      }
    }
    if (!level.separators.empty()) {
      std::vector<double> chain;
      for (const int64_t i : level.separators) {
        chain.insert(chain.end(), block(i).begin(), block(i).end());
      }
      Solve(index + 1, chain);
      for (size_t s = 0; s < level.separators.size(); ++s) {
        std::copy_n(chain.begin() + s * n_, n_, separator(s).begin());
      }
    }
    for (const Segment& segment : level.segments) {
      for (int64_t k = segment.count - 1; k >= 0; --k) {
        const Vector y = block(segment.block(k));
        Subtract(level.next_offset, segment.slot + k, true, next(segment, k), y);
        if (segment.has_fill()) {
          Subtract(level.fill_offset, segment.fill_slot + k, true,
                   separator(segment.left_separator), y);
        }
        MultiplyInverse(level, segment, k, true, y);
      }
    }
  }

  // y = X y, or X' y.
  void MultiplyInverse(const Level& level, const Segment& segment, int64_t k, bool transposed,
                       Vector y) const {
    const T* const x =
        factor_.data() + level.inverse_offset + (segment.slot + k) * TriangleScalars(n_);
    std::vector<double> out(n_);
    for (int64_t column = 0; column < n_; ++column) {
      const int64_t panel = column / kPanel, first = panel * kPanel;
      const T* const from =
          x + TrianglePanelOffset(n_, panel) + (column - first) * (n_ - first) - first;
      for (int64_t row = first; row < n_; ++row) {
        if (row < column) {
          EXPECT_EQ(from[row], 0);
        } else if (transposed) {
          out[column] += from[row] * y[row];
        } else {
          out[row] += from[row] * y[column];
        }
      }
    }
    std::copy(out.begin(), out.end(), y.begin());
  }

  // y -= B x or B' x, of the block that is the slot-th from `offset` on.
  void Subtract(int64_t offset, int64_t slot, bool transposed, Vector x, Vector y) const {
    if (x.empty() || y.empty()) return;
    const T* const b = factor_.data() + offset + slot * n_ * n_;
    for (int64_t column = 0; column < n_; ++column) {
      for (int64_t row = 0; row < n_; ++row) {
        if (transposed) {
          y[column] -= b[column * n_ + row] * x[row];
        } else {
          y[row] -= b[column * n_ + row] * x[column];
        }
      }
    }
  }

  const EliminationPlan& plan_;
  const std::vector<T>& factor_;
  const int64_t n_;
};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_ENGINE_PLAN_PLAN_SUBSTITUTION_H_
