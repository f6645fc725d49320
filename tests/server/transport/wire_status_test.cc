// Statuses of the core as the wire says them: code, text, typed details.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>

#include "server/core/common/errors.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {
namespace {

// The details of the type, of a status that has only this one.
template <typename Detail>
std::optional<Detail> OnlyDetail(const absl::Status& status) {
  const v1::RpcStatus wire = ToRpcStatus(status);
  EXPECT_EQ(wire.code(), static_cast<int>(status.code()));
  EXPECT_EQ(wire.message(), status.message());
  Detail detail;
  if (wire.details_size() != 1 || !wire.details(0).UnpackTo(&detail)) return std::nullopt;
  EXPECT_EQ(wire.details(0).type_url(),
            "type.googleapis.com/" + std::string(Detail::descriptor()->full_name()));
  return detail;
}

TEST(WireStatusTest, AnInvalidField) {
  const auto detail = OnlyDetail<v1::InvalidField>(InvalidFieldError("a.b", "came", "expected"));
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->field(), "a.b");
  EXPECT_EQ(detail->came(), "came");
  EXPECT_EQ(detail->expected(), "expected");
}

TEST(WireStatusTest, AMatrixThatIsNotPositiveDefinite) {
  for (const bool natural : {true, false}) {
    const auto detail = OnlyDetail<v1::NotPositiveDefinite>(
        NotSpdError(4, {.block = 5, .row = 6, .minor = 7, .natural_order = natural}));
    ASSERT_TRUE(detail.has_value());
    EXPECT_EQ(detail->system(), 4);
    EXPECT_EQ(detail->block(), 5);
    EXPECT_EQ(detail->row(), 6);
    EXPECT_EQ(detail->minor(), 7);
    EXPECT_EQ(detail->elimination_order(), !natural);
  }
}

TEST(WireStatusTest, EveryReasonForAHandleThatIsNotHeld) {
  const Handle handle = Handle::Random({});
  const std::pair<NotFoundReason, v1::HandleNotFound::Reason> reasons[] = {
      {NotFoundReason::kNeverExisted, v1::HandleNotFound::NEVER_EXISTED},
      {NotFoundReason::kReleased, v1::HandleNotFound::RELEASED},
      {NotFoundReason::kEvicted, v1::HandleNotFound::EVICTED},
      {NotFoundReason::kExpired, v1::HandleNotFound::EXPIRED},
      {NotFoundReason::kRestarted, v1::HandleNotFound::RESTARTED},
      {NotFoundReason::kFailedRefactor, v1::HandleNotFound::FAILED_REFACTOR},
      {NotFoundReason::kOtherServer, v1::HandleNotFound::OTHER_SERVER},
      {NotFoundReason::kDeviceFailed, v1::HandleNotFound::DEVICE_FAILED}};
  const ServerIdentity here{"here:1", Epoch::Start("here:1")};
  for (const auto& [reason, expected] : reasons) {
    const auto detail = OnlyDetail<v1::HandleNotFound>(HandleNotFoundError({handle, reason, here}));
    ASSERT_TRUE(detail.has_value());
    EXPECT_EQ(detail->handle(), handle.view());
    EXPECT_EQ(detail->reason(), expected);
    EXPECT_EQ(detail->owner_epoch(), handle.epoch().view());
    EXPECT_EQ(detail->server_name(), "here:1");
    EXPECT_EQ(detail->server_epoch(), here.epoch.view());
  }
}

TEST(WireStatusTest, MemoryThatDoesNotSuffice) {
  const auto detail = OnlyDetail<v1::InsufficientMemory>(InsufficientMemoryError(
      {.asked_bytes = 10, .free_bytes = 3, .evictable_bytes = 2, .total_bytes = 8}));
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->asked_bytes(), 10);
  EXPECT_EQ(detail->free_bytes(), 3);
  EXPECT_EQ(detail->evictable_bytes(), 2);
  EXPECT_EQ(detail->total_bytes(), 8);
}

TEST(WireStatusTest, ALimitThatIsExceeded) {
  const absl::Status status = LimitExceededError(
      "the message", {.limit = "max_message_bytes", .asked_bytes = 20, .limit_bytes = 9});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "the message has 20 bytes; max_message_bytes is 9 bytes");
  const auto detail = OnlyDetail<v1::LimitExceeded>(status);
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->limit(), "max_message_bytes");
  EXPECT_EQ(detail->asked_bytes(), 20);
  EXPECT_EQ(detail->limit_bytes(), 9);
}

TEST(WireStatusTest, ADelayIsSaidInSecondsAndNanoseconds) {
  const auto detail = OnlyDetail<v1::RetryAfter>(
      RetryAfterError("busy", absl::Seconds(2) + absl::Nanoseconds(750'000'003)));
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->delay().seconds(), 2);
  EXPECT_EQ(detail->delay().nanos(), 750'000'003);
}

TEST(WireStatusTest, AStatusMayHaveTwoDetails) {
  const v1::RpcStatus wire = ToRpcStatus(WithRetryAfter(
      InsufficientMemoryError({.asked_bytes = 10, .total_bytes = 80}), absl::Milliseconds(5)));
  ASSERT_EQ(wire.details_size(), 2);
  EXPECT_TRUE(wire.details(0).Is<v1::InsufficientMemory>());
  EXPECT_TRUE(wire.details(1).Is<v1::RetryAfter>());
}

TEST(WireStatusTest, ACallsOwnStatusCarriesTheSameDetails) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  const grpc::Status plain = ToGrpcStatus(absl::FailedPreconditionError("keep it"));
  EXPECT_EQ(plain.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(plain.error_message(), "keep it");
  EXPECT_TRUE(plain.error_details().empty());
  const absl::Status status = InvalidFieldError("a", "b", "c");
  const grpc::Status invalid = ToGrpcStatus(status);
  EXPECT_EQ(invalid.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(invalid.error_message(), status.message());
  EXPECT_EQ(invalid.error_details(), ToRpcStatus(status).SerializeAsString());
}

// Clients take 8 KiB of trailing metadata: a status that is larger would not arrive.
TEST(WireStatusTest, LongTextsAreCutSoThatTheStatusArrives) {
  const std::string just(1024, 'x'), longer(1025, 'y'), huge(100000, 'z');
  EXPECT_EQ(ToRpcStatus(absl::InternalError(just)).message(), just);
  EXPECT_EQ(ToRpcStatus(absl::InternalError(longer)).message(), std::string(1024, 'y') + "...");
  const grpc::Status status = ToGrpcStatus(InvalidFieldError(huge, huge, huge));
  EXPECT_LT(status.error_message().size() + status.error_details().size(), 6000u);
  v1::RpcStatus wire;
  ASSERT_TRUE(wire.ParseFromString(status.error_details()));
  v1::InvalidField detail;
  ASSERT_TRUE(wire.details(0).UnpackTo(&detail));
  EXPECT_EQ(detail.field(), std::string(1024, 'z') + "...");
}

}  // namespace
}  // namespace blockd::server
