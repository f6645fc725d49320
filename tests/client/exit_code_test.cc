#include "client/blockctl/exit_code.h"

#include <gtest/gtest.h>

#include "blockd/client/errors.h"

namespace blockd::blockctl {
namespace {

absl::Status NotPositiveDefinite() {
  v1::RpcStatus status;
  status.set_code(static_cast<int>(absl::StatusCode::kInvalidArgument));
  status.add_details()->PackFrom(v1::NotPositiveDefinite());
  return client::ToStatus(status);
}

TEST(ExitCodeTest, EveryKindOfFailureHasItsOwn) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCodeOf(UsageError("what?")), 1);
  EXPECT_EQ(ExitCodeOf(absl::UnavailableError("")), 2);
  EXPECT_EQ(ExitCodeOf(absl::InvalidArgumentError("")), 3);
  EXPECT_EQ(ExitCodeOf(absl::FailedPreconditionError("")), 3);
  EXPECT_EQ(ExitCodeOf(NotPositiveDefinite()), 4);
  EXPECT_EQ(ExitCodeOf(absl::NotFoundError("")), 5);
  EXPECT_EQ(ExitCodeOf(absl::ResourceExhaustedError("")), 6);
  EXPECT_EQ(ExitCodeOf(absl::DeadlineExceededError("")), 7);
  EXPECT_EQ(ExitCodeOf(absl::InternalError("")), 8);
  EXPECT_EQ(ExitCodeOf(absl::UnimplementedError("")), 8);
}

TEST(ExitCodeTest, AdviceNamesTheServer) {
  EXPECT_NE(Advice(absl::UnavailableError(""), "host:1").find("host:1"), std::string::npos);
  EXPECT_EQ(Advice(absl::OkStatus(), ""), "");
}

}  // namespace
}  // namespace blockd::blockctl
