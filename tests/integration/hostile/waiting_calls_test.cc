// Calls that cost their caller nothing: their message does not come, or their reply is not taken.
// There are only so many of them at a time, and nobody else notices.
#include <malloc.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/descriptors.h"
#include "server/identity/token.h"
#include "tests/integration/calls/pending_solve.h"
#include "tests/integration/hostile/hostile_calls.h"
#include "tests/integration/hostile/raw_http2.h"
#include "tests/support/temp_folder.h"

namespace blockd::test {
namespace {

constexpr int64_t kMostWaiting = 1000;

const IdleCall kUpload{"FactorStream", ""};
const IdleCall kStream{"SolveStream", ""};
const IdleCall kCheck{"/grpc.health.v1.Health/Check", ""};
const IdleCall kUnreadReply{"/grpc.health.v1.Health/Check", kEmptyMessage, true};

class WaitingCallsTest : public IntegrationTest {
 protected:
  static constexpr uint32_t kOfAConnection = 900;

  void StartServing(const server::ServerOptions& options = Options()) {
    Start(options);
    handle_ = Factor(matrix_);
  }
  void TearDown() override {
    peers_.clear();  // a drain would wait for their calls
    IntegrationTest::TearDown();
  }
  // Another client's calls.
  void ExpectAnswers() {
    v1::SolveReply reply;
    ASSERT_TRUE(IsOk(SolveStatus(SolveRequestOf(handle_, problem_.rhs), &reply)));
    ExpectSolves(matrix_, ValuesOf(reply.solution()), problem_.rhs);
    EXPECT_EQ(Health(), 1);
  }
  RawHttp2& Connect(const std::vector<std::pair<uint16_t, uint32_t>>& settings = {}) {
    peers_.push_back(std::make_unique<RawHttp2>(server().grpc_port()));
    EXPECT_TRUE(peers_.back()->Greet(settings));
    return *peers_.back();
  }
  static void Make(const IdleCall& call, uint32_t calls, RawHttp2& peer) {
    std::string frames;
    for (uint32_t i = 0; i < calls; ++i) frames += call.Frames(2 * i + 1);
    EXPECT_TRUE(peer.Send(frames));
  }
  int64_t EndedOfAll() {
    int64_t ended = 0;
    for (const auto& peer : peers_) {
      EXPECT_TRUE(peer->Poll());  // no connection is
      ended += peer->ended();
    }
    return ended;
  }
  // `connections` full of such calls; one after another is ended. A connection's calls have come
  // before the next one's do: else more than kMostWaiting could come after one of ExpectAnswers.
  void Flood(const IdleCall& call, int connections, bool others_ask = true) {
    for (int i = 0; i < connections; ++i) {
      Make(call, kOfAConnection, Connect());
      made_ += kOfAConnection;
      if (others_ask) ExpectAnswers();
      EXPECT_TRUE(peers_.back()->Ping());
      EXPECT_TRUE(Eventually([&] { return EndedOfAll() >= made_ - kMostWaiting; })) << EndedOfAll();
    }
  }

