#include "engine/problems/problems.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace blockd::problems {
namespace {

// Normal numbers by the polar method: std::normal_distribution differs between standard libraries.
class Normal {
 public:
  explicit Normal(uint64_t seed) : engine_(seed) {}

  double operator()() {
    if (spare_valid_) {
      spare_valid_ = false;
      return spare_;
    }
    double u, v, s;
    do {
      u = 2 * Uniform() - 1;
      v = 2 * Uniform() - 1;
      s = u * u + v * v;
    } while (s >= 1 || s == 0);
    const double scale = std::sqrt(-2 * std::log(s) / s);
    spare_ = v * scale;
    spare_valid_ = true;
    return u * scale;
  }
  double Uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  std::vector<double> Draw(int64_t count, double deviation) {
    std::vector<double> out(count);
    for (double& x : out) x = deviation * (*this)();
    return out;
  }

 private:
  std::mt19937_64 engine_;
  double spare_ = 0;
  bool spare_valid_ = false;
};

// c (m x n) = alpha * op(a) op(b) + beta * c, the inner dimension being k.
void Gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int64_t m, int64_t n, int64_t k, double alpha,
          const double* a, const double* b, double beta, double* c) {
  const int lda = static_cast<int>(ta == CblasNoTrans ? m : k);
  const int ldb = static_cast<int>(tb == CblasNoTrans ? k : n);
  cblas_dgemm(CblasColMajor, ta, tb, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k),
              alpha, a, lda, b, ldb, beta, c, static_cast<int>(m));
}

void AddToDiagonal(int64_t n, double value, double* block) {
  for (int64_t i = 0; i < n; ++i) block[i * n + i] += value;
}

// Rounding may leave the two triangles of a product unequal in the last bit.
void Symmetrize(int64_t n, double* block) {
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = j + 1; i < n; ++i) block[i * n + j] = block[j * n + i];
  }
}

// `scale` times the product of two Householder reflections: dense, orthogonal, cheap.
std::vector<double> ScaledOrthogonal(int64_t n, double scale, Normal& normal) {
  std::vector<double> f(n * n);
  AddToDiagonal(n, scale, f.data());
  for (int reflection = 0; reflection < 2; ++reflection) {
    const std::vector<double> v = normal.Draw(n, 1.0);
    const double vv = cblas_ddot(static_cast<int>(n), v.data(), 1, v.data(), 1);
    std::vector<double> row(n);
    Gemm(CblasTrans, CblasNoTrans, 1, n, n, 1.0, v.data(), f.data(), 0.0, row.data());
    Gemm(CblasNoTrans, CblasNoTrans, n, n, 1, -2.0 / vv, v.data(), row.data(), 1.0, f.data());
  }
  return f;
}

// The states of one simulated run, n x N.
std::vector<double> SimulateStates(const KalmanOptions& o, const std::vector<double>& f,
                                   Normal& normal) {
  const int64_t n = o.states;
  std::vector<double> x = normal.Draw(n * o.steps, o.process_noise);
  // The stationary distribution, whose covariance is q^2 / (1 - rho^2) I.
  const double stationary = 1 / std::sqrt(1 - o.rho * o.rho);
  for (int64_t i = 0; i < n; ++i) x[i] *= stationary;
  for (int64_t k = 1; k < o.steps; ++k) {
    Gemm(CblasNoTrans, CblasNoTrans, n, 1, n, 1.0, f.data(), &x[(k - 1) * n], 1.0, &x[k * n]);
  }
  return x;
}

// ||A||, the infinity norm.
double Norm(const Problem& p) {
  const int64_t n = p.block_size;
  std::vector<double> sums(p.rows());
  for (int64_t i = 0; i < p.num_blocks; ++i) {
    const double* diagonal = p.DiagonalBlock(i);
    const double* coupling = i + 1 < p.num_blocks ? p.CouplingBlock(i) : nullptr;
    for (int64_t c = 0; c < n; ++c) {
      for (int64_t r = 0; r < n; ++r) {
        sums[i * n + r] += std::abs(diagonal[c * n + r]);
        if (coupling == nullptr) continue;
        sums[(i + 1) * n + r] += std::abs(coupling[c * n + r]);
        sums[i * n + c] += std::abs(coupling[c * n + r]);
      }
    }
  }
  return *std::max_element(sums.begin(), sums.end());
}

