#include "engine/smoother/dense.h"

#include <cblas.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "absl/container/fixed_array.h"

extern "C" void dlauum_(const char* uplo, const int* n, double* a, const int* lda, int* info);

namespace blockd {
namespace {

// Up to so many rows matrices are looped over here: there a call of BLAS takes longer, and its
// calls wait for one another, whichever thread makes them.
constexpr int64_t kSmall = 32;
using Square = std::array<double, kSmall * kSmall>;

// Row by row; the first row whose pivot is at most its `least`.
std::optional<int64_t> FactorizeSmall(int64_t n, double* a, int64_t lda, const double* least) {
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

// The rest of a panel, whose corner is factored, and what the panel leaves of what follows it.
void EliminatePanel(int panel, int rest, double* corner, int lda) {
  double* const below = corner + panel;
  cblas_dtrsm(CblasColMajor, CblasRight, CblasLower, CblasTrans, CblasNonUnit, rest, panel, 1,
              corner, lda, below, lda);
  cblas_dsyrk(CblasColMajor, CblasLower, CblasNoTrans, rest, panel, -1, below, lda, 1,
              below + static_cast<int64_t>(panel) * lda, lda);
}

// x = U x, of the first n rows and columns of a matrix.
void MultiplySmall(int64_t n, const double* u, int64_t ldu, double* x) {
  for (int64_t k = n; k-- > 0;) {
    const double factor = x[k];
    x[k] = u[k * ldu + k] * factor;
    for (int64_t i = k + 1; i < n; ++i) x[i] += u[k * ldu + i] * factor;
  }
}

// From its last column on: inv([d 0; c L]) = [1/d 0; -inv(L) c/d inv(L)].
void InvertSmall(int64_t n, double* l, int64_t lda) {
  for (int64_t j = n; j-- > 0;) {
    double* const column = l + j * lda;
    column[j] = 1 / column[j];
    MultiplySmall(n - j - 1, l + (j + 1) * lda + j + 1, lda, column + j + 1);
    for (int64_t i = j + 1; i < n; ++i) column[i] *= -column[j];
  }
}

// inv([A 0; C B]) = [inv(A) 0; -inv(B) C inv(A) inv(B)].
void InvertBlocks(int64_t n, double* l, int64_t lda) {
  if (n <= kSmall) return InvertSmall(n, l, lda);
  const int64_t half = (n / 2 + kSmall - 1) / kSmall * kSmall, rest = n - half;
  double* const below = l + half;
  double* const corner = l + half * lda + half;
  InvertBlocks(half, l, lda);
  InvertBlocks(rest, corner, lda);
  const auto multiply = [&](CBLAS_SIDE side, double alpha, const double* inverse) {
    cblas_dtrmm(CblasColMajor, side, CblasLower, CblasNoTrans, CblasNonUnit, static_cast<int>(rest),
                static_cast<int>(half), alpha, inverse, static_cast<int>(lda), below,
                static_cast<int>(lda));
  };
  multiply(CblasLeft, -1, corner);
  multiply(CblasRight, 1, l);
}

void MultiplyWithBlas(CBLAS_TRANSPOSE transpose, int64_t n, const double* u, double* b,
                      int64_t columns) {
  if (columns == 1) {
    return cblas_dtrmv(CblasColMajor, CblasLower, transpose, CblasNonUnit, static_cast<int>(n), u,
                       static_cast<int>(n), b, 1);
  }
  cblas_dtrmm(CblasColMajor, CblasLeft, CblasLower, transpose, CblasNonUnit, static_cast<int>(n),
              static_cast<int>(columns), 1, u, static_cast<int>(n), b, static_cast<int>(n));
}

void AddWithBlas(CBLAS_TRANSPOSE transpose, int64_t rows, int64_t columns, double alpha,
                 const double* a, const double* x, double* y) {
  cblas_dgemv(CblasColMajor, transpose, static_cast<int>(rows), static_cast<int>(columns), alpha, a,
              static_cast<int>(rows), x, 1, 1, y, 1);
}

// Numbers of each row; no memory is asked for where they are few.
using Rows = absl::FixedArray<double, kSmall>;

// y += (U o U) x of a lower triangle; x(j) at j.
template <typename X>
void AddSquaresLower(int64_t n, const double* u, const X& x, Rows& y) {
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = j; i < n; ++i) y[i] += u[j * n + i] * u[j * n + i] * x(j);
  }
}

}  // namespace

