// blockctl with matrices in files: factor, solve, refactor, release, and what is wrong with a file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/strip.h"
#include "client/blockctl/formats/blocks.h"
#include "client/blockctl/formats/files.h"
#include "client/blockctl/formats/matrix_market.h"
#include "client/blockctl/formats/npy.h"
#include "tests/client/blockctl/blockctl_program.h"
#include "tests/client/server_fixture.h"
#include "tests/support/temp_folder.h"

namespace blockd::blockctl {
namespace {

using test::TempFolder;

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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

  std::string Path(const std::string& name) const { return folder_ / name; }
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
  // The handle that `factor` printed.
  static std::string HandleOf(const Outcome& factored) {
    EXPECT_EQ(factored.exit_status, 0) << factored.err;
    return std::string(absl::StripAsciiWhitespace(factored.out));
  }
  static std::vector<double> Numbers(const std::string& text) {
    std::istringstream words(text);
    return {std::istream_iterator<double>(words), {}};
  }

  const TempFolder folder_;
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
           {"solve", good[0], good[1], "--rhs=" + good[1].substr(11)}}) {
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

// The same right-hand sides in every shape and order give the same solution, in that shape.
TEST_F(BlockctlFilesTest, RightHandSidesComeByRowsOrByBlocks) {
  const int64_t blocks = 4, n = 3, rows = blocks * n;
  const problems::Problem problem = problems::RandomSpd(blocks, n, 1, 100);
  const std::vector<std::string> matrix = WriteMatrix(problem, "a");
  const std::vector<double> b = problems::RandomColumns(rows, 2, 5);  // column-major
  const std::string handle = HandleOf(RunWith({"factor", "--quiet"}, matrix));
  const std::string rhs = Path("b.npy"), out = Path("x.npy");
  const std::vector<std::vector<int64_t>> shapes = {{rows}, {rows, 2}, {blocks, n}, {blocks, n, 2}};
  for (const std::vector<int64_t>& shape : shapes) {
    const int64_t d = shape.back() == 2 ? 2 : 1;
    for (const bool fortran_order : {false, true}) {
      const bool by_blocks = shape[0] == blocks;
      // Where row r = i n + j of column c stands.
      const auto place = [&](int64_t r, int64_t c) {
        if (!fortran_order) return r * d + c;
        return by_blocks ? r / n + blocks * (r % n) + rows * c : r + rows * c;
      };
      std::vector<double> values(rows * d);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < d; ++c) values[place(r, c)] = b[c * rows + r];
      }
      Array array = ToArray(shape, values);
      array.fortran_order = fortran_order;
      ASSERT_TRUE(WriteNpy(rhs, array).ok());
      for (const bool by_handle : {false, true}) {
        std::vector<std::string> arguments = {"solve", "--rhs=" + rhs, "--out=" + out};
        const Outcome solved =
            by_handle ? RunWith(arguments, {"--handle=" + handle}) : RunWith(arguments, matrix);
        ASSERT_EQ(solved.exit_status, 0) << solved.err;
        const absl::StatusOr<Array> x = ReadNpy(out);
        ASSERT_TRUE(x.ok()) << x.status();
        EXPECT_EQ(x->shape, shape);
        const auto columns = ColumnsFromArray(*x, blocks, n);
        ASSERT_TRUE(columns.ok()) << columns.status();
        const auto* numbers = reinterpret_cast<const double*>(columns->data.data());
        EXPECT_LT(problems::BackwardError(problem, {numbers, static_cast<size_t>(rows * d)},
                                          std::span<const double>(b).first(rows * d), d),
                  1e-14)
            << ShapeText(shape) << fortran_order << by_handle;
      }
    }
  }
}

