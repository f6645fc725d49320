// A fault in one caller's call is not noticed by the other callers, whose calls share connections
// between the router and the servers with it.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/hostile/raw_http2.h"
#include "tests/router/router_fixture.h"

namespace blockd::test {
namespace {

constexpr int kOthers = 4, kMostFrames = 100'000;
constexpr char kWatch[] = "/grpc.health.v1.Health/Watch", kCheck[] = "/grpc.health.v1.Health/Check";

std::string Field(const std::string& name, const std::string& value) {
  return RawHttp2::HeaderField(name, value);
}

// Another caller, with a stream that stays open. Envoy's threads have connections of their own to
// a server: there are some callers, so that each thread has one.
class Other {
 public:
  explicit Other(int port) : peer_(port) {
    peer_.Greet();
    peer_.SendHeaders(1, RawHttp2::HeaderBlockOf(kWatch));
    peer_.SendMessage(1, "", 0);
    EXPECT_TRUE(peer_.WaitFor(RawHttp2::kData, 1));
  }
  // True if a call is answered, the stream is still open, and no GOAWAY came.
  bool GoesOn() {
    stream_ += 2;
    return peer_.SendHeaders(stream_, RawHttp2::HeaderBlockOf(kCheck)) &&
           peer_.SendMessage(stream_, "") && peer_.WaitFor(RawHttp2::kData, stream_) &&
           peer_.received(RawHttp2::kReset, 1) == 0 && peer_.received(RawHttp2::kHeaders, 1) == 1 &&
           peer_.received(RawHttp2::kGoAway) == 0;
  }

 private:
  RawHttp2 peer_;
  uint32_t stream_ = 1;
};

// The parameter: whether it is Envoy, or HAProxy.
class FaultTest : public RouterTest, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    StartServers(1);
    GetParam() ? StartEnvoy() : StartHaproxy();
    for (int i = 0; i < kOthers; ++i) others_.push_back(std::make_unique<Other>(router_port_));
  }
  void ExpectOthersGoOn() {
    for (const auto& other : others_) EXPECT_TRUE(other->GoesOn());
  }
  // Begins a call on a connection of its own.
  void Send(const std::string& block, const std::string& trailers = "") {
    auto peer = std::make_unique<RawHttp2>(router_port_);
    peer->Greet();
    peer->SendHeaders(1, RawHttp2::HeaderBlockOf(kCheck));
    peer->SendMessage(1, "");
    EXPECT_TRUE(peer->WaitFor(RawHttp2::kData, 1));
    peer->SendHeaders(3, block);
    peer->SendMessage(3, "", trailers.empty() ? RawHttp2::kEndStream : 0);
    if (!trailers.empty()) peer->SendHeaders(3, trailers, RawHttp2::kEndStream);
    sent_.push_back(std::move(peer));
  }
  // Once each of these calls is answered or reset, or its connection ended.
  void ExpectOthersGoOnAfterThat() {
    for (const auto& peer : sent_) peer->WaitForEnd(3);
    ExpectOthersGoOn();
  }

  std::vector<std::unique_ptr<RawHttp2>> sent_;
  std::vector<std::unique_ptr<Other>> others_;
};

INSTANTIATE_TEST_SUITE_P(Routers, FaultTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Envoy" : "HAProxy"; });

TEST_P(FaultTest, MetadataThatIsTooLargeOrMalformedHarmsNobodyElse) {
  const std::string good = RawHttp2::HeaderBlock("GetServerInfo");
  std::string entries;
  for (int i = 0; i < 500; ++i) entries += Field("k" + std::to_string(i), "v");
  for (const std::string& more :
       {Field("k", std::string(9 << 10, 'v')), Field("k", std::string(50 << 10, 'v')),
        Field("k", std::string(500 << 10, 'v')), Field("k", std::string(2 << 20, 'v')), entries,
        Field("k-bin", "!!"), Field("k-bin", "QUJDQ"), Field("k-bin", "QUJD,QUJD"),
        Field("K-BIN", "!!"), Field("grpc-tags-bin", "!"), Field(":status", "200"),
        Field(":path", "/x"), Field("", "v"), Field("grpc-timeout", "x"),
        Field("grpc-encoding", "gzip"), Field("content-length", "5000")}) {
    Send(good + more);
    Send(good, more);
  }
  ExpectOthersGoOnAfterThat();
  EXPECT_EQ(servers_[0]->Metric("blockd_connections_ended_total"), 0);
}

TEST_P(FaultTest, APathOrAMethodThatIsTooLargeHarmsNobodyElse) {
  const std::string large(64 << 10, 'x'), small(7 << 10, 'x');
  for (const std::string& text : {small, large}) {
    Send(RawHttp2::HeaderBlockOf("/" + text));
    Send(Field(":method", text) + Field(":scheme", "http") + Field(":path", "/x/y") +
         Field(":authority", "localhost"));
  }
  ExpectOthersGoOnAfterThat();
}

TEST_P(FaultTest, ACompressedMessageIsRefusedAndHarmsNobodyElse) {
  RawHttp2 peer(router_port_);
  peer.Greet();
  peer.SendHeaders(1, RawHttp2::HeaderBlock("GetServerInfo") + Field("grpc-encoding", "gzip"));
  peer.SendMessage(1, "no gzip", RawHttp2::kEndStream, /*compressed=*/true);
  EXPECT_TRUE(peer.WaitFor(RawHttp2::kHeaders, 1));
  EXPECT_EQ(peer.received(RawHttp2::kData), 0);
  ExpectOthersGoOn();
}

TEST_P(FaultTest, HeadersWithoutEndEndAtTheRouter) {
  const std::string more = Field("name", std::string(1024, 'x'));
  RawHttp2 peer(router_port_);
  peer.Greet();
  int sent = 0;
  peer.SendFrame(RawHttp2::kHeaders, 0, 1, RawHttp2::HeaderBlock("GetServerInfo"));
  while (sent < kMostFrames && peer.SendFrame(RawHttp2::kContinuation, 0, 1, more)) ++sent;
  EXPECT_LT(sent, kMostFrames);
  ExpectOthersGoOn();
  EXPECT_EQ(servers_[0]->Metric("blockd_requests_total", "method=\"GetServerInfo\""), 0);
}

}  // namespace
}  // namespace blockd::test
