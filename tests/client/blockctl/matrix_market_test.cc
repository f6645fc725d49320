#include "client/blockctl/formats/matrix_market.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/blockctl/formats/files.h"
#include "tests/support/temp_folder.h"

namespace blockd::blockctl {
namespace {

using test::TempFolder;

using ::testing::AllOf;
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

TEST(MatrixMarketTest, BothTrianglesOfASymmetricFileAreRefused) {
  EXPECT_THAT(ErrorOf(kSymmetric + "2 2 4\n1 1 4\n2 1 -1\n1 2 -1\n2 2 3\n"),
              AllOf(HasSubstr("line 5: entry (1, 2)"), HasSubstr("line 4 has (2, 1)")));
  EXPECT_THAT(ErrorOf(kSymmetric + "% c\n\n3 3 4\n1 1 4\n1 3 0\n2 2 3\n\n3 1 0\n"),
              AllOf(HasSubstr("line 9: entry (3, 1)"), HasSubstr("line 6 has (1, 3)")));
  // Entries that stand twice in one triangle add up, whatever is in the other one elsewhere.
  const auto matrix = ParseSparse(kSymmetric + "3 3 5\n1 1 4\n2 1 1\n2 1 2\n1 3 5\n1 1 1\n");
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  ASSERT_EQ(matrix->entries.size(), 3);
  EXPECT_EQ(matrix->entries[0].value, 5);
  EXPECT_EQ(matrix->entries[1].value, 3);
  EXPECT_EQ(matrix->entries[2].row, 2);
  EXPECT_EQ(matrix->entries[2].value, 5);
}

TEST(MatrixMarketTest, NumbersMayBeFortrans) {
  const auto value = [](const std::string& number) {
    const auto matrix = ParseSparse(kSymmetric + "1 1 1\n1 1 " + number + " \n");
    EXPECT_TRUE(matrix.ok()) << number << ": " << matrix.status();
    return matrix.ok() ? matrix->entries[0].value : 0;
  };
  EXPECT_EQ(value("4.0D+00"), 4);
  EXPECT_EQ(value("-1.5d0"), -1.5);
  EXPECT_EQ(value("+.3D+01"), 3);
  EXPECT_EQ(value("3.D-2"), 0.03);
  EXPECT_EQ(value("12D1"), 120);
  EXPECT_EQ(value("0.5-102"), 0.5e-102);
  EXPECT_EQ(value("0.5+102"), 0.5e102);
  EXPECT_EQ(value("1e-400"), 0);
  EXPECT_EQ(value("-1D-400"), 0);
  EXPECT_EQ(value("4e-310"), 4e-310);
  for (const std::string wrong :
       {"4.0D", "D0", "4.0D+", "4.0D0x", "4.0DD0", "1-2", "1-22", "1-2222", "1e5D0", "1e999",
        "1D999", "-1D999", "+-4", "++4", "1 D0", "--4"}) {
    EXPECT_THAT(ErrorOf(kSymmetric + "1 1 1\n1 1 " + wrong + "\n"),
                HasSubstr("line 3: expected `ROW COLUMN VALUE`"))
        << wrong;
  }
  const auto columns = ParseColumns("%%MatrixMarket matrix array real general\n2 1\n1.0D+00\n2\n");
  ASSERT_TRUE(columns.ok()) << columns.status();
  EXPECT_EQ(columns->as<double>()[0], 1);
}

TEST(MatrixMarketTest, CommentsAndBlanksStandAnywhere) {
  const std::string entries = "  % by me\n\t%\n2 2 3\n\n1\t1  4\n % here\n  2 1 -1\r\n \t\r\n2 2 3";
  for (const std::string before : {"", "\xEF\xBB\xBF", " "}) {
    const auto matrix = ParseSparse(before + kSymmetric + entries);
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    ASSERT_EQ(matrix->entries.size(), 3);
    EXPECT_EQ(matrix->entries[1].value, -1);
  }
  EXPECT_TRUE(
      ParseColumns("\xEF\xBB\xBF%%MatrixMarket matrix array real general\n % c\n1 1\n1\n").ok());
  EXPECT_THAT(ErrorOf("\xEF\xBB" + kSymmetric + entries), HasSubstr("line 1"));
}

TEST(MatrixMarketTest, ASymmetricArrayIsItsLowerTriangle) {
  const std::string banner = "%%MatrixMarket matrix array real symmetric\n";
  const auto matrix = ParseSparse(banner + "3 3\n1\n2\n3\n4\n5\n6\n");
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_EQ(matrix->rows, 3);
  const std::vector<std::pair<int64_t, int64_t>> places = {{0, 0}, {1, 0}, {2, 0},
                                                           {1, 1}, {2, 1}, {2, 2}};
  ASSERT_EQ(matrix->entries.size(), places.size());
  for (size_t k = 0; k < places.size(); ++k) {
    EXPECT_EQ(matrix->entries[k].row, places[k].first) << k;
    EXPECT_EQ(matrix->entries[k].column, places[k].second) << k;
    EXPECT_EQ(matrix->entries[k].value, static_cast<double>(k + 1));
  }
  EXPECT_THAT(ErrorOf(banner + "2 2\n1\n2\n"), HasSubstr("after 2 numbers"));
  EXPECT_THAT(ErrorOf(banner + "2 2\n1\n2\n3\n4\n"), HasSubstr("line 6: more than"));
  EXPECT_THAT(ErrorOf(banner + "2 3\n1\n2\n3\n"), HasSubstr("square"));
  EXPECT_THAT(ErrorOf(banner + "2 2\n1\n2 3\n"), HasSubstr("line 4: expected one number"));
  EXPECT_THAT(ErrorOf(banner + "4000000000000 4000000000000\n1\n"), HasSubstr("ends"));
}

// In whatever order a file has them, the entries come by columns.
TEST(MatrixMarketTest, EntriesMayBeInAnyOrder) {
  constexpr int kRows = 40;
  std::vector<std::string> lines;
  for (int r = 1; r <= kRows; ++r) {
    for (int c = 1; c <= r; ++c) lines.push_back(absl::StrCat(r, " ", c, " ", 100 * r + c, "\n"));
  }
  const std::string head = absl::StrCat(kRows, " ", kRows, " ", lines.size(), "\n");
  std::mt19937 random(1);
  for (int round = 0; round < 4; ++round) {
    const auto matrix = ParseSparse(kSymmetric + head + absl::StrJoin(lines, ""));
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    ASSERT_EQ(matrix->entries.size(), lines.size());
    size_t k = 0;
    for (int c = 0; c < kRows; ++c) {
      for (int r = c; r < kRows; ++r, ++k) {
        EXPECT_EQ(matrix->entries[k].row, r);
        EXPECT_EQ(matrix->entries[k].column, c);
        EXPECT_EQ(matrix->entries[k].value, 100 * (r + 1) + c + 1);
      }
    }
    std::shuffle(lines.begin(), lines.end(), random);
  }
}

TEST(MatrixMarketTest, TrianglesOfAGeneralMatrixMayDifferByRounding) {
  // An element that is small beside those of its rows, as what cancels in M' W M.
  const std::string head = kGeneral + "2 2 4\n1 1 1e8\n2 2 1\n2 1 0\n";
  EXPECT_TRUE(ParseSparse(head + "1 2 3e-11\n").ok());
  EXPECT_THAT(ErrorOf(head + "1 2 4e-11\n"), HasSubstr("entry (2, 1) is 0, (1, 2) is 4e-11"));
  const auto matrix = ParseSparse(kGeneral + "2 2 4\n1 1 4\n2 2 4\n2 1 1\n1 2 1.0000000001\n");
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_EQ(matrix->entries[1].value, 1);  // of the lower triangle
}

TEST(MatrixMarketTest, ColumnsReadBackAsWritten) {
  Array array;
  array.shape = {2, 2};
  array.fortran_order = true;
  array.data.resize(4 * sizeof(double));
  for (int i = 0; i < 4; ++i) array.as<double>()[i] = 1.0 / (i + 3);
  const TempFolder folder;
  const std::string path = folder / "columns.mtx";
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

TEST(MatrixMarketTest, EveryAcceptedWordIsAccepted) {
  EXPECT_TRUE(
      ParseSparse("%%matrixmarket MATRIX Coordinate INTEGER Symmetric\n1 1 1\n1 1 4\n").ok());
  EXPECT_TRUE(ParseSparse("%%MatrixMarket matrix coordinate double general\n1 1 1\n1 1 4\n").ok());
  EXPECT_THAT(ErrorOf("%%MatrixMarket vector coordinate real general\n"), HasSubstr("expected"));
  EXPECT_THAT(ErrorOf("%%MatrixMarket matrix sparse real general\n"), HasSubstr("format sparse"));
  EXPECT_THAT(ErrorOf("%%MatrixMarket matrix coordinate pattern general\n"),
              HasSubstr("field pattern"));
  EXPECT_THAT(ErrorOf(kSymmetric), HasSubstr("ROWS COLUMNS ENTRIES"));
  EXPECT_THAT(ErrorOf(kSymmetric + "2 2 x\n"), HasSubstr("ROWS COLUMNS ENTRIES"));
  EXPECT_THAT(ErrorOf(kSymmetric + "0 0 0\n"), HasSubstr("0 x 0"));
  EXPECT_THAT(ErrorOf(kSymmetric + "2 2 -1\n"), HasSubstr("-1 entries"));
}

TEST(MatrixMarketTest, IndicesOutsideAreNamedWithTheirLine) {
  for (const std::string entry : {"0 1 4", "1 0 4", "3 1 4", "1 3 4", "-1 1 4"}) {
    EXPECT_THAT(ErrorOf(kSymmetric + "% c\n2 2 1\n" + entry + "\n"), HasSubstr("line 4: entry ("));
  }
  EXPECT_TRUE(ParseSparse(kSymmetric + "2 2 2\n1 1 4\n2 2 4\n").ok());
}

TEST(MatrixMarketTest, TheUpperTriangleOfASymmetricFileIsItsLower) {
  const auto matrix = ParseSparse(kSymmetric + "3 3 4\n3 3 9\n1 3 2\n1 1 4\n2 2 5\n");
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  ASSERT_EQ(matrix->entries.size(), 4);
  // Sorted by column, then row.
  const std::vector<std::pair<int64_t, int64_t>> places = {{0, 0}, {2, 0}, {1, 1}, {2, 2}};
  for (size_t k = 0; k < places.size(); ++k) {
    EXPECT_EQ(matrix->entries[k].row, places[k].first) << k;
    EXPECT_EQ(matrix->entries[k].column, places[k].second) << k;
  }
  EXPECT_EQ(matrix->entries[1].value, 2);
}

TEST(MatrixMarketTest, DuplicatesOfAGeneralMatrixAddUpOnBothSides) {
  const auto matrix = ParseSparse(kGeneral + "2 2 6\n1 1 4\n2 2 4\n2 1 1\n1 2 3\n2 1 2\n1 1 1\n");
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  ASSERT_EQ(matrix->entries.size(), 3);
  EXPECT_EQ(matrix->entries[0].value, 5);
  EXPECT_EQ(matrix->entries[1].value, 3);
}

TEST(MatrixMarketTest, WrittenDigitsMayDifferByALittle) {
  EXPECT_TRUE(ParseSparse(kGeneral + "2 2 4\n1 1 4\n2 2 4\n2 1 1\n1 2 1.0000000005\n").ok());
  EXPECT_FALSE(ParseSparse(kGeneral + "2 2 4\n1 1 4\n2 2 4\n2 1 1\n1 2 1.00000001\n").ok());
  EXPECT_FALSE(ParseSparse(kGeneral + "2 2 4\n1 1 4\n2 2 4\n2 1 1\n1 2 -1\n").ok());
  EXPECT_FALSE(ParseSparse(kGeneral + "3 3 4\n1 1 4\n2 2 4\n3 3 4\n2 3 1\n").ok());
}

TEST(MatrixMarketTest, ColumnsOfFloat32AreWrittenWithTheirDigits) {
  const TempFolder folder;
  Array array;
  array.scalar = client::Scalar::kFloat32;
  array.shape = {2};
  array.fortran_order = true;
  array.data.resize(2 * sizeof(float));
  array.as<float>()[0] = 0.1F;
  array.as<float>()[1] = -3;
  ASSERT_TRUE(WriteColumns(folder / "x.mtx", array).ok());
  EXPECT_EQ(ReadFile(folder / "x.mtx").value_or(""),
            "%%MatrixMarket matrix array real general\n2 1\n0.100000001\n-3\n");
}

TEST(MatrixMarketTest, FilesAreNamedInTheirErrors) {
  const TempFolder folder;
  const std::string path = folder / "a.mtx";
  ASSERT_TRUE(WriteFile(path, {kSymmetric + "1 1 1\n1 1 2\n"}).ok());
  const auto matrix = ReadSparse(path);
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_EQ(matrix->entries[0].value, 2);
  EXPECT_THAT(ReadColumns(path).status().ToString(), HasSubstr(path + ": line 1"));
  ASSERT_TRUE(WriteFile(path, {"nonsense"}).ok());
  EXPECT_THAT(ReadSparse(path).status().ToString(), HasSubstr(path + ": line 1"));
}

TEST(MatrixMarketTest, ColumnsAreReadColumnAfterColumn) {
  const auto array =
      ParseColumns("%%MatrixMarket matrix array integer general\n% c\n2 3\n1\n2\n3\n4\n5\n+6\n");
  ASSERT_TRUE(array.ok()) << array.status();
  EXPECT_EQ(array->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_TRUE(array->fortran_order);
  for (int k = 0; k < 6; ++k) EXPECT_EQ(array->as<double>()[k], k + 1);
  const std::string banner = "%%MatrixMarket matrix array real general\n";
  EXPECT_FALSE(ParseColumns(banner + "2 1\n1 2\n3\n").ok());
  EXPECT_FALSE(ParseColumns(banner + "2 0\n").ok());
  EXPECT_FALSE(ParseColumns("%%MatrixMarket matrix array real symmetric\n1 1\n1\n").ok());
}

}  // namespace
}  // namespace blockd::blockctl
