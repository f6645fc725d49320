// The parts of every call: its place among those under way, its line in the log, its metrics.
#include "server/transport/rpc/call.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "blockd/engine/solver.h"
#include "blockd/v1/blockd.pb.h"
#include "server/base/clock.h"
#include "server/base/steady_time.h"
#include "server/core/common/metrics.h"
#include "server/log/logging.h"
#include "server/transport/wire/raw_message.h"
#include "tests/support/backends.h"

namespace blockd::server {
namespace {

struct FakeStream : DrainableStream {
  void OnDrain() override { ++drains; }
  int drains = 0;
};

TEST(CallTrackerTest, IsIdleOnceAllCallsAreOver) {
  CallTracker tracker;
  EXPECT_TRUE(tracker.WaitUntilIdle(absl::ZeroDuration()));
  auto first = std::make_unique<ActiveCall>(&tracker);
  auto second = std::make_unique<ActiveCall>(&tracker);
  EXPECT_FALSE(tracker.WaitUntilIdle(absl::ZeroDuration()));
  first.reset();
  EXPECT_FALSE(tracker.WaitUntilIdle(absl::ZeroDuration()));
  std::thread other([&second] { second.reset(); });
  EXPECT_TRUE(tracker.WaitUntilIdle(absl::Minutes(1)));
  other.join();
}

TEST(CallTrackerTest, ADrainTellsTheStreamsThatAreThere) {
  CallTracker tracker;
  const auto stays = std::make_shared<FakeStream>(), leaves = std::make_shared<FakeStream>();
  auto gone = std::make_shared<FakeStream>();
  tracker.Add(stays.get(), stays);
  tracker.Add(leaves.get(), leaves);
  tracker.Add(gone.get(), gone);
  tracker.Remove(leaves.get());
  gone.reset();  // without having been removed yet
  EXPECT_FALSE(tracker.draining());
  tracker.StartDrain();
  EXPECT_TRUE(tracker.draining());
  EXPECT_EQ(stays->drains, 1);
  EXPECT_EQ(leaves->drains, 0);
}

TEST(CancellationTest, IsTheDeadlinesWhereThatHasPassed) {
  RequestContext context;
  EXPECT_TRUE(absl::IsCancelled(CancellationOf(context)));
  context.deadline = SteadyNow() + absl::Hours(1);
  EXPECT_TRUE(absl::IsCancelled(CancellationOf(context)));
  context.deadline = SteadyNow() - absl::Nanoseconds(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(CancellationOf(context)));
}

class CallTest : public ::testing::Test {
 protected:
  CallTest()
      : metrics_({"1", "cpu", "test", "here"}),
        core_(test::MakeSolver("cpu", {.memory_bytes = 1 << 20}),
              {.max_inflight_request_bytes = 5000}, identity_, &metrics_, &clock_) {
    options_.max_message_bytes = 1000;
    state_ = std::make_unique<ServiceState>(&core_, &metrics_, options_, identity_, nullptr);
  }
  void TearDown() override { SetUpLogging({.level = "off", .format = "logfmt"}); }

  static ContextPtr Context() {
    auto context = std::make_shared<RequestContext>();
    context->caller = "alice";
    context->request_id = "id-1";
    return context;
  }
  static std::string Log(const CallRecord& record) {
    testing::internal::CaptureStderr();
    record.Publish();
    EXPECT_TRUE(FlushLog(absl::Minutes(1)));
    return testing::internal::GetCapturedStderr();
  }

