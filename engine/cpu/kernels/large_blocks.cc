#include "engine/cpu/kernels/large_blocks.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "blockd/engine/backend.h"
#include "engine/cpu/kernels/triangles.h"

namespace blockd::cpu {
namespace {

// Packed panels were faster up to here on one EPYC (Zen 4) core; their scratch outgrows the caches.
constexpr int64_t kLargestPackedBlock = 1024;
// Where the recursion of CholeskyInverse hands over to packed panels.
constexpr int64_t kLeaf = 128;

// C -= A B', lower triangle of C -= A A', B = alpha B op(L), B = alpha L B; all n-by-m
// column-major.
void SubtractProduct(int64_t rows, int64_t columns, int64_t depth, const double* a, int64_t lda,
                     const double* b, int64_t ldb, double beta, double* c, int64_t ldc) {
  cblas_dgemm(CblasColMajor, CblasNoTrans, CblasTrans, rows, columns, depth, -1, a, lda, b, ldb,
              beta, c, ldc);
}
void SubtractProduct(int64_t rows, int64_t columns, int64_t depth, const float* a, int64_t lda,
                     const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  cblas_sgemm(CblasColMajor, CblasNoTrans, CblasTrans, rows, columns, depth, -1, a, lda, b, ldb,
              beta, c, ldc);
}
void SubtractSquare(int64_t n, int64_t depth, const double* a, int64_t lda, double* c,
                    int64_t ldc) {
  cblas_dsyrk(CblasColMajor, CblasLower, CblasNoTrans, n, depth, -1, a, lda, 1, c, ldc);
}
void SubtractSquare(int64_t n, int64_t depth, const float* a, int64_t lda, float* c, int64_t ldc) {
  cblas_ssyrk(CblasColMajor, CblasLower, CblasNoTrans, n, depth, -1, a, lda, 1, c, ldc);
}
void TimesTriangle(CBLAS_SIDE side, CBLAS_TRANSPOSE transpose, int64_t rows, int64_t columns,
                   double alpha, const double* l, int64_t ldl, double* b, int64_t ldb) {
  cblas_dtrmm(CblasColMajor, side, CblasLower, transpose, CblasNonUnit, rows, columns, alpha, l,
              ldl, b, ldb);
}
void TimesTriangle(CBLAS_SIDE side, CBLAS_TRANSPOSE transpose, int64_t rows, int64_t columns,
                   float alpha, const float* l, int64_t ldl, float* b, int64_t ldb) {
  cblas_strmm(CblasColMajor, side, CblasLower, transpose, CblasNonUnit, rows, columns, alpha, l,
              ldl, b, ldb);
}

// B = B inv(L)', by substitution.
void SolveTriangle(int64_t rows, int64_t columns, const double* l, double* b) {
  cblas_dtrsm(CblasColMajor, CblasRight, CblasLower, CblasTrans, CblasNonUnit, rows, columns, 1, l,
              columns, b, rows);
}
void SolveTriangle(int64_t rows, int64_t columns, const float* l, float* b) {
  cblas_strsm(CblasColMajor, CblasRight, CblasLower, CblasTrans, CblasNonUnit, rows, columns, 1, l,
              columns, b, rows);
}

template <typename T>
void CopyBlock(int64_t rows, int64_t columns, const T* in, int64_t ldin, T* out, int64_t ldout) {
  for (int64_t j = 0; j < columns; ++j) std::copy_n(in + j * ldin, rows, out + j * ldout);
}

// kBySubstitution: L comes from LAPACK, C and W from substitution with it; blocks with a growth
// above kMostGrowth are stored as -L. Else all blocks are multiplied by inv(L).
template <typename T, bool kBySubstitution>
class LargeEliminator {
 public:
  explicit LargeEliminator(const EliminateTask<T>& task)
      : task_(task), segment_(*task.segment), n_(task.n), square_(n_ * n_) {
    T* at = task.scratch;
    const auto take = [&at](int64_t scalars) { return std::exchange(at, at + scalars); };
    d_ = take(square_);
    x_ = take(square_);
    if (!kBySubstitution) leaf_ = take(LeafScalars());
    diagonal_ = take(n_);
    if (segment_.has_fill()) {
      update_ = take(square_);
      s_ = take(square_);
      std::fill_n(update_, square_, T{0});
    }
  }

  static int64_t LeafScalars() {
    // The leaf's block, its inverse in block columns, and the packed elimination's own scratch.
    return kLeaf * kLeaf + TriangleScalars(kLeaf) +
           SelectKernels<T>().scratch_scalars(kLeaf, false);
  }

