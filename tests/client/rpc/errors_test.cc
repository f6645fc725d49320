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

TEST(ErrorsTest, EachDetailHasItsOwnReader) {
  v1::InvalidField field;
  field.set_field("a");
  field.set_came("b");
  field.set_expected("c");
  v1::HandleNotFound handle;
  handle.set_handle("h");
  handle.set_reason(v1::HandleNotFound::EXPIRED);
  v1::InsufficientMemory memory;
  memory.set_free_bytes(3);
  memory.set_evictable_bytes(4);
  v1::RpcStatus status = WithDetail(absl::StatusCode::kNotFound, field);
  status.add_details()->PackFrom(handle);
  status.add_details()->PackFrom(memory);
  const absl::Status read = ToStatus(status);
  ASSERT_TRUE(GetInvalidField(read) && GetHandleNotFound(read) && GetInsufficientMemory(read));
  EXPECT_EQ(GetInvalidField(read)->came(), "b");
  EXPECT_EQ(GetInvalidField(read)->expected(), "c");
  EXPECT_EQ(GetHandleNotFound(read)->handle(), "h");
  EXPECT_EQ(GetHandleNotFound(read)->reason(), v1::HandleNotFound::EXPIRED);
  EXPECT_EQ(GetInsufficientMemory(read)->free_bytes(), 3);
  EXPECT_EQ(GetInsufficientMemory(read)->evictable_bytes(), 4);
  EXPECT_FALSE(GetNotPositiveDefinite(read).has_value());
  EXPECT_FALSE(GetRetryAfter(read).has_value());
}

TEST(ErrorsTest, AQuotaSaysWhichOneAndWhose) {
  v1::QuotaExceeded sent;
  sent.set_quota("handles");
  sent.set_limit(100);
  sent.set_used(99);
  sent.set_asked(4);
  sent.set_tenant("uri:spiffe://plant/arm");
  const absl::Status status = ToStatus(WithDetail(absl::StatusCode::kResourceExhausted, sent));
  const auto read = GetQuotaExceeded(status);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->quota(), "handles");
  EXPECT_EQ(read->limit(), 100);
  EXPECT_EQ(read->used(), 99);
  EXPECT_EQ(read->asked(), 4);
  EXPECT_EQ(read->tenant(), "uri:spiffe://plant/arm");
  EXPECT_FALSE(GetInsufficientMemory(status).has_value());
}

TEST(ErrorsTest, ADeadlineThatCannotBeMetSaysByHowMuch) {
  v1::DeadlineUnreachable sent;
  sent.mutable_predicted()->set_seconds(2);
  sent.mutable_left()->set_nanos(5000000);
  const absl::Status status = ToStatus(WithDetail(absl::StatusCode::kDeadlineExceeded, sent));
  ASSERT_TRUE(GetDeadlineUnreachable(status).has_value());
  EXPECT_EQ(GetDeadlineUnreachable(status)->predicted().seconds(), 2);
  EXPECT_EQ(GetDeadlineUnreachable(status)->left().nanos(), 5000000);
  EXPECT_FALSE(GetDeadlineUnreachable(absl::DeadlineExceededError("")).has_value());
}

TEST(ErrorsTest, WaitingHelpsWhereTheServerSaysSoAndTheRequestCanFit) {
  const auto exhausted = [](const google::protobuf::Message& detail, bool retry_after) {
    v1::RpcStatus status = WithDetail(absl::StatusCode::kResourceExhausted, detail);
    v1::RetryAfter delay;
    delay.mutable_delay()->set_nanos(1000);
    if (retry_after) status.add_details()->PackFrom(delay);
    return ToStatus(status);
  };
  v1::QuotaExceeded quota;
  quota.set_limit(10);
  quota.set_used(8);
  quota.set_asked(10);
  EXPECT_TRUE(WaitingHelps(exhausted(quota, true)));
  EXPECT_FALSE(WaitingHelps(exhausted(quota, false)));
  quota.set_asked(10.5);
  EXPECT_FALSE(WaitingHelps(exhausted(quota, true)));
  v1::InsufficientMemory memory;
  memory.set_asked_bytes(10);
  memory.set_total_bytes(10);
  EXPECT_TRUE(WaitingHelps(exhausted(memory, true)));
  EXPECT_FALSE(WaitingHelps(exhausted(memory, false)));
  memory.set_total_bytes(9);
  EXPECT_FALSE(WaitingHelps(exhausted(memory, true)));
  EXPECT_FALSE(WaitingHelps(exhausted(v1::LimitExceeded(), true)));
  EXPECT_TRUE(WaitingHelps(absl::UnavailableError("")));
  for (const absl::StatusCode code :
       {absl::StatusCode::kOk, absl::StatusCode::kCancelled, absl::StatusCode::kDeadlineExceeded,
        absl::StatusCode::kPermissionDenied, absl::StatusCode::kUnauthenticated}) {
    EXPECT_FALSE(WaitingHelps(absl::Status(code, ""))) << code;
  }
}

TEST(ErrorsTest, ARetryAfterWithoutADelayIsNone) {
  EXPECT_FALSE(GetRetryAfter(ToStatus(WithDetail(absl::StatusCode::kUnavailable, v1::RetryAfter())))
                   .has_value());
}

TEST(ErrorsTest, WithoutDetailsTheCodeAndMessageStand) {
  EXPECT_EQ(MakeStatus(absl::StatusCode::kAborted, "why", ""), absl::AbortedError("why"));
  EXPECT_TRUE(MakeStatus(absl::StatusCode::kOk, "", "").ok());
  v1::RpcStatus status;
  EXPECT_TRUE(ToStatus(status).ok());
  const absl::Status wrong = InvalidFieldError("f", "1", "2");
  EXPECT_EQ(wrong.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetInvalidField(wrong)->came(), "1");
  EXPECT_EQ(GetInvalidField(wrong)->expected(), "2");
}

}  // namespace
}  // namespace blockd::client