  const ServerIdentity identity_{"here", Epoch::Start("here")};
  Metrics metrics_;
  RealClock clock_;
  SolverCore core_;
  ServerOptions options_;
  std::unique_ptr<ServiceState> state_;
};

TEST_F(CallTest, AMessageOfTheLimitIsTakenAndOneByteMoreIsNot) {
  const auto check = [&](size_t bytes) {
    const grpc::Slice slices[] = {grpc::Slice(std::string(bytes - 1, 'x')), grpc::Slice("x")};
    return state_->CheckMessageSize(grpc::ByteBuffer(slices, 2).Length());
  };
  EXPECT_TRUE(state_->CheckMessageSize(0).ok());
  EXPECT_TRUE(check(1000).ok());
  const absl::Status status = check(1001);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  const auto limit = LimitExceededOf(status);
  ASSERT_TRUE(limit.has_value());
  EXPECT_EQ(limit->limit, "max_message_bytes");
  EXPECT_EQ(limit->asked_bytes, 1001);
  EXPECT_EQ(limit->limit_bytes, 1000);
}

TEST_F(CallTest, AMessageInManyShortPiecesIsNotTaken) {
  const auto check = [&](size_t pieces, size_t bytes_each) {
    const std::vector<grpc::Slice> slices(pieces, grpc::Slice(std::string(bytes_each, 'x')));
    return state_->CheckMessage(grpc::ByteBuffer(slices.data(), slices.size()));
  };
  options_.max_message_bytes = 1 << 20;
  state_ = std::make_unique<ServiceState>(&core_, &metrics_, options_, identity_, nullptr);
  EXPECT_TRUE(check(1, 0).ok());
  EXPECT_TRUE(check(1638, 24).ok());  // 1024, and 614 for 39312 bytes
  EXPECT_TRUE(check(1 << 14, 64).ok());
  const absl::Status status = check(1639, 24);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_TRUE(absl::IsInvalidArgument(check(1 << 14, 50)));
  EXPECT_TRUE(absl::IsResourceExhausted(check(1 << 15, 64)));
}

// A short one is: what it asks, a Release perhaps, has been accepted.
TEST_F(CallTest, ALongMessageOfACancelledCallIsNotParsed) {
  const auto parse = [&](size_t bytes, v1::GetFactorizationRequest* message) {
    v1::GetFactorizationRequest request;
    request.set_handle(std::string(bytes, 'h'));
    const ContextPtr context = Context();
    context->tenant = *core_.tenants().Get(context->caller);
    context->cancelled = true;
    Reservation share;
    return state_->Parse(SerializeMessage(request), *context, message, &share);
  };
  v1::GetFactorizationRequest message;
  EXPECT_TRUE(parse(100, &message).ok());
  EXPECT_EQ(message.handle().size(), 100u);
  message.Clear();
  EXPECT_TRUE(absl::IsCancelled(parse(kShortMessageBytes + 1, &message)));
  EXPECT_EQ(message.handle().size(), 0u);
}

TEST_F(CallTest, WorkIsRefusedWithTheServersDelayOnceItDrains) {
  EXPECT_TRUE(state_->CheckAcceptsWork().ok());
  state_->tracker.StartDrain();
  const absl::Status status = state_->CheckAcceptsWork();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(RetryAfterOf(status), options_.core.retry_delay);
}

TEST_F(CallTest, ARequestThatWentWellIsALineAtInfo) {
  SetUpLogging({.level = "info", .format = "logfmt"});
  CallRecord record(state_.get(), Method::kFactor, Context());
  record.SetShape({5, 3, Scalar::kFloat32}, 7);
  record.SetCost({.queue = absl::Seconds(1),
                  .batch_requests = 2,
                  .upload = absl::Seconds(3),
                  .compute = absl::Seconds(4),
                  .download = absl::Seconds(5)});
  record.SetOutcome(absl::OkStatus());
  const std::string line = Log(record);
  for (const char* text :
       {"level=info event=request request_id=id-1 method=Factor caller=alice status=OK",
        " subject=\"N=5 n=3 float32\" items=7 total_seconds=",
        " batch_requests=2 queue_seconds=1 upload_seconds=3 compute_seconds=4 "
        "download_seconds=5\n"}) {
    EXPECT_TRUE(absl::StrContains(line, text)) << line;
  }
  EXPECT_FALSE(absl::StrContains(line, "message="));
  EXPECT_TRUE(absl::StrContains(metrics_.Text(),
                                "blockd_requests_total{method=\"Factor\",status=\"OK\"} 1"))
      << metrics_.Text();
}

TEST_F(CallTest, AFailureIsAWarningWithItsMessageAndTheDevicesAnError) {
  SetUpLogging({.level = "warn", .format = "logfmt"});
  CallRecord record(state_.get(), Method::kSolve, Context());
  const Handle handle = Handle::Random({});
  record.SetSolve(handle, 9);
  record.SetOutcome(absl::NotFoundError("not held"));
  std::string line = Log(record);
  for (const std::string& text :
       {std::string("level=warn event=request request_id=id-1 method=Solve caller=alice "
                    "status=NOT_FOUND message=\"not held\""),
        " subject=handle:" + handle.hex().substr(0, 8) + " items=9 total_seconds="}) {
    EXPECT_TRUE(absl::StrContains(line, text)) << line;
  }
  EXPECT_FALSE(absl::StrContains(line, "batch_requests"));
  EXPECT_FALSE(absl::StrContains(line, handle.hex()));
  record.SetOutcome(absl::InternalError("the device"));
  line = Log(record);
  EXPECT_TRUE(absl::StrContains(line, "level=error")) << line;
  record.SetOutcome(absl::OkStatus());
  EXPECT_EQ(Log(record), "");
}

TEST_F(CallTest, TheLevelHoldsForWhatIsAnsweredWhileItIsSet) {
  SetUpLogging({.level = "off", .format = "logfmt"});
  CallRecord before(state_.get(), Method::kFactor, Context());
  before.SetOutcome(absl::OkStatus());
  ASSERT_TRUE(SetLogLevel("debug").has_value());
  EXPECT_EQ(Log(before), "");
  CallRecord after(state_.get(), Method::kFactor, Context());
  after.SetOutcome(absl::OkStatus());
  EXPECT_TRUE(absl::StrContains(Log(after), "event=request"));
}

TEST_F(CallTest, TheTimeOfACallEndsWithItsAnswer) {
  SetUpLogging({.level = "info", .format = "logfmt"});
  CallRecord record(state_.get(), Method::kRelease, Context());
  record.SetOutcome(absl::OkStatus());
  const std::string first = Log(record), second = Log(record);
  const auto seconds = [](const std::string& line) {
    return line.substr(line.find("total_seconds="));
  };
  EXPECT_EQ(seconds(first), seconds(second));
}

}  // namespace
}  // namespace blockd::server