TEST_F(BlockctlFilesTest, RightHandSidesOfOtherShapesAreRefusedByName) {
  const problems::Problem problem = problems::Poisson(4, 3);
  const std::vector<std::string> matrix = WriteMatrix(problem, "a");
  const std::string handle = HandleOf(RunWith({"factor", "--quiet"}, matrix));
  const auto refused = [&](const std::string& rhs, const std::string& says) {
    for (const std::vector<std::string>& of : {matrix, {"--handle=" + handle}}) {
      const Outcome solved = RunWith({"solve", "--rhs=" + rhs}, of);
      EXPECT_EQ(solved.exit_status, 3) << rhs;
      EXPECT_EQ(solved.out, "");
      EXPECT_THAT(solved.err, AllOf(HasSubstr(rhs), HasSubstr(says), HasSubstr("N*n = 12")));
    }
  };
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {24}, {3, 4}, {2, 12}, {6, 4}, {1, 12}, {3, 4, 1}, {12, 1, 1}, {4, 3, 1, 1}}) {
    int64_t size = 1;
    for (const int64_t extent : shape) size *= extent;
    ASSERT_TRUE(WriteNpy(Path("b.npy"), ToArray(shape, std::vector<double>(size, 1))).ok());
    refused(Path("b.npy"), ShapeText(shape));
  }
  const std::string twelve = "1\n1\n1\n1\n1\n1\n1\n1\n1\n1\n1\n1\n";
  for (const std::string shape : {"4 3", "3 4", "1 12", "6 2"}) {
    ASSERT_TRUE(WriteFile(Path("b.mtx"),
                          {"%%MatrixMarket matrix array real general\n", shape, "\n", twelve})
                    .ok());
    refused(Path("b.mtx"), shape.substr(0, shape.find(' ')) + " rows");
  }
  ASSERT_TRUE(
      WriteFile(Path("b.mtx"), {"%%MatrixMarket matrix array real general\n12 1\n", twelve}).ok());
  EXPECT_EQ(RunWith({"solve", "--rhs=" + Path("b.mtx")}, matrix).exit_status, 0);
}

TEST_F(BlockctlFilesTest, SolutionsGoToEitherKindOfFileOrToStandardOutput) {
  const problems::Problem problem = problems::RandomSpd(3, 2, 1, 10);
  const std::vector<std::string> matrix = WriteMatrix(problem, "a");
  const std::vector<double> b = problems::RandomColumns(6, 2, 5);
  Array array = ToArray({3, 2, 2}, {});
  array.data.resize(12 * sizeof(double));
  for (int r = 0; r < 6; ++r) {
    for (int c = 0; c < 2; ++c) array.as<double>()[r * 2 + c] = b[c * 6 + r];
  }
  ASSERT_TRUE(WriteNpy(Path("b.npy"), array).ok());
  ASSERT_EQ(
      RunWith({"solve", "--rhs=" + Path("b.npy"), "--out=" + Path("x.mtx")}, matrix).exit_status,
      0);
  const absl::StatusOr<Array> x = ReadColumns(Path("x.mtx"));
  ASSERT_TRUE(x.ok()) << x.status();
  EXPECT_EQ(x->shape, (std::vector<int64_t>{6, 2}));
  EXPECT_LT(problems::BackwardError(problem, {x->as<double>(), 12}, b, 2), 1e-14);

  const Outcome printed = RunWith({"solve", "--rhs=" + Path("b.npy")}, matrix);
  ASSERT_EQ(printed.exit_status, 0) << printed.err;
  EXPECT_EQ(std::count(printed.out.begin(), printed.out.end(), '\n'), 6);  // a line a row
  const std::vector<double> numbers = Numbers(printed.out);
  ASSERT_EQ(numbers.size(), 12);
  for (int r = 0; r < 6; ++r) {
    for (int c = 0; c < 2; ++c) EXPECT_EQ(numbers[r * 2 + c], x->as<double>()[c * 6 + r]);
  }
  EXPECT_THAT(printed.err, HasSubstr("solved 2 right-hand sides of 6 rows in "));

  const Outcome json = RunWith({"solve", "--rhs=" + Path("b.npy"), "--json"}, matrix);
  EXPECT_THAT(json.out,
              AllOf(HasSubstr("{\"rows\": 6, \"num_rhs\": 2, "), HasSubstr("\"solution\": [["),
                    Not(HasSubstr("log_det")), Not(HasSubstr("\"out\""))));
  EXPECT_THAT(
      RunWith({"solve", "--rhs=" + Path("b.npy"), "--out=" + Path("x.npy"), "--json"}, matrix).out,
      AllOf(HasSubstr("\"out\": \"" + Path("x.npy")), Not(HasSubstr("\"solution\""))));
}

