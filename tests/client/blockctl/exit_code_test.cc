#include "client/blockctl/text/exit_code.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "blockd/client/errors.h"

namespace blockd::blockctl {
namespace {

using ::testing::HasSubstr;

absl::Status NotPositiveDefinite() {
  v1::RpcStatus status;
  status.set_code(static_cast<int>(absl::StatusCode::kInvalidArgument));
  status.add_details()->PackFrom(v1::NotPositiveDefinite());
  return client::ToStatus(status);
}

absl::Status OverQuota() {
  v1::RpcStatus status;
  status.set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
  status.add_details()->PackFrom(v1::QuotaExceeded());
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
  EXPECT_EQ(ExitCodeOf(OverQuota()), 9);
  EXPECT_EQ(ExitCodeOf(absl::UnauthenticatedError("")), 10);
  EXPECT_EQ(ExitCodeOf(absl::PermissionDeniedError("")), 10);
}

TEST(ExitCodeTest, AdviceNamesTheServer) {
  EXPECT_NE(Advice(absl::UnavailableError(""), "host:1").find("host:1"), std::string::npos);
  EXPECT_EQ(Advice(absl::OkStatus(), ""), "");
}

absl::Status NotHeld(v1::HandleNotFound::Reason reason) {
  v1::HandleNotFound detail;
  detail.set_reason(reason);
  v1::RpcStatus status;
  status.set_code(static_cast<int>(absl::StatusCode::kNotFound));
  status.add_details()->PackFrom(detail);
  return client::ToStatus(status);
}

TEST(ExitCodeTest, AdviceIsWhatHelpsInThatCase) {
  const auto expect = [](const absl::Status& status, const std::string& says) {
    EXPECT_THAT(Advice(status, "host:1"), HasSubstr(says)) << status;
  };
  expect(UsageError("what?"), "blockctl help");
  expect(absl::UnavailableError(""), "--wait");
  expect(absl::FailedPreconditionError(""), "--keep_matrix");
  expect(NotPositiveDefinite(), "diagonal");
  expect(absl::ResourceExhaustedError(""), "--device_memory");
  expect(absl::DeadlineExceededError(""), "--timeout");
  expect(OverQuota(), "release something");
  expect(absl::UnauthenticatedError(""), "--token_file");
  expect(absl::UnimplementedError(""), "the server has no such call");
  expect(absl::NotFoundError(""), "blockctl list");
  expect(NotHeld(v1::HandleNotFound::NEVER_EXISTED), "blockctl list");
  expect(NotHeld(v1::HandleNotFound::RELEASED), "it was released");
  expect(NotHeld(v1::HandleNotFound::EVICTED), "evicted");
  expect(NotHeld(v1::HandleNotFound::EXPIRED), "not used for too long");
  expect(NotHeld(v1::HandleNotFound::RESTARTED), "restarted");
  expect(NotHeld(v1::HandleNotFound::FAILED_REFACTOR), "--overwrite");
  expect(NotHeld(v1::HandleNotFound::OTHER_SERVER), "HANDLE@ROUTE");
  expect(NotHeld(v1::HandleNotFound::DEVICE_FAILED), "the device that held it failed");
  EXPECT_EQ(Advice(absl::InvalidArgumentError(""), ""), "");
  EXPECT_EQ(Advice(absl::OutOfRangeError(""), ""), "");
  EXPECT_EQ(Advice(absl::InternalError(""), ""), "");
}

TEST(ExitCodeTest, UsageErrorsKeepTheirMessage) {
  EXPECT_EQ(UsageError("what?").message(), "what?");
  EXPECT_EQ(ExitCodeOf(absl::OutOfRangeError("")), 3);
  EXPECT_EQ(ExitCodeOf(absl::CancelledError("")), 8);
  // The text of `blockctl help` gives each number its true meaning.
  const std::pair<absl::Status, const char*> all[] = {
      {absl::OkStatus(), "0 success"},
      {UsageError(""), "1 usage"},
      {absl::UnavailableError(""), "2 server unavailable"},
      {absl::InvalidArgumentError(""), "3 invalid input"},
      {NotPositiveDefinite(), "4 not positive definite"},
      {absl::NotFoundError(""), "5 handle not found"},
      {absl::ResourceExhaustedError(""), "6 out of memory"},
      {absl::DeadlineExceededError(""), "7 deadline passed"},
      {absl::InternalError(""), "8 internal error"}};
  for (const auto& [status, text] : all) {
    EXPECT_THAT(std::string(kExitCodes), HasSubstr(text));
    EXPECT_EQ(text[0] - '0', ExitCodeOf(status));
  }
}

}  // namespace
}  // namespace blockd::blockctl
