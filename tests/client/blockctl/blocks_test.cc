#include "client/blockctl/formats/blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/problems/problems.h"

namespace blockd::blockctl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Array MakeArray(std::vector<int64_t> shape, const std::vector<double>& values,
                bool fortran_order = false) {
  Array array;
  array.shape = std::move(shape);
  array.fortran_order = fortran_order;
  array.data.resize(values.size() * sizeof(double));
  std::copy(values.begin(), values.end(), array.as<double>());
  return array;
}

std::vector<double> Numbers(const std::vector<std::byte>& bytes) {
  const auto* begin = reinterpret_cast<const double*>(bytes.data());
  return {begin, begin + bytes.size() / sizeof(double)};
}

TEST(BlocksTest, COrderBecomesColumnMajorBlocks) {
  const Array diagonal = MakeArray({2, 2, 2}, {1, 2, 2, 3, 4, 5, 5, 6});
  const Array coupling = MakeArray({1, 2, 2}, {7, 8, 9, 10});  // rows (7 8), (9 10)
  const auto blocks = BlocksFromArrays(diagonal, &coupling, false);
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  EXPECT_EQ(blocks->num_blocks, 2);
  EXPECT_EQ(blocks->block_size, 2);
  EXPECT_EQ(Numbers(blocks->coupling), (std::vector<double>{7, 9, 8, 10}));
}

TEST(BlocksTest, TheLowerTriangleStaysBelow) {
  const Array diagonal = MakeArray({1, 2, 2}, {4, 0, 1, 5});  // A(1,0) = 1, upper not filled
  const auto blocks = BlocksFromArrays(diagonal, nullptr, false);
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  EXPECT_EQ(Numbers(blocks->diagonal)[1], 1);  // row 1, column 0 of a column-major block
}

TEST(BlocksTest, FortranOrderGivesTheSameBlocks) {
  std::vector<double> c_order(2 * 3 * 3), f_order(2 * 3 * 3);
  for (int b = 0; b < 2; ++b) {
    for (int r = 0; r < 3; ++r) {
      for (int c = 0; c < 3; ++c) {
        const double value = 100 * b + 10 * r + c;
        c_order[(b * 3 + r) * 3 + c] = value;
        f_order[b + 2 * (r + 3 * c)] = value;
      }
    }
  }
  const Array coupling = MakeArray({1, 3, 3}, std::vector<double>(9, 1));
  const auto from_c = BlocksFromArrays(MakeArray({2, 3, 3}, c_order), &coupling, false);
  const auto from_f = BlocksFromArrays(MakeArray({2, 3, 3}, f_order, true), &coupling, false);
  ASSERT_TRUE(from_c.ok() && from_f.ok());
  EXPECT_EQ(from_c->diagonal, from_f->diagonal);
  EXPECT_EQ(Numbers(from_c->diagonal)[1], 10);
}

TEST(BlocksTest, SuperdiagonalBlocksAreTransposed) {
  const Array diagonal = MakeArray({2, 2, 2}, std::vector<double>(8, 1));
  const Array upper = MakeArray({1, 2, 2}, {7, 8, 9, 10});
  const auto blocks = BlocksFromArrays(diagonal, &upper, true);
  ASSERT_TRUE(blocks.ok());
  EXPECT_EQ(Numbers(blocks->coupling), (std::vector<double>{7, 8, 9, 10}));
}

