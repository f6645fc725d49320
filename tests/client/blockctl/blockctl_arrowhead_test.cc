// blockctl with a matrix that has a border.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "client/blockctl/formats/files.h"
#include "client/blockctl/formats/npy.h"
#include "tests/client/blockctl/blockctl_program.h"
#include "tests/client/server_fixture.h"
#include "tests/support/temp_folder.h"

namespace blockd::blockctl {
namespace {

using ::testing::HasSubstr;

class BlockctlArrowheadTest : public client::ServerTest {
 protected:
  void SetUp() override { StartServer(4 << 20); }

  Outcome Run(std::vector<std::string> arguments, const std::vector<std::string>& more = {}) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Blockctl(target(), arguments);
  }
  std::string Write(const std::string& name, std::vector<int64_t> shape,
                    const std::vector<double>& values) const {
    Array array;
    array.shape = std::move(shape);
    array.data.resize(values.size() * sizeof(double));
    std::copy(values.begin(), values.end(), array.as<double>());
    EXPECT_TRUE(WriteNpy(folder_ / name, array).ok());
    return folder_ / name;
  }

  const test::TempFolder folder_;
};

// x = (1, 1, 1, 1), by arrays and as the last row of a whole matrix; refactored, and shown.
TEST_F(BlockctlArrowheadTest, ABorderComesInArraysOrAsTheLastRows) {
  const std::string rhs = Write("b.npy", {4}, {4, 3, 4, 7}), out = folder_ / "x.npy";
  const std::vector<std::string> arrays = {"--diagonal=" + Write("d.npy", {3, 1, 1}, {4, 4, 4}),
                                           "--coupling=" + Write("e.npy", {2, 1, 1}, {-1, -1}),
                                           "--border=" + Write("border.npy", {1, 3}, {1, 1, 1}),
                                           "--corner=" + Write("c.npy", {1, 1}, {4})};
  const std::string whole = folder_ / "a.mtx";
  ASSERT_TRUE(WriteFile(whole, {"%%MatrixMarket matrix coordinate real symmetric\n4 4 9\n"
                                "1 1 4\n2 1 -1\n2 2 4\n3 2 -1\n3 3 4\n"
                                "4 1 1\n4 2 1\n4 3 1\n4 4 4\n"})
                  .ok());
  const std::vector<std::string> matrix = {"--matrix=" + whole, "--arrow_size=1"};
  for (const std::vector<std::string>& flags : {arrays, matrix}) {
    const Outcome factored = Run({"factor"}, flags);
    EXPECT_THAT(factored.err, HasSubstr("N=3 n=1 float64 p=1"));
    ASSERT_EQ(factored.exit_status, 0) << factored.err;
    const std::string handle(absl::StripAsciiWhitespace(factored.out));
    EXPECT_EQ(Run({"refactor", "--handle=" + handle}, flags).exit_status, 0);
    EXPECT_THAT(Run({"list"}).out, HasSubstr("arrow:1"));
    const Outcome solved = Run({"solve", "--handle=" + handle, "--rhs=" + rhs, "--out=" + out});
    ASSERT_EQ(solved.exit_status, 0) << solved.err;
    for (int i = 0; i < 4; ++i) EXPECT_NEAR(ReadNpy(out)->as<double>()[i], 1, 1e-14);
    ASSERT_EQ(Run({"solve", "--rhs=" + rhs, "--out=" + out}, flags).exit_status, 0);
    for (int i = 0; i < 4; ++i) EXPECT_NEAR(ReadNpy(out)->as<double>()[i], 1, 1e-14);
    EXPECT_EQ(Run({"release", handle}).exit_status, 0);
  }
  std::vector<std::string> half = arrays;
  half.pop_back();
  const Outcome refused = Run({"factor"}, half);
  EXPECT_EQ(refused.exit_status, 1);
  EXPECT_THAT(refused.err, HasSubstr("--border and --corner go together"));
  EXPECT_THAT(Run({"plan", "--num_blocks=3", "--block_size=1", "--arrow_size=1"}).out,
              HasSubstr("N=3 n=1 float64 p=1"));
  Write("border.npy", {3, 1}, {1, 1, 1});
  const Outcome turned = Run({"factor"}, arrays);
  EXPECT_EQ(turned.exit_status, 3);
  EXPECT_THAT(turned.err, HasSubstr("expected (1, 3), (p, N*n)"));
}

}  // namespace
}  // namespace blockd::blockctl
