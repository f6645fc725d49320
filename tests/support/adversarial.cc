#include "tests/support/adversarial.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "tests/support/oracle.h"

namespace blockd::test {
namespace {

using Matrix = std::vector<double>;  // n x n, column-major

// L = I - c (strictly lower ones).
Matrix LowerOnes(int64_t n, double c) {
  Matrix factor(n * n, 0.0);
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = j; i < n; ++i) factor[j * n + i] = i == j ? 1 : -c;
  }
  return factor;
}

// A pivot that is much smaller than the rest, in the middle.
Matrix SmallPivot(int64_t n, double pivot) {
  Matrix factor(n * n, 0.0);
  const double size = std::min(1.0, 4.0 / static_cast<double>(n));
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = j; i < n; ++i) {
      factor[j * n + i] =
          i == j ? 1 : size * (0.3 + 0.1 * static_cast<double>((3 * i + 5 * j) % 7));
    }
  }
  factor[(n / 2) * n + n / 2] = pivot;
  return factor;
}

// The same with rows between 1e-3 and 1e3.
Matrix UnevenRows(int64_t n, double pivot) {
  Matrix factor = SmallPivot(n, pivot);
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = j; i < n; ++i) factor[j * n + i] *= std::pow(10.0, (i * 5) % 7 - 3.0);
  }
  return factor;
}

// L of D(i,j) = exp(-((i-j) / 2)^2 / 2) + jitter [i = j].
Matrix KernelFactor(int64_t n, double jitter) {
  std::vector<long double> d(n * n);
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < n; ++i) {
      const long double distance = static_cast<long double>(i - j) / 2;
      d[j * n + i] = std::exp(-distance * distance / 2) + (i == j ? jitter : 0);
    }
  }
  Matrix factor(n * n, 0.0);
  for (int64_t k = 0; k < n; ++k) {
    const long double pivot = std::sqrt(d[k * n + k]);
    for (int64_t i = k; i < n; ++i) d[k * n + i] /= pivot;
    for (int64_t j = k + 1; j < n; ++j) {
      for (int64_t i = j; i < n; ++i) d[j * n + i] -= d[k * n + i] * d[k * n + j];
    }
    for (int64_t i = k; i < n; ++i) factor[k * n + i] = static_cast<double>(d[k * n + i]);
  }
  return factor;
}

// a b', n x n.
Matrix TimesTranspose(const Matrix& a, const Matrix& b, int64_t n) {
  Matrix product(n * n);
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < n; ++i) {
      long double sum = 0;
      for (int64_t k = 0; k < n; ++k) sum += static_cast<long double>(a[k * n + i]) * b[k * n + j];
      product[j * n + i] = static_cast<double>(sum);
    }
  }
  return product;
}

}  // namespace

problems::Problem RepeatBlock(const std::vector<double>& factor, int64_t n, int64_t num_blocks) {
  problems::Problem problem;
  problem.num_blocks = num_blocks;
  problem.block_size = n;
  problem.num_rhs = 0;
  // A coupling L Q L' leaves L (I - Q inv(S) Q') L' of the next block, with S that of this one: Q
  // is small enough for all of them to stay close to the identity.
  Matrix small(n * n);
  for (int64_t k = 0; k < n * n; ++k) {
    small[k] = 0.1 / static_cast<double>(n) * (static_cast<double>(k * 7 % 5) - 1.5);
  }
  const Matrix block = TimesTranspose(factor, factor, n);
  const Matrix half = TimesTranspose(factor, small, n);
  const Matrix coupling = TimesTranspose(half, factor, n);
  for (int64_t k = 0; k < num_blocks; ++k) {
    problem.diagonal.insert(problem.diagonal.end(), block.begin(), block.end());
    if (k + 1 == num_blocks) break;
    problem.coupling.insert(problem.coupling.end(), coupling.begin(), coupling.end());
  }
  return problem;
}

std::vector<AdversarialCase> AdversarialCases(Scalar scalar, int64_t largest_block) {
  const bool fine = scalar == Scalar::kFloat64;
  std::vector<AdversarialCase> cases;
  const auto add = [&](const std::string& name, problems::Problem problem) {
    if (problem.block_size <= largest_block) cases.push_back({name, std::move(problem)});
  };
  const double pivot = fine ? 1.2345e-6 : 3e-3;
  add("three_rows", RepeatBlock({1, 1.0 / 3, 0.3, 0, pivot, 0.9, 0, 0, 0.7}, 3, 1));
  for (const int64_t n : {2, 5, 8, 13, 32, 64, 128, 200}) {
    if (n > largest_block) break;
    for (const int64_t num_blocks : {1, 4, 9}) {
      if (num_blocks == 9 && n > 32) continue;
      const std::string size = absl::StrCat("_n", n, "_N", num_blocks);
      add("small_pivot" + size, RepeatBlock(SmallPivot(n, pivot), n, num_blocks));
      add("uneven_rows" + size, RepeatBlock(UnevenRows(n, pivot), n, num_blocks));
      for (const double c : {0.05, 0.1, 0.2, 0.4}) {
        // (1 + c)^(2 n) is about the condition number of the block.
        const double digits = 2 * static_cast<double>(n) * std::log10(1 + c);
        if (digits > (fine ? 14 : 5)) continue;
        add(absl::StrCat("lower_ones_", c, size), RepeatBlock(LowerOnes(n, c), n, num_blocks));
      }
      for (const double jitter : {1e-10, 1e-8, 1e-3}) {
        if (!fine && jitter < 1e-4) continue;
        add(absl::StrCat("kernel_", jitter, size),
            RepeatBlock(KernelFactor(n, jitter), n, num_blocks));
      }
    }
  }
  return cases;
}

std::vector<double> Multiply(const BlockTridiagonalView& view, const std::vector<double>& x) {
  const int64_t n = view.shape().block_size, blocks = view.shape().num_blocks;
  const int64_t rows = n * blocks, columns = static_cast<int64_t>(x.size()) / rows;
  std::vector<long double> sum(x.size(), 0);
  const auto accumulate = [&](const Matrix& a, bool transpose, int64_t to, int64_t from) {
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t i = 0; i < n; ++i) {
          sum[c * rows + to * n + i] +=
              static_cast<long double>(a[transpose ? i * n + j : j * n + i]) *
              x[c * rows + from * n + j];
        }
      }
    }
  };
  for (int64_t k = 0; k < blocks; ++k) {
    accumulate(ReadDiagonal(view, k), false, k, k);
    if (k + 1 == blocks) continue;
    const Matrix coupling = ReadCoupling(view, k);
    accumulate(coupling, false, k + 1, k);
    accumulate(coupling, true, k, k + 1);
  }
  return {sum.begin(), sum.end()};
}

std::vector<double> SmoothColumns(int64_t rows) {
  std::vector<double> x(rows * kSmoothColumns);
  const std::vector<double> random = problems::RandomColumns(rows, 1, 7);
  for (int64_t i = 0; i < rows; ++i) {
    const double t = static_cast<double>(i + 1) / static_cast<double>(rows);
    x[i] = 1;
    x[rows + i] = 1.5 + std::sin(6 * t);
    x[2 * rows + i] = t;
    x[3 * rows + i] = random[i];
  }
  return x;
}

}  // namespace blockd::test
