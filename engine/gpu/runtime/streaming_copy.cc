#include "engine/gpu/runtime/streaming_copy.h"

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace blockd::gpu {

#if defined(__SSE2__)

namespace {

constexpr size_t kLine = 64;
constexpr size_t kLeast = 4096;  // less is not worth a fence

}  // namespace

void StreamingCopy(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes >= kLeast) {
    const size_t head = -reinterpret_cast<uintptr_t>(to) % kLine;
    std::memcpy(to, from, head);
    to += head;
    from += head;
    for (bytes -= head; bytes >= kLine; bytes -= kLine) {
      const auto* const source = reinterpret_cast<const __m128i*>(from);
      auto* const target = reinterpret_cast<__m128i*>(to);
      const __m128i line[] = {_mm_loadu_si128(source), _mm_loadu_si128(source + 1),
                              _mm_loadu_si128(source + 2), _mm_loadu_si128(source + 3)};
      for (int i = 0; i < 4; ++i) _mm_stream_si128(target + i, line[i]);
      to += kLine;
      from += kLine;
    }
    _mm_sfence();
  }
  std::memcpy(to, from, bytes);
}

#else

void StreamingCopy(std::byte* to, const std::byte* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}

#endif

}  // namespace blockd::gpu
