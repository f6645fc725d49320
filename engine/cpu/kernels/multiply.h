// A block's products with vectors, for residuals: both M x and M' x', while M is read once.
#ifndef BLOCKD_ENGINE_CPU_KERNELS_MULTIPLY_H_
#define BLOCKD_ENGINE_CPU_KERNELS_MULTIPLY_H_

#include <cmath>
#include <cstdint>

#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/kernels/vectors.h"

namespace blockd::cpu::BLOCKD_KERNEL_NAMESPACE {

// A column of the vectors is computed with the same operations whatever stands beside it.
template <typename T>
class Multiplication {
  static constexpr int kWidth = kLanes<double>;
  using Vec = Vector<double, kWidth>;

 public:
  explicit Multiplication(const MultiplyTask<T>& task) : task_(task), n_(task.n) {}

  void Run() const {
    for (int64_t j = 0; j < n_; ++j) {
      const T* column = task_.block + j * n_;
      int64_t first = 0;
      if (task_.symmetric) {
        if (task_.packed) column -= j * (j + 1) / 2;
        Diagonal(j, static_cast<double>(column[j]));
        first = j + 1;
      }
      Column<true>(column, first, j, 0);
      for (int64_t c = 1; c < task_.columns; ++c) Column<false>(column, first, j, c * n_);
    }
  }

 private:
  void Diagonal(int64_t j, double entry) const {
    task_.sums[j] += std::abs(entry);
    for (int64_t at = j; at < task_.columns * n_; at += n_) {
      task_.y[at] = MultiplyAdd<double, 1>(entry, static_cast<double>(task_.x[at]), task_.y[at]);
    }
  }

  // The rows from `first` on of M's column j, for the column of the vectors that starts at `at`.
  // kSums: with the sums.
  template <bool kSums>
  void Column(const T* column, int64_t first, int64_t j, int64_t at) const {
    const auto x = static_cast<double>(task_.x[at + j]);
    const T* const rows = task_.x_of_rows + at;
    double* const y = task_.y + at;
    Vec products{}, sums{};
    int64_t i = first;
    for (; i + kWidth <= n_; i += kWidth) {
      const Vec m = LoadDoubles(column + i);
      Store<double, kWidth>(y + i, MultiplyAdd<double, kWidth>(m, x, Load<double, kWidth>(y + i)));
      products = MultiplyAdd<double, kWidth>(m, LoadDoubles(rows + i), products);
      if constexpr (kSums) {
        const Vec size = m < 0 ? -m : m;
        sums += size;
        double* const to = task_.sums + i;
        Store<double, kWidth>(to, Load<double, kWidth>(to) + size);
      }
    }
    double product = 0, sum = 0;
    for (int k = 0; k < kWidth; ++k) product += products[k], sum += sums[k];
    for (; i < n_; ++i) {
      const auto m = static_cast<double>(column[i]);
      y[i] = MultiplyAdd<double, 1>(m, x, y[i]);
      product = MultiplyAdd<double, 1>(m, static_cast<double>(rows[i]), product);
      if constexpr (kSums) {
        sum += std::abs(m);
        task_.sums[i] += std::abs(m);
      }
    }
    task_.y_of_columns[at + j] += product;
    if constexpr (kSums) task_.sums_of_columns[j] += sum;
  }

  static Vec LoadDoubles(const T* p) { return __builtin_convertvector((Load<T, kWidth>(p)), Vec); }

  const MultiplyTask<T>& task_;
  const int64_t n_;
};

}  // namespace blockd::cpu::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_CPU_KERNELS_MULTIPLY_H_
