// Matrices in host memory, in every form and scalar type that the engine takes.
#ifndef BLOCKD_TESTS_SUPPORT_HOST_MATRIX_H_
#define BLOCKD_TESTS_SUPPORT_HOST_MATRIX_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "blockd/engine/block_tridiagonal.h"
#include "engine/problems/problems.h"

namespace blockd::test {

struct FormOptions {
  DiagonalForm diagonal = DiagonalForm::kFull;
  CouplingForm coupling = CouplingForm::kSubdiagonal;
  // Stores each distinct block once. Needs a problem that has indices.
  bool palette = false;
};

// Owns the numbers that view() shows. Copyable; a view is good as long as the object that it came
// from is neither changed nor moved.
class HostMatrix {
 public:
  // `problem` in this form, rounded to `scalar`. The strict upper triangles of full diagonal blocks
  // hold NaN, so that whoever reads them is found out.
  HostMatrix(const problems::Problem& problem, Scalar scalar, const FormOptions& options = {});

  BlockTridiagonalView view() const;
  const Shape& shape() const { return form_.shape; }
  const MatrixForm& form() const { return form_; }

  // Scalar (row, column) of A(block, block), row >= column, as it is stored.
  double Diagonal(int64_t block, int64_t row, int64_t column) const;
  void SetDiagonal(int64_t block, int64_t row, int64_t column, double value);
  void SetCoupling(int64_t block, int64_t row, int64_t column, double value);  // as it is stored

  // Makes it an arrowhead, or another one, of `rows` rows: B' and C as the view has them.
  void SetBorder(int64_t rows, std::span<const double> border, std::span<const double> corner);
  std::vector<double> border() const;
  std::vector<double> corner() const;

 private:
  int64_t DiagonalPosition(int64_t block, int64_t row, int64_t column) const;

  MatrixForm form_;
  std::vector<std::byte> diagonal_;
  std::vector<std::byte> coupling_;
  std::vector<uint32_t> diagonal_index_;
  std::vector<uint32_t> coupling_index_;
  std::vector<std::byte> border_, corner_;
};

// Scalars as bytes, and back.
std::vector<std::byte> ToScalars(std::span<const double> values, Scalar scalar);
std::vector<double> ToDoubles(std::span<const std::byte> scalars, Scalar scalar);

// 2^-52 or 2^-23.
double Epsilon(Scalar scalar);

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SUPPORT_HOST_MATRIX_H_
