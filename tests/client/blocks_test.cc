#include "client/blockctl/blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "engine/problems/problems.h"

namespace blockd::blockctl {
namespace {

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

TEST(ColumnsTest, BothOrdersBecomeColumnMajor) {
  const auto c_order = ColumnsFromArray(MakeArray({2, 2}, {1, 2, 3, 4}));
  const auto f_order = ColumnsFromArray(MakeArray({2, 2}, {1, 3, 2, 4}, true));
  const auto flat = ColumnsFromArray(MakeArray({4}, {1, 2, 3, 4}));
  ASSERT_TRUE(c_order.ok() && f_order.ok() && flat.ok());
  EXPECT_EQ(Numbers(c_order->data), (std::vector<double>{1, 3, 2, 4}));
  EXPECT_EQ(c_order->data, f_order->data);
  EXPECT_EQ(flat->count, 1);
  EXPECT_EQ(flat->ToArray().shape, std::vector<int64_t>{4});
  EXPECT_EQ(c_order->ToArray().shape, (std::vector<int64_t>{2, 2}));
  EXPECT_FALSE(ColumnsFromArray(MakeArray({1, 1, 1}, {1})).ok());
  EXPECT_FALSE(ColumnsFromArray(MakeArray({0}, {})).ok());
}

}  // namespace
}  // namespace blockd::blockctl
