#include "server/core/smoother/dense.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace blockd::server {
namespace {

// Rows that are eliminated together; what they leave is one product.
constexpr int64_t kPanel = 32;

// Row by row; the first row whose pivot is at most its `least`.
std::optional<int64_t> FactorizePanel(int64_t n, int64_t panel, double* a, int64_t lda,
                                      const double* least) {
  for (int64_t j = 0; j < panel; ++j) {
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
    if (auto row = FactorizePanel(n - first, panel, corner, n, least.data() + first)) {
      return first + *row;
    }
    if (rest == 0) break;
    cblas_dsyrk(CblasColMajor, CblasLower, CblasNoTrans, static_cast<int>(rest),
                static_cast<int>(panel), -1, corner + panel, static_cast<int>(n), 1,
                corner + panel * n + panel, static_cast<int>(n));
  }
  for (int64_t j = 1; j < n; ++j) std::fill_n(a + j * n, j, 0.0);
  return std::nullopt;
}

double LogDeterminant(int64_t n, const double* l) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::log(l[i * n + i]);
  return 2 * sum;
}

void SolveLower(int64_t n, const double* l, double* b, int64_t columns) {
  cblas_dtrsm(CblasColMajor, CblasLeft, CblasLower, CblasNoTrans, CblasNonUnit, static_cast<int>(n),
              static_cast<int>(columns), 1, l, static_cast<int>(n), b, static_cast<int>(n));
}

void SolveLowerTransposed(int64_t n, const double* l, double* b, int64_t columns) {
  cblas_dtrsm(CblasColMajor, CblasLeft, CblasLower, CblasTrans, CblasNonUnit, static_cast<int>(n),
              static_cast<int>(columns), 1, l, static_cast<int>(n), b, static_cast<int>(n));
}

void SolveLower(int64_t n, const double* l, double* b) {
  for (int64_t j = 0; j < n; ++j) {
    b[j] /= l[j * n + j];
    for (int64_t i = j + 1; i < n; ++i) b[i] -= l[j * n + i] * b[j];
  }
}

void SolveLowerTransposed(int64_t n, const double* l, double* b) {
  for (int64_t j = n; j-- > 0;) {
    double sum = b[j];
    for (int64_t i = j + 1; i < n; ++i) sum -= l[j * n + i] * b[i];
    b[j] = sum / l[j * n + j];
  }
}

void AddGram(int64_t rows, int64_t n, const double* w, double* d) {
  cblas_dsyrk(CblasColMajor, CblasLower, CblasTrans, static_cast<int>(n), static_cast<int>(rows), 1,
              w, static_cast<int>(rows), 1, d, static_cast<int>(n));
}

void AddProduct(int64_t rows, int64_t columns, double alpha, const double* a, const double* x,
                double* y) {
  for (int64_t j = 0; j < columns; ++j) {
    const double factor = alpha * x[j];
    for (int64_t i = 0; i < rows; ++i) y[i] += factor * a[j * rows + i];
  }
}

void AddTransposedProduct(int64_t rows, int64_t columns, double alpha, const double* a,
                          const double* x, double* y) {
  for (int64_t j = 0; j < columns; ++j) {
    double sum = 0;
    for (int64_t i = 0; i < rows; ++i) sum += a[j * rows + i] * x[i];
    y[j] += alpha * sum;
  }
}

double SumOfSquares(int64_t n, const double* x) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

}  // namespace blockd::server