TEST_F(BlockctlFilesTest, MatricesMayBeFloat32SuperdiagonalAndFortran) {
  const auto write = [&](const std::string& name, const std::vector<int64_t>& shape,
                         const std::vector<float>& values, bool fortran_order) {
    Array array;
    array.scalar = client::Scalar::kFloat32;
    array.shape = shape;
    array.fortran_order = fortran_order;
    array.data.resize(values.size() * sizeof(float));
    std::copy(values.begin(), values.end(), array.as<float>());
    EXPECT_TRUE(WriteNpy(Path(name), array).ok());
  };
  write("d.npy", {2, 2, 2}, {8, 0, 0, 8, 8, 0, 0, 8}, false);
  write("e.npy", {1, 2, 2}, {1, 2, 3, 4}, false);  // rows (1 2), (3 4)
  write("f.npy", {1, 2, 2}, {1, 3, 2, 4}, true);   // the same
  write("b.npy", {4}, {1, 0, 0, 0}, false);
  const auto solve = [&](const std::string& coupling, const std::string& form) {
    const Outcome solved =
        Run({"solve", "--diagonal=" + Path("d.npy"), "--coupling=" + Path(coupling),
             "--coupling_form=" + form, "--rhs=" + Path("b.npy"), "--quiet"});
    EXPECT_EQ(solved.exit_status, 0) << solved.err;
    EXPECT_EQ(solved.err, "");
    return Numbers(solved.out);
  };
  // With S = 8 I - E'E / 8, x0 = inv(S) e0 and x1 = -E x0 / 8, where E = A(1,0).
  const std::vector<double> below = solve("e.npy", "subdiagonal");
  ASSERT_EQ(below.size(), 4);
  EXPECT_EQ(solve("f.npy", "subdiagonal"), below);
  const std::vector<double> above = solve("e.npy", "superdiagonal");
  ASSERT_EQ(above.size(), 4);
  EXPECT_EQ(solve("f.npy", "superdiagonal"), above);
  EXPECT_NEAR(below[2], -(1 * below[0] + 2 * below[1]) / 8, 1e-6);
  EXPECT_NEAR(below[3], -(3 * below[0] + 4 * below[1]) / 8, 1e-6);
  EXPECT_NEAR(above[2], -(1 * above[0] + 3 * above[1]) / 8, 1e-6);
  EXPECT_NEAR(above[3], -(2 * above[0] + 4 * above[1]) / 8, 1e-6);
  // 64-bit right-hand sides are for another matrix.
  ASSERT_TRUE(WriteNpy(Path("b8.npy"), ToArray({4}, {1, 0, 0, 0})).ok());
  const Outcome mixed = Run({"solve", "--diagonal=" + Path("d.npy"), "--coupling=" + Path("e.npy"),
                             "--rhs=" + Path("b8.npy")});
  EXPECT_EQ(mixed.exit_status, 3);
  EXPECT_THAT(mixed.err, HasSubstr("float32"));
  // By handle as well.
  const std::string handle = HandleOf(
      Run({"factor", "--diagonal=" + Path("d.npy"), "--coupling=" + Path("e.npy"), "--quiet"}));
  EXPECT_THAT(Run({"info", handle, "--json"}).out, HasSubstr("\"scalar\": \"float32\""));
  EXPECT_EQ(Numbers(Run({"solve", "--handle=" + handle, "--rhs=" + Path("b.npy")}).out), below);
}

TEST_F(BlockctlFilesTest, TheFlagsOfAFactorReachTheServer) {
  const problems::Problem problem = problems::Poisson(4, 3);
  const std::vector<std::string> matrix = WriteMatrix(problem, "a");
  const auto info = [&](const std::vector<std::string>& flags) {
    return Run({"info", HandleOf(RunWith(flags, matrix)), "--json"}).out;
  };
  EXPECT_THAT(info({"factor"}),
              AllOf(HasSubstr("\"matrix_kept\": false"), HasSubstr("\"pinned\": false")));
  EXPECT_THAT(info({"factor", "--keep_matrix"}),
              AllOf(HasSubstr("\"matrix_kept\": true"), HasSubstr("\"pinned\": false")));
  EXPECT_THAT(info({"factor", "--pin"}),
              AllOf(HasSubstr("\"matrix_kept\": false"), HasSubstr("\"pinned\": true")));
  EXPECT_THAT(info({"factor", "--lease=50m"}), HasSubstr("\"lease_seconds\": 29"));
  const Outcome estimated =
      RunWith({"factor", "--condition_estimate", "--accuracy=guaranteed", "--json"}, matrix);
  EXPECT_THAT(estimated.out, AllOf(HasSubstr("\"growth\": "), HasSubstr("\"condition_estimate\": "),
                                   HasSubstr("\"backward_error_bound\": ")));
  const Outcome first = RunWith({"factor", "--idempotency_key=k", "--json"}, matrix);
  const Outcome second = RunWith({"factor", "--idempotency_key=k", "--json"}, matrix);
  EXPECT_THAT(first.out, HasSubstr("\"found\": false"));
  EXPECT_THAT(second.out, HasSubstr("\"found\": true"));
  EXPECT_EQ(first.out.substr(0, 65), second.out.substr(0, 65));  // the handle
  EXPECT_THAT(RunWith({"factor", "--idempotency_key=k"}, matrix).err, HasSubstr("found N=4 n=3"));
  EXPECT_THAT(first.out, AllOf(HasSubstr("\"num_blocks\": 4, \"block_size\": 3"),
                               HasSubstr("\"scalar\": \"float64\""),
                               HasSubstr("\"factor_bytes\": "), Not(HasSubstr("log_det"))));
}

