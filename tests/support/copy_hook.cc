#include "tests/support/copy_hook.h"

#include <cstddef>
#include <cstdint>

namespace blockd::test {
namespace {

thread_local int64_t touched_bytes = 0;

}  // namespace

CopyCount::CopyCount() : begin_(touched_bytes) {}
int64_t CopyCount::bytes() const { return touched_bytes - begin_; }

}  // namespace blockd::test

// A loop of each would be compiled to a call of the function that it is in, but for the options of
// tests/support/CMakeLists.txt.
extern "C" {

void* memcpy(void* to, const void* from, size_t bytes) {
  blockd::test::touched_bytes += static_cast<int64_t>(bytes);
  auto* target = static_cast<unsigned char*>(to);
  const auto* source = static_cast<const unsigned char*>(from);
  for (size_t i = 0; i < bytes; ++i) target[i] = source[i];
  return to;
}

void* memmove(void* to, const void* from, size_t bytes) {
  auto* target = static_cast<unsigned char*>(to);
  const auto* source = static_cast<const unsigned char*>(from);
  if (target <= source || target >= source + bytes) return memcpy(to, from, bytes);
  blockd::test::touched_bytes += static_cast<int64_t>(bytes);
  for (size_t i = bytes; i-- > 0;) target[i] = source[i];
  return to;
}

void* memset(void* to, int value, size_t bytes) {
  blockd::test::touched_bytes += static_cast<int64_t>(bytes);
  auto* target = static_cast<unsigned char*>(to);
  for (size_t i = 0; i < bytes; ++i) target[i] = static_cast<unsigned char>(value);
  return to;
}

}  // extern "C"
