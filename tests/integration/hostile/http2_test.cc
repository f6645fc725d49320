// The frames that the server's transport sends by itself, for the flags about HTTP/2 whose effect
// no answer shows.
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "tests/integration/fixture.h"
#include "tests/integration/hostile/wire_between.h"

namespace blockd::test {
namespace {

// Types of frames, and settings, of RFC 9113.
constexpr uint8_t kSettings = 4, kPing = 6, kGoAway = 7;
constexpr uint8_t kAck = 1;
constexpr uint16_t kMaxConcurrentStreams = 3;

struct Frame {
  uint8_t type = 0, flags = 0;
  std::string payload;
};

uint64_t BigEndian(const std::string& bytes, size_t at, size_t count) {
  uint64_t value = 0;
  for (size_t i = 0; i < count; ++i) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

// A client that has greeted the server and does nothing more by itself. One thread.
class Http2Peer {
 public:
  explicit Http2Peer(int port) : fd_(ConnectTo(port)) {
    EXPECT_GE(fd_, 0);
    const timeval limit = {.tv_sec = 30, .tv_usec = 0};  // below the flags' defaults of a minute
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    SendFrame(kSettings, "");
  }
  ~Http2Peer() { close(fd_); }

  void SendFrame(uint8_t type, const std::string& payload) {
    std::string frame = {0, 0, static_cast<char>(payload.size()), static_cast<char>(type), 0, 0, 0,
                         0, 0};
    Send(frame + payload);
  }
  // nullopt once the server has closed the connection, or says nothing for too long.
  std::optional<Frame> Next() {
    std::string head, payload;
    if (!Receive(9, &head) || !Receive(BigEndian(head, 0, 3), &payload)) return std::nullopt;
    return Frame{static_cast<uint8_t>(head[3]), static_cast<uint8_t>(head[4]), payload};
  }
  // The next one of this type; others are passed over.
  std::optional<Frame> Next(uint8_t type) {
    std::optional<Frame> frame;
    do frame = Next();
    while (frame && frame->type != type);
    return frame;
  }
  bool closed() const { return closed_; }

 private:
  void Send(const std::string& bytes) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0) closed_ = true;  // a full server closes at once
    EXPECT_TRUE(closed_ || sent == static_cast<ssize_t>(bytes.size()));
  }
  bool Receive(size_t count, std::string* bytes) {
    bytes->resize(count);
    for (size_t at = 0; at < count;) {
      const ssize_t came = recv(fd_, bytes->data() + at, count - at, 0);
      if (came == 0) closed_ = true;
      if (came <= 0) return false;
      at += static_cast<size_t>(came);
    }
    return true;
  }

  const int fd_;
  bool closed_ = false;
};

class Http2Test : public IntegrationTest {};

TEST_F(Http2Test, TheServersSettingsSayHowManyCallsAtOnce) {
  server::ServerOptions options = Options();
  options.max_connection_streams = 77;
  Start(options);
  Http2Peer peer(server().grpc_port());
  const std::optional<Frame> frame = peer.Next(kSettings);
  ASSERT_TRUE(frame.has_value());
  std::map<uint64_t, uint64_t> settings;
  for (size_t at = 0; at + 6 <= frame->payload.size(); at += 6) {
    settings[BigEndian(frame->payload, at, 2)] = BigEndian(frame->payload, at + 2, 4);
  }
  EXPECT_EQ(settings[kMaxConcurrentStreams], 77u);
}

TEST_F(Http2Test, ASilentConnectionIsPingedAndClosedIfItDoesNotAnswer) {
  server::ServerOptions options = Options();
  options.keepalive_time = absl::Seconds(1);
  options.keepalive_timeout = absl::Milliseconds(200);
  Start(options);
  Http2Peer peer(server().grpc_port());
  std::optional<Frame> frame;
  do frame = peer.Next(kPing);
  while (frame && (frame->flags & kAck) != 0);
  EXPECT_TRUE(frame.has_value());
  while (peer.Next()) {
  }
  EXPECT_TRUE(peer.closed());
}

TEST_F(Http2Test, AClientMayPingAsOftenAsTheServerSays) {
  for (const bool allowed : {true, false}) {
    server::ServerOptions options = Options();
    options.min_ping_interval = allowed ? absl::Milliseconds(1) : absl::Hours(1);
    Start(options);
    Http2Peer peer(server().grpc_port());
    bool sent_away = false;
    for (int i = 0; i < 10 && !sent_away; ++i) {
      peer.SendFrame(kPing, "12345678");
      std::optional<Frame> frame;
      do frame = peer.Next();
      while (frame && frame->type != kGoAway && !(frame->type == kPing && frame->flags == kAck));
      sent_away = !frame || frame->type == kGoAway;
      absl::SleepFor(absl::Milliseconds(5));
    }
    EXPECT_EQ(sent_away, !allowed);
  }
}

// True if the server greets the peer, false if it closes the connection.
bool IsGreeted(Http2Peer* peer) { return peer->Next(kSettings).has_value(); }

TEST_F(Http2Test, AConnectionBeyondTheLimitIsClosedUntilAnotherOneIsGone) {
  server::ServerOptions options = Options();
  options.max_connections = 3;
  Start(options);  // the fixture's own channel connects at its first call
  Http2Peer first(server().grpc_port());
  EXPECT_TRUE(IsGreeted(&first));
  auto second = std::make_unique<Http2Peer>(server().grpc_port());
  EXPECT_TRUE(IsGreeted(second.get()));
  EXPECT_EQ(Health("connections"), 1);  // the third
  Http2Peer fourth(server().grpc_port());
  EXPECT_FALSE(IsGreeted(&fourth));
  EXPECT_EQ(Health("connections"), 2);
  EXPECT_EQ(Health("blockd.v1.Solver"), 1);
  second.reset();
  EXPECT_TRUE(Eventually([&] { return Health("connections") == 1; }));
  Http2Peer fifth(server().grpc_port());
  EXPECT_TRUE(IsGreeted(&fifth));
  ExpectServes();
}

TEST_F(Http2Test, AConnectionThatIsOldOrIdleIsToldToGoAway) {
  for (const bool old : {true, false}) {
    server::ServerOptions options = Options();
    (old ? options.max_connection_age : options.max_connection_idle) = absl::Milliseconds(50);
    Start(options);
    Http2Peer peer(server().grpc_port());
    EXPECT_TRUE(peer.Next(kGoAway).has_value());
  }
}

TEST_F(Http2Test, AConnectionThatNeverGreetsIsClosed) {
  server::ServerOptions options = Options();
  options.handshake_timeout = absl::Seconds(2);
  Start(options);
  Ask(server().grpc_port(), "PRI * HTTP/2.0");  // returns once the server has closed it
  ExpectServes();
}

}  // namespace
}  // namespace blockd::test
