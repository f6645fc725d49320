#include "blockd/engine/block_tridiagonal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/host_matrix.h"

namespace blockd {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kTwoTo62 = int64_t{1} << 62;

void ExpectRefused(const absl::Status& status, const std::string& part) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(part));
}

TEST(CheckedArithmeticTest, GivesResultsUpToTwoTo62) {
  EXPECT_EQ(*CheckedProduct(0, kMost), 0);
  EXPECT_EQ(*CheckedProduct(int64_t{1} << 31, int64_t{1} << 31), kTwoTo62);
  EXPECT_EQ(*CheckedProduct(1, kTwoTo62), kTwoTo62);
  EXPECT_EQ(*CheckedSum(0, 0), 0);
  EXPECT_EQ(*CheckedSum(kTwoTo62 - 1, 1), kTwoTo62);
}

TEST(CheckedArithmeticTest, RefusesWhatExceedsTwoTo62) {
  for (const auto& [a, b] : std::vector<std::pair<int64_t, int64_t>>{
           {kTwoTo62, 2}, {kMost, kMost}, {(int64_t{1} << 31) + 1, int64_t{1} << 31}, {1, kMost}}) {
    EXPECT_EQ(CheckedProduct(a, b).status().code(), absl::StatusCode::kOutOfRange) << a << " " << b;
    EXPECT_EQ(CheckedProduct(b, a).status().code(), absl::StatusCode::kOutOfRange) << b << " " << a;
  }
  EXPECT_EQ(CheckedSum(kTwoTo62, 1).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(CheckedSum(kMost, kMost).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(ShapeTest, AcceptsEverySizeUpToTheLimits) {
  EXPECT_TRUE(CheckShape({1, 1, Scalar::kFloat64}).ok());
  EXPECT_TRUE(CheckShape({kMaxRows, 1, Scalar::kFloat64}).ok());
  EXPECT_TRUE(CheckShape({1, kMaxBlockSize, Scalar::kFloat32}).ok());
  EXPECT_TRUE(CheckShape({kMaxRows / kMaxBlockSize, kMaxBlockSize, Scalar::kFloat64}).ok());
}

TEST(ShapeTest, RefusesSizesBelowOne) {
  ExpectRefused(CheckShape({0, 1, Scalar::kFloat64}), "num_blocks");
  ExpectRefused(CheckShape({-1, 1, Scalar::kFloat64}), "num_blocks");
  ExpectRefused(CheckShape({std::numeric_limits<int64_t>::min(), 1, Scalar::kFloat64}),
                "num_blocks");
  ExpectRefused(CheckShape({1, 0, Scalar::kFloat64}), "block_size");
  ExpectRefused(CheckShape({1, -7, Scalar::kFloat64}), "block_size");
}

TEST(ShapeTest, RefusesSizesAboveTheLimits) {
  ExpectRefused(CheckShape({kMaxRows + 1, 1, Scalar::kFloat64}), "num_blocks");
  ExpectRefused(CheckShape({kMost, kMost, Scalar::kFloat64}), "num_blocks");
  ExpectRefused(CheckShape({1, kMaxBlockSize + 1, Scalar::kFloat64}), "block_size");
  ExpectRefused(CheckShape({1, kMost, Scalar::kFloat64}), "block_size");
  ExpectRefused(CheckShape({kMaxRows / 2 + 1, 2, Scalar::kFloat64}), "num_blocks");
  ExpectRefused(CheckShape({kMaxRows, kMaxBlockSize, Scalar::kFloat64}), "num_blocks");
}

TEST(ShapeTest, SaysWhatItIs) {
  EXPECT_EQ(ToString(Shape{100, 256, Scalar::kFloat64}), "N=100 n=256 float64");
  EXPECT_EQ(ToString(Shape{1, 2, Scalar::kFloat32}), "N=1 n=2 float32");
}

TEST(MatrixFormTest, CountsItsBytes) {
  MatrixForm form;
  form.shape = {10, 3, Scalar::kFloat64};
  EXPECT_EQ(form.diagonal_bytes(), 10 * 9 * 8);
  EXPECT_EQ(form.coupling_bytes(), 9 * 9 * 8);
  EXPECT_EQ(form.bytes(), 19 * 9 * 8);
  form.diagonal = DiagonalForm::kPackedLower;
  form.shape.scalar = Scalar::kFloat32;
  EXPECT_EQ(form.diagonal_bytes(), 10 * 6 * 4);
  form.diagonal_palette = 2;
  form.coupling_palette = 1;
  EXPECT_EQ(form.diagonal_bytes(), 2 * 6 * 4);
  EXPECT_EQ(form.coupling_bytes(), 9 * 4);
  form = MatrixForm{.shape = {1, 5, Scalar::kFloat64}};
  EXPECT_EQ(form.coupling_bytes(), 0);
}

TEST(MatrixFormTest, HoldsTheBytesOfTheLargestShape) {
  MatrixForm form;
  form.shape = {kMaxRows / kMaxBlockSize, kMaxBlockSize, Scalar::kFloat64};
  ASSERT_TRUE(CheckForm(form).ok());
  EXPECT_EQ(form.diagonal_bytes(), int64_t{1} << 58);
  EXPECT_LT(form.bytes(), kTwoTo62);
}

TEST(MatrixFormTest, RefusesPalettesThatAreTooLong) {
  MatrixForm form;
  form.shape = {1 << 20, 1, Scalar::kFloat64};
  form.diagonal_palette = -1;
  ExpectRefused(CheckForm(form), "diagonal_palette");
  form.diagonal_palette = kMost;
  ExpectRefused(CheckForm(form), "diagonal_palette");
  form.diagonal_palette = (int64_t{1} << 31) + 1;
  ExpectRefused(CheckForm(form), "diagonal_palette");
  form.diagonal_palette = 1;
  EXPECT_TRUE(CheckForm(form).ok());
  form.coupling_palette = -1;
  ExpectRefused(CheckForm(form), "coupling_palette");
  form.coupling_palette = kMost;
  ExpectRefused(CheckForm(form), "coupling_palette");
  form.coupling_palette = 1;
  EXPECT_TRUE(CheckForm(form).ok());
  // As many as there are blocks, and no more.
  form.shape.num_blocks = 5;
  form.diagonal_palette = 5;
  form.coupling_palette = 4;
  EXPECT_TRUE(CheckForm(form).ok());
  form.diagonal_palette = 6;
  ExpectRefused(CheckForm(form), "diagonal_palette is 6, expected 0 to 5");
  form.diagonal_palette = 5;
  form.coupling_palette = 5;
  ExpectRefused(CheckForm(form), "coupling_palette is 5, expected 0 to 4");
}

// The two palettes of this one have 2 diagonal blocks and 1 coupling block.
problems::Problem Palette() {
  return problems::KalmanPalette({.states = 3, .observations = 4, .steps = 5});
}

TEST(CheckViewTest, AcceptsEveryForm) {
  for (const bool palette : {false, true}) {
    for (const DiagonalForm diagonal : {DiagonalForm::kFull, DiagonalForm::kPackedLower}) {
      const test::HostMatrix matrix(Palette(), Scalar::kFloat64,
                                    {.diagonal = diagonal, .palette = palette});
      EXPECT_TRUE(CheckView(matrix.view()).ok()) << CheckView(matrix.view());
      EXPECT_TRUE(CheckFinite(matrix.view()).ok()) << CheckFinite(matrix.view());
    }
  }
}

TEST(CheckViewTest, NeedsNoCouplingForOneBlock) {
  const double value = 1;
  BlockTridiagonalView view;
  view.form.shape = {1, 1, Scalar::kFloat64};
  view.diagonal = &value;
  EXPECT_TRUE(CheckView(view).ok());
}

TEST(CheckViewTest, RefusesMissingPointers) {
  const test::HostMatrix matrix(Palette(), Scalar::kFloat64, {.palette = true});
  BlockTridiagonalView view = matrix.view();
  view.diagonal = nullptr;
  ExpectRefused(CheckView(view), "diagonal");
  view = matrix.view();
  view.coupling = nullptr;
  ExpectRefused(CheckView(view), "coupling");
  view = matrix.view();
  view.diagonal_index = nullptr;
  ExpectRefused(CheckView(view), "diagonal_index");
  view = matrix.view();
  view.coupling_index = nullptr;
  ExpectRefused(CheckView(view), "coupling_index");
}

TEST(CheckViewTest, RefusesIndicesBesideNoPalette) {
  const test::HostMatrix matrix(Palette(), Scalar::kFloat64);
  const std::vector<uint32_t> zeros(5);
  BlockTridiagonalView view = matrix.view();
  view.diagonal_index = zeros.data();
  ExpectRefused(CheckView(view), "diagonal_index");
  view = matrix.view();
  view.coupling_index = zeros.data();
  ExpectRefused(CheckView(view), "coupling_index");
}

TEST(CheckViewTest, RefusesIndicesOutOfRangeAndSaysWhere) {
  const test::HostMatrix matrix(Palette(), Scalar::kFloat64, {.palette = true});
  const std::vector<uint32_t> diagonal = {0, 1, 1, 2, 0};
  BlockTridiagonalView view = matrix.view();
  view.diagonal_index = diagonal.data();
  ExpectRefused(CheckView(view), "diagonal_index[3] is 2");
  const std::vector<uint32_t> coupling = {0, 0, 0, 0xffffffff};
  view = matrix.view();
  view.coupling_index = coupling.data();
  ExpectRefused(CheckView(view), "coupling_index[3]");
}

TEST(CheckViewTest, ChecksTheFormFirst) {
  BlockTridiagonalView view;
  view.form.shape = {0, 3, Scalar::kFloat64};
  ExpectRefused(CheckView(view), "num_blocks");
}

class CheckFiniteTest : public ::testing::TestWithParam<std::tuple<Scalar, DiagonalForm, double>> {
};

TEST_P(CheckFiniteTest, NamesTheFirstScalarThatIsNotFinite) {
  const auto [scalar, diagonal, value] = GetParam();
  const problems::Problem problem = problems::Poisson(5, 4);
  for (int64_t block = 0; block < 5; ++block) {
    for (int64_t column = 0; column < 4; ++column) {
      for (int64_t row = column; row < 4; ++row) {
        test::HostMatrix matrix(problem, scalar, {.diagonal = diagonal});
        matrix.SetDiagonal(block, row, column, value);
        ExpectRefused(CheckFinite(matrix.view()),
                      absl::StrCat("diagonal block ", block, ", row ", row, ", column ", column));
      }
    }
  }
  for (int64_t block = 0; block < 4; ++block) {
    for (int64_t position = 0; position < 16; ++position) {
      test::HostMatrix matrix(problem, scalar, {.diagonal = diagonal});
      matrix.SetCoupling(block, position % 4, position / 4, value);
      ExpectRefused(CheckFinite(matrix.view()),
                    absl::StrCat("coupling block ", block, ", row ", position % 4, ", column ",
                                 position / 4));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    EveryForm, CheckFiniteTest,
    ::testing::Combine(::testing::Values(Scalar::kFloat64, Scalar::kFloat32),
                       ::testing::Values(DiagonalForm::kFull, DiagonalForm::kPackedLower),
                       ::testing::Values(std::numeric_limits<double>::quiet_NaN(),
                                         std::numeric_limits<double>::infinity(),
                                         -std::numeric_limits<double>::infinity())),
    [](const auto& info) { return absl::StrCat("Case", info.index); });

TEST(UpperTriangleTest, IsNotReadByCheckFinite) {
  // HostMatrix puts NaN there.
  const test::HostMatrix matrix(problems::Poisson(3, 9), Scalar::kFloat64);
  EXPECT_TRUE(CheckFinite(matrix.view()).ok());
}

}  // namespace
}  // namespace blockd