// The largest eigenvalue of A, by power iteration.
double LargestEigenvalue(const Problem& p, uint64_t seed) {
  std::vector<double> x = RandomColumns(p.rows(), 1, seed);
  double eigenvalue = 0;
  for (int step = 0; step < 100; ++step) {
    const double norm = cblas_dnrm2(static_cast<int>(x.size()), x.data(), 1);
    if (norm == 0) return 0;
    for (double& v : x) v /= norm;
    x = Multiply(p, x, 1);
    eigenvalue = cblas_dnrm2(static_cast<int>(x.size()), x.data(), 1);
  }
  return eigenvalue;
}

}  // namespace

const double* Problem::DiagonalBlock(int64_t i) const {
  const int64_t stored = diagonal_index.empty() ? i : diagonal_index[i];
  return diagonal.data() + stored * block_size * block_size;
}

const double* Problem::CouplingBlock(int64_t i) const {
  const int64_t stored = coupling_index.empty() ? i : coupling_index[i];
  return coupling.data() + stored * block_size * block_size;
}

Problem Expand(const Problem& problem) {
  Problem out;
  out.num_blocks = problem.num_blocks;
  out.block_size = problem.block_size;
  out.num_rhs = problem.num_rhs;
  out.rhs = problem.rhs;
  const int64_t scalars = problem.block_size * problem.block_size;
  out.diagonal.reserve(problem.num_blocks * scalars);
  out.coupling.reserve((problem.num_blocks - 1) * scalars);
  for (int64_t i = 0; i < problem.num_blocks; ++i) {
    const double* block = problem.DiagonalBlock(i);
    out.diagonal.insert(out.diagonal.end(), block, block + scalars);
  }
  for (int64_t i = 0; i + 1 < problem.num_blocks; ++i) {
    const double* block = problem.CouplingBlock(i);
    out.coupling.insert(out.coupling.end(), block, block + scalars);
  }
  return out;
}

std::vector<double> Multiply(const Problem& p, std::span<const double> x, int64_t columns) {
  const int64_t n = p.block_size;
  const int64_t rows = p.rows();
  std::vector<double> y(rows * columns);
  const auto accumulate = [&](CBLAS_TRANSPOSE op, const double* block, int64_t from, int64_t to) {
    cblas_dgemm(CblasColMajor, op, CblasNoTrans, static_cast<int>(n), static_cast<int>(columns),
                static_cast<int>(n), 1.0, block, static_cast<int>(n), x.data() + from * n,
                static_cast<int>(rows), 1.0, y.data() + to * n, static_cast<int>(rows));
  };
  for (int64_t i = 0; i < p.num_blocks; ++i) {
    accumulate(CblasNoTrans, p.DiagonalBlock(i), i, i);
    if (i + 1 == p.num_blocks) break;
    accumulate(CblasNoTrans, p.CouplingBlock(i), i, i + 1);
    accumulate(CblasTrans, p.CouplingBlock(i), i + 1, i);
  }
  return y;
}

double BackwardError(const Problem& problem, std::span<const double> x, std::span<const double> b,
                     int64_t columns) {
  const int64_t rows = problem.rows();
  const std::vector<double> ax = Multiply(problem, x, columns);
  const double a_norm = Norm(problem);
  double worst = 0;
  for (int64_t c = 0; c < columns; ++c) {
    double r_norm = 0, x_norm = 0, b_norm = 0;
    for (int64_t i = c * rows; i < (c + 1) * rows; ++i) {
      const double r = std::abs(b[i] - ax[i]);
      if (std::isnan(r)) return r;
      r_norm = std::max(r_norm, r);
      x_norm = std::max(x_norm, std::abs(x[i]));
      b_norm = std::max(b_norm, std::abs(b[i]));
    }
    if (r_norm > 0) worst = std::max(worst, r_norm / (a_norm * x_norm + b_norm));
  }
  return worst;
}

