// Dense matrices of a model's size: column-major doubles, Cholesky factors lower. Pure functions.
// What is so small that a call of BLAS or LAPACK costs more than its work is looped over here.
#ifndef BLOCKD_SERVER_CORE_SMOOTHER_DENSE_H_
#define BLOCKD_SERVER_CORE_SMOOTHER_DENSE_H_

#include <cstdint>
#include <optional>

namespace blockd::server {

// A = L L' of the lower triangle, in place; the strict upper triangle becomes 0. The row at which A
// is singular to working precision: its pivot is at most n eps times its diagonal element.
std::optional<int64_t> Factorize(int64_t n, double* a);
double LogDeterminant(int64_t n, const double* l);
// D = inv(L L'), the lower triangle; the strict upper one becomes 0.
void InvertFactored(int64_t n, const double* l, double* d);

// B = inv(L) B, inv(L)' B; B is n x columns.
void SolveLower(int64_t n, const double* l, double* b, int64_t columns);
void SolveLowerTransposed(int64_t n, const double* l, double* b, int64_t columns);
// The same for one vector.
void SolveLower(int64_t n, const double* l, double* b);
void SolveLowerTransposed(int64_t n, const double* l, double* b);

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

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_SMOOTHER_DENSE_H_
