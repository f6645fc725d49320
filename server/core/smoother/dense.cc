#include "server/core/smoother/dense.h"

#include <cblas.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

extern "C" void dpotri_(const char* uplo, const int* n, double* a, const int* lda, int* info);

namespace blockd::server {
namespace {

// Rows that are eliminated together; what they leave goes through BLAS.
constexpr int64_t kPanel = 32;
// Up to here a call of BLAS costs more than its work.
constexpr int64_t kTiny = 8;
constexpr int64_t kShort = 32;  // the same of a vector

// Row by row; the first row whose pivot is at most its `least`.
std::optional<int64_t> FactorizeCorner(int64_t n, double* a, int64_t lda, const double* least) {
  for (int64_t j = 0; j < n; ++j) {
    double* const column = a + j * lda;
    for (int64_t k = 0; k < j; ++k) {
      const double factor = a[k * lda + j];
      for (int64_t i = j; i < n; ++i) column[i] -= factor * a[k * lda + i];
    }
    if (!(column[j] > least[j])) return j;
    const double root = std::sqrt(column[j]);
    for (int64_t i = j; i < n; ++i) column[i] /= root;
  }
  return std::nullopt;
}

// The rest of a panel, whose corner of an n x n matrix is factored, and what it leaves of others.
void EliminatePanel(int panel, int rest, double* corner, int lda) {
  double* const below = corner + panel;
  cblas_dtrsm(CblasColMajor, CblasRight, CblasLower, CblasTrans, CblasNonUnit, rest, panel, 1,
              corner, lda, below, lda);
  cblas_dsyrk(CblasColMajor, CblasLower, CblasNoTrans, rest, panel, -1, below, lda, 1,
              below + static_cast<int64_t>(panel) * lda, lda);
}

void SolveTriangle(CBLAS_TRANSPOSE transpose, int64_t n, const double* l, double* b,
                   int64_t columns) {
  cblas_dtrsm(CblasColMajor, CblasLeft, CblasLower, transpose, CblasNonUnit, static_cast<int>(n),
              static_cast<int>(columns), 1, l, static_cast<int>(n), b, static_cast<int>(n));
}

void SolveTriangle(CBLAS_TRANSPOSE transpose, int64_t n, const double* l, double* b) {
  cblas_dtrsv(CblasColMajor, CblasLower, transpose, CblasNonUnit, static_cast<int>(n), l,
              static_cast<int>(n), b, 1);
}

void AddWithBlas(CBLAS_TRANSPOSE transpose, int64_t rows, int64_t columns, double alpha,
                 const double* a, const double* x, double* y) {
  cblas_dgemv(CblasColMajor, transpose, static_cast<int>(rows), static_cast<int>(columns), alpha, a,
              static_cast<int>(rows), x, 1, 1, y, 1);
}

}  // namespace

std::optional<int64_t> Factorize(int64_t n, double* a) {
  constexpr double kEps = std::numeric_limits<double>::epsilon();
  std::vector<double> least(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    least[i] = static_cast<double>(n) * kEps * std::max(a[i * n + i], 0.0);
  }
  for (int64_t first = 0; first < n; first += kPanel) {
    const int64_t panel = std::min(kPanel, n - first), rest = n - first - panel;
    double* const corner = a + first * n + first;
    if (auto row = FactorizeCorner(panel, corner, n, least.data() + first)) return first + *row;
    if (rest > 0) {
      EliminatePanel(static_cast<int>(panel), static_cast<int>(rest), corner, static_cast<int>(n));
    }
  }
  for (int64_t j = 1; j < n; ++j) std::fill_n(a + j * n, j, 0.0);
  return std::nullopt;
}

double LogDeterminant(int64_t n, const double* l) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::log(l[i * n + i]);
  return 2 * sum;
}