Problem KalmanPalette(const KalmanOptions& o) {
  const int64_t n = o.states, m = o.observations, steps = o.steps;
  Normal normal(o.seed);
  const std::vector<double> f = ScaledOrthogonal(n, o.rho, normal);
  const std::vector<double> h = normal.Draw(m * n, 1 / std::sqrt(static_cast<double>(n)));
  const double process_precision = 1 / (o.process_noise * o.process_noise);
  const double observation_precision = 1 / (o.observation_noise * o.observation_noise);

  Problem p;
  p.num_blocks = steps;
  p.block_size = n;
  p.num_rhs = o.num_rhs;
  // Interior: H'H / r^2 + I / q^2 + F'F / q^2, and F'F = rho^2 I. The first block has the
  // stationary prior (1 - rho^2) I / q^2 in place of I / q^2, and the last no F'F: both come to H'H
  // / r^2 + I / q^2.
  std::vector<double> end(n * n);
  Gemm(CblasTrans, CblasNoTrans, n, n, m, observation_precision, h.data(), h.data(), 0.0,
       end.data());
  Symmetrize(n, end.data());
  AddToDiagonal(n, process_precision, end.data());
  p.diagonal = end;
  if (steps > 2) {
    p.diagonal.insert(p.diagonal.end(), end.begin(), end.end());
    AddToDiagonal(n, o.rho * o.rho * process_precision, &p.diagonal[n * n]);
  }
  p.diagonal_index.assign(steps, 1);
  p.diagonal_index.front() = p.diagonal_index.back() = 0;
  if (steps > 1) {
    p.coupling = f;
    for (double& x : p.coupling) x *= -process_precision;
    p.coupling_index.assign(steps - 1, 0);
  } else {
    AddToDiagonal(n, -o.rho * o.rho * process_precision, p.diagonal.data());
  }

  p.rhs.resize(p.rows() * o.num_rhs);
  for (int64_t c = 0; c < o.num_rhs; ++c) {
    const std::vector<double> x = SimulateStates(o, f, normal);
    std::vector<double> y = normal.Draw(m * steps, o.observation_noise);
    Gemm(CblasNoTrans, CblasNoTrans, m, steps, n, 1.0, h.data(), x.data(), 1.0, y.data());
    Gemm(CblasTrans, CblasNoTrans, n, steps, m, observation_precision, h.data(), y.data(), 0.0,
         &p.rhs[c * p.rows()]);
  }
  return p;
}

Problem Kalman(const KalmanOptions& options) { return Expand(KalmanPalette(options)); }

Problem Mpc(int64_t num_blocks, int64_t block_size, uint64_t seed) {
  const int64_t n = block_size;
  const int64_t inputs = n / 4 + 1;
  Normal normal(seed);
  // inv(Q) or inv(R): a diagonal spread over four decades.
  const auto weights = [&](int64_t count) {
    std::vector<double> w(count);
    for (double& x : w) x = std::pow(10.0, 4 * normal.Uniform() - 2);
    return w;
  };
  // block += m diag(w) m' for an n x k matrix m.
  const auto add_square = [&](const std::vector<double>& matrix, const std::vector<double>& w,
                              double* block) {
    std::vector<double> scaled = matrix;
    for (size_t j = 0; j < w.size(); ++j) {
      cblas_dscal(static_cast<int>(n), w[j], &scaled[j * n], 1);
    }
    Gemm(CblasNoTrans, CblasTrans, n, n, static_cast<int64_t>(w.size()), 1.0, scaled.data(),
         matrix.data(), 1.0, block);
  };

  Problem p;
  p.num_blocks = num_blocks;
  p.block_size = n;
  p.diagonal.resize(num_blocks * n * n);
  p.coupling.resize((num_blocks - 1) * n * n);
  const std::vector<double> f = ScaledOrthogonal(n, 0.99, normal);
  const std::vector<double> g = normal.Draw(n * inputs, 1 / std::sqrt(static_cast<double>(n)));
  std::vector<double> q;  // inv(Q(i)); the first state is given, so that block 0 has none
  for (int64_t i = 0; i < num_blocks; ++i) {
    double* block = &p.diagonal[i * n * n];
    if (i > 0) {
      add_square(f, q, block);
      double* coupling = &p.coupling[(i - 1) * n * n];  // A(i,i-1) = -F inv(Q(i))
      for (int64_t j = 0; j < n * n; ++j) coupling[j] = -f[j] * q[j / n];
    }
    add_square(g, weights(inputs), block);
    q = weights(n);
    for (int64_t j = 0; j < n; ++j) block[j * n + j] += q[j];
    Symmetrize(n, block);
  }
  p.rhs = normal.Draw(p.rows(), 1.0);
  return p;
}

