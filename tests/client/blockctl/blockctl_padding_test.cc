// blockctl with banded matrices of any order: the last block is filled up, and nobody notices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/blockctl/formats/files.h"
#include "client/blockctl/formats/matrix_market.h"
#include "client/blockctl/formats/npy.h"
#include "tests/client/blockctl/blockctl_program.h"
#include "tests/client/server_fixture.h"
#include "tests/support/temp_folder.h"

namespace blockd::blockctl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A matrix of all diagonals up to `width`, and dense rows at its end.
struct Banded {
  int64_t order, width, dense;
  double scale = 1;

  double at(int64_t r, int64_t c) const {
    if (r == c) return scale * static_cast<double>(2 * width + 2 + r % 3 + (In(r) ? order : dense));
    const bool inside = std::abs(r - c) <= width || In(r) || In(c);
    return inside ? scale / static_cast<double>(1 + (r + c) % 2) : 0;
  }
  // Is a dense row.
  bool In(int64_t r) const { return r >= order - dense; }
  // A times a column of ones.
  std::vector<double> RowSums() const {
    std::vector<double> sums(order);
    for (int64_t r = 0; r < order; ++r) {
      for (int64_t c = 0; c < order; ++c) sums[r] += at(r, c);
    }
    return sums;
  }
  double LogDeterminant() const {
    std::vector<double> a(order * order);
    for (int64_t k = 0; k < order * order; ++k) a[k] = at(k / order, k % order);
    double sum = 0;
    for (int64_t k = 0; k < order; ++k) {
      sum += std::log(a[k * order + k]);
      for (int64_t r = k + 1; r < order; ++r) {
        const double factor = a[r * order + k] / a[k * order + k];
        for (int64_t c = k; c < order; ++c) a[r * order + c] -= factor * a[k * order + c];
      }
    }
    return sum;
  }
};

class BlockctlPaddingTest : public client::ServerTest {
 protected:
  void SetUp() override { StartServer(4 << 20); }

  Outcome Run(std::vector<std::string> arguments, const std::vector<std::string>& more = {}) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Blockctl(target(), arguments);
  }
  // The flags that name it.
  std::vector<std::string> Write(const Banded& matrix, const std::string& name = "a.mtx") const {
    std::string lines;
    int64_t count = 0;
    for (int64_t c = 0; c < matrix.order; ++c) {
      for (int64_t r = c; r < matrix.order; ++r) {
        if (matrix.at(r, c) == 0) continue;
        absl::StrAppend(&lines, r + 1, " ", c + 1, " ", matrix.at(r, c), "\n");
        ++count;
      }
    }
    const std::string path = folder_ / name;
    EXPECT_TRUE(
        WriteFile(path, {"%%MatrixMarket matrix coordinate real symmetric\n",
                         absl::StrCat(matrix.order, " ", matrix.order, " ", count, "\n"), lines})
            .ok());
    std::vector<std::string> flags = {"--matrix=" + path};
    if (matrix.dense > 0) flags.push_back(absl::StrCat("--arrow_size=", matrix.dense));
    return flags;
  }
  // Column k is k + 1 times the row sums.
  std::string WriteRhs(const Banded& matrix, int64_t columns) const {
    Array array;
    array.shape = {matrix.order, columns};
    array.fortran_order = true;
    for (int64_t k = 0; k < columns; ++k) {
      for (const double sum : matrix.RowSums()) {
        const double value = sum * static_cast<double>(k + 1);
        const auto* bytes = reinterpret_cast<const std::byte*>(&value);
        array.data.insert(array.data.end(), bytes, bytes + sizeof(value));
      }
    }
    EXPECT_TRUE(WriteNpy(folder_ / "b.npy", array).ok());
    return "--rhs=" + folder_ / "b.npy";
  }
  static void ExpectColumns(const Array& x, const Banded& matrix, int64_t columns) {
    ASSERT_EQ(x.shape, (std::vector<int64_t>{matrix.order, columns}));
    ASSERT_TRUE(x.fortran_order);
    for (int64_t k = 0; k < x.size(); ++k) {
      const int64_t column = k / matrix.order;
      EXPECT_NEAR(x.as<double>()[k], static_cast<double>(1 + column), 1e-13);
    }
  }
  static double LogDeterminantIn(const std::string& json) {
    const std::string key = "\"log_determinant\": ";
    const size_t at = json.find(key);
    double value = NAN;
    if (at == std::string::npos) return value;
    const std::string rest = json.substr(at + key.size());
    EXPECT_TRUE(absl::SimpleAtod(rest.substr(0, rest.find_first_of(",}")), &value));
    return value;
  }
  static std::string HandleOf(const Outcome& factored) {
    EXPECT_EQ(factored.exit_status, 0) << factored.err;
    return std::string(absl::StripAsciiWhitespace(factored.out));
  }

  const test::TempFolder folder_;
};