std::optional<int64_t> Factorize(int64_t n, double* a) {
  constexpr double kEps = std::numeric_limits<double>::epsilon();
  Rows least(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    least[i] = static_cast<double>(n) * kEps * std::max(a[i * n + i], 0.0);
  }
  for (int64_t first = 0; first < n; first += kSmall) {
    const int64_t panel = std::min(kSmall, n - first), rest = n - first - panel;
    double* const corner = a + first * n + first;
    if (auto row = FactorizeSmall(panel, corner, n, least.data() + first)) return first + *row;
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

double InvertTriangle(int64_t n, double* l) {
  Rows sums(static_cast<size_t>(n), 0), rows(static_cast<size_t>(n), 0);
  AddSquaresLower(
      n, l, [](int64_t) { return 1.0; }, sums);
  InvertBlocks(n, l, n);
  AddSquaresLower(
      n, l, [&](int64_t j) { return sums[j]; }, rows);
  return n == 0 ? 1 : std::sqrt(*std::max_element(rows.begin(), rows.end()));
}

void MultiplyLower(int64_t n, const double* u, double* b, int64_t columns) {
  if (n > kSmall) return MultiplyWithBlas(CblasNoTrans, n, u, b, columns);
  for (int64_t k = 0; k < columns; ++k) MultiplySmall(n, u, n, b + k * n);
}

void MultiplyLowerTransposed(int64_t n, const double* u, double* b, int64_t columns) {
  if (n > kSmall) return MultiplyWithBlas(CblasTrans, n, u, b, columns);
  Square rows;  // of U, so that what is added lies together
  for (int64_t k = 0; k < n; ++k) {
    for (int64_t i = k; i < n; ++i) rows[i * n + k] = u[k * n + i];
  }
  for (int64_t c = 0; c < columns; ++c) {
    double* const x = b + c * n;
    for (int64_t i = 0; i < n; ++i) {
      const double factor = x[i];
      for (int64_t k = 0; k < i; ++k) x[k] += rows[i * n + k] * factor;
      x[i] = rows[i * n + i] * factor;
    }
  }
}

void MultiplySquare(int64_t n, const double* u, double* d) {
  if (n > kSmall) {
    std::copy_n(u, n * n, d);
    const auto order = static_cast<int>(n);
    int info = 0;
    dlauum_("L", &order, d, &order, &info);  // whose arguments are right: it cannot fail
    return;
  }
  std::fill_n(d, n * n, 0.0);
  AddGram(n, n, u, d);
}

void AddGram(int64_t rows, int64_t n, const double* w, double* d) {
  if (n > kSmall || rows > kSmall) {
    return cblas_dsyrk(CblasColMajor, CblasLower, CblasTrans, static_cast<int>(n),
                       static_cast<int>(rows), 1, w, static_cast<int>(rows), 1, d,
                       static_cast<int>(n));
  }
  std::array<double, kSmall> row;
  for (int64_t k = 0; k < rows; ++k) {
    for (int64_t i = 0; i < n; ++i) row[i] = w[i * rows + k];
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = j; i < n; ++i) d[j * n + i] += row[i] * row[j];
    }
  }
}

void AddProduct(int64_t rows, int64_t columns, double alpha, const double* a, const double* x,
                double* y) {
  if (rows > kSmall) return AddWithBlas(CblasNoTrans, rows, columns, alpha, a, x, y);
  for (int64_t j = 0; j < columns; ++j) {
    const double factor = alpha * x[j];
    for (int64_t i = 0; i < rows; ++i) y[i] += factor * a[j * rows + i];
  }
}

void AddTransposedProduct(int64_t rows, int64_t columns, double alpha, const double* a,
                          const double* x, double* y) {
  if (rows > kSmall) return AddWithBlas(CblasTrans, rows, columns, alpha, a, x, y);
  for (int64_t j = 0; j < columns; ++j) {
    double sum = 0;
    for (int64_t i = 0; i < rows; ++i) sum += a[j * rows + i] * x[i];
    y[j] += alpha * sum;
  }
}

void Multiply(int64_t rows, int64_t inner, int64_t columns, const double* a, const double* b,
              double* c) {
  if (columns == 0) return;
  if (rows > kSmall) {
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

}  // namespace blockd