TEST(BlocksTest, SuperdiagonalBlocksInFortranOrderAreTransposedToo) {
  // A(0,1) = (1 2; 3 4) and A(1,2) = (5 6; 7 8), the block index fastest.
  const Array diagonal = MakeArray({3, 2, 2}, std::vector<double>(12, 1));
  const Array upper = MakeArray({2, 2, 2}, {1, 5, 3, 7, 2, 6, 4, 8}, true);
  const auto above = BlocksFromArrays(diagonal, &upper, true);
  const auto below = BlocksFromArrays(diagonal, &upper, false);
  ASSERT_TRUE(above.ok() && below.ok());
  // A(1,0) = (1 3; 2 4), column-major.
  EXPECT_EQ(Numbers(above->coupling), (std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(Numbers(below->coupling), (std::vector<double>{1, 3, 2, 4, 5, 7, 6, 8}));
}

TEST(BlocksTest, ADiagonalIsNeverTransposedAndFloat32StaysSo) {
  Array diagonal, coupling;
  diagonal.scalar = coupling.scalar = client::Scalar::kFloat32;
  diagonal.shape = {2, 2, 2};
  coupling.shape = {1, 2, 2};
  diagonal.data.resize(8 * sizeof(float));
  coupling.data.resize(4 * sizeof(float));
  for (int k = 0; k < 8; ++k) diagonal.as<float>()[k] = static_cast<float>(k);
  for (int k = 0; k < 4; ++k) coupling.as<float>()[k] = static_cast<float>(10 + k);
  const auto blocks = BlocksFromArrays(diagonal, &coupling, true);
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  const auto floats = [](const std::vector<std::byte>& bytes) {
    const auto* begin = reinterpret_cast<const float*>(bytes.data());
    return std::vector<float>(begin, begin + bytes.size() / sizeof(float));
  };
  EXPECT_EQ(blocks->scalar, client::Scalar::kFloat32);
  EXPECT_EQ(floats(blocks->diagonal), (std::vector<float>{0, 2, 1, 3, 4, 6, 5, 7}));
  EXPECT_EQ(floats(blocks->coupling), (std::vector<float>{10, 11, 12, 13}));
  const client::SystemView view = blocks->view();
  EXPECT_EQ(view.scalar, client::Scalar::kFloat32);
  EXPECT_EQ(view.num_blocks, 2);
  EXPECT_EQ(view.block_size, 2);
  EXPECT_EQ(view.diagonal, blocks->diagonal.data());
  EXPECT_EQ(view.coupling, blocks->coupling.data());
  EXPECT_EQ(view.coupling_form, client::CouplingForm::kSubdiagonal);
}

TEST(BlocksTest, ShapesAndTypesThatDisagreeAreNamed) {
  const Array diagonal = MakeArray({2, 2, 2}, std::vector<double>(8, 1));
  Array coupling = MakeArray({2, 2, 2}, std::vector<double>(8, 1));
  EXPECT_THAT(BlocksFromArrays(diagonal, &coupling, false).status().ToString(),
              HasSubstr("(2, 2, 2), expected (1, 2, 2)"));
  EXPECT_THAT(BlocksFromArrays(diagonal, nullptr, false).status().ToString(),
              HasSubstr("--coupling is missing"));
  coupling = MakeArray({1, 2, 2}, std::vector<double>(4, 1));
  coupling.scalar = client::Scalar::kFloat32;
  EXPECT_THAT(BlocksFromArrays(diagonal, &coupling, false).status().ToString(),
              HasSubstr("differ in type"));
  EXPECT_THAT(BlocksFromArrays(MakeArray({2, 2}, {1, 2, 3, 4}), nullptr, false).status().ToString(),
              HasSubstr("expected (N, n, n)"));
  EXPECT_FALSE(BlocksFromArrays(MakeArray({0, 2, 2}, {}), nullptr, false).ok());
}

SparseMatrix Sparse(const problems::Problem& problem) {
  SparseMatrix matrix;
  matrix.rows = problem.rows();
  const int64_t n = problem.block_size;
  for (int64_t i = 0; i < problem.num_blocks; ++i) {
    for (int64_t c = 0; c < n; ++c) {
      for (int64_t r = c; r < n; ++r) {
        matrix.entries.push_back({i * n + r, i * n + c, problem.DiagonalBlock(i)[c * n + r]});
      }
      for (int64_t r = 0; i + 1 < problem.num_blocks && r < n; ++r) {
        matrix.entries.push_back({(i + 1) * n + r, i * n + c, problem.CouplingBlock(i)[c * n + r]});
      }
    }
  }
  return matrix;
}

TEST(BlocksTest, ABorderIsItsRowsAndTheColumnsOfItsCorner) {
  auto blocks = BlocksFromArrays(MakeArray({1, 2, 2}, {4, 0, 1, 5}), nullptr, false);
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  const Array c_rows = MakeArray({2, 2}, {1, 2, 3, 4}), c_corner = MakeArray({2, 2}, {9, 0, 7, 8});
  const Array f_rows = MakeArray({2, 2}, {1, 3, 2, 4}, true);
  const Array f_corner = MakeArray({2, 2}, {9, 7, 0, 8}, true);
  for (const auto& [rows, corner] : {std::pair(c_rows, c_corner), std::pair(f_rows, f_corner)}) {
    ASSERT_TRUE(AddBorder(rows, corner, &*blocks).ok());
    EXPECT_EQ(blocks->rows(), 4);
    EXPECT_EQ(Numbers(blocks->border), (std::vector<double>{1, 2, 3, 4}));
    EXPECT_EQ(Numbers(blocks->corner)[1], 7);  // row 1, column 0
  }
  const Array wide = MakeArray({1, 2}, {1, 2});
  EXPECT_THAT(AddBorder(c_rows, wide, &*blocks).message(), HasSubstr("the corner has the shape"));
  EXPECT_THAT(AddBorder(wide, c_corner, &*blocks).message(), HasSubstr("expected (2, 2)"));
}

TEST(BlocksTest, TheLastRowsOfASparseMatrixMayBeABorder) {
  SparseMatrix matrix{5, {}};
  for (int64_t i = 0; i < 5; ++i) matrix.entries.push_back({i, i, 4});
  matrix.entries.push_back({2, 1, -1});
  matrix.entries.push_back({4, 0, 2});
  matrix.entries.push_back({3, 1, 3});
  matrix.entries.push_back({4, 3, 5});
  const auto blocks = BlocksFromSparse(matrix, 0, 2);
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  EXPECT_EQ(blocks->num_blocks, 3);
  EXPECT_EQ(blocks->block_size, 1);
  EXPECT_EQ(Numbers(blocks->border), (std::vector<double>{0, 3, 0, 2, 0, 0}));
  EXPECT_EQ(Numbers(blocks->corner), (std::vector<double>{4, 5, 0, 4}));
  for (const int64_t size : {-1, 5, 1025}) EXPECT_FALSE(BlocksFromSparse(matrix, 0, size).ok());
}

TEST(BlocksTest, TheBlockSizeOfASparseMatrixIsFound) {
  const problems::Problem problem = problems::RandomSpd(5, 3, 1, 10);
  const SparseMatrix matrix = Sparse(problem);
  EXPECT_EQ(DetectBlockSize(matrix), 3);
  const auto blocks = BlocksFromSparse(matrix, 0);
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  EXPECT_EQ(Numbers(blocks->diagonal), problem.diagonal);
  EXPECT_EQ(Numbers(blocks->coupling), problem.coupling);
}

TEST(BlocksTest, ATridiagonalMatrixHasBlocksOfOne) {
  SparseMatrix matrix{4, {{0, 0, 2}, {1, 0, -1}, {1, 1, 2}, {2, 1, -1}, {2, 2, 2}, {3, 3, 2}}};
  EXPECT_EQ(DetectBlockSize(matrix), 1);
}

TEST(BlocksTest, AFullMatrixIsTwoBlocks) {
  SparseMatrix matrix{4, {{0, 0, 9}, {3, 0, 1}, {1, 1, 9}, {2, 2, 9}, {3, 3, 9}}};
  EXPECT_EQ(DetectBlockSize(matrix), 2);
}

TEST(BlocksTest, ABlockSizeThatDoesNotFitIsRefused) {
  const SparseMatrix matrix = Sparse(problems::RandomSpd(4, 3, 1, 10));
  EXPECT_THAT(BlocksFromSparse(matrix, 5).status().ToString(), HasSubstr("does not divide"));
  EXPECT_THAT(BlocksFromSparse(matrix, 2).status().ToString(), HasSubstr("is outside"));
  EXPECT_TRUE(BlocksFromSparse(matrix, 6).ok());
  EXPECT_THAT(
      BlocksFromSparse({int64_t{1} << 30, {{(int64_t{1} << 30) - 1, 0, 1}}}, 0).status().ToString(),
      HasSubstr("reorder"));
}

TEST(BlocksTest, AnEntryTwoBlocksAwayIsOutsideAndNamed) {
  const SparseMatrix matrix{6, {{0, 0, 1}, {4, 0, 1}}};
  EXPECT_THAT(BlocksFromSparse(matrix, 2).status().ToString(),
              HasSubstr("blocks of 2: entry (5, 1) is outside"));
  EXPECT_TRUE(BlocksFromSparse(matrix, 3).ok());
  EXPECT_EQ(DetectBlockSize(matrix), 3);
}

// Blocks of the bandwidth that do not divide the rows are padded; a divisor that is little larger
// needs no padding.
TEST(BlocksTest, BlocksAreNoLargerThanTheBand) {
  const auto size = [](int64_t rows, int64_t band) {
    SparseMatrix matrix{rows, {}};
    for (int64_t c = 0; c < rows; ++c) {
      for (int64_t r = c; r <= std::min(c + band, rows - 1); ++r)
        matrix.entries.push_back({r, c, 1});
    }
    return DetectBlockSize(matrix);
  };
  EXPECT_EQ(size(1, 0), 1);
  EXPECT_EQ(size(7, 1), 1);
  EXPECT_EQ(size(7, 2), 2);
  EXPECT_EQ(size(15, 2), 3);
  EXPECT_EQ(size(35, 2), 2);  // of 5 and 7
  EXPECT_EQ(size(4003, 2), 2);
  EXPECT_EQ(size(47, 8), 8);
  EXPECT_EQ(size(48, 9), 12);
  EXPECT_EQ(size(7, 6), 7);  // as one block
}

TEST(BlocksTest, PaddingIsADiagonalAtTheEndOfTheLastBlock) {
  SparseMatrix matrix{5, {}};
  for (int64_t c = 0; c < 5; ++c) {
    matrix.entries.push_back({c, c, 40.0 + static_cast<double>(c)});
    for (int64_t r = c + 1; r <= std::min<int64_t>(c + 2, 4); ++r) {
      matrix.entries.push_back({r, c, static_cast<double>(10 * r + c)});
    }
  }
  const auto blocks = BlocksFromSparse(matrix, 0);
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  EXPECT_EQ(blocks->num_blocks, 3);
  EXPECT_EQ(blocks->block_size, 2);
  EXPECT_EQ(blocks->padding, 1);
  EXPECT_EQ(blocks->rows(), 5);
  EXPECT_EQ(Numbers(blocks->diagonal),
            (std::vector<double>{40, 10, 10, 41, 42, 32, 32, 43, 44, 0, 0, 40}));
  EXPECT_EQ(Numbers(blocks->coupling), (std::vector<double>{20, 0, 21, 31, 42, 0, 43, 0}));
  EXPECT_EQ(blocks->padding_log_determinant(), std::log(40.0));
  EXPECT_THAT(BlocksFromSparse(matrix, 2).status().ToString(), HasSubstr("does not divide"));
}

TEST(BlocksTest, PaddingIsNearestToOneOfWhatIsOnTheDiagonal) {
  const auto value = [](double first, double last) {
    SparseMatrix matrix{5, {{0, 0, first}, {2, 0, 0.5}, {4, 4, last}}};
    matrix.entries.insert(matrix.entries.begin() + 2, {3, 1, 0.5});
    return BlocksFromSparse(matrix, 0)->padding_value;
  };
  EXPECT_EQ(value(1e-9, 1e9), 1);
  EXPECT_EQ(value(3, 2), 2);
  EXPECT_EQ(value(0.25, 0.5), 0.5);
  EXPECT_EQ(value(-1, 0), 1);
  EXPECT_EQ(value(std::numeric_limits<double>::quiet_NaN(), 3), 3);
  EXPECT_EQ(value(std::numeric_limits<double>::infinity(), 3), 3);
}

TEST(BlocksTest, ABorderComesAfterThePadding) {
  SparseMatrix matrix{6,
                      {{0, 0, 4},
                       {2, 0, 1},
                       {5, 0, 7},
                       {1, 1, 4},
                       {3, 1, 1},
                       {2, 2, 4},
                       {4, 2, 1},
                       {3, 3, 4},
                       {4, 4, 4},
                       {5, 4, 8},
                       {5, 5, 9}}};
  const auto blocks = BlocksFromSparse(matrix, 0, 1);
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  EXPECT_EQ(blocks->num_blocks, 3);
  EXPECT_EQ(blocks->padding, 1);
  EXPECT_EQ(blocks->rows(), 6);
  EXPECT_EQ(Numbers(blocks->border), (std::vector<double>{7, 0, 0, 0, 8, 0}));
  EXPECT_EQ(Numbers(blocks->corner), (std::vector<double>{9}));
}

TEST(BlocksTest, AHugeMatrixIsRefusedAtOnce) {
  constexpr int64_t kPrime = 1'000'000'000'000'000'003;
  EXPECT_EQ(DetectBlockSize({kPrime, {{2, 0, 1}}}), 2);
  EXPECT_THAT(BlocksFromSparse({kPrime, {{2, 0, 1}}}, 0).status().ToString(), HasSubstr("reorder"));
}

TEST(BlocksTest, BlocksLargerThanTheServerTakesAreRefused) {
  EXPECT_THAT(BlocksFromSparse({32769, {{32768, 0, 1}}}, 32769).status().ToString(),
              HasSubstr("reorder"));
}

// b(r, c) = 100 r + c, for 2 blocks of 3 rows and d columns, as the array of one shape and order.
std::vector<double> Rhs(const std::vector<int64_t>& shape, bool fortran_order) {
  int64_t size = 1;
  for (const int64_t extent : shape) size *= extent;
  std::vector<double> values(size);
  const bool by_blocks = shape[0] == 2;
  for (int64_t at = 0; at < size; ++at) {
    std::vector<int64_t> index(shape.size());
    int64_t rest = at;
    for (size_t k = 0; k < shape.size(); ++k) {  // the fastest axis first
      const size_t axis = fortran_order ? k : shape.size() - 1 - k;
      index[axis] = rest % shape[axis];
      rest /= shape[axis];
    }
    const int64_t row = by_blocks ? index[0] * 3 + index[1] : index[0];
    const size_t axis_of_column = by_blocks ? 2 : 1;
    const int64_t column = axis_of_column < index.size() ? index[axis_of_column] : 0;
    values[at] = static_cast<double>(100 * row + column);
  }
  return values;
}

TEST(ColumnsTest, EveryShapeAndOrderBecomesColumnMajor) {
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{6}, {6, 1}, {6, 4}, {2, 3}, {2, 3, 1}, {2, 3, 4}}) {
    for (const bool fortran_order : {false, true}) {
      const auto columns =
          ColumnsFromArray(MakeArray(shape, Rhs(shape, fortran_order), fortran_order), 2, 3);
      ASSERT_TRUE(columns.ok()) << columns.status();
      EXPECT_EQ(columns->rows, 6);
      EXPECT_EQ(columns->count, shape.back() == 4 ? 4 : 1);
      EXPECT_EQ(Numbers(columns->data), Rhs({6, columns->count}, true)) << ShapeText(shape);
      // And back, for whoever reads the solution.
      const Array back = columns->ToArray();
      EXPECT_EQ(back.shape, shape);
      EXPECT_EQ(Numbers(back.data), Rhs(shape, back.fortran_order)) << ShapeText(shape);
      const Array matrix = columns->ToMatrix();
      EXPECT_EQ(matrix.shape, (std::vector<int64_t>{6, columns->count}));
      EXPECT_TRUE(matrix.fortran_order);
      EXPECT_EQ(matrix.data, columns->data);
    }
  }
}