TEST_F(BlockctlPaddingTest, SolutionsHaveTheRowsOfTheMatrix) {
  for (const Banded& matrix : {Banded{7, 2, 0}, Banded{13, 5, 0}, Banded{47, 2, 0, 1e6},
                               Banded{12, 2, 1}, Banded{19, 3, 2, 1e-6}}) {
    const std::vector<std::string> flags = Write(matrix);
    const std::string rhs = WriteRhs(matrix, 2), out = folder_ / "x.npy";
    const std::string mtx = folder_ / "x.mtx";
    const std::string handle = HandleOf(Run({"factor", "--quiet"}, flags));
    EXPECT_THAT(handle, HasSubstr("+"));
    for (const std::vector<std::string>& of : {flags, {"--handle=" + handle}}) {
      ASSERT_EQ(Run({"solve", rhs, "--out=" + out}, of).exit_status, 0);
      const absl::StatusOr<Array> x = ReadNpy(out);
      ASSERT_TRUE(x.ok()) << x.status();
      ExpectColumns(*x, matrix, 2);
      ASSERT_EQ(Run({"solve", rhs, "--out=" + mtx}, of).exit_status, 0);
      const absl::StatusOr<Array> columns = ReadColumns(mtx);
      ASSERT_TRUE(columns.ok()) << columns.status();
      ExpectColumns(*columns, matrix, 2);
      const Outcome printed = Run({"solve", rhs}, of);
      std::istringstream words(printed.out);
      const std::vector<double> numbers{std::istream_iterator<double>(words), {}};
      EXPECT_EQ(numbers.size(), 2 * matrix.order);
      EXPECT_THAT(printed.err, HasSubstr(absl::StrCat(" of ", matrix.order, " rows in ")));
      EXPECT_THAT(Run({"solve", rhs, "--json"}, of).out,
                  HasSubstr(absl::StrCat("{\"rows\": ", matrix.order, ", \"num_rhs\": 2, ")));
    }
  }
}

TEST_F(BlockctlPaddingTest, LogDeterminantsAreThoseOfTheMatrix) {
  for (const double scale : {1e-3, 1.0, 1e3}) {
    for (const int64_t dense : {0, 2}) {
      const Banded matrix{13, 2, dense, scale};
      const std::vector<std::string> flags = Write(matrix);
      const double expected = matrix.LogDeterminant();
      const Outcome factored = Run({"factor", "--log_determinant", "--json"}, flags);
      EXPECT_NEAR(LogDeterminantIn(factored.out), expected, 1e-12 * std::abs(expected));
      EXPECT_THAT(factored.out, HasSubstr("\"padding\": 1"));
      const Outcome solved =
          Run({"solve", WriteRhs(matrix, 1), "--log_determinant", "--json"}, flags);
      EXPECT_NEAR(LogDeterminantIn(solved.out), expected, 1e-12 * std::abs(expected));
      const std::string handle = HandleOf(Run({"factor", "--quiet"}, flags));
      const Banded other{13, 2, dense, 2 * scale};
      const Outcome refactored =
          Run({"refactor", "--handle=" + handle, "--log_determinant", "--json"}, Write(other));
      EXPECT_NEAR(LogDeterminantIn(refactored.out), other.LogDeterminant(),
                  1e-12 * std::abs(other.LogDeterminant()));
      EXPECT_THAT(refactored.out, HasSubstr("\"handle\": \"" + handle));
    }
  }
}