TEST_F(BlockctlFilesTest, LogDeterminantsAndErrorsAreReportedWhereAskedFor) {
  ASSERT_TRUE(WriteFile(Path("a.mtx"), {"%%MatrixMarket matrix coordinate real symmetric\n2 2 3\n"
                                        "1 1 2\n2 1 1\n2 2 5\n"})
                  .ok());  // of determinant 9
  ASSERT_TRUE(
      WriteFile(Path("b.mtx"), {"%%MatrixMarket matrix array real general\n2 1\n3\n6\n"}).ok());
  const std::string matrix = "--matrix=" + Path("a.mtx"), rhs = "--rhs=" + Path("b.mtx");
  EXPECT_THAT(Run({"factor", matrix, "--log_determinant"}).err, HasSubstr("log det A = 2.1972245"));
  EXPECT_THAT(Run({"factor", matrix, "--log_determinant", "--json"}).out,
              HasSubstr("\"log_determinant\": 2.1972245"));
  const Outcome solved =
      Run({"solve", matrix, rhs, "--log_determinant", "--residual", "--refinements=2"});
  ASSERT_EQ(solved.exit_status, 0) << solved.err;
  ASSERT_EQ(Numbers(solved.out).size(), 2);
  for (const double value : Numbers(solved.out)) EXPECT_NEAR(value, 1, 1e-14);
  EXPECT_THAT(solved.err, AllOf(HasSubstr("log det A = 2.1972245"), HasSubstr("backward error ")));
  EXPECT_THAT(Run({"solve", matrix, rhs, "--log_determinant", "--residual", "--json"}).out,
              AllOf(HasSubstr("\"log_determinant\": 2.1972245"), HasSubstr("\"backward_error\": "),
                    HasSubstr("\"refinements\": ")));
  const Outcome plain = Run({"solve", matrix, rhs});
  EXPECT_THAT(plain.err, AllOf(Not(HasSubstr("log det")), HasSubstr("backward error at most ")));
  const std::string handle = HandleOf(Run({"factor", matrix, "--quiet"}));
  const Outcome refactored =
      Run({"refactor", "--handle=" + handle, matrix, "--log_determinant", "--pin", "--json"});
  EXPECT_THAT(refactored.out, AllOf(HasSubstr("\"handle\": \"" + handle),
                                    HasSubstr("\"log_determinant\": 2.1972245")));
  EXPECT_THAT(Run({"info", handle, "--json"}).out, HasSubstr("\"pinned\": true"));
  // Both flags need the matrix, which this factorization was not told to keep.
  for (const std::string asked : {"--residual", "--refinements=1"}) {
    const Outcome outcome = Run({"solve", "--handle=" + handle, rhs, asked});
    EXPECT_EQ(outcome.exit_status, 3);
    EXPECT_THAT(outcome.err, HasSubstr("--keep_matrix"));
  }
}

