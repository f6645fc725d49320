#include "client/blockctl/text/metrics_page.h"

#include <gtest/gtest.h>

namespace blockd::blockctl {
namespace {

TEST(MetricsPageTest, TheSummaryKeepsWhatIsOursAndNotZero) {
  const std::string page =
      "# HELP blockd_x what\n# TYPE blockd_x counter\nblockd_x{method=\"Solve\"} 3\nblockd_y 0\n"
      "blockd_h_bucket{le=\"1\"} 4\nblockd_h_sum 4\nblockd_h_count 2\nother_z 5\nblockd_z 1e9\n"
      "blockd_broken\n";
  EXPECT_EQ(MetricsSummary(page), "  blockd_x{method=\"Solve\"} 3\n  blockd_z 1e9\n");
}

TEST(MetricsPageTest, NobodyThereIsUnavailable) {
  EXPECT_EQ(FetchMetrics("127.0.0.1:1").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(FetchMetrics("nonsense").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace blockd::blockctl
