// Right-hand sides are there for another attempt, and are copied only where that takes a copy.
#include "client/calls/kept_rhs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

namespace blockd::client {
namespace {

class KeptRhsTest : public testing::Test {
 protected:
  Bytes Rhs() const { return std::as_bytes(std::span(memory_).first(4)); }
  std::span<std::byte> Solution(size_t at) {
    return std::as_writable_bytes(std::span(memory_).subspan(at, 4));
  }

  std::vector<double> memory_ = {1, 2, 3, 4, 0, 0, 0, 0};
};

TEST_F(KeptRhsTest, TheyOutliveTheSolutionThatOverwritesThem) {
  for (const size_t at : {0, 1, 3}) {
    const std::vector<std::byte> before(Rhs().begin(), Rhs().end());
    const KeptRhs kept(Rhs(), Solution(at), true);
    std::ranges::fill(Solution(at), std::byte{0xff});
    EXPECT_TRUE(std::ranges::equal(kept.get(), before)) << at;
  }
}

TEST_F(KeptRhsTest, TheyStayWhereNothingOverwritesThem) {
  EXPECT_EQ(KeptRhs(Rhs(), Solution(4), true).get().data(), Rhs().data());
  EXPECT_EQ(KeptRhs(Rhs(), Solution(0), false).get().data(), Rhs().data());
}

}  // namespace
}  // namespace blockd::client