TEST_F(BlockctlFilesTest, NotANumberIsRefusedWhereAskedFor) {
  problems::Problem problem = problems::Poisson(2, 2);
  const std::vector<std::string> good = WriteMatrix(problem, "good");
  std::vector<double> b(4, 1);
  ASSERT_TRUE(WriteNpy(Path("b.npy"), ToArray({4}, b)).ok());
  b[3] = std::numeric_limits<double>::quiet_NaN();
  ASSERT_TRUE(WriteNpy(Path("nan.npy"), ToArray({4}, b)).ok());
  const std::string handle = HandleOf(RunWith({"factor", "--quiet"}, good));
  for (const std::vector<std::string>& of : {good, {"--handle=" + handle}}) {
    const Outcome refused =
        RunWith({"solve", "--rhs=" + Path("nan.npy"), "--check_finite", "--json"}, of);
    EXPECT_EQ(refused.exit_status, 3);
    EXPECT_THAT(refused.out,
                AllOf(HasSubstr("\"code\": \"INVALID_ARGUMENT\""), HasSubstr("\"field\": "),
                      HasSubstr("\"came\": "), HasSubstr("\"expected\": ")));
    EXPECT_EQ(RunWith({"solve", "--rhs=" + Path("b.npy"), "--check_finite"}, of).exit_status, 0);
  }
  problem.coupling[1] = std::numeric_limits<double>::infinity();
  const std::vector<std::string> bad = WriteMatrix(problem, "bad");
  EXPECT_THAT(RunWith({"factor", "--check_finite", "--json"}, bad).out, HasSubstr("\"field\": "));
}

TEST_F(BlockctlFilesTest, ReleaseTakesManyHandlesOrAll) {
  const std::vector<std::string> matrix = WriteMatrix(problems::Poisson(4, 3), "a");
  std::vector<std::string> handles;
  for (int k = 0; k < 4; ++k) handles.push_back(HandleOf(RunWith({"factor", "--quiet"}, matrix)));
  const Outcome both = Run({"info", handles[0], "--handle=" + handles[1]});
  EXPECT_THAT(both.out,
              AllOf(HasSubstr(handles[0]), HasSubstr(handles[1]), Not(HasSubstr(handles[2]))));
  EXPECT_EQ(Run({"info", handles[0], "--quiet"}).out, "");
  const Outcome one = Run({"release", "--handle=" + handles[0]});
  EXPECT_EQ(one.exit_status, 0);
  EXPECT_EQ(one.out, "");
  EXPECT_THAT(one.err, HasSubstr("released 1 handle, "));
  const Outcome two = Run({"release", handles[1], handles[2], "--json"});
  EXPECT_THAT(two.out, HasSubstr("{\"released\": 2, \"released_bytes\": "));
  EXPECT_THAT(two.out, Not(HasSubstr("\"released_bytes\": 0}")));
  EXPECT_THAT(Run({"list"}).out, AllOf(HasSubstr(handles[3]), Not(HasSubstr(handles[1]))));
  EXPECT_THAT(Run({"list", "--json"}).out, HasSubstr("\"handle\": \"" + handles[3]));
  EXPECT_THAT(Run({"release", "--all"}).err, HasSubstr("released 1 handle, "));
  EXPECT_EQ(Run({"list", "--json"}).out, "{\"factorizations\": []}\n");
  const Outcome gone = Run({"info", handles[3], "--json"});
  EXPECT_EQ(gone.exit_status, 5);
  EXPECT_THAT(gone.out, AllOf(HasSubstr("\"reason\": \"RELEASED\""),
                              HasSubstr("\"handle\": \"" + handles[3])));
  // A sixteenth of the server's 4 MiB is for Solves.
  const Outcome large =
      RunWith({"factor", "--json"}, WriteMatrix(problems::Poisson(128, 64), "large"));
  EXPECT_THAT(large.out,
              AllOf(HasSubstr("\"asked_bytes\": "), HasSubstr("\"free_bytes\": "),
                    HasSubstr("\"evictable_bytes\": "), HasSubstr("\"total_bytes\": 3932160")));
}

TEST_F(BlockctlFilesTest, AnOverwriteThatFailsLosesTheHandleAndOthersDoNot) {
  problems::Problem problem = problems::Poisson(4, 3);
  const std::vector<std::string> good = WriteMatrix(problem, "good");
  problem.diagonal[0] = -1;
  const std::vector<std::string> bad = WriteMatrix(problem, "bad");
  const std::string handle = HandleOf(RunWith({"factor", "--quiet"}, good));
  EXPECT_EQ(RunWith({"refactor", "--handle=" + handle}, bad).exit_status, 4);
  EXPECT_EQ(Run({"info", handle}).exit_status, 0);
  EXPECT_EQ(RunWith({"refactor", "--handle=" + handle, "--overwrite"}, bad).exit_status, 4);
  const Outcome lost = Run({"info", handle});
  EXPECT_EQ(lost.exit_status, 5);
  EXPECT_THAT(lost.err, HasSubstr("--overwrite"));
}

}  // namespace
}  // namespace blockd::blockctl