void InvertFactored(int64_t n, const double* l, double* d) {
  if (n > kTiny) {
    std::copy_n(l, n * n, d);
    const auto order = static_cast<int>(n);
    int info = 0;
    dpotri_("L", &order, d, &order, &info);  // of pivots that are positive: it cannot fail
    return;
  }
  std::array<double, kTiny * kTiny> u{};
  for (int64_t j = 0; j < n; ++j) u[j * n + j] = 1;
  SolveLower(n, l, u.data(), n);
  std::fill_n(d, n * n, 0.0);
  AddGram(n, n, u.data(), d);
}

void SolveLower(int64_t n, const double* l, double* b, int64_t columns) {
  if (n > kTiny) return SolveTriangle(CblasNoTrans, n, l, b, columns);
  for (int64_t k = 0; k < columns; ++k) SolveLower(n, l, b + k * n);
}

void SolveLowerTransposed(int64_t n, const double* l, double* b, int64_t columns) {
  if (n > kTiny) return SolveTriangle(CblasTrans, n, l, b, columns);
  for (int64_t k = 0; k < columns; ++k) SolveLowerTransposed(n, l, b + k * n);
}

void SolveLower(int64_t n, const double* l, double* b) {
  if (n > kShort) return SolveTriangle(CblasNoTrans, n, l, b);
  for (int64_t j = 0; j < n; ++j) {
    b[j] /= l[j * n + j];
    for (int64_t i = j + 1; i < n; ++i) b[i] -= l[j * n + i] * b[j];
  }
}

void SolveLowerTransposed(int64_t n, const double* l, double* b) {
  if (n > kShort) return SolveTriangle(CblasTrans, n, l, b);
  for (int64_t j = n; j-- > 0;) {
    double sum = b[j];
    for (int64_t i = j + 1; i < n; ++i) sum -= l[j * n + i] * b[i];
    b[j] = sum / l[j * n + j];
  }
}

void AddGram(int64_t rows, int64_t n, const double* w, double* d) {
  if (n > kTiny || rows > kTiny) {
    return cblas_dsyrk(CblasColMajor, CblasLower, CblasTrans, static_cast<int>(n),
                       static_cast<int>(rows), 1, w, static_cast<int>(rows), 1, d,
                       static_cast<int>(n));
  }
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = j; i < n; ++i) {
      for (int64_t k = 0; k < rows; ++k) d[j * n + i] += w[i * rows + k] * w[j * rows + k];
    }
  }
}

void AddProduct(int64_t rows, int64_t columns, double alpha, const double* a, const double* x,
                double* y) {
  if (rows > kShort) return AddWithBlas(CblasNoTrans, rows, columns, alpha, a, x, y);
  for (int64_t j = 0; j < columns; ++j) {
    const double factor = alpha * x[j];
    for (int64_t i = 0; i < rows; ++i) y[i] += factor * a[j * rows + i];
  }
}

void AddTransposedProduct(int64_t rows, int64_t columns, double alpha, const double* a,
                          const double* x, double* y) {
  if (rows > kShort) return AddWithBlas(CblasTrans, rows, columns, alpha, a, x, y);
  for (int64_t j = 0; j < columns; ++j) {
    double sum = 0;
    for (int64_t i = 0; i < rows; ++i) sum += a[j * rows + i] * x[i];
    y[j] += alpha * sum;
  }
}

void Multiply(int64_t rows, int64_t inner, int64_t columns, const double* a, const double* b,
              double* c) {
  if (columns == 0) return;
  if (inner > kTiny) {
    return cblas_dgemm(CblasColMajor, CblasNoTrans, CblasNoTrans, static_cast<int>(rows),
                       static_cast<int>(columns), static_cast<int>(inner), 1, a,
                       static_cast<int>(rows), b, static_cast<int>(inner), 0, c,
                       static_cast<int>(rows));
  }
  std::fill_n(c, rows * columns, 0.0);
  for (int64_t j = 0; j < columns; ++j) {
    AddProduct(rows, inner, 1, a, b + j * inner, c + j * rows);
  }
}

double SumOfSquares(int64_t n, const double* x) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

}  // namespace blockd::server
