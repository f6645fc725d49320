// A connection that brings more and more while nothing is answered is ended: gRPC keeps a header
// block that does not end. One whose messages are large or slow is not.
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/integration/fixture.h"
#include "tests/integration/hostile_calls.h"
#include "tests/integration/raw_http2.h"

namespace blockd::test {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kMostBytes = 512 * kMiB;                 // of an attack
constexpr absl::Duration kPace = absl::Milliseconds(10);  // for each MiB of it: five seconds

// How much of a header block a connection may send until it is ended.
size_t SendEndlessHeaders(RawHttp2& peer, uint32_t stream) {
  const std::string frame = EndlessHeaders(stream);
  peer.SendFrame(RawHttp2::kHeaders, 0, stream, RawHttp2::HeaderBlock("GetServerInfo"));
  size_t sent = 0;
  while (sent < kMostBytes && peer.Send(frame)) {
    if (sent / kMiB != (sent + frame.size()) / kMiB) absl::SleepFor(kPace);
    sent += frame.size();
  }
  return sent;
}

class UnansweredBytesTest : public IntegrationTest {
 protected:
  void SetUp() override {
    server::ServerOptions options = Options();
    options.access.health_port = 0;
    options.max_message_bytes = kMiB;
    Start(options);
  }
};

TEST_F(UnansweredBytesTest, HeadersThatNeverEndEndTheirConnectionAndNoOther) {
  const auto context = NewContext();
  const auto stream = stub().SolveStream(context.get());
  for (const int port : {server().grpc_port(), server().health_port()}) {
    RawHttp2 peer(port);
    peer.Greet();
    EXPECT_LT(SendEndlessHeaders(peer, 1), kMostBytes);
  }
  ExpectServes();
  stream->WritesDone();
  EXPECT_TRUE(IsOk(stream->Finish()));
}

// The room of an open call is not for ever either.
TEST_F(UnansweredBytesTest, BesideAnOpenCallToo) {
  RawHttp2 peer(server().grpc_port());
  peer.Greet();
  peer.SendHeaders(1, RawHttp2::HeaderBlock("SolveStream"));
  ASSERT_TRUE(peer.WaitFor(RawHttp2::kHeaders, 1));
  EXPECT_LT(SendEndlessHeaders(peer, 3), kMostBytes);
  ExpectServes();
}

// Each of them alone has more than a connection may bring unanswered.
TEST_F(UnansweredBytesTest, ManyLongMessagesAtOnceAreAllRead) {
  constexpr int kCalls = 8;
  v1::ReleaseRequest request;
  request.add_handle(std::string(12 * kMiB, 'h'));
  std::vector<std::thread> callers;
  std::atomic<int> refused = 0;
  for (int i = 0; i < kCalls; ++i) {
    callers.emplace_back([&] {
      v1::ReleaseReply reply;
      const grpc::Status status = stub().Release(NewContext().get(), request, &reply);
      refused += DetailOf<v1::LimitExceeded>(status).has_value() ? 1 : 0;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(refused, kCalls);
  ExpectServes();
}

}  // namespace
}  // namespace blockd::test
