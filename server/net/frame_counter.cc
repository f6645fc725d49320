#include "server/net/frame_counter.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/string_view.h"

namespace blockd::server {
namespace {

constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// Types and flags of RFC 9113.
constexpr unsigned char kData = 0, kHeaders = 1, kReset = 3, kWindowUpdate = 8, kContinuation = 9;
constexpr unsigned char kEndStream = 1, kEndHeaders = 4, kPadded = 8, kPriority = 32;
constexpr size_t kPriorityBytes = 5;

}  // namespace

bool FrameCounter::Count(const char* bytes, size_t count, absl::Time now) {
  if (now - since_ >= absl::Seconds(1)) {
    since_ = now;
    beside_ = 0;
  }
  const size_t preface = ReadPreface(bytes, count);
  bytes += preface;
  count -= preface;
  while (count > 0 && is_http2_) {
    if (header_read_ < kHeaderBytes) {
      const size_t piece = std::min(count, kHeaderBytes - header_read_);
      std::memcpy(header_ + header_read_, bytes, piece);
      header_read_ += piece;
      bytes += piece;
      count -= piece;
      if (header_read_ < kHeaderBytes) break;
      Begin();
    }
    const size_t piece = std::min(count, payload_left_);
    Add(bytes, piece);
    bytes += piece;
    count -= piece;
    if (payload_left_ == 0) End();
  }
  return beside_ <= kMostBesideBytes * kLightness;
}

size_t FrameCounter::ReadPreface(const char* bytes, size_t count) {
  const size_t piece = std::min(count, kPreface.size() - preface_read_);
  is_http2_ = is_http2_ && kPreface.substr(preface_read_, piece) == absl::string_view(bytes, piece);
  preface_read_ += piece;
  return piece;
}

void FrameCounter::Begin() {
  payload_left_ = size_t{header_[0]} << 16 | size_t{header_[1]} << 8 | header_[2];
  const unsigned char type = header_[3], flags = header_[4];
  if (IsBlock()) {
    block_bytes_ += std::max(kBlockFrameBytes - static_cast<int64_t>(payload_left_), int64_t{0});
    is_padded_ = (flags & kPadded) != 0;
    priority_left_ = type == kHeaders && (flags & kPriority) != 0 ? kPriorityBytes : 0;
    return;
  }
  // Data moves a call, and so does the end of its messages.
  if (type == kData && (payload_left_ > 0 || (flags & kEndStream) != 0)) return;
  const bool is_light = type == kReset || type == kWindowUpdate;
  beside_ += static_cast<int64_t>(kHeaderBytes + payload_left_) * (is_light ? 1 : kLightness);
}

void FrameCounter::Add(const char* bytes, size_t count) {
  payload_left_ -= count;
  if (!IsBlock()) return;
  block_bytes_ += static_cast<int64_t>(count);
  sent_block_bytes_ += static_cast<int64_t>(count);
  // Nobody pads. What is an entry here depends on how gRPC takes it.
  if (is_padded_) block_bytes_ += static_cast<int64_t>(count) * kEntryBytes;
  const size_t priority = std::min(count, priority_left_);
  priority_left_ -= priority;
  block_.Add(bytes + priority, count - priority);
}

void FrameCounter::End() {
  if (IsBlock() && (header_[4] & kEndHeaders) != 0) {
    const int64_t bytes = sent_block_bytes_ + block_.entries() * kEntryBytes;
    if (bytes > kLargeBlockBytes) large_block_bytes_ += bytes;
    block_bytes_ = sent_block_bytes_ = 0;
    block_ = HeaderBlockScan();
  }
  header_read_ = 0;
}

bool FrameCounter::IsBlock() const { return header_[3] == kHeaders || header_[3] == kContinuation; }

}  // namespace blockd::server
