#include "tests/integration/hostile/raw_http2.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/integration/hostile/wire_between.h"

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

constexpr size_t kFrameBytes = 16384;

// HPACK's length of a text.
std::string Length(size_t bytes) {
  constexpr size_t kPrefix = 127;
  if (bytes < kPrefix) return std::string(1, static_cast<char>(bytes));
  std::string text(1, static_cast<char>(kPrefix));
  for (bytes -= kPrefix; bytes >= 128; bytes /= 128) {
    text += static_cast<char>(bytes % 128 | 128);
  }
  return text + static_cast<char>(bytes);
}

}  // namespace

RawHttp2::RawHttp2(int port, const char* from) : fd_(ConnectTo(port, from)), closed_(fd_ < 0) {
  const int one = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}
RawHttp2::RawHttp2(const std::string& unix_socket) : fd_(socket(AF_UNIX, SOCK_STREAM, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  unix_socket.copy(address.sun_path, sizeof(address.sun_path) - 1);
  closed_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0;
}
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

std::string RawHttp2::HeaderField(const std::string& name, const std::string& value) {
  return std::string(1, '\0') + Length(name.size()) + name + Length(value.size()) + value;
}

std::string RawHttp2::HeaderBlock(const std::string& method) {
  return HeaderBlockOf(method[0] == '/' ? method : "/blockd.v1.Solver/" + method);
}

std::string RawHttp2::HeaderBlockOf(const std::string& path) {
  return HeaderField(":method", "POST") + HeaderField(":scheme", "http") +
         HeaderField(":path", path) + HeaderField(":authority", "localhost") +
         HeaderField("te", "trailers") + HeaderField("content-type", "application/grpc");
}

std::string RawHttp2::HeaderFrames(uint32_t stream, const std::string& block, uint8_t flags) {
  std::string frames;
  for (size_t at = 0; at < block.size(); at += kFrameBytes) {
    const uint8_t end = at + kFrameBytes >= block.size() ? kEndHeaders : 0;
    frames += at == 0 ? Frame(kHeaders, flags | end, stream, block.substr(0, kFrameBytes))
                      : Frame(kContinuation, end, stream, block.substr(at, kFrameBytes));
  }
  return frames;
}

bool RawHttp2::SendHeaders(uint32_t stream, const std::string& block, uint8_t flags) {
  return Send(HeaderFrames(stream, block, flags));
}

bool RawHttp2::SendMessage(uint32_t stream, const std::string& message, uint8_t flags,
                           bool compressed) {
  const std::string body =
      std::string(1, compressed ? '\1' : '\0') + BigEndian(message.size(), 4) + message;
  bool sent = true;
  for (size_t at = 0; at < body.size() && sent; at += kFrameBytes) {
    const bool last = at + kFrameBytes >= body.size();
    sent = SendFrame(kData, last ? flags : 0, stream, body.substr(at, kFrameBytes));
  }
  return sent;
}

bool RawHttp2::Call(uint32_t stream, const std::string& method, const std::string& message) {
  return SendHeaders(stream, HeaderBlock(method)) && SendMessage(stream, message);
}

bool RawHttp2::WaitFor(uint8_t type, uint32_t stream) {
  while (of_stream_[{type, stream}] == 0) {
    if (!Receive(/*wait=*/true)) return false;
  }
  return true;
}

bool RawHttp2::Ping() {
  if (!SendFrame(kPing, 0, 0, std::string(8, '\0'))) return false;
  ++pings_;
  while (pongs_ < pings_) {
    if (!Receive(/*wait=*/true)) return false;
  }
  return true;
}

void RawHttp2::WaitForEnd(uint32_t stream) {
  while (ended_.count(stream) == 0 && received(kGoAway) == 0 && Receive(/*wait=*/true)) continue;
}

int RawHttp2::WaitForStatus(uint32_t stream) {
  // A name and a value, each after its length. No code has more than two digits.
  const std::string name = "grpc-status";
  while (true) {
    const std::string& headers = headers_[stream];
    const size_t at = headers.find(name);
    if (at != std::string::npos) return std::stoi(headers.substr(at + name.size() + 1, 2));
    if (!Receive(/*wait=*/true)) return -1;
  }
}

int64_t RawHttp2::received(uint8_t type, uint32_t stream) const {
  const auto found = of_stream_.find({type, stream});
  return found == of_stream_.end() ? 0 : found->second;
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
    const auto stream = static_cast<uint32_t>(FromBigEndian(unread_, at + 5, 4));
    ++of_stream_[{type, stream}];
    if (type == kPing && (unread_[at + 4] & kAck) != 0) ++pongs_;
    const bool last = (unread_[at + 4] & kEndStream) != 0;
    if (type == kReset || (last && (type == kHeaders || type == kData))) ended_.insert(stream);
    if (type == kHeaders) headers_[stream].append(unread_, at + 9, length);
    at += 9 + length;
  }
  unread_.erase(0, at);
}

}  // namespace blockd::test
