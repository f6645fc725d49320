#include "client/blockctl/matrix_market.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace blockd::blockctl {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const std::string& text) {
  const absl::StatusOr<SparseMatrix> matrix = ParseSparse(text);
  EXPECT_EQ(matrix.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(matrix.status().message());
}

const std::string kGeneral = "%%MatrixMarket matrix coordinate real general\n";
const std::string kSymmetric = "%%MatrixMarket matrix coordinate real symmetric\n";

TEST(MatrixMarketTest, ReadsTheLowerTriangleOfASymmetricMatrix) {
  const auto matrix =
      ParseSparse(kSymmetric + "% a comment\n\n2 2 3\n1 1 4\n2 1 -1.5e0\r\n2 2 +4\n");
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_EQ(matrix->rows, 2);
  ASSERT_EQ(matrix->entries.size(), 3);
  EXPECT_EQ(matrix->entries[1].row, 1);
  EXPECT_EQ(matrix->entries[1].column, 0);
  EXPECT_EQ(matrix->entries[1].value, -1.5);
}

TEST(MatrixMarketTest, AGeneralMatrixKeepsItsLowerTriangle) {
  const auto matrix = ParseSparse(kGeneral + "2 2 4\n1 2 -1\n1 1 4\n2 1 -1\n2 2 4\n");
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_EQ(matrix->entries.size(), 3);
}

TEST(MatrixMarketTest, DuplicatesAddUp) {
  const auto matrix = ParseSparse(kSymmetric + "1 1 2\n1 1 4\n1 1 1\n");
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  ASSERT_EQ(matrix->entries.size(), 1);
  EXPECT_EQ(matrix->entries[0].value, 5);
}

TEST(MatrixMarketTest, AsymmetryIsNamed) {
  EXPECT_THAT(ErrorOf(kGeneral + "2 2 4\n1 1 4\n2 1 -1\n1 2 -2\n2 2 4\n"),
              HasSubstr("entry (2, 1) is -1, (1, 2) is -2"));
  EXPECT_THAT(ErrorOf(kGeneral + "3 3 3\n1 1 4\n1 3 7\n2 2 4\n"),
              HasSubstr("entry (1, 3) is 7, (3, 1) is 0"));
  EXPECT_THAT(ErrorOf(kGeneral + "3 3 3\n2 1 9\n1 1 7\n2 2 4\n"),
              HasSubstr("entry (2, 1) is 9, (1, 2) is 0"));
}

TEST(MatrixMarketTest, AnExplicitZeroNeedsNoPartner) {
  EXPECT_TRUE(ParseSparse(kGeneral + "2 2 3\n1 1 4\n1 2 0\n2 2 4\n").ok());
}

TEST(MatrixMarketTest, SaysTheLineThatIsWrong) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("empty"));
  EXPECT_THAT(ErrorOf("1 2 3\n"), HasSubstr("line 1: expected `%%MatrixMarket"));
  EXPECT_THAT(ErrorOf("%%MatrixMarket matrix coordinate complex general\n"), HasSubstr("complex"));
  EXPECT_THAT(ErrorOf("%%MatrixMarket matrix coordinate real hermitian\n"), HasSubstr("hermitian"));
  EXPECT_THAT(ErrorOf("%%MatrixMarket matrix array real general\n1 1\n1\n"),
              HasSubstr("coordinate"));
  EXPECT_THAT(ErrorOf(kSymmetric + "2 3 1\n"), HasSubstr("square"));
  EXPECT_THAT(ErrorOf(kSymmetric + "2 2 2\n1 1 4\n"), HasSubstr("after 1 of 2"));
  EXPECT_THAT(ErrorOf(kSymmetric + "2 2 1\n1 1 4\n2 2 4\n"), HasSubstr("more than"));
  EXPECT_THAT(ErrorOf(kSymmetric + "2 2 1\n3 1 4\n"), HasSubstr("line 3: entry (3, 1)"));
  EXPECT_THAT(ErrorOf(kSymmetric + "2 2 1\n1 1 x\n"), HasSubstr("ROW COLUMN VALUE"));
  EXPECT_THAT(ErrorOf(kSymmetric + "2 2 1\n1 1 4 0\n"), HasSubstr("ROW COLUMN VALUE"));
  EXPECT_THAT(ErrorOf(kSymmetric + "9999999999 9999999999 9999999999\n1 1 1\n"),
              HasSubstr("after 1 of"));
}

TEST(MatrixMarketTest, ColumnsReadBackAsWritten) {
  Array array;
  array.shape = {2, 2};
  array.fortran_order = true;
  array.data.resize(4 * sizeof(double));
  for (int i = 0; i < 4; ++i) array.as<double>()[i] = 1.0 / (i + 3);
  const std::string path = ::testing::TempDir() + "/columns.mtx";
  ASSERT_TRUE(WriteColumns(path, array).ok());
  const absl::StatusOr<Array> back = ReadColumns(path);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->shape, array.shape);
  EXPECT_EQ(back->data, array.data);
}

TEST(MatrixMarketTest, BrokenColumnsAreRefused) {
  const std::string banner = "%%MatrixMarket matrix array real general\n";
  EXPECT_TRUE(ParseColumns(banner + "2 1\n1\n2\n").ok());
  EXPECT_FALSE(ParseColumns(banner + "2 1\n1\n").ok());
  EXPECT_FALSE(ParseColumns(banner + "2 1\n1\n2\n3\n").ok());
  EXPECT_FALSE(ParseColumns(banner + "0 1\n").ok());
  EXPECT_FALSE(ParseColumns(banner + "4000000000000 4000000000000\n1\n").ok());
  EXPECT_FALSE(ParseColumns(kGeneral + "1 1 1\n1 1 1\n").ok());
}

}  // namespace
}  // namespace blockd::blockctl
