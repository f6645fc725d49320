#include "tests/support/hooks/heap_hook.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

namespace blockd::test {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr int64_t kHead = 8;  // the allocator's own, of each piece

thread_local bool counting = false, spared = false;
thread_local int64_t live_bytes = 0, most_bytes = 0;
std::atomic<int64_t> refused_from{kNever};
std::atomic<int64_t> refusals{0};

void* Allocate(size_t bytes) {
  if (static_cast<int64_t>(bytes) >= refused_from.load(std::memory_order_relaxed) && !spared) {
    ++refusals;
    return nullptr;
  }
  void* const piece = std::malloc(std::max<size_t>(bytes, 1));
  if (counting && piece != nullptr) {
    live_bytes += static_cast<int64_t>(malloc_usable_size(piece)) + kHead;
    most_bytes = std::max(most_bytes, live_bytes);
  }
  return piece;
}

void* AllocateOrThrow(size_t bytes) {
  void* const piece = Allocate(bytes);
  if (piece == nullptr) std::__throw_bad_alloc();
  return piece;
}

void Free(void* piece) {
  if (counting && piece != nullptr) {
    live_bytes -= static_cast<int64_t>(malloc_usable_size(piece)) + kHead;
  }
  std::free(piece);
}

}  // namespace

HeapCount::HeapCount() {
  live_bytes = most_bytes = 0;
  counting = true;
}
HeapCount::~HeapCount() { counting = false; }
int64_t HeapCount::bytes() const { return live_bytes; }
int64_t HeapCount::peak_bytes() const { return most_bytes; }

FailingHeap::FailingHeap(int64_t piece_bytes) {
  refusals = 0;
  spared = true;
  refused_from = piece_bytes;
}
FailingHeap::~FailingHeap() {
  refused_from = kNever;
  spared = false;
}
int64_t FailingHeap::refused() const { return refusals; }

}  // namespace blockd::test

void* operator new(size_t bytes) { return blockd::test::AllocateOrThrow(bytes); }
void* operator new[](size_t bytes) { return blockd::test::AllocateOrThrow(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return blockd::test::Allocate(bytes);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return blockd::test::Allocate(bytes);
}
void operator delete(void* piece) noexcept { blockd::test::Free(piece); }
void operator delete[](void* piece) noexcept { blockd::test::Free(piece); }
void operator delete(void* piece, size_t) noexcept { blockd::test::Free(piece); }
void operator delete[](void* piece, size_t) noexcept { blockd::test::Free(piece); }
void operator delete(void* piece, const std::nothrow_t&) noexcept { blockd::test::Free(piece); }
void operator delete[](void* piece, const std::nothrow_t&) noexcept { blockd::test::Free(piece); }
