// Counts the bytes that are copied and cleared, as a measure of work that is the same on every
// machine. For programs that link copy_hook.cc, which replaces memcpy, memmove and memset; what the
// compiler does in their place, for few bytes, is not seen.
#ifndef BLOCKD_TESTS_SUPPORT_HOOKS_COPY_HOOK_H_
#define BLOCKD_TESTS_SUPPORT_HOOKS_COPY_HOOK_H_

#include <cstdint>

namespace blockd::test {

// By this thread, since it was made.
class CopyCount {
 public:
  CopyCount();
  int64_t bytes() const;

 private:
  int64_t begin_;
};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SUPPORT_HOOKS_COPY_HOOK_H_
