#include "server/core/common/errors.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/core/common/handle.h"

namespace blockd::server {
namespace {

TEST(ErrorsTest, InvalidFieldSurvivesTheStatus) {
  const absl::Status status = InvalidFieldError("spec.block_size", "0", "1 to 32768");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  const auto detail = InvalidFieldOf(status);
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->field, "spec.block_size");
  EXPECT_EQ(detail->came, "0");
  EXPECT_EQ(detail->expected, "1 to 32768");
}

TEST(ErrorsTest, AFieldMayBeWithinAnother) {
  const absl::Status status = WithinField("refactor.", InvalidFieldError("rhs", "0 bytes", "8"));
  EXPECT_EQ(status, InvalidFieldError("refactor.rhs", "0 bytes", "8"));
  const absl::Status other = RetryAfterError("full", absl::Seconds(1));
  EXPECT_EQ(WithinField("refactor.", other), other);
  EXPECT_TRUE(WithinField("refactor.", absl::OkStatus()).ok());
}

TEST(ErrorsTest, NotSpdSurvivesTheStatus) {
  NotPositiveDefinite where;
  where.block = 3;
  where.row = 2;
  where.minor = 18;
  where.natural_order = false;
  const auto detail = NotSpdOf(NotSpdError(7, where));
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->system, 7);
  EXPECT_EQ(detail->where.block, 3);
  EXPECT_EQ(detail->where.row, 2);
  EXPECT_EQ(detail->where.minor, 18);
  EXPECT_FALSE(detail->where.natural_order);
}

TEST(ErrorsTest, HandleNotFoundSurvivesTheStatus) {
  const Handle handle = Handle::Random({});
  for (const NotFoundReason reason :
       {NotFoundReason::kNeverExisted, NotFoundReason::kReleased, NotFoundReason::kEvicted,
        NotFoundReason::kExpired, NotFoundReason::kRestarted, NotFoundReason::kFailedRefactor,
        NotFoundReason::kOtherServer, NotFoundReason::kDeviceFailed}) {
    const absl::Status status = HandleNotFoundError({handle, reason});
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_NE(std::string(status.message()).find(std::string(ToString(reason))), std::string::npos);
    const auto detail = HandleNotFoundOf(status);
    ASSERT_TRUE(detail.has_value());
    EXPECT_EQ(detail->handle, handle);
    EXPECT_EQ(detail->reason, reason);
  }
}

TEST(ErrorsTest, MemoryAndRetrySurviveTheStatus) {
  const absl::Status exhausted = InsufficientMemoryError(
      {.asked_bytes = 10, .free_bytes = 3, .evictable_bytes = 2, .total_bytes = 8});
  EXPECT_EQ(exhausted.code(), absl::StatusCode::kResourceExhausted);
  const auto memory = InsufficientMemoryOf(exhausted);
  ASSERT_TRUE(memory.has_value());
  EXPECT_EQ(memory->asked_bytes, 10);
  EXPECT_EQ(memory->free_bytes, 3);
  EXPECT_EQ(memory->evictable_bytes, 2);
  EXPECT_EQ(memory->total_bytes, 8);

  const absl::Status busy = RetryAfterError("full", absl::Milliseconds(50));
  EXPECT_EQ(busy.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(RetryAfterOf(busy), absl::Milliseconds(50));
}

TEST(ErrorsTest, MessagesSayItToPeople) {
  NotPositiveDefinite where;
  where.block = 3;
  where.row = 2;
  where.minor = 18;
  EXPECT_EQ(NotSpdError(7, where).message(),
            "not positive definite: system 7, block 3, row 2 (leading minor of order 18)");
  EXPECT_EQ(
      NotSpdError(7, where, "here").message(),
      "not positive definite: system 7, block 3, row 2 (leading minor of order 18); the matrix "
      "is not finite: here (check_finite refuses that before anything is factored)");
  where.natural_order = false;
  EXPECT_EQ(
      NotSpdError(7, where).message(),
      "not positive definite: system 7, block 3, row 2 (the pivot that failed in the server's "
      "own order of elimination)");
  EXPECT_EQ(InvalidFieldError("a.b", "3", "4 to 5").message(), "a.b: came 3, expected 4 to 5");
  EXPECT_EQ(InsufficientMemoryError(
                {.asked_bytes = 1, .free_bytes = 2, .evictable_bytes = 3, .total_bytes = 4})
                .message(),
            "device memory: asked for 1 bytes, 2 are free and 3 evictable of 4");
  const Handle handle = Handle::Random({});
  const std::vector<std::pair<NotFoundReason, std::string>> reasons = {
      {NotFoundReason::kNeverExisted, "it never existed, or belongs to another caller"},
      {NotFoundReason::kReleased, "it was released"},
      {NotFoundReason::kEvicted, "it was evicted to make room"},
      {NotFoundReason::kExpired, "it was not used for too long"},
      {NotFoundReason::kRestarted, "this server made it before it was restarted"},
      {NotFoundReason::kFailedRefactor, "a refactor that overwrote it failed"},
      {NotFoundReason::kDeviceFailed, "the device that held it failed"}};
  for (const auto& [reason, explanation] : reasons) {
    EXPECT_EQ(HandleNotFoundError({handle, reason}).message(),
              "handle " + handle.hex() + " is not held: " + explanation + " (" +
                  std::string(ToString(reason)) + ")");
  }
  const ServerIdentity here{"here:1", Epoch::Start("here:1")};
  const absl::Status other = HandleNotFoundError({handle, NotFoundReason::kOtherServer, here});
  EXPECT_EQ(other.message(), "handle " + handle.hex() +
                                 " is not held: another server made it (OTHER_SERVER); this "
                                 "server is here:1");
  EXPECT_EQ(HandleNotFoundOf(other)->server.name, "here:1");
  EXPECT_EQ(HandleNotFoundOf(other)->server.epoch, here.epoch);
}

TEST(ErrorsTest, ADrainSaysWhoDrainsAndWhenToComeBack) {
  const absl::Status status = DrainingError("here:1", absl::Seconds(3));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(DrainingServerOf(status), "here:1");
  EXPECT_EQ(RetryAfterOf(status), absl::Seconds(3));
  EXPECT_EQ(DrainingServerOf(RetryAfterError("the queue is full", absl::Seconds(3))), std::nullopt);
}

TEST(ErrorsTest, ARetryComesOnTopOfAnotherDetail) {
  const absl::Status status =
      WithRetryAfter(InsufficientMemoryError({.asked_bytes = 10}), absl::Seconds(2));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RetryAfterOf(status), absl::Seconds(2));
  EXPECT_EQ(InsufficientMemoryOf(status)->asked_bytes, 10);
}

