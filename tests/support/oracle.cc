#include "tests/support/oracle.h"

#include <algorithm>
#include <cmath>

// LAPACK by its Fortran names: OpenBLAS has these everywhere, LAPACKE's only on some distributions.
extern "C" {
void dpotrf_(const char* uplo, const int* n, double* a, const int* lda, int* info);
void dpotrs_(const char* uplo, const int* n, const int* nrhs, const double* a, const int* lda,
             double* b, const int* ldb, int* info);
}

namespace blockd::test {
namespace {

template <typename T>
std::vector<double> ReadDiagonalAs(const BlockTridiagonalView& view, int64_t i) {
  const int64_t n = view.shape().block_size;
  const T* block = DiagonalBlock<T>(view, i);
  std::vector<double> out(n * n);
  for (int64_t column = 0; column < n; ++column) {
    for (int64_t row = column; row < n; ++row) {
      const double value =
          view.form.diagonal == DiagonalForm::kFull ? block[column * n + row] : *block++;
      out[column * n + row] = out[row * n + column] = value;
    }
  }
  return out;
}

template <typename T>
std::vector<double> ReadCouplingAs(const BlockTridiagonalView& view, int64_t i) {
  const int64_t n = view.shape().block_size;
  const T* block = CouplingBlock<T>(view, i);
  std::vector<double> out(n * n);
  for (int64_t column = 0; column < n; ++column) {
    for (int64_t row = 0; row < n; ++row) {
      const bool below = view.form.coupling == CouplingForm::kSubdiagonal;
      out[column * n + row] = below ? block[column * n + row] : block[row * n + column];
    }
  }
  return out;
}

using Long = long double;

// L of one block in place, lower triangle. Returns the row whose pivot is not positive, or -1.
int64_t CholeskyInPlace(int64_t n, std::vector<Long>& a) {
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t k = 0; k < j; ++k) {
      const Long factor = a[k * n + j];
      for (int64_t i = j; i < n; ++i) a[j * n + i] -= factor * a[k * n + i];
    }
    if (!(a[j * n + j] > 0)) return j;
    const Long pivot = std::sqrt(a[j * n + j]);
    for (int64_t i = j; i < n; ++i) a[j * n + i] /= pivot;
  }
  return -1;
}

// e = e inv(L)'.
void SolveFromRight(int64_t n, const std::vector<Long>& lower, std::vector<Long>& e) {
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t k = 0; k < j; ++k) {
      const Long factor = lower[k * n + j];
      for (int64_t i = 0; i < n; ++i) e[j * n + i] -= factor * e[k * n + i];
    }
    for (int64_t i = 0; i < n; ++i) e[j * n + i] /= lower[j * n + j];
  }
}

double ReadScalar(const BlockTridiagonalView& view, const void* part, int64_t i) {
  return view.shape().scalar == Scalar::kFloat64 ? static_cast<const double*>(part)[i]
                                                 : static_cast<const float*>(part)[i];
}

// d -= c c', lower triangle.
void SubtractSquare(int64_t n, const std::vector<Long>& c, std::vector<Long>& d) {
  for (int64_t k = 0; k < n; ++k) {
    for (int64_t j = 0; j < n; ++j) {
      const Long factor = c[k * n + j];
      for (int64_t i = j; i < n; ++i) d[j * n + i] -= factor * c[k * n + i];
    }
  }
}

}  // namespace

std::vector<double> ReadDiagonal(const BlockTridiagonalView& view, int64_t i) {
  return view.shape().scalar == Scalar::kFloat64 ? ReadDiagonalAs<double>(view, i)
                                                 : ReadDiagonalAs<float>(view, i);
}

std::vector<double> ReadCoupling(const BlockTridiagonalView& view, int64_t i) {
  return view.shape().scalar == Scalar::kFloat64 ? ReadCouplingAs<double>(view, i)
                                                 : ReadCouplingAs<float>(view, i);
}

std::vector<double> AssembleDense(const BlockTridiagonalView& view) {
  const int64_t n = view.shape().block_size;
  const int64_t rows = view.form.rows(), chain = view.shape().rows(), p = view.form.border_rows;
  std::vector<double> dense(rows * rows);
  for (int64_t b = 0; b < view.shape().num_blocks; ++b) {
    const std::vector<double> diagonal = ReadDiagonal(view, b);
    const bool last = b + 1 == view.shape().num_blocks;
    const std::vector<double> coupling = last ? std::vector<double>() : ReadCoupling(view, b);
    for (int64_t c = 0; c < n; ++c) {
      for (int64_t r = 0; r < n; ++r) {
        dense[(b * n + c) * rows + b * n + r] = diagonal[c * n + r];
        if (last) continue;
        dense[(b * n + c) * rows + (b + 1) * n + r] = coupling[c * n + r];
        dense[((b + 1) * n + r) * rows + b * n + c] = coupling[c * n + r];
      }
    }
  }
  for (int64_t r = 0; r < p; ++r) {
    double* const column = &dense[(chain + r) * rows];
    for (int64_t k = 0; k < chain; ++k) {
      column[k] = dense[k * rows + chain + r] = ReadScalar(view, view.border, r * chain + k);
    }
    for (int64_t i = r; i < p; ++i) {
      column[chain + i] = dense[(chain + i) * rows + chain + r] =
          ReadScalar(view, view.corner, r * p + i);
    }
  }
  return dense;
}

DenseCholesky::DenseCholesky(const BlockTridiagonalView& view)
    : rows_(view.form.rows()), factor_(AssembleDense(view)) {
  const int rows = static_cast<int>(rows_);
  int info = 0;
  dpotrf_("L", &rows, factor_.data(), &rows, &info);
  minor = info;
}

