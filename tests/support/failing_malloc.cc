#include "tests/support/failing_malloc.h"

#include <atomic>
#include <cstddef>

namespace blockd::test {
namespace {

constexpr size_t kSmallBytes = size_t{64} << 10;
std::atomic<int64_t> pieces_left{0};  // that succeed before the one that fails, and that one
std::atomic<Pieces> kind{Pieces::kSmall};
std::atomic<bool> piece_failed{false};

}  // namespace

FailingMalloc::FailingMalloc(Pieces pieces, int64_t nth) {
  kind = pieces;
  piece_failed = false;
  pieces_left = nth;
}
FailingMalloc::~FailingMalloc() { pieces_left = 0; }
bool FailingMalloc::failed() const { return piece_failed; }

}  // namespace blockd::test

// What heap_interposer.cc asks.
bool BlockdTestMallocFails(size_t bytes) {
  using blockd::test::pieces_left;
  if (pieces_left.load(std::memory_order_relaxed) <= 0) return false;
  const bool large = bytes >= blockd::test::kSmallBytes;
  if (large != (blockd::test::kind == blockd::test::Pieces::kLarge)) return false;
  if (pieces_left.fetch_sub(1) != 1) return false;
  blockd::test::piece_failed = true;
  return true;
}
