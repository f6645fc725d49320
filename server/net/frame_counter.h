// How much of what a client sends neither begins a call nor moves one: counts the frames of HTTP/2
// of one connection as their bytes come, in pieces of any size. Not thread-safe.
//
// A header block that does not end is in no window of HTTP/2, and gRPC 1.51 keeps all of it. Frames
// that concern no call cost only time, but as many of them as a client likes.
#ifndef BLOCKD_SERVER_NET_FRAME_COUNTER_H_
#define BLOCKD_SERVER_NET_FRAME_COUNTER_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/time/time.h"
#include "server/net/header_block_scan.h"

namespace blockd::server {

class FrameCounter {
 public:
  // Frames beside all calls, in a second: PING, SETTINGS, unknown ones, DATA without data. A client
  // that measures its line by PINGs sends one a round trip: 20,000 over loopback are 340 kB.
  static constexpr int64_t kMostBesideBytes = 512 << 10;
  // One of RESET or WINDOW_UPDATE counts less: a client that reads much sends many.
  static constexpr int64_t kLightness = 32;

  // False once more frames are beside calls than may be. `now` is SteadyNow's.
  bool Count(const char* bytes, size_t count, absl::Time now);
  // False if this is no HTTP/2: another protocol, which nothing is known of.
  bool is_http2() const { return is_http2_; }
  // The memory that a header block takes which is not whole: its bytes and, since gRPC begins a
  // text anew with each frame until it has all of it, no less than this for each frame.
  int64_t open_block_bytes() const { return block_bytes_ + block_.entries() * kEntryBytes; }
  // The memory of the whole header blocks that take more than this, since it was asked last.
  static constexpr int64_t kLargeBlockBytes = 16 << 10;
  int64_t TakeLargeBlockBytes() { return std::exchange(large_block_bytes_, 0); }
  static constexpr int64_t kBlockFrameBytes = 8 << 10;
  static constexpr int64_t kEntryBytes = 256;  // that gRPC has for one; measured are 150

 private:
  static constexpr size_t kHeaderBytes = 9;

  size_t ReadPreface(const char* bytes, size_t count);
  void Begin();
  void Add(const char* bytes, size_t count);  // of the frame's payload
  void End();
  bool IsBlock() const;

  bool is_http2_ = true;
  size_t preface_read_ = 0;
  unsigned char header_[kHeaderBytes] = {};
  size_t header_read_ = 0;
  size_t payload_left_ = 0;
  size_t priority_left_ = 0;  // bytes before the block
  bool is_padded_ = false;
  int64_t block_bytes_ = 0;  // as open_block_bytes counts them
  int64_t sent_block_bytes_ = 0;
  int64_t large_block_bytes_ = 0;
  HeaderBlockScan block_;
  int64_t beside_ = 0;  // bytes times kLightness, in the second since then
  absl::Time since_ = absl::InfinitePast();
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_NET_FRAME_COUNTER_H_