std::vector<double> DenseCholesky::Solve(std::span<const double> rhs) const {
  std::vector<double> x(rhs.begin(), rhs.end());
  const int rows = static_cast<int>(rows_);
  const int columns = static_cast<int>(static_cast<int64_t>(x.size()) / rows_);
  int info = 0;
  dpotrs_("L", &rows, &columns, factor_.data(), &rows, x.data(), &rows, &info);
  return x;
}

double DenseCholesky::LogDeterminant() const {
  double sum = 0;
  for (int64_t i = 0; i < rows_; ++i) sum += 2 * std::log(factor_[i * rows_ + i]);
  return sum;
}

SequentialCholesky::SequentialCholesky(const BlockTridiagonalView& view)
    : n_(view.shape().block_size) {
  const auto widen = [](const std::vector<double>& block) {
    return Block(block.begin(), block.end());
  };
  Block pivot = widen(ReadDiagonal(view, 0));
  for (int64_t i = 0; i < view.shape().num_blocks; ++i) {
    const int64_t row = CholeskyInPlace(n_, pivot);
    if (row >= 0) {
      minor_ = i * n_ + row + 1;
      return;
    }
    lower_.push_back(std::move(pivot));
    if (i + 1 == view.shape().num_blocks) break;
    below_.push_back(widen(ReadCoupling(view, i)));
    SolveFromRight(n_, lower_.back(), below_.back());
    pivot = widen(ReadDiagonal(view, i + 1));
    SubtractSquare(n_, below_.back(), pivot);
  }
}

std::vector<double> SequentialCholesky::Solve(std::span<const double> rhs) const {
  const int64_t blocks = static_cast<int64_t>(lower_.size());
  const int64_t rows = blocks * n_;
  std::vector<Long> x(rhs.begin(), rhs.end());
  for (Long* column = x.data(); column < x.data() + x.size(); column += rows) {
    for (int64_t i = 0; i < blocks; ++i) {
      Long* here = column + i * n_;
      for (int64_t j = 0; j < n_; ++j) {
        here[j] /= lower_[i][j * n_ + j];
        for (int64_t r = j + 1; r < n_; ++r) here[r] -= lower_[i][j * n_ + r] * here[j];
        if (i + 1 == blocks) continue;
        for (int64_t r = 0; r < n_; ++r) here[n_ + r] -= below_[i][j * n_ + r] * here[j];
      }
    }
    for (int64_t i = blocks - 1; i >= 0; --i) {
      Long* here = column + i * n_;
      for (int64_t j = n_ - 1; j >= 0; --j) {
        if (i + 1 < blocks) {
          for (int64_t r = 0; r < n_; ++r) here[j] -= below_[i][j * n_ + r] * here[n_ + r];
        }
        for (int64_t r = j + 1; r < n_; ++r) here[j] -= lower_[i][j * n_ + r] * here[r];
        here[j] /= lower_[i][j * n_ + j];
      }
    }
  }
  return std::vector<double>(x.begin(), x.end());
}

double SequentialCholesky::LogDeterminant() const {
  Long sum = 0;
  for (const Block& block : lower_) {
    for (int64_t i = 0; i < n_; ++i) sum += 2 * std::log(block[i * n_ + i]);
  }
  return static_cast<double>(sum);
}

double BackwardError(const BlockTridiagonalView& view, std::span<const double> x,
                     std::span<const double> b) {
  const int64_t n = view.shape().block_size;
  const int64_t rows = view.shape().rows();
  std::vector<Long> r(b.begin(), b.end());
  std::vector<Long> sums(rows);
  // Takes block (i,j) of A, and with it its transpose unless it is a diagonal block.
  const auto take = [&](const std::vector<double>& block, int64_t i, int64_t j) {
    for (int64_t c = 0; c < n; ++c) {
      for (int64_t k = 0; k < n; ++k) {
        const double a = block[c * n + k];
        sums[i * n + k] += std::abs(a);
        if (i != j) sums[j * n + c] += std::abs(a);
      }
    }
    for (size_t column = 0; column < b.size(); column += rows) {
      for (int64_t c = 0; c < n; ++c) {
        const Long xc = x[column + j * n + c];
        Long transposed = 0;
        for (int64_t k = 0; k < n; ++k) {
          r[column + i * n + k] -= block[c * n + k] * xc;
          transposed += static_cast<Long>(block[c * n + k]) * x[column + i * n + k];
        }
        if (i != j) r[column + j * n + c] -= transposed;
      }
    }
  };
  for (int64_t i = 0; i < view.shape().num_blocks; ++i) {
    take(ReadDiagonal(view, i), i, i);
    if (i + 1 < view.shape().num_blocks) take(ReadCoupling(view, i), i + 1, i);
  }
  const Long a_norm = *std::max_element(sums.begin(), sums.end());
  Long worst = 0;
  for (size_t column = 0; column < b.size(); column += rows) {
    Long r_norm = 0, x_norm = 0, b_norm = 0;
    for (size_t k = column; k < column + rows; ++k) {
      if (std::isnan(r[k])) return std::nan("");
      r_norm = std::max(r_norm, std::abs(r[k]));
      x_norm = std::max(x_norm, std::abs(static_cast<Long>(x[k])));
      b_norm = std::max(b_norm, std::abs(static_cast<Long>(b[k])));
    }
    if (r_norm > 0) worst = std::max(worst, r_norm / (a_norm * x_norm + b_norm));
  }
  return static_cast<double>(worst);
}

double RelativeDifference(std::span<const double> x, std::span<const double> y) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    if (std::isnan(x[i]) || std::isnan(y[i])) return std::nan("");
    difference = std::max(difference, std::abs(x[i] - y[i]));
    norm = std::max(norm, std::abs(y[i]));
  }
  return norm > 0 ? difference / norm : difference;
}

}  // namespace blockd::test
