// blockctl with matrices in files: factor, solve, refactor, release, and what is wrong with a file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/blockctl/blocks.h"
#include "client/blockctl/files.h"
#include "client/blockctl/matrix_market.h"
#include "client/blockctl/npy.h"
#include "tests/client/program.h"
#include "tests/client/server_fixture.h"

namespace blockd::blockctl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Array ToArray(std::vector<int64_t> shape, const std::vector<double>& values) {
  Array array;
  array.shape = std::move(shape);
  array.data.resize(values.size() * sizeof(double));
  std::copy(values.begin(), values.end(), array.as<double>());
  return array;
}

class BlockctlFilesTest : public client::ServerTest {
 protected:
  void SetUp() override { StartServer(4 << 20); }

  std::string Path(const std::string& name) {
    return absl::StrCat(::testing::TempDir(), "/",
                        ::testing::UnitTest::GetInstance()->current_test_info()->name(), "-", name);
  }
  Outcome Run(std::vector<std::string> arguments) { return Blockctl(target(), arguments); }

  // The matrix as NumPy's row-major blocks: of the symmetric ones that changes nothing.
  std::vector<std::string> WriteMatrix(const problems::Problem& problem, const std::string& name) {
    const int64_t blocks = problem.num_blocks, n = problem.block_size;
    std::vector<double> rows(problem.coupling.size());
    for (int64_t i = 0; i + 1 < blocks; ++i) {
      for (int64_t c = 0; c < n; ++c) {
        for (int64_t r = 0; r < n; ++r) {
          rows[(i * n + r) * n + c] = problem.CouplingBlock(i)[c * n + r];
        }
      }
    }
    const std::string diagonal = Path(name + "-d.npy"), coupling = Path(name + "-e.npy");
    EXPECT_TRUE(WriteNpy(diagonal, ToArray({blocks, n, n}, problem.diagonal)).ok());
    EXPECT_TRUE(WriteNpy(coupling, ToArray({blocks - 1, n, n}, rows)).ok());
    return {"--diagonal=" + diagonal, "--coupling=" + coupling};
  }
  Outcome RunWith(std::vector<std::string> arguments, const std::vector<std::string>& more) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Run(arguments);
  }
  void ExpectSolved(const problems::Problem& problem, const std::string& path) {
    const absl::StatusOr<Array> x = ReadNpy(path);
    ASSERT_TRUE(x.ok()) << x.status();
    ASSERT_EQ(x->size(), problem.rows());
    EXPECT_LT(problems::BackwardError(problem, {x->as<double>(), static_cast<size_t>(x->size())},
                                      problem.rhs, 1),
              1e-14);
  }
};

TEST_F(BlockctlFilesTest, FactorSolveRefactorRelease) {
  const problems::Problem before = problems::RandomSpd(6, 4, 1, 100);
  const problems::Problem after = problems::RandomSpd(6, 4, 2, 100);
  const Outcome factored =
      RunWith({"factor", "--keep_matrix", "--quiet"}, WriteMatrix(before, "before"));
  ASSERT_EQ(factored.exit_status, 0) << factored.err;
  EXPECT_EQ(factored.err, "");
  const std::string handle = std::string(absl::StripAsciiWhitespace(factored.out));
  EXPECT_EQ(handle.size(), 48);

  const std::string rhs = Path("b.npy"), out = Path("x.npy");
  ASSERT_TRUE(WriteNpy(rhs, ToArray({before.rows()}, before.rhs)).ok());
  const Outcome solved =
      Run({"solve", "--handle=" + handle, "--rhs=" + rhs, "--out=" + out, "--residual", "--json"});
  ASSERT_EQ(solved.exit_status, 0) << solved.err;
  EXPECT_THAT(solved.out, AllOf(HasSubstr("\"backward_error\": "), HasSubstr("\"cost\": {")));
  ExpectSolved(before, out);

  ASSERT_EQ(RunWith({"refactor", "--handle=" + handle}, WriteMatrix(after, "after")).exit_status,
            0);
  ASSERT_TRUE(WriteNpy(rhs, ToArray({after.rows()}, after.rhs)).ok());
  ASSERT_EQ(Run({"solve", "--handle", handle, "--rhs", rhs, "--out", out}).exit_status, 0);
  ExpectSolved(after, out);

  EXPECT_THAT(Run({"list"}).out, AllOf(HasSubstr(handle), HasSubstr("refactored:1")));
  EXPECT_THAT(Run({"info", handle, "--json"}).out, HasSubstr("\"times_solved\": 2"));
  EXPECT_EQ(Run({"release", handle}).exit_status, 0);
  const Outcome gone = Run({"solve", "--handle=" + handle, "--rhs=" + rhs});
  EXPECT_EQ(gone.exit_status, 5);
  EXPECT_THAT(gone.err, HasSubstr("released"));
}