TEST_F(BlockctlPaddingTest, AHandleSaysHowManyRowsArePadding) {
  const Banded matrix{13, 3, 0};  // blocks of 3
  const std::vector<std::string> flags = Write(matrix);
  const Outcome factored = Run({"factor", "--keep_matrix"}, flags);
  EXPECT_THAT(factored.err, HasSubstr("factored N=5 n=3 float64 with 2 rows of padding"));
  const std::string handle = HandleOf(factored);
  ASSERT_TRUE(handle.ends_with("+2")) << handle;
  const std::string rhs = WriteRhs(matrix, 1);
  EXPECT_THAT(Run({"solve", rhs, "--handle=" + handle, "--residual"}).err,
              HasSubstr("backward error "));
  // Without it these rows are as any others, and a block has no more than its own.
  const std::string bare = handle.substr(0, handle.size() - 2);
  const Outcome refused = Run({"solve", rhs, "--handle=" + bare});
  EXPECT_EQ(refused.exit_status, 3);
  EXPECT_THAT(refused.err, HasSubstr("N*n = 15"));
  EXPECT_EQ(Run({"solve", rhs, "--handle=" + bare + "+3"}).exit_status, 3);
  EXPECT_EQ(Run({"solve", rhs, "--handle=" + bare + "+0"}).exit_status, 1);
  EXPECT_THAT(Run({"list"}).out, AllOf(HasSubstr(bare), Not(HasSubstr(handle))));
  EXPECT_EQ(Run({"info", handle}).exit_status, 0);
  EXPECT_EQ(Run({"release", handle}).exit_status, 0);
}

TEST_F(BlockctlPaddingTest, RightHandSidesOfOtherRowsAreRefused) {
  const Banded matrix{13, 2, 0};
  const std::vector<std::string> flags = Write(matrix);
  const std::string handle = HandleOf(Run({"factor", "--quiet"}, flags));
  for (const int64_t rows : {12, 14}) {
    const std::string rhs = WriteRhs(Banded{rows, 2, 0}, 1);
    for (const std::vector<std::string>& of : {flags, {"--handle=" + handle}}) {
      const Outcome refused = Run({"solve", rhs}, of);
      EXPECT_EQ(refused.exit_status, 3);
      EXPECT_THAT(refused.err, HasSubstr("N*n less the padding = 13"));
    }
  }
}

TEST_F(BlockctlPaddingTest, MemoryGrowsWithTheOrder) {
  // One block would be of 128 MB.
  const Banded matrix{4003, 2, 0};
  EXPECT_THAT(
      Run({"factor", "--json"}, Write(matrix)).out,
      AllOf(HasSubstr("\"num_blocks\": 2002, \"block_size\": 2"), HasSubstr("\"padding\": 1")));
}

TEST_F(BlockctlPaddingTest, AMatrixThatDoesNotFitIsNamedWithItsBlocks) {
  const std::string path = folder_ / "wide.mtx";
  ASSERT_TRUE(WriteFile(path, {"%%MatrixMarket matrix coordinate real symmetric\n"
                               "3001 3001 2\n1 1 4\n2001 1 1\n"})
                  .ok());
  const std::vector<std::string> flags = {"--matrix=" + path};
  const std::string shape = "N=3 blocks of n=1001 need ";
  for (const Outcome& refused :
       {Run({"factor"}, flags), Run({"solve", WriteRhs(Banded{3001, 0, 0}, 1)}, flags)}) {
    EXPECT_EQ(refused.exit_status, 6);
    EXPECT_THAT(refused.err, AllOf(HasSubstr(shape), HasSubstr("MiB of the server's 3.8 MiB")));
  }
}

}  // namespace
}  // namespace blockd::blockctl
