// How many entries a header block has, of which each is worth memory however short it is: walks the
// bytes of HPACK (RFC 7541) as they come, in pieces of any size. Not thread-safe.
#ifndef BLOCKD_SERVER_NET_HEADER_BLOCK_SCAN_H_
#define BLOCKD_SERVER_NET_HEADER_BLOCK_SCAN_H_

#include <cstddef>
#include <cstdint>

namespace blockd::server {

class HeaderBlockScan {
 public:
  void Add(const char* bytes, size_t count);
  int64_t entries() const { return entries_; }

 private:
  enum class Next { kEntry, kIndex, kLength, kRestOfLength, kText };

  void Take(unsigned char byte);
  void BeginEntry(unsigned char byte);
  void EndText();
  void EndLength();

  Next next_ = Next::kEntry;
  int64_t entries_ = 0;
  int texts_left_ = 0;  // of the entry
  uint64_t length_ = 0;
  int shift_ = 0;  // of the next bits of the length
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_NET_HEADER_BLOCK_SCAN_H_