TEST_F(BlockctlFilesTest, SolvesAMatrixMarketMatrixAndKeepsNothing) {
  const std::string matrix = Path("a.mtx"), rhs = Path("b.mtx");
  ASSERT_TRUE(WriteFile(matrix, {"%%MatrixMarket matrix coordinate real symmetric\n3 3 5\n"
                                 "1 1 2\n2 1 -1\n2 2 2\n3 2 -1\n3 3 2\n"})
                  .ok());
  ASSERT_TRUE(WriteFile(rhs, {"%%MatrixMarket matrix array real general\n3 1\n1\n0\n1\n"}).ok());
  const Outcome solved = Run({"solve", "--matrix=" + matrix, "--rhs=" + rhs, "--quiet"});
  ASSERT_EQ(solved.exit_status, 0) << solved.err;
  std::istringstream lines(solved.out);
  const std::vector<double> x{std::istream_iterator<double>(lines), {}};
  ASSERT_EQ(x.size(), 3);
  for (const double value : x) EXPECT_NEAR(value, 1, 1e-14);
  EXPECT_EQ(Run({"list", "--json"}).out, "{\"factorizations\": []}\n");
  const Outcome wrong = Run({"factor", "--matrix=" + matrix, "--block_size=2"});
  EXPECT_EQ(wrong.exit_status, 3);
  EXPECT_THAT(wrong.err, HasSubstr("does not divide"));
}

TEST_F(BlockctlFilesTest, NotPositiveDefiniteExitsWithFour) {
  problems::Problem problem = problems::Poisson(4, 3);
  problem.diagonal[2 * 9 + 4] = -1;
  const Outcome factored = RunWith({"factor", "--json"}, WriteMatrix(problem, "bad"));
  EXPECT_EQ(factored.exit_status, 4);
  EXPECT_THAT(factored.out, AllOf(HasSubstr("\"block\": 2"), HasSubstr("\"row\": 1")));
}

TEST_F(BlockctlFilesTest, WhatDoesNotFitExitsWithSix) {
  const Outcome factored = RunWith({"factor"}, WriteMatrix(problems::Poisson(128, 64), "large"));
  EXPECT_EQ(factored.exit_status, 6) << factored.err;
  EXPECT_THAT(factored.err, HasSubstr("--device_memory"));
}

TEST_F(BlockctlFilesTest, WrongFilesExitWithThreeAndAreNamed) {
  const problems::Problem problem = problems::Poisson(4, 3);
  const std::vector<std::string> good = WriteMatrix(problem, "good");
  const std::string text = Path("text.npy");
  ASSERT_TRUE(WriteFile(text, {"1 2 3\n"}).ok());
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"factor", "--diagonal=/nowhere.npy"},
           {"factor", "--diagonal=" + text},
           {"factor", "--matrix=" + text},
           {"factor", good[0]},
           {"factor", good[0], "--coupling=" + text},
           {"solve", good[0], good[1], "--rhs=/nowhere.npy"},
           {"solve", good[0], good[1], "--rhs=" + good[0].substr(11)}}) {
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.exit_status, 3) << ::testing::PrintToString(arguments) << outcome.err;
  }
  EXPECT_THAT(Run({"factor", "--diagonal=" + text}).err, HasSubstr(text));
  // Right in itself, and not for this matrix.
  const std::string rhs = Path("b.npy"), out = "/nowhere/x.npy";
  ASSERT_TRUE(WriteNpy(rhs, ToArray({5}, std::vector<double>(5))).ok());
  const Outcome sizes = Run({"solve", good[0], good[1], "--rhs=" + rhs});
  EXPECT_EQ(sizes.exit_status, 3);
  EXPECT_THAT(sizes.err, HasSubstr("N*n = 12"));
  ASSERT_TRUE(WriteNpy(rhs, ToArray({12}, std::vector<double>(12))).ok());
  EXPECT_EQ(Run({"solve", good[0], good[1], "--rhs=" + rhs, "--out=" + out}).exit_status, 3);
}

}  // namespace
}  // namespace blockd::blockctl
