// Clients that abuse HTTP/2. Whatever one does, another one is answered, and what it took comes
// back.
#include <malloc.h>

#include <thread>

#include "tests/integration/calls/pending_solve.h"
#include "tests/integration/fixture.h"
#include "tests/integration/hostile/raw_http2.h"
#include "tests/integration/hostile/wire_between.h"
#include "tests/support/peak_bytes.h"

namespace blockd::test {
namespace {

// The bytes in use of this process's heap. A sanitizer's own heap is not counted.
int64_t HeapBytes() {
  const struct mallinfo2 heap = mallinfo2();
  return static_cast<int64_t>(heap.uordblks + heap.hblkhd);
}

// Where the client that abuses is: the oldest calls of one address that wait for their message end,
// whosever they are.
constexpr char kElsewhere[] = "127.0.0.2";

class Http2AbuseTest : public IntegrationTest {
 protected:
  static constexpr int64_t kMiB = int64_t{1} << 20;

  void SetUp() override {
    Start();
    handle_ = Factor(matrix_);
  }
  void TearDown() override {
    ExpectAnswers();
    EXPECT_TRUE(server().Drain());  // no call is left over
    IntegrationTest::TearDown();
  }
  // Another client's call.
  void ExpectAnswers() {
    v1::SolveReply reply;
    ASSERT_TRUE(IsOk(SolveStatus(SolveRequestOf(handle_, problem_.rhs), &reply)));
    ExpectSolves(matrix_, ValuesOf(reply.solution()), problem_.rhs);
  }
  // Abuses the server again and again while the other client goes on.
  template <typename Abuse>
  void ExpectStands(Abuse abuse) {
    abuse();
    const int64_t before = HeapBytes();
    for (int i = 0; i < 4; ++i) {
      std::thread other(abuse);
      for (int call = 0; call < 5; ++call) ExpectAnswers();
      other.join();
    }
    EXPECT_TRUE(Eventually([&] { return HeapBytes() <= before + 16 * kMiB; })) << HeapBytes();
  }

  // A connection that only resets its calls, and what becomes of it.
  void ExpectResetsAreEnded() {
    constexpr int kMost = 400'000, kAtOnce = 1000;
    const std::string block = RawHttp2::HeaderBlock("Solve"), cancel("\0\0\0\x08", 4);
    RawHttp2 slow(server().grpc_port(), kElsewhere), fast(server().grpc_port(), kElsewhere);
    const auto resets = [&](int first, int calls) {
      std::string frames;
      for (int call = first; call < first + calls; ++call) {
        const auto stream = static_cast<uint32_t>(2 * call + 1);
        frames += RawHttp2::Frame(RawHttp2::kHeaders, RawHttp2::kEndHeaders, stream, block);
        frames += RawHttp2::Frame(RawHttp2::kReset, 0, stream, cancel);
      }
      return frames;
    };
    slow.Greet();
    EXPECT_TRUE(slow.Send(resets(0, 100)));
    fast.Greet();
    // Faster than it is read: gRPC returns to nobody while there is more to read.
    int calls = 0;
    while (calls < kMost && fast.Send(resets(calls, kAtOnce))) calls += kAtOnce;
    EXPECT_LT(calls, kMost);
    // Fewer than the limit do nothing to their connection, nor does another one that is ended.
    EXPECT_TRUE(slow.SendFrame(RawHttp2::kPing, 0, 0, "12345678"));
    EXPECT_TRUE(slow.WaitFor(RawHttp2::kPing, 0));
    EXPECT_FALSE(slow.closed());
  }

  const problems::Problem problem_ = problems::RandomSpd(16, 4, 1, 100);
  const HostMatrix matrix_{problem_, Scalar::kFloat64};
  std::string handle_;
};

TEST_F(Http2AbuseTest, RapidResets) {
  ExpectStands([this] {
    RawHttp2 peer(server().grpc_port(), kElsewhere);
    peer.Greet();
    const std::string block = RawHttp2::HeaderBlock("Solve"), cancel("\0\0\0\x08", 4);
    for (uint32_t stream = 1; stream < 20'000; stream += 2) {
      if (!peer.SendFrame(RawHttp2::kHeaders, RawHttp2::kEndHeaders, stream, block)) break;
      if (!peer.SendFrame(RawHttp2::kReset, 0, stream, cancel)) break;
    }
  });
}

TEST_F(Http2AbuseTest, AConnectionThatOnlyResetsCallsIsEnded) { ExpectResetsAreEnded(); }

// Queues with as few threads each as there may be.
class OneThreadAQueueTest : public Http2AbuseTest, public ::testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    server::ServerOptions options = Options();
    options.serving_threads = options.serving_queues = GetParam();
    Start(options);
    handle_ = Factor(matrix_);
  }
};

INSTANTIATE_TEST_SUITE_P(Queues, OneThreadAQueueTest, ::testing::Values(1, 2));

