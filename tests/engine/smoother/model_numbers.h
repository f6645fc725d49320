// Matrices and random numbers of models.
#ifndef BLOCKD_TESTS_ENGINE_SMOOTHER_MODEL_NUMBERS_H_
#define BLOCKD_TESTS_ENGINE_SMOOTHER_MODEL_NUMBERS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace blockd::test {

inline constexpr double kGone = std::numeric_limits<double>::quiet_NaN();

using Numbers = std::vector<double>;

// Column-major of the rows as they are read.
inline Numbers Rows(int64_t columns, const Numbers& rows) {
  const int64_t count = std::ssize(rows) / columns;
  Numbers matrix(rows.size());
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; j < columns; ++j) matrix[j * count + i] = rows[i * columns + j];
  }
  return matrix;
}
inline Numbers Diagonal(const Numbers& diagonal) {
  const int64_t n = std::ssize(diagonal);
  Numbers matrix(static_cast<size_t>(n * n));
  for (int64_t i = 0; i < n; ++i) matrix[i * (n + 1)] = diagonal[i];
  return matrix;
}
inline Numbers Scaled(int64_t n, double scale) {
  return Diagonal(Numbers(static_cast<size_t>(n), scale));
}
// Numbers of 12 bits, so that sums of a few of their products are exact.
inline Numbers Short(Numbers numbers) {
  for (double& number : numbers) {
    int exponent = 0;
    const double share = std::frexp(number, &exponent);
    number = std::ldexp(std::nearbyint(std::ldexp(share, 12)), exponent - 12);
  }
  return numbers;
}
// B B' of n x rank, exactly for short numbers: then C has that rank.
inline Numbers Gram(int64_t n, const Numbers& b) {
  Numbers c(static_cast<size_t>(n * n));
  for (int64_t k = 0; k < std::ssize(b) / n; ++k) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < n; ++i) c[j * n + i] += b[k * n + i] * b[k * n + j];
    }
  }
  return c;
}

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed) {}
  double Normal() { return std::normal_distribution<double>()(random_); }
  double Uniform(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }
  int64_t Integer(int64_t low, int64_t high) {  // inclusive
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  bool Chance(double share) { return Uniform(0, 1) < share; }
  Numbers Normals(int64_t count, double scale = 1) {
    Numbers numbers(static_cast<size_t>(count));
    for (double& number : numbers) number = scale * Normal();
    return numbers;
  }
  // A walk with noise.
  Numbers Walk(int64_t steps) {
    Numbers y(static_cast<size_t>(steps));
    double level = 0;
    for (double& value : y) value = (level += Normal()) + Normal();
    return y;
  }
  // n x n, of about this spectral radius.
  Numbers Transition(int64_t n, double radius) {
    Numbers f = Normals(n * n);
    Numbers v(static_cast<size_t>(n), 1);
    double size = 1;
    for (int i = 0; i < 200; ++i) {  // powers: good enough
      Numbers w(static_cast<size_t>(n));
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t k = 0; k < n; ++k) w[k] += f[j * n + k] * v[j];
      }
      size = 0;
      for (const double x : w) size = std::max(size, std::fabs(x));
      for (double& x : w) x /= size;
      v = w;
    }
    for (double& x : f) x *= radius / size;
    return f;
  }

 private:
  std::mt19937_64 random_;
};

inline void Gap(Numbers& y, int64_t first, int64_t last) {
  std::fill(y.begin() + first, y.begin() + last, kGone);
}

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_ENGINE_SMOOTHER_MODEL_NUMBERS_H_