TEST(ColumnsTest, Float32IsMovedAsItIs) {
  const std::vector<float> c_order = {1, 2, 3, 4, 5, 6, 7, 8};  // (2, 2, 2)
  Array array;
  array.scalar = client::Scalar::kFloat32;
  array.shape = {2, 2, 2};
  array.data.resize(c_order.size() * sizeof(float));
  std::copy(c_order.begin(), c_order.end(), array.as<float>());
  const auto columns = ColumnsFromArray(array, 2, 2);
  ASSERT_TRUE(columns.ok()) << columns.status();
  EXPECT_EQ(columns->scalar, client::Scalar::kFloat32);
  const auto* numbers = reinterpret_cast<const float*>(columns->data.data());
  EXPECT_EQ(std::vector<float>(numbers, numbers + 8), (std::vector<float>{1, 3, 5, 7, 2, 4, 6, 8}));
  EXPECT_EQ(columns->ToArray().scalar, client::Scalar::kFloat32);
  EXPECT_EQ(columns->ToArray().data, array.data);
  EXPECT_EQ(columns->ToMatrix().scalar, client::Scalar::kFloat32);
}

TEST(ColumnsTest, RowsOfPaddingComeAndGo) {
  const Array array = MakeArray({3, 2}, {1, 2, 3, 4, 5, 6}, true);
  for (const int64_t arrow_size : {0, 1}) {
    const auto columns = ColumnsFromArray(array, 2, 2, arrow_size, 1 + arrow_size);
    ASSERT_TRUE(columns.ok()) << columns.status();
    EXPECT_EQ(columns->rows, 3);
    const int64_t at = 3 - arrow_size;
    const Columns wider = columns->WithRows(at, 2);
    EXPECT_EQ(wider.rows, 5);
    EXPECT_EQ(Numbers(wider.data), arrow_size == 0
                                       ? (std::vector<double>{1, 2, 3, 0, 0, 4, 5, 6, 0, 0})
                                       : (std::vector<double>{1, 2, 0, 0, 3, 4, 5, 0, 0, 6}));
    const Columns again = wider.WithoutRows(at, 2);
    EXPECT_EQ(again.rows, 3);
    EXPECT_EQ(again.data, columns->data);
  }
  // By blocks there are other rows.
  EXPECT_THAT(ColumnsFromArray(MakeArray({2, 2}, {1, 2, 3, 4}), 2, 2, 0, 1).status().ToString(),
              HasSubstr("N*n less the padding = 3"));
}

