#include "engine/cpu/residual.h"

#include <algorithm>
#include <cmath>

namespace blockd::cpu {
namespace {

using ResidualNorms = Backend::ResidualNorms;

// The larger one, NaN if one is: std::max would drop it.
double LargerOrNaN(double a, double b) { return a > b || std::isnan(a) ? a : b; }

// y += A x and sums += |A|, by rows, for one block whose entries `entry` reads.
template <typename T>
struct BlockProduct {
  int64_t n;
  int64_t columns;

  template <typename Entry>
  void Apply(const Entry& entry, const T* x, double* y, double* sums) const {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < n; ++i) {
        const double a = static_cast<double>(entry(i, j));
        sums[i] += std::abs(a);
        for (int64_t c = 0; c < columns; ++c) y[c * n + i] += a * static_cast<double>(x[c * n + j]);
      }
    }
  }
};

template <typename T>
std::vector<ResidualNorms> Residuals(ThreadPool& threads, const BlockTridiagonalView& matrix,
                                     const void* x_in, const void* b_in, void* r_out,
                                     int64_t num_rhs) {
  const int64_t n = matrix.shape().block_size;
  const int64_t blocks = matrix.shape().num_blocks;
  const T* x = static_cast<const T*>(x_in);
  const T* b = static_cast<const T*>(b_in);
  T* r = static_cast<T*>(r_out);
  const bool packed = matrix.form.diagonal == DiagonalForm::kPackedLower;
  const bool super = matrix.form.coupling == CouplingForm::kSuperdiagonal;
  const BlockProduct<T> product{n, num_rhs};
  const int64_t stride = n * num_rhs;
  const int64_t tasks = std::min<int64_t>(threads.threads(), blocks);
  std::vector<std::vector<ResidualNorms>> partial(tasks, std::vector<ResidualNorms>(num_rhs));
  threads.Run(tasks, [&](int64_t task, int32_t) {
    std::vector<double> y(stride), sums(n);
    for (int64_t i = blocks * task / tasks; i < blocks * (task + 1) / tasks; ++i) {
      std::fill(y.begin(), y.end(), 0.0);
      std::fill(sums.begin(), sums.end(), 0.0);
      const T* d = DiagonalBlock<T>(matrix, i);
      product.Apply(
          [&](int64_t row, int64_t column) {
            const auto [low, high] = std::minmax(row, column);
            return packed ? d[low * n - low * (low + 1) / 2 + high] : d[low * n + high];
          },
          x + i * stride, y.data(), sums.data());
      const auto couple = [&](int64_t index, bool transpose, const T* vectors) {
        const T* e = CouplingBlock<T>(matrix, index);
        transpose ^= super;
        product.Apply(
            [&](int64_t row, int64_t column) {
              return transpose ? e[row * n + column] : e[column * n + row];
            },
            vectors, y.data(), sums.data());
      };
      if (i > 0) couple(i - 1, false, x + (i - 1) * stride);
      if (i + 1 < blocks) couple(i, true, x + (i + 1) * stride);
      double row_sum = 0;
      for (const double sum : sums) row_sum = LargerOrNaN(row_sum, sum);
      for (int64_t c = 0; c < num_rhs; ++c) {
        ResidualNorms& norms = partial[task][c];
        norms.matrix = LargerOrNaN(norms.matrix, row_sum);
        for (int64_t k = i * stride + c * n; k < i * stride + (c + 1) * n; ++k) {
          const double residual = static_cast<double>(b[k]) - y[k - i * stride];
          norms.residual = LargerOrNaN(norms.residual, std::abs(residual));
          norms.solution = LargerOrNaN(norms.solution, std::abs(static_cast<double>(x[k])));
          norms.rhs = LargerOrNaN(norms.rhs, std::abs(static_cast<double>(b[k])));
          r[k] = static_cast<T>(residual);
        }
      }
    }
  });
  std::vector<ResidualNorms> norms(num_rhs);
  for (const std::vector<ResidualNorms>& part : partial) {
    for (int64_t c = 0; c < num_rhs; ++c) {
      norms[c].matrix = LargerOrNaN(norms[c].matrix, part[c].matrix);
      norms[c].solution = LargerOrNaN(norms[c].solution, part[c].solution);
      norms[c].rhs = LargerOrNaN(norms[c].rhs, part[c].rhs);
      norms[c].residual = LargerOrNaN(norms[c].residual, part[c].residual);
    }
  }
  return norms;
}

}  // namespace

std::vector<ResidualNorms> Residual(ThreadPool& threads, const BlockTridiagonalView& matrix,
                                    const void* x, const void* b, void* r, int64_t num_rhs) {
  return matrix.shape().scalar == Scalar::kFloat64
             ? Residuals<double>(threads, matrix, x, b, r, num_rhs)
             : Residuals<float>(threads, matrix, x, b, r, num_rhs);
}

}  // namespace blockd::cpu