  const problems::Problem problem_ = problems::RandomSpd(16, 4, 1, 100);
  const HostMatrix matrix_{problem_, Scalar::kFloat64};
  std::string handle_;
  std::vector<std::unique_ptr<RawHttp2>> peers_;
  int64_t made_ = 0;  // calls of floods
};

class IdleKindTest : public WaitingCallsTest, public ::testing::WithParamInterface<IdleCall> {};

INSTANTIATE_TEST_SUITE_P(Kinds, IdleKindTest,
                         ::testing::Values(kNoMessage, kHalfAMessage, kIdleWatch, kIdleReflection,
                                           kIdleSmooth, kUpload, kStream, kCheck));

TEST_P(IdleKindTest, BeyondAThousandTheOldestEnd) {
  StartServing();
  Flood(GetParam(), 3);
  EXPECT_EQ(peers_.back()->ended(), 0);
  ExpectAnswers();
  peers_.clear();
  ExpectAnswers();
}

TEST_F(WaitingCallsTest, RepliesThatAreNotTakenEndToo) {
  StartServing();
  constexpr uint16_t kWindow = RawHttp2::kInitialWindow;
  for (int i = 0; i < 3; ++i) Make(kUnreadReply, kOfAConnection, Connect({{kWindow, 0}}));
  EXPECT_TRUE(Eventually([&] {
    int64_t reset = 0;
    for (const auto& peer : peers_) {
      EXPECT_TRUE(peer->Poll());
      reset += peer->received(RawHttp2::kReset);
    }
    return reset >= 3 * kOfAConnection - kMostWaiting;
  }));
  ExpectAnswers();
}

TEST_F(WaitingCallsTest, WhoEndsIsToldWhyAndIsCounted) {
  StartServing();
  const auto context = NewContext();
  const auto stream = stub().SolveStream(context.get());
  stream->WaitForInitialMetadata();
  Flood(kNoMessage, 3);
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_TRUE(Eventually([&] {
    return Ended("Solve", "RESOURCE_EXHAUSTED") == EndedOfAll() &&
           Ended("SolveStream", "RESOURCE_EXHAUSTED") == 1;
  }));
}

TEST_F(WaitingCallsTest, TheirMemoryIsBounded) {
  StartServing();
  const auto heap_bytes = [] {  // nothing is known of it under a sanitizer's own
    const struct mallinfo2 heap = mallinfo2();
    return static_cast<int64_t>(heap.uordblks + heap.hblkhd);
  };
  const int64_t before = heap_bytes();
  for (const IdleCall& call : {kNoMessage, kIdleWatch, kIdleSmooth, kIdleReflection})
    Flood(call, 2);
  EXPECT_LE(heap_bytes() - before, int64_t{45} << 20);  // all of them have 110 MiB
}

TEST_F(WaitingCallsTest, AStreamThatIsBeingServedStays) {
  StartGated();
  handle_ = Factor(matrix_);
  gate_->Close();
  const auto context = NewContext();
  const auto stream = stub().SolveStream(context.get());
  v1::SolveStreamRequest request;
  request.set_id(1);
  *request.mutable_request() = SolveRequestOf(handle_, problem_.rhs);
  ASSERT_TRUE(stream->Write(request));
  gate_->WaitForDevice();
  Flood(kNoMessage, 3, /*others_ask=*/false);
  gate_->Open();
  v1::SolveStreamReply reply;
  ASSERT_TRUE(stream->Read(&reply));
  EXPECT_EQ(reply.id(), 1u);
  EXPECT_TRUE(reply.has_reply());
  stream->WritesDone();
  EXPECT_FALSE(stream->Read(&reply));
  EXPECT_TRUE(IsOk(stream->Finish()));
}

// As slow as it likes, for a while.
TEST_F(WaitingCallsTest, AnUploadOfWhichMuchHasComeStays) {
  StartServing();
  const HostMatrix large(problems::Poisson(64, 32), Scalar::kFloat64);
  const std::string bytes = DataOf(large).diagonal() + DataOf(large).coupling();
  const auto context = NewContext();
  v1::FactorReply reply;
  const auto upload = stub().FactorStream(context.get(), &reply);
  v1::FactorStreamRequest message;
  *message.mutable_header()->mutable_spec() = SpecOf(large);
  message.mutable_header()->set_num_systems(1);
  ASSERT_TRUE(upload->Write(message));
  const size_t half = bytes.size() / 2;
  message.set_chunk(bytes.substr(0, half));
  ASSERT_TRUE(upload->Write(message));
  EXPECT_TRUE(Eventually([&] { return ReservedBytes() > 0; }));
  Flood(kNoMessage, 3);
  message.set_chunk(bytes.substr(half));
  EXPECT_TRUE(upload->Write(message));
  EXPECT_TRUE(upload->WritesDone());
  EXPECT_TRUE(IsOk(upload->Finish()));
}

TEST_F(WaitingCallsTest, CallsOfWhoIsIdentifiedStay) {
  const TempFolder folder;
  const std::string path = folder / "tenants", token = "a-token-that-nobody-would-guess";
  std::ofstream(path) << "tenant { name: \"t\" identity { token_sha256: \""
                      << server::TokenHashDigits(token).value() << "\" } }";
  server::ServerOptions options = Options();
  options.access.tenants_file = path;
  StartServing(options);
  RawHttp2& known = Connect();
  IdleCall watch = kIdleWatch;
  watch.field = RawHttp2::HeaderField("authorization", "Bearer " + token);
  Make(watch, 500, known);
  EXPECT_TRUE(known.WaitFor(RawHttp2::kData, 999));  // the last one has its first answer
  // A name that it gives itself says nothing.
  IdleCall named = kNoMessage;
  named.field = RawHttp2::HeaderField("blockd-caller", "somebody");
  Flood(named, 3);
  Flood(kIdleWatch, 2);
  EXPECT_EQ(known.ended(), 0);
}

TEST_F(WaitingCallsTest, ARequestHasATimeToComeButAWatchAndAStreamLast) {
  server::ServerOptions options = Options();
  options.max_upload_duration = absl::Seconds(2);
  StartServing(options);
  RawHttp2 &lasting = Connect(), &idle = Connect();
  ASSERT_TRUE(lasting.Send(kIdleWatch.Frames(1) + kStream.Frames(3)));
  EXPECT_TRUE(lasting.WaitFor(RawHttp2::kHeaders, 3));
  ASSERT_TRUE(idle.Send(kNoMessage.Frames(1) + kHalfAMessage.Frames(3) + kIdleReflection.Frames(5) +
                        kCheck.Frames(7)));
  EXPECT_TRUE(Eventually([&] { return idle.Poll() && idle.ended() == 4; }));
  EXPECT_TRUE(Eventually([&] {
    return Ended("Solve", "DEADLINE_EXCEEDED") == 1 && Ended("Factor", "DEADLINE_EXCEEDED") == 1;
  }));
  EXPECT_TRUE(lasting.Poll());
  EXPECT_EQ(lasting.ended(), 0);
  ExpectAnswers();
}

// A Watch keeps its connection open.
TEST_F(WaitingCallsTest, WatchesTakeNoProbesPlace) {
  server::ServerOptions options = Options();
  options.access.health_port = 0;
  StartServing(options);
  const int64_t places = server::SideConnections(server::DescriptorLimit());
  for (int64_t i = 0; i < places + 10; ++i) {
    peers_.push_back(std::make_unique<RawHttp2>(server().health_port()));
    EXPECT_TRUE(peers_.back()->Greet());
    EXPECT_TRUE(peers_.back()->Send(kIdleWatch.Frames(1)));
    EXPECT_TRUE(peers_.back()->WaitFor(RawHttp2::kData, 1));
  }
  for (int i = 0; i < 3; ++i) {
    RawHttp2 probe(server().health_port());
    EXPECT_TRUE(probe.Greet());
    EXPECT_TRUE(probe.Send(IdleCall{kCheck.method, kEmptyMessage, true}.Frames(1)));
    EXPECT_TRUE(probe.WaitFor(RawHttp2::kData, 1));
  }
  EXPECT_TRUE(Eventually([&] { return !peers_.front()->Poll(); }));
  EXPECT_TRUE(peers_.back()->Poll());
}

}  // namespace
}  // namespace blockd::test