  SegmentReport Run() {
    SegmentReport report;
    for (int64_t k = 0; k < segment_.count; ++k) {
      if (task_.stop && task_.stop->load(std::memory_order_relaxed)) return {};
      LoadDiagonal(segment_.block(k), d_);
      if (k > 0) SubtractSquare(n_, n_, c_, n_, d_, n_);
      for (int64_t i = 0; i < n_; ++i) diagonal_[i] = d_[i * n_ + i];
      const int64_t row = kBySubstitution ? FactorAndInvert() : CholeskyInverse(n_, d_, x_);
      if (row >= 0) return {k, row, 1};
      const double growth_square = GrowthSquare();
      report.growth_square = LargerOrNaN(report.growth_square, growth_square);
      task_.MakeWay();
      if (segment_.has_fill()) Fill(k);
      task_.MakeWay();
      if (k + 1 < segment_.count || TargetOf(segment_) >= 0) Next(k);
      T* const triangle = task_.inverse + k * TriangleScalars(n_);
      if (kBySubstitution && !KeepsInverse(growth_square)) {
        StoreTriangle(n_, d_, T{-1}, triangle);
      } else {
        StoreTriangle(n_, x_, T{1}, triangle);
      }
    }
    Finish();
    return report;
  }

 private:
  // The largest D(i,i) sum_k inv(L)(k,i)^2.
  double GrowthSquare() const {
    double largest = 1;
    for (int64_t i = 0; i < n_; ++i) {
      const double root = std::sqrt(static_cast<double>(diagonal_[i]));
      double sum = 0;
      for (int64_t k = i; k < n_; ++k) {
        const double scaled = root * static_cast<double>(x_[i * n_ + k]);
        sum += scaled * scaled;
      }
      largest = LargerOrNaN(largest, sum);
    }
    return largest;
  }

  // The lower triangle of a block of the chain; what stands above it is not used.
  void LoadDiagonal(int64_t block, T* out) const {
    const Chain<T>& chain = task_.chain;
    if (chain.matrix == nullptr) {
      const T* left = chain.chains + block * 3 * square_;
      for (int64_t j = 0; j < n_; ++j) {
        for (int64_t i = j; i < n_; ++i) {
          out[j * n_ + i] = left[j * n_ + i] + left[square_ + j * n_ + i];
        }
      }
      return;
    }
    const T* data = DiagonalBlock<T>(*chain.matrix, block);
    const bool full = chain.matrix->form.diagonal == DiagonalForm::kFull;
    for (int64_t j = 0; j < n_; ++j) {
      const T* column = full ? data + j * n_ : data + j * n_ - j * (j + 1) / 2;
      std::copy_n(column + j, n_ - j, out + j * n_ + j);
    }
  }

  void LoadCoupling(int64_t i, bool transpose, T* out) const {
    const Chain<T>& chain = task_.chain;
    const T* block = nullptr;
    if (chain.matrix) {
      block = CouplingBlock<T>(*chain.matrix, i);
      transpose ^= chain.matrix->form.coupling == CouplingForm::kSuperdiagonal;
    } else {
      block = chain.chains + (i * 3 + 2) * square_;
    }
    if (!transpose) {
      std::copy_n(block, square_, out);
      return;
    }
    constexpr int64_t kTile = 16;
    for (int64_t j0 = 0; j0 < n_; j0 += kTile) {
      for (int64_t i0 = 0; i0 < n_; i0 += kTile) {
        for (int64_t j = j0; j < std::min(j0 + kTile, n_); ++j) {
          for (int64_t r = i0; r < std::min(i0 + kTile, n_); ++r)
            out[j * n_ + r] = block[r * n_ + j];
        }
      }
    }
  }

  // D = L L' in d_, inv(L) in x_. Returns the row of a pivot that is not positive, or -1.
  int64_t FactorAndInvert() {
    const int64_t row = Cholesky(n_, d_);
    if (row >= 0) return row;
    std::copy_n(d_, square_, x_);
    InvertLower(n_, x_);
    return -1;
  }

  // b becomes b inv(L)'.
  void TimesInverse(T* b) const {
    if (kBySubstitution) {
      SolveTriangle(n_, n_, d_, b);
    } else {
      TimesTriangle(CblasRight, CblasTrans, n_, n_, T{1}, x_, n_, b, n_);
    }
  }

  // a's lower triangle becomes garbage and x's inv(chol(a)), both with leading dimension n_;
  // recursive: L21 = A21 inv(L11)', A22 -= L21 L21', X21 = -X22 L21 X11. Returns the failed row, or
  // -1.
  int64_t CholeskyInverse(int64_t n, T* a, T* x) {
    task_.MakeWay();
    if (n <= kLeaf) return Leaf(n, a, x);
    const int64_t top = (n / 2 + 15) / 16 * 16;
    const int64_t rest = n - top;
    T* a21 = a + top;
    T* a22 = a21 + top * n_;
    T* x21 = x + top;
    T* x22 = x21 + top * n_;
    int64_t row = CholeskyInverse(top, a, x);
    if (row >= 0) return row;
    TimesTriangle(CblasRight, CblasTrans, rest, top, T{1}, x, n_, a21, n_);
    SubtractSquare(rest, top, a21, n_, a22, n_);
    row = CholeskyInverse(rest, a22, x22);
    if (row >= 0) return top + row;
    task_.MakeWay();
    CopyBlock(rest, top, a21, n_, x21, n_);
    TimesTriangle(CblasLeft, CblasNoTrans, rest, top, T{-1}, x22, n_, x21, n_);
    TimesTriangle(CblasRight, CblasNoTrans, rest, top, T{1}, x, n_, x21, n_);
    return -1;
  }

