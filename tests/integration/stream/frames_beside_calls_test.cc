// A connection whose frames neither begin a call nor move one is ended, whatever calls are open on
// it: gRPC keeps a header block that does not end. One whose messages are large or slow is not.
#include <openssl/ssl.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/net/watched_reads.h"
#include "tests/integration/fixture.h"
#include "tests/integration/hostile/hostile_calls.h"
#include "tests/integration/hostile/raw_http2.h"
#include "tests/integration/hostile/wire_between.h"
#include "tests/support/certificates.h"
#include "tests/support/eventually.h"
#include "tests/support/peak_bytes.h"
#include "tests/support/server_process.h"
#include "tests/support/temp_folder.h"

namespace blockd::test {
namespace {

constexpr size_t kKiB = size_t{1} << 10, kMiB = size_t{1} << 20;
constexpr size_t kMostBytes = 64 * kMiB;  // of an attack
constexpr uint8_t kUnknown = 77, kPriority = 2;

// How much of it a connection may send, again and again, until it is ended.
size_t SendEndless(RawHttp2& peer, const std::string& frames) {
  size_t sent = 0;
  while (sent < kMostBytes && peer.Send(frames)) sent += frames.size();
  return sent;
}

size_t SendEndlessHeaders(RawHttp2& peer, uint32_t stream) {
  peer.SendFrame(RawHttp2::kHeaders, 0, stream, RawHttp2::HeaderBlock("GetServerInfo"));
  return SendEndless(peer, EndlessHeaders(stream));
}

// An entry of a byte, many times: what gRPC has for each is larger by far.
std::string ShortestEntries(uint32_t stream) {
  return RawHttp2::Frame(RawHttp2::kContinuation, 0, stream, std::string(16 * kKiB, '\xbe'));
}
// The table's entry that it means, which goes before it.
std::string RememberedEntry() { return std::string("\x40\x01k\x01v", 5); }

// Begins a text of 200 MB.
std::string LongName() { return std::string("\0\x7f\x80\x80\x80\x60", 6); }

class FramesBesideCallsTest : public IntegrationTest {
 protected:
  void SetUp() override {
    server::ServerOptions options = Options();
    options.access.health_port = 0;
    options.access.unix_socket = folder_ / "socket";
    options.max_message_bytes = kMiB;
    Start(options);
  }
  // With a call that stays open, or many.
  std::unique_ptr<RawHttp2> PeerInCalls(uint32_t calls = 1) {
    auto peer = std::make_unique<RawHttp2>(server().grpc_port());
    peer->Greet();
    for (uint32_t stream = 1; stream < 2 * calls; stream += 2) {
      peer->SendHeaders(stream, RawHttp2::HeaderBlock("SolveStream"));
      EXPECT_TRUE(peer->WaitFor(RawHttp2::kHeaders, stream));
    }
    return peer;
  }