TEST(ColumnsTest, BlocksOfOneRowAreRows) {
  const auto columns = ColumnsFromArray(MakeArray({2, 3}, {1, 2, 3, 4, 5, 6}), 2, 1);
  ASSERT_TRUE(columns.ok()) << columns.status();
  EXPECT_EQ(columns->count, 3);
  EXPECT_EQ(Numbers(columns->data), (std::vector<double>{1, 4, 2, 5, 3, 6}));
}

// As many numbers as N n, or a multiple, in places that mean nothing, or another problem.
TEST(ColumnsTest, OtherShapesAreRefusedWhateverTheyCount) {
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{12},
                                                                             {5},
                                                                             {3, 2},
                                                                             {1, 6},
                                                                             {4, 6},
                                                                             {12, 1},
                                                                             {4, 3},
                                                                             {3, 2, 1},
                                                                             {6, 1, 2},
                                                                             {2, 6, 1},
                                                                             {1, 2, 3},
                                                                             {2, 3, 1, 1},
                                                                             {6, 0},
                                                                             {2, 3, 0},
                                                                             {0},
                                                                             {}}) {
    Array array;
    array.shape = shape;
    array.data.resize(array.size() * sizeof(double));
    const absl::Status status = ColumnsFromArray(array, 2, 3).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << ShapeText(shape);
    EXPECT_THAT(status.ToString(),
                AllOf(HasSubstr(ShapeText(shape)), HasSubstr("N*n = 6"),
                      HasSubstr("(6,) or (6, d)"), HasSubstr("(2, 3) or (2, 3, d)")));
  }
}

}  // namespace
}  // namespace blockd::blockctl
