#include "server/core/common/finite_scanner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "server/core/common/errors.h"

namespace blockd::server {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
absl::Status GoOn() { return absl::OkStatus(); }

MatrixForm Form(DiagonalForm diagonal, Scalar scalar = Scalar::kFloat64) {
  MatrixForm form;
  form.shape = {3, 2, scalar};
  form.diagonal = diagonal;
  return form;
}

template <typename T>
absl::Status ScanIn(const MatrixForm& form, const std::vector<T>& scalars, size_t chunk) {
  FiniteScanner scanner(form, 5);
  std::span<const std::byte> bytes = std::as_bytes(std::span(scalars));
  while (!bytes.empty()) {
    const size_t size = std::min(chunk, bytes.size());
    absl::Status status = scanner.Scan(bytes.first(size));
    if (!status.ok()) return status;
    bytes = bytes.subspan(size);
  }
  return absl::OkStatus();
}

TEST(FiniteScannerTest, FiniteNumbersPassHoweverTheyAreCut) {
  const std::vector<double> scalars(20, std::numeric_limits<double>::max());
  for (const size_t chunk : {1u, 3u, 8u, 13u, 160u}) {
    EXPECT_TRUE(ScanIn(Form(DiagonalForm::kFull), scalars, chunk).ok()) << chunk;
  }
}

TEST(FiniteScannerTest, NamesThePlaceHoweverItIsCut) {
  for (const size_t chunk : {1u, 3u, 8u, 13u, 160u}) {
    std::vector<double> scalars(20, 1.0);
    scalars[4 + 3] = -std::numeric_limits<double>::infinity();
    auto detail = InvalidFieldOf(ScanIn(Form(DiagonalForm::kFull), scalars, chunk));
    ASSERT_TRUE(detail.has_value()) << chunk;
    EXPECT_EQ(detail->field, "system[5].diagonal");
    EXPECT_EQ(detail->came, "NaN or infinity in block 1, row 1, column 1");

    scalars[4 + 3] = 1;
    scalars[12 + 4 + 1] = kNan;
    detail = InvalidFieldOf(ScanIn(Form(DiagonalForm::kFull), scalars, chunk));
    ASSERT_TRUE(detail.has_value()) << chunk;
    EXPECT_EQ(detail->field, "system[5].coupling");
    EXPECT_EQ(detail->came, "NaN or infinity in block 1, row 1, column 0");
  }
}

TEST(FiniteScannerTest, TheStrictUpperTriangleIsNotRead) {
  std::vector<double> scalars(20, 1.0);
  scalars[2] = scalars[6] = scalars[10] = kNan;  // row 0, column 1
  EXPECT_TRUE(ScanIn(Form(DiagonalForm::kFull), scalars, 7).ok());
  scalars[12 + 2] = kNan;  // but that of a coupling block is
  EXPECT_FALSE(ScanIn(Form(DiagonalForm::kFull), scalars, 7).ok());
}

TEST(FiniteScannerTest, PackedTrianglesAndSinglePrecision) {
  std::vector<float> scalars(9 + 8, 1.0f);
  scalars[3 + 2] = std::nanf("");
  const auto detail =
      InvalidFieldOf(ScanIn(Form(DiagonalForm::kPackedLower, Scalar::kFloat32), scalars, 5));
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->came, "NaN or infinity in block 1, row 1, column 1");
}

TEST(FiniteScannerTest, EachPlaceOfAPackedBlockIsNamed) {
  MatrixForm form = Form(DiagonalForm::kPackedLower);
  form.shape.block_size = 4;
  size_t at = 10;  // the second of three blocks of 10
  for (int column = 0; column < 4; ++column) {
    for (int row = column; row < 4; ++row, ++at) {
      std::vector<double> scalars(3 * 10 + 2 * 16, 1.0);
      scalars[at] = kNan;
      const auto detail = InvalidFieldOf(ScanIn(form, scalars, 24));
      ASSERT_TRUE(detail.has_value());
      EXPECT_EQ(detail->came, "NaN or infinity in block 1, row " + std::to_string(row) +
                                  ", column " + std::to_string(column));
    }
  }
}