Problem Poisson(int64_t num_blocks, int64_t block_size) {
  const int64_t n = block_size;
  Problem p;
  p.num_blocks = num_blocks;
  p.block_size = n;
  p.diagonal.resize(num_blocks * n * n);
  p.coupling.resize((num_blocks - 1) * n * n);
  for (int64_t i = 0; i < num_blocks; ++i) {
    double* block = &p.diagonal[i * n * n];
    AddToDiagonal(n, 4, block);
    for (int64_t j = 0; j + 1 < n; ++j) block[j * n + j + 1] = block[(j + 1) * n + j] = -1;
    if (i + 1 < num_blocks) AddToDiagonal(n, -1, &p.coupling[i * n * n]);
  }
  p.rhs.assign(p.rows(), 1.0);
  return p;
}

Problem RandomSpd(int64_t num_blocks, int64_t block_size, uint64_t seed, double condition) {
  const int64_t n = block_size;
  Normal normal(seed);
  Problem p;
  p.num_blocks = num_blocks;
  p.block_size = n;
  p.diagonal.resize(num_blocks * n * n);
  p.coupling.resize((num_blocks - 1) * n * n);
  // T = E'E, where block row i of E is P(i) x(i) - P(i+1) x(i+1): T is singular, because all P(i)
  // x(i) may be equal. So the smallest eigenvalue of A = T + delta I is delta.
  const auto draw = [&] {
    std::vector<double> block = normal.Draw(n * n, 1 / std::sqrt(static_cast<double>(n)));
    AddToDiagonal(n, 1, block.data());
    return block;
  };
  std::vector<double> current = draw();
  // Alone, one block is made singular by a zero row of P.
  if (num_blocks == 1) cblas_dscal(static_cast<int>(n), 0.0, current.data(), static_cast<int>(n));
  for (int64_t i = 0; i < num_blocks; ++i) {
    const bool has_two_neighbours = i > 0 && i + 1 < num_blocks;
    double* block = &p.diagonal[i * n * n];
    Gemm(CblasTrans, CblasNoTrans, n, n, n, has_two_neighbours ? 2.0 : 1.0, current.data(),
         current.data(), 0.0, block);
    Symmetrize(n, block);
    if (i + 1 == num_blocks) break;
    const std::vector<double> next = draw();
    Gemm(CblasTrans, CblasNoTrans, n, n, n, -1.0, next.data(), current.data(), 0.0,
         &p.coupling[i * n * n]);
    current = next;
  }
  const double largest = LargestEigenvalue(p, seed + 1);
  const double delta = largest > 0 ? largest / std::max(condition - 1, 1e-3) : 1.0;
  for (int64_t i = 0; i < num_blocks; ++i) AddToDiagonal(n, delta, &p.diagonal[i * n * n]);
  p.rhs = normal.Draw(p.rows(), 1.0);
  return p;
}

Problem LocalLevel(std::span<const double> values, double observation_variance,
                   double level_variance) {
  Problem p;
  p.num_blocks = static_cast<int64_t>(values.size());
  p.block_size = 1;
  const double precision = 1 / level_variance;
  for (size_t t = 0; t < values.size(); ++t) {
    const int neighbours = (t > 0) + (t + 1 < values.size());
    p.diagonal.push_back(1 / observation_variance + neighbours * precision);
    if (t > 0) p.coupling.push_back(-precision);
    p.rhs.push_back(values[t] / observation_variance);
  }
  return p;
}

std::vector<double> RandomColumns(int64_t rows, int64_t columns, uint64_t seed) {
  return Normal(seed).Draw(rows * columns, 1.0);
}

}  // namespace blockd::problems
