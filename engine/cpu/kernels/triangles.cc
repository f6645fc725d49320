#include "engine/cpu/kernels/triangles.h"

#include <cstring>
#include <limits>
#include <vector>

extern "C" {
// LAPACK: *info > 0 is the order of the first leading minor that is not positive definite.
void dpotrf_(const char* uplo, const int* n, double* a, const int* lda, int* info);
void spotrf_(const char* uplo, const int* n, float* a, const int* lda, int* info);
void dtrtri_(const char* uplo, const char* diag, const int* n, double* a, const int* lda,
             int* info);
void strtri_(const char* uplo, const char* diag, const int* n, float* a, const int* lda, int* info);
}

namespace blockd::cpu {
namespace {

void Potrf(int n, double* a, int* info) { dpotrf_("L", &n, a, &n, info); }
void Potrf(int n, float* a, int* info) { spotrf_("L", &n, a, &n, info); }
void Trtri(int n, double* a, int* info) { dtrtri_("L", "N", &n, a, &n, info); }
void Trtri(int n, float* a, int* info) { strtri_("L", "N", &n, a, &n, info); }

// A triangle that is -L becomes inv(L).
template <typename T>
void InvertTriangle(int64_t n, T* triangle) {
  std::vector<T> square(n * n);
  const T* in = triangle;
  for (int64_t p = 0; p < n; p += kPanel) {
    for (int64_t j = p; j < std::min(p + kPanel, n); ++j, in += n - p) {
      for (int64_t i = j; i < n; ++i) square[j * n + i] = -in[i - p];
    }
  }
  InvertLower(n, square.data());
  StoreTriangle(n, square.data(), T{1}, triangle);
}

template <typename T>
void InvertAll(ThreadPool& threads, const EliminationPlan& plan, T* factor) {
  const int64_t n = plan.shape().block_size;
  for (const Level& level : plan.levels()) {
    threads.Run(level.interiors, [&](int64_t slot, int32_t) {
      T* const triangle = factor + level.inverse_offset + slot * TriangleScalars(n);
      if (IsSubstituted(triangle)) InvertTriangle(n, triangle);
    });
  }
}

}  // namespace

template <typename T>
int64_t Cholesky(int64_t n, T* d) {
  int info = 0;
  Potrf(static_cast<int>(n), d, &info);
  const int64_t good = info > 0 ? info - 1 : n;
  // LAPACK takes pivots that are not a number, or are subnormal.
  constexpr T kLeast = std::numeric_limits<T>::min();
  for (int64_t i = 0; i < good; ++i) {
    const T root = d[i * (n + 1)], pivot = root * root;
    if (!(pivot >= kLeast && pivot < 1 / kLeast)) return i;
  }
  return good < n ? good : -1;
}

template <typename T>
void InvertLower(int64_t n, T* l) {
  int info = 0;
  Trtri(static_cast<int>(n), l, &info);
}

void InvertTriangles(ThreadPool& threads, const EliminationPlan& plan, const void* factor,
                     void* out) {
  std::memcpy(out, factor, plan.factor_bytes());
  plan.shape().scalar == Scalar::kFloat64 ? InvertAll(threads, plan, static_cast<double*>(out))
                                          : InvertAll(threads, plan, static_cast<float*>(out));
}

template int64_t Cholesky(int64_t n, double* d);
template int64_t Cholesky(int64_t n, float* d);
template void InvertLower(int64_t n, double* l);
template void InvertLower(int64_t n, float* l);

}  // namespace blockd::cpu
