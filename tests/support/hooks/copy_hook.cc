#include "tests/support/hooks/copy_hook.h"

#include <cstddef>
#include <cstdint>

namespace blockd::test {
namespace {

thread_local int64_t touched_bytes = 0;

}  // namespace

CopyCount::CopyCount() : begin_(touched_bytes) {}
int64_t CopyCount::bytes() const { return touched_bytes - begin_; }

}  // namespace blockd::test

namespace {

// A compiler makes calls of memcpy and memset of plain loops, here too.
void KeepLoop() { __asm__ volatile("" ::: "memory"); }

}  // namespace

extern "C" {

void* memcpy(void* to, const void* from, size_t bytes) {
  blockd::test::touched_bytes += static_cast<int64_t>(bytes);
  auto* target = static_cast<unsigned char*>(to);
  const auto* source = static_cast<const unsigned char*>(from);
  size_t i = 0;
  for (uint64_t word; i + sizeof(word) <= bytes; i += sizeof(word)) {
    __builtin_memcpy(&word, source + i, sizeof(word));
    __builtin_memcpy(target + i, &word, sizeof(word));
    KeepLoop();
  }
  for (; i < bytes; ++i) {
    target[i] = source[i];
    KeepLoop();
  }
  return to;
}

void* memmove(void* to, const void* from, size_t bytes) {
  auto* target = static_cast<unsigned char*>(to);
  const auto* source = static_cast<const unsigned char*>(from);
  // memcpy serves a source behind the target: it reads each word before it overwrites it.
  if (target <= source || target >= source + bytes) return memcpy(to, from, bytes);
  blockd::test::touched_bytes += static_cast<int64_t>(bytes);
  for (size_t i = bytes; i-- > 0;) {
    target[i] = source[i];
    KeepLoop();
  }
  return to;
}

void* memset(void* to, int value, size_t bytes) {
  blockd::test::touched_bytes += static_cast<int64_t>(bytes);
  auto* target = static_cast<unsigned char*>(to);
  for (size_t i = 0; i < bytes; ++i) {
    target[i] = static_cast<unsigned char>(value);
    KeepLoop();
  }
  return to;
}

#ifdef BLOCKD_WRAPS_ASAN
// Code that the address sanitizer has instrumented calls the sanitizer's own functions, which the
// linker wraps in these.
// NOLINTBEGIN(bugprone-reserved-identifier): they are the linker's names
void* __real___asan_memcpy(void* to, const void* from, size_t bytes);
void* __real___asan_memmove(void* to, const void* from, size_t bytes);
void* __real___asan_memset(void* to, int value, size_t bytes);

void* __wrap___asan_memcpy(void* to, const void* from, size_t bytes) {
  blockd::test::touched_bytes += static_cast<int64_t>(bytes);
  return __real___asan_memcpy(to, from, bytes);
}
void* __wrap___asan_memmove(void* to, const void* from, size_t bytes) {
  blockd::test::touched_bytes += static_cast<int64_t>(bytes);
  return __real___asan_memmove(to, from, bytes);
}
void* __wrap___asan_memset(void* to, int value, size_t bytes) {
  blockd::test::touched_bytes += static_cast<int64_t>(bytes);
  return __real___asan_memset(to, value, bytes);
}
// NOLINTEND(bugprone-reserved-identifier)
#endif

}  // extern "C"
