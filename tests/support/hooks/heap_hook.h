// Counts what the heap is asked for, and makes it refuse. For tests that link heap_hook.cc, which
// replaces the global operators new and delete.
#ifndef BLOCKD_TESTS_SUPPORT_HOOKS_HEAP_HOOK_H_
#define BLOCKD_TESTS_SUPPORT_HOOKS_HEAP_HOOK_H_

#include <cstdint>

namespace blockd::test {

// The bytes that this thread has asked for since then and not given back, and the most of them at
// any time. One at a time in a thread.
class HeapCount {
 public:
  HeapCount();
  ~HeapCount();
  HeapCount(const HeapCount&) = delete;
  HeapCount& operator=(const HeapCount&) = delete;
  int64_t bytes() const;  // now
  int64_t peak_bytes() const;
};

// While it lives, pieces of at least so many bytes are refused to every thread but its own. One at
// a time.
class FailingHeap {
 public:
  explicit FailingHeap(int64_t piece_bytes);
  ~FailingHeap();
  FailingHeap(const FailingHeap&) = delete;
  FailingHeap& operator=(const FailingHeap&) = delete;
  int64_t refused() const;  // pieces
};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SUPPORT_HOOKS_HEAP_HOOK_H_
