// A client of HTTP/2 that does what it likes: frames by hand over a loopback socket. What it sends
// is bounded by its test. One thread.
#ifndef BLOCKD_TESTS_INTEGRATION_HOSTILE_RAW_HTTP2_H_
#define BLOCKD_TESTS_INTEGRATION_HOSTILE_RAW_HTTP2_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace blockd::test {

class RawHttp2 {
 public:
  // Types of frames, flags and settings, of RFC 9113.
  static constexpr uint8_t kData = 0, kHeaders = 1, kReset = 3, kSettings = 4, kPing = 6,
                           kGoAway = 7, kWindowUpdate = 8, kContinuation = 9;
  static constexpr uint8_t kAck = 1, kEndStream = 1, kEndHeaders = 4;
  static constexpr uint16_t kInitialWindow = 4;

  // closed() if nobody listens there. `from` is a loopback address.
  explicit RawHttp2(int port, const char* from = "127.0.0.1");
  explicit RawHttp2(const std::string& unix_socket);
  ~RawHttp2();
  RawHttp2(const RawHttp2&) = delete;
  RawHttp2& operator=(const RawHttp2&) = delete;

  // False once the server has closed the connection. Reads and counts what the server says
  // meanwhile, so that neither waits for the other.
  bool Send(const std::string& bytes);
  static std::string Frame(uint8_t type, uint8_t flags, uint32_t stream,
                           const std::string& payload);
  bool SendFrame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload);
  // The preface, with these settings.
  bool Greet(const std::vector<std::pair<uint16_t, uint32_t>>& settings = {});
  // A call of this method of blockd.v1.Solver, with one message, whole.
  bool Call(uint32_t stream, const std::string& method, const std::string& message);
  // A call's header block, not compressed. `method`: of blockd.v1.Solver, or the whole path.
  static std::string HeaderBlock(const std::string& method);
  static std::string HeaderBlockOf(const std::string& path);  // "/blockd.v1.Solver/Solve"
  // A literal field that no table remembers.
  static std::string HeaderField(const std::string& name, const std::string& value);
  // HEADERS and, if one frame does not hold it, CONTINUATION.
  static std::string HeaderFrames(uint32_t stream, const std::string& block, uint8_t flags = 0);
  bool SendHeaders(uint32_t stream, const std::string& block, uint8_t flags = 0);
  // One message as gRPC frames it, in DATA.
  bool SendMessage(uint32_t stream, const std::string& message, uint8_t flags = kEndStream,
                   bool compressed = false);
  // Reads until a frame of this type has come for the stream; false if the connection ends first.
  bool WaitFor(uint8_t type, uint32_t stream);
  // Reads until the stream has ended, answered or reset, or its connection was sent away.
  void WaitForEnd(uint32_t stream);
  // Reads until the stream's HEADERS say how its call ended, or its connection ends. Knows gRPC's
  // servers alone, and of a connection only the first call that ends. -1: not said.
  int WaitForStatus(uint32_t stream);

  bool closed() const { return closed_; }
  int64_t received(uint8_t type) const;  // frames
  int64_t received(uint8_t type, uint32_t stream) const;
  // Waits until the server has read all that was sent.
  bool Ping();
  // Calls that the server has ended, with a status or without.
  int64_t ended() const { return std::ssize(ended_); }
  // Reads what has come, without waiting.
  bool Poll() { return Receive(/*wait=*/false); }

 private:
  bool Receive(bool wait);
  void Count();

  int fd_ = -1;
  bool closed_ = false;
  int64_t pings_ = 0, pongs_ = 0;
  std::string unread_;
  std::map<uint8_t, int64_t> received_;
  std::map<std::pair<uint8_t, uint32_t>, int64_t> of_stream_;
  std::set<uint32_t> ended_;                 // streams
  std::map<uint32_t, std::string> headers_;  // of each stream, as they came
};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_INTEGRATION_HOSTILE_RAW_HTTP2_H_
