#include <cblas.h>

#include <algorithm>
#include <utility>

#include "engine/cpu/kernels/large_blocks.h"

namespace blockd::cpu {
namespace {

// Columns of a symmetric product that are formed together.
constexpr int64_t kStrip = 256;

// C = alpha op(A) B + beta C, C rows x columns, all column-major with leading dimension ld.
void Multiply(CBLAS_TRANSPOSE transpose, int64_t rows, int64_t columns, int64_t depth, double alpha,
              const double* a, const double* b, double beta, double* c, int64_t ld) {
  cblas_dgemm(CblasColMajor, transpose, CblasNoTrans, rows, columns, depth, alpha, a, ld, b, ld,
              beta, c, ld);
}
void Multiply(CBLAS_TRANSPOSE transpose, int64_t rows, int64_t columns, int64_t depth, float alpha,
              const float* a, const float* b, float beta, float* c, int64_t ld) {
  cblas_sgemm(CblasColMajor, transpose, CblasNoTrans, rows, columns, depth, alpha, a, ld, b, ld,
              beta, c, ld);
}
// B = B X, X lower triangular.
void TimesLower(int64_t n, const double* x, double* b) {
  cblas_dtrmm(CblasColMajor, CblasRight, CblasLower, CblasNoTrans, CblasNonUnit, n, n, 1, x, n, b,
              n);
}
void TimesLower(int64_t n, const float* x, float* b) {
  cblas_strmm(CblasColMajor, CblasRight, CblasLower, CblasNoTrans, CblasNonUnit, n, n, 1, x, n, b,
              n);
}

// As Inverter, on whole column-major blocks: with G' = C X, H' = W X and X = inv(L)
//
//     Z(r,j) = -(Z(r,r) G' + Z(r,l) H')        Z(l,j) = -(Z(l,r) G' + Z(l,l) H')
//     Z(j,j) = X' X - G Z(r,j) - H Z(l,j)
template <typename T>
class LargeInverter {
 public:
  static int64_t ScratchScalars(int64_t n, bool fill) { return (fill ? 10 : 5) * n * n; }

  explicit LargeInverter(const InverseTask<T>& task)
      : task_(task), segment_(*task.segment), n_(task.n), square_(n_ * n_) {
    T* at = task.scratch;
    for (T** block : {&x_, &g_, &zrr_, &zrj_, &zjj_}) *block = std::exchange(at, at + square_);
    if (!segment_.has_fill()) return;
    for (T** block : {&h_, &zrl_, &zlr_, &zll_, &zlj_}) *block = std::exchange(at, at + square_);
  }

  void Run() {
    if (task_.last == segment_.count) return;
    if (task_.Target() != nullptr) std::copy_n(task_.Target(), square_, zrr_);
    if (segment_.has_fill()) {
      std::copy_n(task_.left, square_, zll_);
      std::copy_n(task_.between, square_, zrl_);
      Transpose(zrl_, zlr_);
    }
    for (int64_t k = segment_.count - 1; k >= task_.last; --k) {
      if (task_.IsStopped()) return;
      Step(k);
    }
  }

 private:
  void Step(int64_t k) {
    const bool has_next = task_.HasNext(k), fill = segment_.has_fill();
    LoadInverse(task_.inverse + k * TriangleScalars(n_));
    if (has_next) TimesInverse(task_.next + k * square_, g_);
    if (fill) TimesInverse(task_.fill + k * square_, h_);
    if (has_next) Couple(zrr_, zrl_, zrj_);
    if (fill) Couple(zlr_, zll_, zlj_);
    FormDiagonal(has_next);
    std::swap(zjj_, zrr_);
    task_.out.Copy(segment_.block(k), zrr_);
    bool transposed = false;
    if (T* const out = has_next ? task_.NextCoupling(k, &transposed) : nullptr) {
      // zrj_ is the transpose already.
      if (transposed) {
        std::copy_n(zrj_, square_, out);
      } else {
        Transpose(zrj_, out);
      }
    }
    if (!fill) return;
    std::swap(zlr_, zlj_);
    Transpose(zlr_, zrl_);
    if (T* const out = k == 0 ? task_.LeftCoupling() : nullptr) std::copy_n(zrl_, square_, out);
  }

  void LoadInverse(const T* inverse) {
    std::fill_n(x_, square_, T{0});
    for (int64_t c = 0; c < n_; ++c) {
      const int64_t p = c / kPanel, first = p * kPanel;
      const T* const column =
          inverse + TrianglePanelOffset(n_, p) + (c - first) * (n_ - first) - first;
      std::copy_n(column + c, n_ - c, x_ + c * n_ + c);
    }
  }

  void TimesInverse(const T* block, T* out) {
    task_.MakeWay();
    std::copy_n(block, square_, out);
    TimesLower(n_, x_, out);
  }

  // out = -(P G' + Q H').
  void Couple(const T* p, const T* q, T* out) {
    task_.MakeWay();
    Multiply(CblasNoTrans, n_, n_, n_, T{-1}, p, g_, T{0}, out, n_);
    if (segment_.has_fill()) Multiply(CblasNoTrans, n_, n_, n_, T{-1}, q, h_, T{1}, out, n_);
  }

  // The lower triangle, a strip of columns at a time.
  void FormDiagonal(bool has_next) {
    for (int64_t c = 0; c < n_; c += kStrip) {
      task_.MakeWay();
      const int64_t columns = std::min(kStrip, n_ - c), rows = n_ - c, at = c * n_ + c;
      T* const out = zjj_ + at;
      Multiply(CblasTrans, rows, columns, rows, T{1}, x_ + at, x_ + at, T{0}, out, n_);
      if (has_next) {
        Multiply(CblasTrans, rows, columns, n_, T{-1}, g_ + c * n_, zrj_ + c * n_, T{1}, out, n_);
      }
      if (segment_.has_fill()) {
        Multiply(CblasTrans, rows, columns, n_, T{-1}, h_ + c * n_, zlj_ + c * n_, T{1}, out, n_);
      }
    }
    for (int64_t c = 0; c < n_; ++c) {
      for (int64_t r = c + 1; r < n_; ++r) zjj_[r * n_ + c] = zjj_[c * n_ + r];
    }
  }

  void Transpose(const T* in, T* out) const {
    constexpr int64_t kTile = 16;
    for (int64_t c0 = 0; c0 < n_; c0 += kTile) {
      for (int64_t r0 = 0; r0 < n_; r0 += kTile) {
        for (int64_t c = c0; c < std::min(c0 + kTile, n_); ++c) {
          for (int64_t r = r0; r < std::min(r0 + kTile, n_); ++r) out[r * n_ + c] = in[c * n_ + r];
        }
      }
    }
  }

  const InverseTask<T>& task_;
  const Segment& segment_;
  const int64_t n_;
  const int64_t square_;
  T* x_ = nullptr;  // inv(L), zeros above its diagonal
  T* g_ = nullptr;  // G' and H'
  T* h_ = nullptr;
  T* zrr_ = nullptr;
  T* zrl_ = nullptr;
  T* zlr_ = nullptr;
  T* zll_ = nullptr;
  T* zrj_ = nullptr;
  T* zlj_ = nullptr;
  T* zjj_ = nullptr;
};

}  // namespace

int64_t LargeInverseScratchScalars(int64_t n, bool fill) {
  return LargeInverter<double>::ScratchScalars(n, fill);
}

template <typename T>
void InvertLarge(const InverseTask<T>& task) {
  LargeInverter<T>(task).Run();
}

template void InvertLarge(const InverseTask<double>& task);
template void InvertLarge(const InverseTask<float>& task);

}  // namespace blockd::cpu
