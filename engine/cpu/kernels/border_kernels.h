// Products with the border of an arrowhead. All sums are made in double.
#ifndef BLOCKD_ENGINE_CPU_KERNELS_BORDER_KERNELS_H_
#define BLOCKD_ENGINE_CPU_KERNELS_BORDER_KERNELS_H_

#include <cstdint>

#include "engine/cpu/kernels/border_task.h"
#include "engine/cpu/kernels/vectors.h"

namespace blockd::cpu::BLOCKD_KERNEL_NAMESPACE {

template <typename T>
inline Vector<double, kLanes<double>> LoadDoubles(const T* p) {
  constexpr int kWidth = kLanes<double>;
  return __builtin_convertvector((Load<T, kWidth>(p)), Vector<double, kWidth>);
}

// An entry is summed over the lanes of vectors, then the rows that fill none, block after block,
// whatever tile it is in.
template <typename T>
class BorderProducts {
  static constexpr int kWidth = kLanes<double>;
  using Vec = Vector<double, kWidth>;
  static constexpr int64_t kTile = 4;

 public:
  explicit BorderProducts(const BorderProductsTask<T>& task) : task_(task) {}

  void Run() const {
    for (int64_t j = 0; j < task_.v_columns;) {
      if (j + kTile <= task_.v_columns) {
        Columns<kTile>(j);
        j += kTile;
      } else {
        Columns<1>(j++);
      }
    }
  }

 private:
  template <int64_t kColumns>
  void Columns(int64_t j) const {
    for (int64_t i = 0; i < task_.y_columns;) {
      if (i + kTile <= task_.y_columns) {
        Tile<kTile, kColumns>(i, j);
        i += kTile;
      } else {
        Tile<1, kColumns>(i++, j);
      }
    }
  }

  template <int64_t kRows, int64_t kColumns>
  void Tile(int64_t i, int64_t j) const {
    const int64_t n = task_.n;
    Vec sums[kRows][kColumns] = {};
    double rests[kRows][kColumns] = {};
    for (int64_t block = 0; block < task_.blocks; ++block) {
      const T* const y = task_.y + block * task_.y_block + i * n;
      const T* const v = task_.v + block * task_.v_block + j * n;
      int64_t r = 0;
      for (; r + kWidth <= n; r += kWidth) {
        Vec of_v[kColumns];
        for (int64_t c = 0; c < kColumns; ++c) of_v[c] = LoadDoubles(v + c * n + r);
        for (int64_t k = 0; k < kRows; ++k) {
          const Vec of_y = LoadDoubles(y + k * n + r);
          for (int64_t c = 0; c < kColumns; ++c) {
            sums[k][c] = MultiplyAdd<double, kWidth>(of_y, of_v[c], sums[k][c]);
          }
        }
      }
      for (; r < n; ++r) {
        for (int64_t k = 0; k < kRows; ++k) {
          const auto of_y = static_cast<double>(y[k * n + r]);
          for (int64_t c = 0; c < kColumns; ++c) {
            rests[k][c] =
                MultiplyAdd<double, 1>(of_y, static_cast<double>(v[c * n + r]), rests[k][c]);
          }
        }
      }
    }
    for (int64_t c = 0; c < kColumns; ++c) {
      for (int64_t k = 0; k < kRows; ++k) {
        double sum = rests[k][c];
        for (int lane = 0; lane < kWidth; ++lane) sum += sums[k][c][lane];
        task_.products[i + k + (j + c) * task_.products_stride] = sum;
      }
    }
  }

  const BorderProductsTask<T>& task_;
};

// An entry is summed over the p columns of Y in their order, whatever stands beside it.
template <typename T>
class BorderUpdate {
  static constexpr int kWidth = kLanes<double>;
  using Vec = Vector<double, kWidth>;
  static constexpr int64_t kTile = 8;

 public:
  explicit BorderUpdate(const BorderUpdateTask<T>& task) : task_(task) {}

  void Run() const {
    if (task_.diagonal) {
      for (int64_t r = 0; r < task_.n; ++r) Diagonal(r);
    } else {
      task_.x != nullptr ? RunWith<true>() : RunWith<false>();
    }
  }

 private:
  // The same operations as in a whole block.
  void Diagonal(int64_t r) const {
    auto sum = static_cast<double>(task_.v[r]);
    for (int64_t i = 0; i < task_.p; ++i) {
      const auto y = static_cast<double>(task_.y[i * task_.n + r]);
      sum = MultiplyAdd<double, 1>(y, y, sum);
    }
    task_.v[r] = static_cast<T>(sum);
  }

  template <bool kGiven>
  void RunWith() const {
    int64_t r = 0;
    for (; r + kWidth <= task_.n; r += kWidth) Rows<kWidth, kGiven>(r);
    for (; r < task_.n; ++r) Rows<1, kGiven>(r);
  }

  template <int kRows, bool kGiven>
  void Rows(int64_t r) const {
    for (int64_t j = 0; j < task_.columns;) {
      if (j + kTile <= task_.columns) {
        Tile<kRows, kTile, kGiven>(r, j);
        j += kTile;
      } else {
        Tile<kRows, 1, kGiven>(r, j++);
      }
    }
  }

  template <int kRows>
  static Vector<double, kRows> LoadRows(const T* p) {
    if constexpr (kRows == 1) {
      return static_cast<double>(*p);
    } else {
      return LoadDoubles(p);
    }
  }

  template <int kRows, int64_t kColumns, bool kGiven>
  void Tile(int64_t r, int64_t j) const {
    const int64_t n = task_.n, p = task_.p;
    Vector<double, kRows> sums[kColumns] = {};
    if (task_.add) {
      for (int64_t c = 0; c < kColumns; ++c) sums[c] = LoadRows<kRows>(task_.v + (j + c) * n + r);
    }
    for (int64_t i = 0; i < p; ++i) {
      const Vector<double, kRows> y = LoadRows<kRows>(task_.y + i * n + r);
      for (int64_t c = 0; c < kColumns; ++c) {
        double x = 0;
        if constexpr (kGiven) {
          x = task_.x[i + (j + c) * p];
        } else {
          x = static_cast<double>(task_.of_block[i * n + j + c]);
        }
        sums[c] = MultiplyAdd<double, kRows>(y, x, sums[c]);
      }
    }
    for (int64_t c = 0; c < kColumns; ++c) {
      T* const to = task_.v + (j + c) * n + r;
      if constexpr (kRows == 1) {
        *to = static_cast<T>(sums[c]);
      } else {
        Store<T, kRows>(to, __builtin_convertvector(sums[c], Vector<T, kRows>));
      }
    }
  }

  const BorderUpdateTask<T>& task_;
};

}  // namespace blockd::cpu::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_CPU_KERNELS_BORDER_KERNELS_H_