  // A leaf is a system of one block for the packed kernels.
  int64_t Leaf(int64_t n, const T* a, T* x) {
    T* inverse = leaf_ + kLeaf * kLeaf;
    CopyBlock(n, n, a, n_, leaf_, n);
    BlockTridiagonalView view;
    view.form.shape = {1, n, sizeof(T) == 8 ? Scalar::kFloat64 : Scalar::kFloat32};
    view.diagonal = leaf_;
    Segment whole;
    whole.count = 1;
    EliminateTask<T> task;
    task.n = n;
    task.chain.matrix = &view;
    task.segment = &whole;
    task.inverse = inverse;
    task.scratch = inverse + TriangleScalars(kLeaf);
    const SegmentReport leaf = SelectKernels<T>().eliminate(task);
    if (leaf.interior >= 0) return leaf.row;
    for (int64_t p = 0; p < n; p += kPanel) {
      const T* panel = inverse + TrianglePanelOffset(n, p / kPanel);
      CopyBlock(n - p, std::min(kPanel, n - p), panel, n - p, x + p * n_ + p, n_);
    }
    return -1;
  }

  void Next(int64_t k) {
    c_ = task_.next + k * square_;
    const int64_t block = segment_.block(k);
    LoadCoupling(segment_.reversed ? block - 1 : block, segment_.reversed, c_);
    TimesInverse(c_);
  }

  void Fill(int64_t k) {
    if (k == 0) {
      LoadCoupling(segment_.first - 1, true, s_);
    } else {
      SubtractProduct(n_, n_, n_, w_, n_, c_, n_, T{0}, s_, n_);
    }
    w_ = task_.fill + k * square_;
    std::copy_n(s_, square_, w_);
    TimesInverse(w_);
    SubtractSquare(n_, n_, w_, n_, update_, n_);
  }

  void Finish() {
    const int64_t target = TargetOf(segment_);
    if (target >= 0 && !segment_.reversed) {
      LoadDiagonal(target, task_.right_from_left);
      SubtractSquare(n_, n_, c_, n_, task_.right_from_left, n_);
    } else if (target >= 0) {
      std::fill_n(task_.left_from_right, square_, T{0});
      SubtractSquare(n_, n_, c_, n_, task_.left_from_right, n_);
    }
    if (segment_.has_fill()) {
      std::copy_n(update_, square_, task_.left_from_right);
      SubtractProduct(n_, n_, n_, c_, n_, w_, n_, T{0}, task_.coupling, n_);
    }
  }

  const EliminateTask<T>& task_;
  const Segment& segment_;
  const int64_t n_;
  const int64_t square_;
  T* d_ = nullptr;  // D, then L
  T* x_ = nullptr;  // inv(L), lower triangle
  T* leaf_ = nullptr;
  T* diagonal_ = nullptr;  // of D
  T* c_ = nullptr;         // C and W of the last block, in the factor
  T* w_ = nullptr;
  T* s_ = nullptr;
  T* update_ = nullptr;
};

}  // namespace

bool UsesLargeBlocks(int64_t n) { return n > kLargestPackedBlock; }

int64_t SubstitutionScratchScalars(int64_t n, bool fill) { return (fill ? 4 : 2) * n * n + n; }

int64_t LargeScratchScalars(int64_t n, bool fill) {
  return SubstitutionScratchScalars(n, fill) +
         std::max(LargeEliminator<double, false>::LeafScalars(),
                  LargeEliminator<float, false>::LeafScalars());
}

template <typename T>
SegmentReport EliminateLarge(const EliminateTask<T>& task) {
  return LargeEliminator<T, false>(task).Run();
}

template <typename T>
SegmentReport EliminateBySubstitution(const EliminateTask<T>& task) {
  return LargeEliminator<T, true>(task).Run();
}

template SegmentReport EliminateLarge(const EliminateTask<double>& task);
template SegmentReport EliminateLarge(const EliminateTask<float>& task);
template SegmentReport EliminateBySubstitution(const EliminateTask<double>& task);
template SegmentReport EliminateBySubstitution(const EliminateTask<float>& task);

}  // namespace blockd::cpu
