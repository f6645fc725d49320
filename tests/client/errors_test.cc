#include "blockd/client/errors.h"

#include <gtest/gtest.h>

namespace blockd::client {
namespace {

v1::RpcStatus WithDetail(absl::StatusCode code, const google::protobuf::Message& detail) {
  v1::RpcStatus status;
  status.set_code(static_cast<int>(code));
  status.set_message("what happened");
  status.add_details()->PackFrom(detail);
  return status;
}

TEST(ErrorsTest, ADetailIsReadAsItsType) {
  v1::NotPositiveDefinite sent;
  sent.set_system(2);
  sent.set_block(5);
  sent.set_row(1);
  sent.set_minor(42);
  const absl::Status status = ToStatus(WithDetail(absl::StatusCode::kInvalidArgument, sent));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "what happened");
  const auto read = GetNotPositiveDefinite(status);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->system(), 2);
  EXPECT_EQ(read->block(), 5);
  EXPECT_EQ(read->minor(), 42);
  EXPECT_FALSE(GetInvalidField(status).has_value());
  EXPECT_FALSE(GetHandleNotFound(status).has_value());
  EXPECT_FALSE(GetInsufficientMemory(status).has_value());
}

TEST(ErrorsTest, DetailsComeFromTheTrailingMetadata) {
  v1::InsufficientMemory sent;
  sent.set_asked_bytes(100);
  sent.set_total_bytes(50);
  const std::string serialized =
      WithDetail(absl::StatusCode::kResourceExhausted, sent).SerializeAsString();
  const absl::Status status = MakeStatus(absl::StatusCode::kResourceExhausted, "full", serialized);
  ASSERT_TRUE(GetInsufficientMemory(status).has_value());
  EXPECT_EQ(GetInsufficientMemory(status)->asked_bytes(), 100);
}

TEST(ErrorsTest, BrokenDetailsLeaveCodeAndMessage) {
  const absl::Status status = MakeStatus(absl::StatusCode::kNotFound, "gone", "\xff\xff nonsense");
  EXPECT_EQ(status, absl::NotFoundError("gone"));
  EXPECT_FALSE(GetHandleNotFound(status).has_value());
}

TEST(ErrorsTest, RetryAfterIsADuration) {
  v1::RetryAfter sent;
  sent.mutable_delay()->set_seconds(1);
  sent.mutable_delay()->set_nanos(500000000);
  EXPECT_EQ(GetRetryAfter(ToStatus(WithDetail(absl::StatusCode::kUnavailable, sent))),
            absl::Milliseconds(1500));
  EXPECT_FALSE(GetRetryAfter(absl::UnavailableError("")).has_value());
}

TEST(ErrorsTest, WrongFieldsOfTheCallerLookLikeTheServers) {
  const absl::Status status = InvalidFieldError("spec.num_blocks", "0", "at least 1");
  EXPECT_EQ(status.message(), "spec.num_blocks is 0, expected at least 1");
  ASSERT_TRUE(GetInvalidField(status).has_value());
  EXPECT_EQ(GetInvalidField(status)->field(), "spec.num_blocks");
}

}  // namespace
}  // namespace blockd::client
