#include "server/net/header_block_scan.h"

#include <algorithm>

namespace blockd::server {
namespace {

constexpr unsigned char kMore = 0x80;    // of a number: bytes follow
constexpr unsigned char kLength = 0x7f;  // the rest says whether the text is in Huffman's code
constexpr int kMostShift = 28;           // gRPC refuses numbers of more than 32 bits

}  // namespace

void HeaderBlockScan::Add(const char* bytes, size_t count) {
  while (count > 0) {
    if (next_ != Next::kText) {
      Take(static_cast<unsigned char>(*bytes++));
      --count;
      continue;
    }
    const auto piece = static_cast<size_t>(std::min<uint64_t>(count, length_));
    bytes += piece;
    count -= piece;
    length_ -= piece;
    if (length_ == 0) EndText();
  }
}

void HeaderBlockScan::Take(unsigned char byte) {
  switch (next_) {
    case Next::kEntry:
      return BeginEntry(byte);
    case Next::kIndex:
      if ((byte & kMore) == 0) next_ = texts_left_ > 0 ? Next::kLength : Next::kEntry;
      return;
    case Next::kLength:
      length_ = byte & kLength;
      shift_ = 0;
      if (length_ < kLength) return EndLength();
      next_ = Next::kRestOfLength;
      return;
    case Next::kRestOfLength:
      length_ += static_cast<uint64_t>(byte & kLength) << std::min(shift_, kMostShift);
      shift_ += 7;
      if ((byte & kMore) == 0) EndLength();
      return;
    case Next::kText:
      return;
  }
}

void HeaderBlockScan::BeginEntry(unsigned char byte) {
  ++entries_;
  // An entry of the table, one that the table takes, a size of the table, one that it does not
  // take.
  const unsigned char index = byte >= 0x80   ? 0x7f
                              : byte >= 0x40 ? 0x3f
                              : byte >= 0x20 ? 0x1f
                                             : 0x0f;
  const bool has_texts = (byte & 0x80) == 0 && (byte & 0xe0) != 0x20;
  texts_left_ = !has_texts ? 0 : (byte & index) == 0 ? 2 : 1;
  const bool is_whole = (byte & index) != index;
  next_ = !is_whole ? Next::kIndex : texts_left_ > 0 ? Next::kLength : Next::kEntry;
}

void HeaderBlockScan::EndLength() {
  next_ = Next::kText;
  if (length_ == 0) EndText();
}

void HeaderBlockScan::EndText() { next_ = --texts_left_ > 0 ? Next::kLength : Next::kEntry; }

}  // namespace blockd::server
