// Problems that come up in practice, as dense blocks: what `blockctl demo` and `blockctl bench`
// send, and what the tests and benchmarks measure with.
//
// Every generator is a pure function of its arguments: the same seed gives the same numbers. Blocks
// are column-major, one after another; functions may be called from any thread. Arguments are the
// programmer's: sizes must be >= 1 and fit in memory.
#ifndef BLOCKD_ENGINE_PROBLEMS_PROBLEMS_H_
#define BLOCKD_ENGINE_PROBLEMS_PROBLEMS_H_

#include <cstdint>
#include <span>
#include <vector>

namespace blockd::problems {

// A X = B, with A symmetric positive definite and block tridiagonal.
struct Problem {
  int64_t num_blocks = 0;        // N
  int64_t block_size = 0;        // n
  std::vector<double> diagonal;  // N blocks A(i,i), n*n each, both triangles filled
  std::vector<double> coupling;  // N-1 blocks A(i+1,i), n*n each
  int64_t num_rhs = 1;           // d
  std::vector<double> rhs;       // B: N*n x d, column-major

  // Where these are not empty, `diagonal` and `coupling` hold each distinct block once, and entry i
  // says which one stands in block row i (the palette form).
  std::vector<uint32_t> diagonal_index;  // N entries, or none
  std::vector<uint32_t> coupling_index;  // N-1 entries, or none

  int64_t rows() const { return num_blocks * block_size; }
  const double* DiagonalBlock(int64_t i) const;
  const double* CouplingBlock(int64_t i) const;  // A(i+1,i)
};

// The same problem with every block written out.
Problem Expand(const Problem& problem);

// A x for `columns` columns of x, column-major N*n x columns.
std::vector<double> Multiply(const Problem& problem, std::span<const double> x, int64_t columns);

// The largest backward error ||b - A x|| / (||A|| ||x|| + ||b||) of the columns, infinity norms.
double BackwardError(const Problem& problem, std::span<const double> x, std::span<const double> b,
                     int64_t columns);

// Fixed-interval smoothing of x(k+1) = F x(k) + w, y(k) = H x(k) + v, in information form: the rows
// of A are the normal equations of all N states, and each right-hand side is one simulated sequence
// of observations, H' y(k) / r^2.
struct KalmanOptions {
  int64_t states = 256;            // n
  int64_t observations = 1024;     // m, the rows of H
  int64_t steps = 100;             // N
  int64_t num_rhs = 1;             // d, sequences of observations
  double rho = 0.98;               // F = rho * an orthogonal matrix, so its spectral radius is rho
  double process_noise = 0.2;      // standard deviation q of each entry of w
  double observation_noise = 1.0;  // standard deviation r of each entry of v
  uint64_t seed = 1;
};
Problem Kalman(const KalmanOptions& options);
// The same in the palette form: the model does not change with time, so that two diagonal blocks
// and one coupling block are all there is.
Problem KalmanPalette(const KalmanOptions& options);

// The Schur complement that an interior-point step of linear model predictive control factors:
// A(i,i) = F(i) inv(Q(i)) F(i)' + G(i) inv(R(i)) G(i)' + inv(Q(i+1)) over N steps of n states, with
// the weights spread over four decades as a barrier's are.
Problem Mpc(int64_t num_blocks, int64_t block_size, uint64_t seed);

// The five-point Laplacian on an N x n grid, Dirichlet, with a constant source.
Problem Poisson(int64_t num_blocks, int64_t block_size);

// Dense random blocks. The 2-norm condition number of A is `condition` to within a few percent (it
// is 1 where N = n = 1).
Problem RandomSpd(int64_t num_blocks, int64_t block_size, uint64_t seed, double condition);

// Smoothing of a local level: y(t) = level(t) + e, level(t+1) = level(t) + w, with n = 1 and a
// diffuse first level. The solution is the smoothed level, and inv(A)(t,t) its variance.
Problem LocalLevel(std::span<const double> values, double observation_variance,
                   double level_variance);

// Standard normal numbers, column-major `rows` x `columns`: right-hand sides where none are
// natural.
std::vector<double> RandomColumns(int64_t rows, int64_t columns, uint64_t seed);

}  // namespace blockd::problems

#endif  // BLOCKD_ENGINE_PROBLEMS_PROBLEMS_H_
