#include "engine/cpu/residual.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/cpu/kernels/kernels.h"

namespace blockd::cpu {
namespace {

using ResidualNorms = Backend::ResidualNorms;

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
  const Kernels<T>& kernels = SelectKernels<T>();
  const int64_t stride = n * num_rhs;
  const int64_t tasks = std::min<int64_t>(threads.threads(), blocks);
  std::vector<std::vector<ResidualNorms>> partial(tasks, std::vector<ResidualNorms>(num_rhs));
  threads.Run(tasks, [&](int64_t task, int32_t) {
    // For a block row and the next one: A x, and the sums of |A|.
    std::vector<double> y(stride), next_y(stride), sums(n), next_sums(n);
    // A(i+1,i) x(i) belongs to the next block row, A(i+1,i)' x(i+1) to this one.
    const auto couple = [&](int64_t i) {
      MultiplyTask<T> product{.n = n, .columns = num_rhs, .block = CouplingBlock<T>(matrix, i)};
      product.x = x + i * stride, product.y = next_y.data(), product.sums = next_sums.data();
      product.x_of_rows = x + (i + 1) * stride;
      product.y_of_columns = y.data(), product.sums_of_columns = sums.data();
      if (super) {
        std::swap(product.x, product.x_of_rows);
        std::swap(product.y, product.y_of_columns);
        std::swap(product.sums, product.sums_of_columns);
      }
      kernels.multiply(product);
    };
    const int64_t first = blocks * task / tasks, end = blocks * (task + 1) / tasks;
    if (first > 0) couple(first - 1);
    for (int64_t i = first; i < end; ++i) {
      std::swap(y, next_y);
      std::swap(sums, next_sums);
      std::fill(next_y.begin(), next_y.end(), 0.0);
      std::fill(next_sums.begin(), next_sums.end(), 0.0);
      const T* const mine = x + i * stride;
      kernels.multiply({.n = n,
                        .columns = num_rhs,
                        .block = DiagonalBlock<T>(matrix, i),
                        .symmetric = true,
                        .packed = packed,
                        .x = mine,
                        .y = y.data(),
                        .sums = sums.data(),
                        .x_of_rows = mine,
                        .y_of_columns = y.data(),
                        .sums_of_columns = sums.data()});
      if (i + 1 < blocks) couple(i);
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
