// Dense matrices of a model's size: column-major doubles, lower triangles. Pure functions. Small
// matrices are looped over here, others go through BLAS and LAPACK.
#ifndef BLOCKD_ENGINE_SMOOTHER_DENSE_H_
#define BLOCKD_ENGINE_SMOOTHER_DENSE_H_

#include <cstdint>
#include <optional>

namespace blockd {

// A = L L' of the lower triangle, in place; the strict upper triangle becomes 0. The row at which A
// is singular to working precision: its pivot is at most n eps times its diagonal element.
std::optional<int64_t> Factorize(int64_t n, double* a);
double LogDeterminant(int64_t n, const double* l);
// L = inv(L), in place; what is above it stays. Its condition: the largest root of a row sum of
// (inv(L) o inv(L)) (L o L), o element by element: Skeel's, of squares. No scaling of rows of L
// changes it.
double InvertTriangle(int64_t n, double* l);

// B = U B, U' B of a lower triangle U; B is n x columns.
void MultiplyLower(int64_t n, const double* u, double* b, int64_t columns = 1);
void MultiplyLowerTransposed(int64_t n, const double* u, double* b, int64_t columns = 1);
// D = U' U, the lower triangle; the strict upper one becomes 0, as U's is.
void MultiplySquare(int64_t n, const double* u, double* d);

// D += W' W, the lower triangle; W is rows x n.
void AddGram(int64_t rows, int64_t n, const double* w, double* d);

// y += alpha A x and y += alpha A' x; A is rows x columns.
void AddProduct(int64_t rows, int64_t columns, double alpha, const double* a, const double* x,
                double* y);
void AddTransposedProduct(int64_t rows, int64_t columns, double alpha, const double* a,
                          const double* x, double* y);
// C = A B; A is rows x inner, B inner x columns.
void Multiply(int64_t rows, int64_t inner, int64_t columns, const double* a, const double* b,
              double* c);
double SumOfSquares(int64_t n, const double* x);

}  // namespace blockd

#endif  // BLOCKD_ENGINE_SMOOTHER_DENSE_H_