TEST_P(OneThreadAQueueTest, AConnectionThatOnlyResetsCallsIsEnded) { ExpectResetsAreEnded(); }

TEST_F(Http2AbuseTest, AFloodOfPings) {
  ExpectStands([this] {
    RawHttp2 peer(server().grpc_port(), kElsewhere);
    peer.Greet();
    for (int i = 0; i < 50'000; ++i) {
      if (!peer.SendFrame(RawHttp2::kPing, 0, 0, "12345678")) break;
    }
    EXPECT_TRUE(peer.WaitFor(RawHttp2::kGoAway, 0) || peer.closed());  // it is sent away
  });
}

TEST_F(Http2AbuseTest, AFloodOfSettings) {
  ExpectStands([this] {
    RawHttp2 peer(server().grpc_port(), kElsewhere);
    peer.Greet();
    for (int i = 0; i < 20'000; ++i) {
      if (!peer.SendFrame(RawHttp2::kSettings, 0, 0, "")) break;
    }
  });
}

TEST_F(Http2AbuseTest, HeadersThatNeverEnd) {
  ExpectStands([this] {
    RawHttp2 peer(server().grpc_port(), kElsewhere);
    peer.Greet();
    peer.SendFrame(RawHttp2::kHeaders, 0, 1, RawHttp2::HeaderBlock("Solve"));
    const std::string more = std::string("\0\x04name\x7f\x81\x06", 9) + std::string(1024, 'x');
    for (int i = 0; i < 20'000; ++i) {
      if (!peer.SendFrame(RawHttp2::kContinuation, 0, 1, more)) break;
    }
  });
}

TEST_F(Http2AbuseTest, MetadataIsBounded) {
  for (const size_t bytes : {size_t{9} << 10, size_t{100} << 10, size_t{900} << 10}) {
    const auto other = v1::Solver::NewStub(NewChannel());
    for (int i = 0; i < 50; ++i) {  // more than may be refused at once
      const auto context = NewContext(std::string(bytes, 'n'));
      v1::ServerInfo info;
      EXPECT_EQ(other->GetServerInfo(context.get(), {}, &info).error_code(),
                grpc::StatusCode::RESOURCE_EXHAUSTED);
    }
  }
  // A client that never says that it knows of the limit.
  RawHttp2 peer(server().grpc_port());
  peer.Greet();
  const std::string name(100, 'n'), value(100, 'v');
  std::string block = RawHttp2::HeaderBlock("GetServerInfo");
  for (int i = 0; i < 100; ++i) {
    block += std::string(1, '\0') + static_cast<char>(100) + name + static_cast<char>(100) + value;
  }
  ASSERT_TRUE(peer.SendFrame(RawHttp2::kHeaders, RawHttp2::kEndHeaders, 1, block));
  peer.SendFrame(RawHttp2::kData, RawHttp2::kEndStream, 1, std::string(5, '\0'));
  EXPECT_TRUE(peer.WaitFor(RawHttp2::kHeaders, 1));
  EXPECT_EQ(peer.received(RawHttp2::kData), 0);  // no answer, but a status
}

// gRPC keeps the metadata of a call until its status is written, which may take as long as it
// reads.
TEST_F(Http2AbuseTest, MetadataDoesNotPileUp) {
  const std::string block = RawHttp2::HeaderBlock("GetServerInfo");
  for (const std::string& more :
       {RawHttp2::HeaderField("k", std::string(60 << 10, 'v')), ShortEntries(90)}) {
    std::string calls;
    for (uint32_t stream = 1; stream < 2000; stream += 2) {
      calls += RawHttp2::HeaderFrames(stream, block + more);
    }
    const auto attack = [&] {
      std::vector<std::thread> threads;
      for (int i = 0; i < 8; ++i) {
        threads.emplace_back([&] {
          RawHttp2 peer(server().grpc_port(), kElsewhere);
          peer.Greet();
          peer.Send(calls);
        });
      }
      for (std::thread& thread : threads) thread.join();
      ExpectAnswers();
    };
    EXPECT_LE(PeakBytesOf(attack), 60 * kMiB);
  }
}

// The server's record of a piece takes more memory than the piece's one byte.
TEST_F(Http2AbuseTest, AMessageInFramesOfOneByte) {
  const std::string message = FactorRequestOf(matrix_).SerializeAsString();
  ASSERT_GT(message.size(), 2048u);
  ASSERT_LT(message.size(), 65536u);
  const auto bytes = static_cast<uint16_t>(message.size());
  const std::string whole = std::string(3, '\0') + static_cast<char>(bytes >> 8) +
                            static_cast<char>(bytes & 0xff) + message;
  ExpectStands([&] {
    RawHttp2 peer(server().grpc_port(), kElsewhere);
    peer.Greet();
    peer.SendFrame(RawHttp2::kHeaders, RawHttp2::kEndHeaders, 1, RawHttp2::HeaderBlock("Factor"));
    std::string frames;
    for (size_t i = 0; i < whole.size(); ++i) {
      const bool last = i + 1 == whole.size();
      frames += RawHttp2::Frame(RawHttp2::kData, last ? RawHttp2::kEndStream : 0, 1, {whole[i]});
    }
    EXPECT_TRUE(peer.Send(frames));
    EXPECT_TRUE(peer.WaitFor(RawHttp2::kHeaders, 1));
    EXPECT_EQ(peer.received(RawHttp2::kData), 0);
  });
  EXPECT_TRUE(Eventually([&] {  // a call is counted once it is answered
    return Metric("blockd_requests_total", R"(method="Factor",status="INVALID_ARGUMENT")") == 5;
  }));
}