TEST(ErrorsTest, AStatusHasOnlyItsOwnDetail) {
  const absl::Status status = InvalidFieldError("a", "b", "c");
  EXPECT_FALSE(NotSpdOf(status).has_value());
  EXPECT_FALSE(HandleNotFoundOf(status).has_value());
  EXPECT_FALSE(InsufficientMemoryOf(status).has_value());
  EXPECT_FALSE(RetryAfterOf(status).has_value());
  EXPECT_FALSE(InvalidFieldOf(absl::OkStatus()).has_value());
}

TEST(HandleTest, HandlesAreDistinctAndKnowWhoMadeThem) {
  const Epoch epoch = Epoch::Start("a");
  std::set<Handle> handles;
  for (int i = 0; i < 1000; ++i) {
    const Handle handle = Handle::Random(epoch);
    EXPECT_EQ(handle.epoch(), epoch);
    handles.insert(handle);
  }
  EXPECT_EQ(handles.size(), 1000u);
}

TEST(HandleTest, OrderAndHexAreThoseOfUnsignedBytes) {
  Handle small, large;
  small.bytes[0] = 0x01;
  large.bytes[0] = static_cast<char>(0x9f);
  EXPECT_LT(small, large);
  EXPECT_FALSE(large < small);
  EXPECT_EQ(small.hex(), "01" + std::string(46, '0'));
  EXPECT_EQ(large.hex().substr(0, 4), "9f00");
  Handle later = small;
  later.bytes[23] = 1;
  EXPECT_LT(small, later);
}

TEST(HandleTest, AnEpochTellsServersAndTheirStarts) {
  const Epoch first = Epoch::Start("solver-0:7117"), second = Epoch::Start("solver-0:7117");
  const Epoch other = Epoch::Start("solver-1:7117");
  EXPECT_NE(first, second);
  EXPECT_TRUE(first.SameServer(second));
  EXPECT_FALSE(first.SameServer(other));
  // Old handles are told apart by servers of later versions too.
  EXPECT_EQ(first.view().substr(0, Epoch::kNameBytes), "\xc7\x3d\xa0\x54");
}

TEST(HandleTest, BytesRoundTripAndOtherLengthsAreRefused) {
  const Handle handle = Handle::Random({});
  EXPECT_EQ(Handle::FromBytes(handle.view()), handle);
  EXPECT_EQ(handle.hex().size(), 2 * Handle::kBytes);
  EXPECT_EQ(handle.view().substr(Handle::kIdBytes), handle.epoch().view());
  EXPECT_FALSE(Handle::FromBytes("").has_value());
  EXPECT_FALSE(Handle::FromBytes(handle.view().substr(1)).has_value());
  EXPECT_FALSE(Handle::FromBytes(std::string(handle.view()) + "x").has_value());
}

}  // namespace
}  // namespace blockd::server
