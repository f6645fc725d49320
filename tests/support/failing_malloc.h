// A malloc that fails once. For programs that link blockd_test_malloc, which have blockd's malloc
// (server/heap_interposer.cc).
#ifndef BLOCKD_TESTS_SUPPORT_FAILING_MALLOC_H_
#define BLOCKD_TESTS_SUPPORT_FAILING_MALLOC_H_

#include <cstdint>

namespace blockd::test {

// Pieces below 64 KiB, for which nobody is told that there are none, or those from there on.
enum class Pieces { kSmall, kLarge };

// While it lives, the `nth` of these pieces (1 is the next) that any thread asks for fails: in the
// C library, whoever asks for it. One at a time.
class FailingMalloc {
 public:
  FailingMalloc(Pieces pieces, int64_t nth);
  ~FailingMalloc();
  FailingMalloc(const FailingMalloc&) = delete;
  FailingMalloc& operator=(const FailingMalloc&) = delete;
  bool failed() const;  // whether that many were asked for
};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SUPPORT_FAILING_MALLOC_H_
