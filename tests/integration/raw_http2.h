// A client of HTTP/2 that does what it likes: frames by hand over a loopback socket. What it sends
// is bounded by its test. One thread.
#ifndef BLOCKD_TESTS_INTEGRATION_RAW_HTTP2_H_
#define BLOCKD_TESTS_INTEGRATION_RAW_HTTP2_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace blockd::test {

class RawHttp2 {
 public:
  // Types of frames, flags and settings, of RFC 9113.
  static constexpr uint8_t kData = 0, kHeaders = 1, kReset = 3, kSettings = 4, kPing = 6,
                           kGoAway = 7, kContinuation = 9;
  static constexpr uint8_t kAck = 1, kEndStream = 1, kEndHeaders = 4;
  static constexpr uint16_t kInitialWindow = 4;

  explicit RawHttp2(int port);  // closed() if nobody listens there
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
  // One more field of it. Both texts have fewer than 127 bytes.
  static std::string HeaderField(const std::string& name, const std::string& value);
  // Reads until a frame of this type has come for the stream; false if the connection ends first.
  bool WaitFor(uint8_t type, uint32_t stream);

  bool closed() const { return closed_; }
  int64_t received(uint8_t type) const;     // frames
  int64_t ended() const { return ended_; }  // calls that the server has ended with a status
  // Reads what has come, without waiting.
  bool Poll() { return Receive(/*wait=*/false); }

 private:
  bool Receive(bool wait);
  void Count();

  int fd_ = -1;
  bool closed_ = false;
  std::string unread_;
  int64_t ended_ = 0;
  std::map<uint8_t, int64_t> received_;
  std::map<std::pair<uint8_t, uint32_t>, int64_t> of_stream_;
};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_INTEGRATION_RAW_HTTP2_H_
