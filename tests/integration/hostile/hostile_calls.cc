#include "tests/integration/hostile/hostile_calls.h"

#include <zlib.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "tests/integration/hostile/raw_http2.h"

namespace blockd::test {

std::string CompressedZeros(const std::string& encoding, int64_t bytes) {
  const std::string zeros(size_t{1} << 20, '\0');
  z_stream stream = {};
  const int window = encoding == "gzip" ? 15 + 16 : 15;
  if (deflateInit2(&stream, 9, Z_DEFLATED, window, 8, Z_DEFAULT_STRATEGY) != Z_OK) std::abort();
  std::string out(size_t{1} << 20, '\0');
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  for (int64_t left = bytes; left >= 0; left -= std::ssize(zeros)) {
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(zeros.data()));
    stream.avail_in = left > 0 ? static_cast<uInt>(zeros.size()) : 0;
    deflate(&stream, left > 0 ? Z_NO_FLUSH : Z_FINISH);
  }
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string ShortEntries(int count) {
  std::string entries;
  for (int i = 0; i < count; ++i) entries += RawHttp2::HeaderField(absl::StrCat("k", i), "v");
  return entries;
}

std::string EndlessHeaders(uint32_t stream) {
  std::string fields;
  while (fields.size() < 15 * 1024) fields += RawHttp2::HeaderField("name", std::string(1000, 'x'));
  return RawHttp2::Frame(RawHttp2::kContinuation, 0, stream, fields);
}

std::string IdleCall::Frames(uint32_t stream) const {
  std::string frames = RawHttp2::Frame(RawHttp2::kHeaders, RawHttp2::kEndHeaders, stream,
                                       RawHttp2::HeaderBlock(method) + field);
  if (body.empty()) return frames;
  return frames +
         RawHttp2::Frame(RawHttp2::kData, body_is_all ? RawHttp2::kEndStream : 0, stream, body);
}

}  // namespace blockd::test