TEST(FiniteScannerTest, LooksBehindThePlacesThatAreNotRead) {
  std::vector<double> scalars(20, 1.0);
  scalars[2] = scalars[3] = kNan;  // the first is in the upper triangle
  EXPECT_EQ(InvalidFieldOf(ScanIn(Form(DiagonalForm::kFull), scalars, 160))->came,
            "NaN or infinity in block 0, row 1, column 1");
}

TEST(FiniteScannerTest, FindsTheLastOfManyAndTheFirstOfTwo) {
  MatrixForm form = Form(DiagonalForm::kFull);
  form.shape = {1, 100, Scalar::kFloat64};
  for (const size_t place : {size_t{0}, size_t{4095}, size_t{4099}, size_t{8199}, size_t{9999}}) {
    std::vector<double> scalars(100 * 100, 1.0);
    scalars[place] = scalars[9999] = kNan;
    const auto detail = InvalidFieldOf(ScanIn(form, scalars, scalars.size() * 8));
    ASSERT_TRUE(detail.has_value()) << place;
    EXPECT_EQ(detail->came, "NaN or infinity in block 0, row " + std::to_string(place % 100) +
                                ", column " + std::to_string(place / 100));
  }
}

TEST(FiniteScannerTest, MayBeginAtABlock) {
  const std::vector<double> block = {1, kNan, 3, 4};
  const std::span<const std::byte> bytes = std::as_bytes(std::span(block));
  const MatrixForm form = Form(DiagonalForm::kFull);
  auto detail = InvalidFieldOf(FiniteScanner::AtBlock(form, 3, true, 2).Scan(bytes));
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->field, "system[3].diagonal");
  EXPECT_EQ(detail->came, "NaN or infinity in block 2, row 1, column 0");
  detail = InvalidFieldOf(FiniteScanner::AtBlock(form, 3, false, 1).Scan(bytes));
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->field, "system[3].coupling");
  EXPECT_EQ(detail->came, "NaN or infinity in block 1, row 1, column 0");
}

TEST(FiniteScannerTest, RightHandSidesNameTheRowAndTheColumn) {
  std::vector<double> rhs(3 * 5000, 1.0);
  const auto check = [&rhs] {
    return CheckFiniteRhs(Scalar::kFloat64, 5000, std::as_bytes(std::span(rhs)), GoOn);
  };
  EXPECT_TRUE(check().ok());
  rhs[2 * 5000 + 4999] = kNan;
  const auto detail = InvalidFieldOf(check());
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->field, "rhs");
  EXPECT_EQ(detail->came, "NaN or infinity in row 4999, right-hand side 2");
  const std::vector<float> single = {1, 2, 3, -std::numeric_limits<float>::infinity()};
  EXPECT_EQ(
      InvalidFieldOf(CheckFiniteRhs(Scalar::kFloat32, 2, std::as_bytes(std::span(single)), GoOn))
          ->came,
      "NaN or infinity in row 1, right-hand side 1");
}

// Ten pieces, whatever they are of, and NaN in the last one.
TEST(FiniteScannerTest, ALongLookEndsWhenNobodyWaitsForIt) {
  MatrixForm form;
  form.shape = {1, 0, Scalar::kFloat64};
  while (form.bytes() < static_cast<int64_t>(9 * kScanBytes)) ++form.shape.block_size;
  std::vector<double> scalars(static_cast<size_t>(form.bytes()) / 8, 1.0);
  scalars.back() = kNan;
  BlockTridiagonalView matrix{.form = form};
  matrix.SetParts(reinterpret_cast<const std::byte*>(scalars.data()));
  const std::span<const std::byte> rhs = std::as_bytes(std::span(scalars));
  for (const int last : {0, 1, 5, 10}) {
    int asked = 0;
    const auto may_go_on = [&] {
      return ++asked > last ? absl::CancelledError("") : absl::OkStatus();
    };
    const auto expected =
        last < 10 ? absl::StatusCode::kCancelled : absl::StatusCode::kInvalidArgument;
    EXPECT_EQ(CheckFiniteRhs(Scalar::kFloat64, form.shape.block_size, rhs, may_go_on).code(),
              expected);
    EXPECT_EQ(asked, std::min(last + 1, 10));
    asked = 0;
    EXPECT_EQ(CheckFiniteMatrix(matrix, 0, may_go_on).code(), expected);
    EXPECT_EQ(asked, std::min(last + 1, 10));
  }
}

}  // namespace
}  // namespace blockd::server
