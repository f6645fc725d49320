#include "engine/cpu/information.h"

#include <cblas.h>

#include <algorithm>

namespace blockd::cpu {
namespace {

// B = alpha U B or alpha U' B of a lower triangle U.
void TimesWhitener(CBLAS_TRANSPOSE transpose, int64_t n, double alpha, const double* u, double* b) {
  cblas_dtrmm(CblasColMajor, CblasLeft, CblasLower, transpose, CblasNonUnit, n, n, alpha, u, n, b,
              n);
}
void TimesWhitener(CBLAS_TRANSPOSE transpose, int64_t n, float alpha, const float* u, float* b) {
  cblas_strmm(CblasColMajor, CblasLeft, CblasLower, transpose, CblasNonUnit, n, n, alpha, u, n, b,
              n);
}
// D += W' W, the lower triangle; W is rows x n.
void AddSquare(int64_t rows, int64_t n, const double* w, double* d) {
  cblas_dsyrk(CblasColMajor, CblasLower, CblasTrans, n, rows, 1, w, rows, 1, d, n);
}
void AddSquare(int64_t rows, int64_t n, const float* w, float* d) {
  cblas_ssyrk(CblasColMajor, CblasLower, CblasTrans, n, rows, 1, w, rows, 1, d, n);
}

// The i-th of the steps. V lies where the coupling will be.
template <typename T>
void FormStep(const InformationSteps& steps, int64_t i) {
  const int64_t n = steps.shape.block_size, square = n * n;
  const auto at = [&](const void* matrices, int64_t place, bool one) {
    return static_cast<const T*>(matrices) + (one ? 0 : place * square);
  };
  T* const d = static_cast<T*>(steps.diagonal) + i * square;
  std::fill_n(d, square, T{0});
  if (i < steps.moves()) {
    const T* const u = at(steps.whiteners, i, steps.one_whitener);
    T* const c = static_cast<T*>(steps.coupling) + i * square;
    std::copy_n(at(steps.transitions, i, steps.one_transition), square, c);
    TimesWhitener(CblasNoTrans, n, T{1}, u, c);
    AddSquare(n, n, c, d);
    TimesWhitener(CblasTrans, n, T{-1}, u, c);
  }
  if (steps.rows > 0) {
    AddSquare(steps.rows, n, static_cast<const T*>(steps.observations) + i * steps.rows * n, d);
  }
  const T* const to = i == 0 ? static_cast<const T*>(steps.to_first)
                             : at(steps.whiteners, i - 1, steps.one_whitener);
  if (to != nullptr) AddSquare(n, n, to, d);
}

}  // namespace

void FormInformation(ThreadPool& threads, const InformationSteps& steps) {
  const bool wide = steps.shape.scalar == Scalar::kFloat64;
  threads.Run(steps.count, [&](int64_t i, int32_t) {
    wide ? FormStep<double>(steps, i) : FormStep<float>(steps, i);
  });
}

}  // namespace blockd::cpu