TEST_F(Http2AbuseTest, ConnectionsThatSayNothingOrLittle) {
  std::vector<std::unique_ptr<RawHttp2>> silent;
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  for (size_t i = 0; i < 100; ++i) {
    silent.push_back(std::make_unique<RawHttp2>(server().grpc_port()));
    EXPECT_TRUE(silent.back()->Send(preface.substr(0, i % preface.size())));
    if (i % 10 == 0) ExpectAnswers();
  }
  for (const auto& peer : silent) peer->Send("x");  // no preface
  ExpectAnswers();
}

TEST_F(Http2AbuseTest, AHalfOpenConnectionHasNoCallsLeft) {
  WireBetween wire(server().grpc_port());
  {
    RawHttp2 peer(wire.port());
    peer.Greet();
    // A stream that is open, and a call that has sent half of its message.
    peer.SendFrame(RawHttp2::kHeaders, RawHttp2::kEndHeaders, 1,
                   RawHttp2::HeaderBlock("SolveStream"));
    peer.SendFrame(RawHttp2::kHeaders, RawHttp2::kEndHeaders, 3, RawHttp2::HeaderBlock("Solve"));
    peer.SendFrame(RawHttp2::kData, 0, 3, std::string("\0\0\0\x01\0half", 9));
    EXPECT_TRUE(peer.WaitFor(RawHttp2::kHeaders, 1));
  }
  wire.Cut();
  EXPECT_TRUE(Eventually([&] { return Ended("SolveStream", "CANCELLED") == 1; }));
}

// A reader that does not read: its call ends, and its memory comes back.
class UnreadReplyTest : public Http2AbuseTest {
 protected:
  static constexpr int64_t kColumns = 100;  // 51,200 bytes: within a connection's first window

  void SetUp() override {
    server::ServerOptions options = Options();
    options.reply_timeout = absl::Seconds(4);
    options.core.max_inflight_request_bytes = 100'000;  // one such request
    options.stream_chunk_bytes = 16384;
    Start(options);
    handle_ = Factor(matrix_);
  }
  v1::SolveRequest Large() const {
    return SolveRequestOf(handle_, problems::RandomColumns(problem_.rows(), kColumns, 1), kColumns);
  }
  // Nobody else's calls are refused any more.
  void ExpectComesBack() {
    EXPECT_TRUE(Eventually([&] {
      const grpc::Status status = SolveStatus(Large());
      EXPECT_TRUE(status.ok() || IsRetryLater(status)) << status.error_message();
      return status.ok();
    }));
  }
};

TEST_F(UnreadReplyTest, AUnaryReplyIsNotKeptForEver) {
  RawHttp2 peer(server().grpc_port());
  peer.Greet({{RawHttp2::kInitialWindow, 0}});
  ASSERT_TRUE(peer.Call(1, "Solve", Large().SerializeAsString()));
  EXPECT_TRUE(peer.WaitFor(RawHttp2::kHeaders, 1));  // the answer begins, and goes no further
  // The memory that this call holds is missing for other large calls, but small ones go on.
  EXPECT_TRUE(Eventually([&] { return IsRetryLater(SolveStatus(Large())); }));
  ExpectAnswers();
  EXPECT_TRUE(peer.WaitFor(RawHttp2::kReset, 1));
  EXPECT_TRUE(Eventually([&] { return Ended("Solve", "CANCELLED") == 1; }));  // which it was
  ExpectComesBack();
}

TEST_F(UnreadReplyTest, AStreamThatIsNotReadEnds) {
  RawHttp2 peer(server().grpc_port());
  peer.Greet({{RawHttp2::kInitialWindow, 0}});
  v1::SolveStreamRequest request;
  request.set_id(1);
  *request.mutable_request() = SolveRequestOf(handle_, problem_.rhs);
  // Its end too: the reply is all that is missing.
  ASSERT_TRUE(peer.Call(1, "SolveStream", request.SerializeAsString()));
  EXPECT_TRUE(peer.WaitFor(RawHttp2::kReset, 1));
  EXPECT_TRUE(Eventually([&] { return Ended("SolveStream", "CANCELLED") == 1; }));
  ExpectComesBack();
}

}  // namespace
}  // namespace blockd::test