  const TempFolder folder_;
};

TEST_F(FramesBesideCallsTest, HeadersThatNeverEndEndTheirConnectionAndNoOther) {
  const auto context = NewContext();
  const auto stream = stub().SolveStream(context.get());
  std::vector<std::unique_ptr<RawHttp2>> peers;
  peers.push_back(std::make_unique<RawHttp2>(server().grpc_port()));
  peers.push_back(std::make_unique<RawHttp2>(server().health_port()));
  peers.push_back(std::make_unique<RawHttp2>(folder_ / "socket"));
  const int64_t ended = server::EndedReads();
  for (const auto& peer : peers) {
    peer->Greet();
    ASSERT_FALSE(peer->closed());
    EXPECT_LT(SendEndlessHeaders(*peer, 1), kMostBytes);
  }
  EXPECT_EQ(server::EndedReads(), ended + 3);
  ExpectServes();
  stream->WritesDone();
  EXPECT_TRUE(IsOk(stream->Finish()));
}

TEST_F(FramesBesideCallsTest, BesideOpenCallsToo) {
  for (const uint32_t calls : {1, 64}) {
    EXPECT_LT(SendEndlessHeaders(*PeerInCalls(calls), 2 * calls + 1), kMostBytes);
  }
  // One that the server answers again and again.
  RawHttp2 watch(server().grpc_port());
  watch.Greet();
  watch.Send(kIdleWatch.Frames(1));
  ASSERT_TRUE(watch.WaitFor(RawHttp2::kData, 1));
  EXPECT_LT(SendEndlessHeaders(watch, 3), kMostBytes);
  ExpectServes();
}

TEST_F(FramesBesideCallsTest, HeadersThatNeverEndHardlyTakeMemory) {
  // Some without an end in sight, and some of them short of the limit of one.
  const auto attack = [&](const std::string& more) {
    std::vector<std::unique_ptr<RawHttp2>> peers;
    for (int i = 0; i < 8; ++i) {
      peers.push_back(PeerInCalls());
      peers.back()->SendFrame(RawHttp2::kHeaders, 0, 3,
                              RawHttp2::HeaderBlock("Solve") + RememberedEntry());
    }
    for (size_t sent = 0; sent < kMostBytes / 8; sent += more.size()) {
      for (const auto& peer : peers) peer->Send(more);
    }
    for (const auto& peer : peers) EXPECT_TRUE(peer->closed());
    ExpectServes();
  };
  std::string short_frames;
  for (int i = 0; i < 1000; ++i) {
    short_frames +=
        RawHttp2::Frame(RawHttp2::kContinuation, 0, 3, i == 0 ? LongName() : "xxxxxxxx");
  }
  for (const std::string& more : {EndlessHeaders(3), ShortestEntries(3), short_frames}) {
    EXPECT_LE(PeakBytesOf([&] { attack(more); }), static_cast<int64_t>(100 * kMiB));
  }
}

TEST_F(FramesBesideCallsTest, FramesThatConcernNoCallEndTheirConnection) {
  for (const std::string& frame :
       {RawHttp2::Frame(kUnknown, 0, 1, std::string(16 * kKiB, 'x')),
        RawHttp2::Frame(kUnknown, 0, 0, ""), RawHttp2::Frame(kPriority, 0, 1, "12345"),
        RawHttp2::Frame(RawHttp2::kSettings, 0, 0, ""),
        RawHttp2::Frame(RawHttp2::kPing, 0, 0, "12345678"),
        RawHttp2::Frame(RawHttp2::kData, 0, 1, "")}) {
    std::string frames;
    while (frames.size() < 16 * kKiB) frames += frame;
    EXPECT_LT(SendEndless(*PeerInCalls(), frames), kMostBytes) << int{frame[3]};
  }
  ExpectServes();
}

// As many as a client sends that measures its line, or greases it.
TEST_F(FramesBesideCallsTest, SomeFramesThatConcernNoCallAreRead) {
  const auto peer = PeerInCalls();
  for (int i = 0; i < 1000; ++i) {
    peer->Send(RawHttp2::Frame(kUnknown, 0, 0, "x") +
               RawHttp2::Frame(RawHttp2::kWindowUpdate, 0, 0, std::string("\0\0\0\1", 4)));
  }
  peer->Call(3, "GetServerInfo", "");
  EXPECT_EQ(peer->WaitForStatus(3), 0);
}

// More than all may have together, but none is larger than a router lets through.
TEST_F(FramesBesideCallsTest, SlowHeadersOfManyAreNotEnded) {
  constexpr size_t kPeers = 40, kMetadata = 60 * kKiB;
  static_assert(kPeers * kMetadata > server::kMostOpenBlockBytes);
  const std::string block = RawHttp2::HeaderBlock("GetServerInfo") +
                            RawHttp2::HeaderField("k", std::string(kMetadata, 'v'));
  std::string frames;
  for (size_t at = 0; at < block.size(); at += 10 * kKiB) {
    frames += RawHttp2::Frame(at == 0 ? RawHttp2::kHeaders : RawHttp2::kContinuation, 0, 1,
                              block.substr(at, 10 * kKiB));
  }
  std::vector<std::unique_ptr<RawHttp2>> peers;
  for (size_t i = 0; i < kPeers; ++i) {
    peers.push_back(std::make_unique<RawHttp2>(server().grpc_port()));
    peers.back()->Greet();
    peers.back()->Send(frames);
  }
  for (const auto& peer : peers) {
    peer->SendFrame(RawHttp2::kContinuation, RawHttp2::kEndHeaders, 1, "");
    peer->SendMessage(1, "");
    // More metadata than a call may have: the call's fault.
    EXPECT_EQ(peer->WaitForStatus(1), static_cast<int>(grpc::StatusCode::RESOURCE_EXHAUSTED));
    EXPECT_FALSE(peer->closed());
  }
}

// A closed connection's header block counts no more.
TEST_F(FramesBesideCallsTest, HeadersOfClosedConnectionsAreForgotten) {
  const std::string large = RawHttp2::HeaderBlock("GetServerInfo") +
                            RawHttp2::HeaderField("k", std::string(900 * kKiB, 'v'));
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(Eventually([&] { return Metric("blockd_connections") == 0; }));
    RawHttp2 peer(server().grpc_port());
    peer.Greet();
    peer.SendHeaders(1, large);
    peer.SendMessage(1, "");
    EXPECT_EQ(peer.WaitForStatus(1), static_cast<int>(grpc::StatusCode::RESOURCE_EXHAUSTED));
    peer.SendFrame(RawHttp2::kHeaders, 0, 3, large.substr(0, 16 * kKiB));
    for (size_t at = 16 * kKiB; at < large.size(); at += 16 * kKiB) {
      peer.SendFrame(RawHttp2::kContinuation, 0, 3, large.substr(at, 16 * kKiB));
    }
    // Frames are read in their order: the server has all of it once this one is wrong.
    peer.SendFrame(RawHttp2::kPing, 0, 0, "12345678");
    peer.WaitForEnd(5);
  }
}

// A slow upload beside a Watch and calls that come and go, all on one connection.
TEST_F(FramesBesideCallsTest, CallsOfOneConnectionGoOn) {
  RawHttp2 peer(server().grpc_port());
  peer.Greet();
  peer.SendFrame(RawHttp2::kWindowUpdate, 0, 0, std::string("\x40\0\0\0", 4));  // for all answers
  peer.Send(kIdleWatch.Frames(1));
  ASSERT_TRUE(peer.WaitFor(RawHttp2::kData, 1));
  peer.SendHeaders(3, RawHttp2::HeaderBlock("Release"));
  const std::string message(900 * kKiB, 'x');
  const std::string length = {'\0', '\0', '\x0e', '\x10', '\0'};
  peer.SendFrame(RawHttp2::kData, 0, 3, length);
  uint32_t stream = 5;
  for (size_t at = 0; at < message.size(); at += 10 * kKiB, stream += 2) {
    const bool last = at + 10 * kKiB >= message.size();
    peer.SendFrame(RawHttp2::kData, last ? RawHttp2::kEndStream : 0, 3,
                   message.substr(at, 10 * kKiB));
    peer.Call(stream, "GetServerInfo", "");
    peer.WaitForEnd(stream);
  }
  peer.WaitForEnd(3);  // no message of Release, so it is refused
  EXPECT_FALSE(peer.closed());
  EXPECT_EQ(peer.ended(), (stream - 3) / 2);
}

TEST_F(FramesBesideCallsTest, ManyLongMessagesAtOnceAreAllRead) {
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

// The program reads through the same functions. Its memory, without the client's.
TEST(FramesOfTheProgramTest, HeadersThatNeverEndHardlyTakeMemory) {
  const ServerProcess program(BLOCKD_PROGRAM, {"--backend=cpu", "--device_memory=64MiB"});
  const int64_t idle = program.ResidentBytes();
  for (int i = 0; i < 12; ++i) {
    RawHttp2 peer(program.port());
    peer.Greet();
    peer.SendHeaders(1, RawHttp2::HeaderBlock("SolveStream"));
    ASSERT_TRUE(peer.WaitFor(RawHttp2::kHeaders, 1));
    peer.SendFrame(RawHttp2::kHeaders, 0, 3, RawHttp2::HeaderBlock("Solve") + RememberedEntry());
    EXPECT_LT(SendEndless(peer, i % 2 == 0 ? EndlessHeaders(3) : ShortestEntries(3)), kMostBytes);
    EXPECT_LE(program.ResidentBytes(), idle + static_cast<int64_t>(100 * kMiB));
  }
}

class FramesInTlsTest : public IntegrationTest {};

TEST_F(FramesInTlsTest, HeadersThatNeverEndEndTheirConnection) {
  Certificates files;
  files.MakeAuthority("ca");
  files.Make("server", "server", {Dns("localhost")});
  server::ServerOptions options = Options();
  options.tls_cert_file = files.Path("server.pem");
  options.tls_key_file = files.Path("server.key");
  Start(options);
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                                  SSL_CTX_free);
  const std::unique_ptr<SSL, decltype(&SSL_free)> tls(SSL_new(context.get()), SSL_free);
  const int fd = ConnectTo(server().grpc_port());
  const std::string protocols = "\x02h2";
  SSL_set_alpn_protos(tls.get(), reinterpret_cast<const unsigned char*>(protocols.data()),
                      static_cast<unsigned int>(protocols.size()));
  SSL_set_fd(tls.get(), fd);
  ASSERT_EQ(SSL_connect(tls.get()), 1);
  const auto send = [&tls](const std::string& bytes) {
    return SSL_write(tls.get(), bytes.data(), static_cast<int>(bytes.size())) > 0;
  };
  EXPECT_TRUE(send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" +
                   RawHttp2::Frame(RawHttp2::kSettings, 0, 0, "") +
                   RawHttp2::Frame(RawHttp2::kHeaders, 0, 1, RawHttp2::HeaderBlock("Solve"))));
  const std::string more = EndlessHeaders(1);
  const auto before = std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes without MSG_NOSIGNAL
  size_t sent = 0;
  while (sent < kMostBytes && send(more)) sent += more.size();
  EXPECT_LT(sent, kMostBytes);
  std::signal(SIGPIPE, before);
  close(fd);
}

}  // namespace
}  // namespace blockd::test
