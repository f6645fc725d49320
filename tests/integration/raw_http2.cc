#include "tests/integration/raw_http2.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/integration/wire_between.h"

namespace blockd::test {
namespace {

constexpr int kPatienceMs = 60'000;

std::string BigEndian(uint64_t value, int bytes) {
  std::string text;
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) {
    text += static_cast<char>(value >> shift & 0xff);
  }
  return text;
}

uint64_t FromBigEndian(const std::string& bytes, size_t at, size_t count) {
  uint64_t value = 0;
  for (size_t i = 0; i < count; ++i) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

}  // namespace

RawHttp2::RawHttp2(int port) : fd_(ConnectTo(port)), closed_(fd_ < 0) {}
RawHttp2::~RawHttp2() { close(fd_); }

bool RawHttp2::Send(const std::string& bytes) {
  for (size_t at = 0; at < bytes.size();) {
    pollfd ready = {fd_, POLLIN | POLLOUT, 0};
    if (closed_ || poll(&ready, 1, kPatienceMs) <= 0) return false;
    if ((ready.revents & (POLLIN | POLLHUP | POLLERR)) != 0 && !Receive(/*wait=*/false)) {
      return false;
    }
    if ((ready.revents & POLLOUT) == 0) continue;
    const ssize_t sent =
        send(fd_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      at += static_cast<size_t>(sent);
    } else if (errno != EAGAIN) {
      closed_ = true;
    }
  }
  return !closed_;
}

std::string RawHttp2::Frame(uint8_t type, uint8_t flags, uint32_t stream,
                            const std::string& payload) {
  return BigEndian(payload.size(), 3) + static_cast<char>(type) + static_cast<char>(flags) +
         BigEndian(stream, 4) + payload;
}

bool RawHttp2::SendFrame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
  return Send(Frame(type, flags, stream, payload));
}

bool RawHttp2::Greet(const std::vector<std::pair<uint16_t, uint32_t>>& settings) {
  std::string payload;
  for (const auto& [name, value] : settings) payload += BigEndian(name, 2) + BigEndian(value, 4);
  return Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") && SendFrame(kSettings, 0, 0, payload);
}

// A literal that no table remembers.
std::string RawHttp2::HeaderField(const std::string& name, const std::string& value) {
  return std::string(1, '\0') + static_cast<char>(name.size()) + name +
         static_cast<char>(value.size()) + value;
}

std::string RawHttp2::HeaderBlock(const std::string& method) {
  return HeaderField(":method", "POST") + HeaderField(":scheme", "http") +
         HeaderField(":path", method[0] == '/' ? method : "/blockd.v1.Solver/" + method) +
         HeaderField(":authority", "localhost") + HeaderField("te", "trailers") +
         HeaderField("content-type", "application/grpc");
}

bool RawHttp2::Call(uint32_t stream, const std::string& method, const std::string& message) {
  constexpr size_t kFrameBytes = 16384;
  bool sent = SendFrame(kHeaders, kEndHeaders, stream, HeaderBlock(method));
  const std::string body = std::string(1, '\0') + BigEndian(message.size(), 4) + message;
  for (size_t at = 0; at < body.size() && sent; at += kFrameBytes) {
    const bool last = at + kFrameBytes >= body.size();
    sent = SendFrame(kData, last ? kEndStream : 0, stream, body.substr(at, kFrameBytes));
  }
  return sent;
}

bool RawHttp2::WaitFor(uint8_t type, uint32_t stream) {
  while (of_stream_[{type, stream}] == 0) {
    if (!Receive(/*wait=*/true)) return false;
  }
  return true;
}

int64_t RawHttp2::received(uint8_t type) const {
  const auto found = received_.find(type);
  return found == received_.end() ? 0 : found->second;
}

bool RawHttp2::Receive(bool wait) {
  pollfd ready = {fd_, POLLIN, 0};
  if (closed_ || (wait && poll(&ready, 1, kPatienceMs) <= 0)) return false;
  char piece[65536];
  const ssize_t came = recv(fd_, piece, sizeof(piece), MSG_DONTWAIT);
  if (came == 0 || (came < 0 && errno != EAGAIN)) closed_ = true;
  if (came > 0) unread_.append(piece, static_cast<size_t>(came));
  Count();
  return !closed_;
}

void RawHttp2::Count() {
  size_t at = 0;
  while (unread_.size() - at >= 9) {
    const size_t length = FromBigEndian(unread_, at, 3);
    if (unread_.size() - at < 9 + length) break;
    const auto type = static_cast<uint8_t>(unread_[at + 3]);
    ++received_[type];
    if (type == kHeaders && (unread_[at + 4] & kEndStream) != 0) ++ended_;
    ++of_stream_[{type, static_cast<uint32_t>(FromBigEndian(unread_, at + 5, 4))}];
    at += 9 + length;
  }
  unread_.erase(0, at);
}

}  // namespace blockd::test
