#include "server/core/errors.h"

#include <gtest/gtest.h>

#include <set>

#include "server/core/handle.h"

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
  const Handle handle = Handle::Random();
  for (const NotFoundReason reason :
       {NotFoundReason::kNeverExisted, NotFoundReason::kReleased, NotFoundReason::kEvicted,
        NotFoundReason::kExpired, NotFoundReason::kRestarted, NotFoundReason::kFailedRefactor}) {
    const absl::Status status = HandleNotFoundError(handle, reason);
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

TEST(ErrorsTest, AStatusHasOnlyItsOwnDetail) {
  const absl::Status status = InvalidFieldError("a", "b", "c");
  EXPECT_FALSE(NotSpdOf(status).has_value());
  EXPECT_FALSE(HandleNotFoundOf(status).has_value());
  EXPECT_FALSE(InsufficientMemoryOf(status).has_value());
  EXPECT_FALSE(RetryAfterOf(status).has_value());
  EXPECT_FALSE(InvalidFieldOf(absl::OkStatus()).has_value());
}

TEST(HandleTest, HandlesAreDistinctAndKnowTheirProcess) {
  std::set<Handle> handles;
  for (int i = 0; i < 1000; ++i) {
    const Handle handle = Handle::Random();
    EXPECT_TRUE(handle.of_this_process());
    handles.insert(handle);
  }
  EXPECT_EQ(handles.size(), 1000u);
}

TEST(HandleTest, AForeignEpochIsTold) {
  Handle handle = Handle::Random();
  handle.bytes.back() ^= 1;
  EXPECT_FALSE(handle.of_this_process());
}

TEST(HandleTest, BytesRoundTripAndOtherLengthsAreRefused) {
  const Handle handle = Handle::Random();
  EXPECT_EQ(Handle::FromBytes(handle.view()), handle);
  EXPECT_EQ(handle.hex().size(), 2 * Handle::kBytes);
  EXPECT_EQ(handle.view().substr(Handle::kIdBytes), Handle::ProcessEpoch());
  EXPECT_FALSE(Handle::FromBytes("").has_value());
  EXPECT_FALSE(Handle::FromBytes(handle.view().substr(1)).has_value());
  EXPECT_FALSE(Handle::FromBytes(std::string(handle.view()) + "x").has_value());
}

}  // namespace
}  // namespace blockd::server
