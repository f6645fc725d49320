#include "blockd/engine/memory_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace blockd {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kUnit = MemoryPool::kAlignment;

class MemoryPoolTest : public ::testing::Test {
 protected:
  static constexpr int64_t kUnits = 16;

  DeviceBuffer Take(int64_t units) {
    absl::StatusOr<DeviceBuffer> buffer = pool_.Allocate(units * kUnit);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return buffer.ok() ? *std::move(buffer) : DeviceBuffer();
  }
  int64_t Offset(const DeviceBuffer& buffer) const { return (buffer.data() - slab_.get()) / kUnit; }

  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> slab_{
      static_cast<std::byte*>(std::aligned_alloc(kUnit, kUnits* kUnit))};
  MemoryPool pool_{slab_.get(), kUnits* kUnit};
};

TEST_F(MemoryPoolTest, StartsEmpty) {
  const PoolStats stats = pool_.stats();
  EXPECT_EQ(stats.capacity_bytes, kUnits * kUnit);
  EXPECT_EQ(stats.free_bytes, kUnits * kUnit);
  EXPECT_EQ(stats.largest_free_bytes, kUnits * kUnit);
  EXPECT_EQ(stats.used_bytes, 0);
  EXPECT_EQ(stats.peak_used_bytes, 0);
  EXPECT_EQ(stats.pieces, 0);
}

TEST_F(MemoryPoolTest, CountsWhatIsRoundedUpAndReportsWhatWasAsked) {
  absl::StatusOr<DeviceBuffer> buffer = pool_.Allocate(kUnit + 1);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(buffer->bytes(), kUnit + 1);
  EXPECT_EQ(pool_.stats().used_bytes, 2 * kUnit);
  EXPECT_EQ(pool_.stats().free_bytes, (kUnits - 2) * kUnit);
  EXPECT_EQ(pool_.stats().pieces, 1);
  EXPECT_EQ(MemoryPool::Rounded(kUnit + 1), 2 * kUnit);
  EXPECT_EQ(MemoryPool::Rounded(kUnit), kUnit);
  EXPECT_EQ(MemoryPool::Rounded(0), 0);
}

TEST_F(MemoryPoolTest, AlignsEveryPiece) {
  std::vector<DeviceBuffer> buffers;
  for (const int64_t bytes : {1, 255, 256, 257, 3}) {
    buffers.push_back(*pool_.Allocate(bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffers.back().data()) % kUnit, 0u);
  }
}

TEST_F(MemoryPoolTest, GivesAnEmptyBufferForZeroBytes) {
  absl::StatusOr<DeviceBuffer> buffer = pool_.Allocate(0);
  ASSERT_TRUE(buffer.ok());
  EXPECT_FALSE(*buffer);
  EXPECT_EQ(buffer->bytes(), 0);
  EXPECT_EQ(pool_.stats().pieces, 0);
}

TEST_F(MemoryPoolTest, RefusesNegativeSizes) {
  EXPECT_EQ(pool_.Allocate(-1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pool_.Allocate(std::numeric_limits<int64_t>::min()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(MemoryPoolTest, SaysWhatWasAskedAndWhatIsFreeWhenItIsExhausted) {
  DeviceBuffer a = Take(4), b = Take(4), c = Take(4), d = Take(4);
  a.Reset();
  c.Reset();
  const absl::Status status = pool_.Allocate(5 * kUnit).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr(std::to_string(5 * kUnit)));   // asked
  EXPECT_THAT(message, HasSubstr(std::to_string(8 * kUnit)));   // free
  EXPECT_THAT(message, HasSubstr(std::to_string(4 * kUnit)));   // largest
  EXPECT_THAT(message, HasSubstr(std::to_string(16 * kUnit)));  // total
  EXPECT_EQ(pool_.stats().used_bytes, 8 * kUnit);
}

TEST_F(MemoryPoolTest, RefusesSizesThatWouldOverflowWhenRounded) {
  for (const int64_t less : {0, 1, 254, 255, 256}) {
    EXPECT_EQ(pool_.Allocate(std::numeric_limits<int64_t>::max() - less).status().code(),
              absl::StatusCode::kResourceExhausted);
  }
}

TEST_F(MemoryPoolTest, TakesTheSmallestPieceThatFits) {
  DeviceBuffer a = Take(5), wall = Take(1), b = Take(3), wall2 = Take(1);
  const int64_t small = Offset(b);
  a.Reset();
  b.Reset();  // Free now: 5, 3 and the 6 at the end.
  const DeviceBuffer three = Take(3);
  EXPECT_EQ(Offset(three), small);
  const DeviceBuffer five = Take(5);
  EXPECT_EQ(Offset(five), 0);
  EXPECT_EQ(pool_.stats().largest_free_bytes, 6 * kUnit);
}

TEST_F(MemoryPoolTest, JoinsAFreedPieceWithItsNeighboursInAnyOrder) {
  std::vector<int> order = {0, 1, 2, 3};
  do {
    DeviceBuffer pieces[4] = {Take(4), Take(4), Take(4), Take(4)};
    EXPECT_EQ(pool_.stats().free_bytes, 0);
    for (const int i : order) pieces[i].Reset();
    EXPECT_EQ(pool_.stats().largest_free_bytes, kUnits * kUnit);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(MemoryPoolTest, RemembersItsPeak) {
  {
    const DeviceBuffer a = Take(7);
    const DeviceBuffer b = Take(2);
  }
  const DeviceBuffer c = Take(1);
  EXPECT_EQ(pool_.stats().peak_used_bytes, 9 * kUnit);
  EXPECT_EQ(pool_.stats().used_bytes, kUnit);
}

TEST_F(MemoryPoolTest, MovesAPieceWithItsBuffer) {
  DeviceBuffer a = Take(2);
  std::byte* const data = a.data();
  DeviceBuffer b = std::move(a);
  EXPECT_EQ(b.data(), data);
  EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move): a moved-from buffer is empty
  EXPECT_EQ(a.bytes(), 0);
  b = Take(3);
  EXPECT_EQ(pool_.stats().used_bytes, 3 * kUnit);
  DeviceBuffer& same = b;
  b = std::move(same);
  EXPECT_TRUE(b);
  EXPECT_EQ(pool_.stats().pieces, 1);
}

TEST_F(MemoryPoolTest, IgnoresTheTailOfASlabThatIsNoMultipleOfTheAlignment) {
  MemoryPool pool(slab_.get(), 2 * kUnit + 100);
  EXPECT_EQ(pool.stats().capacity_bytes, 2 * kUnit);
  EXPECT_TRUE(pool.Allocate(2 * kUnit).ok());
  MemoryPool none(slab_.get(), kUnit - 1);
  EXPECT_EQ(none.Allocate(1).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(MemoryPoolTest, SaysWhatIsFreeSomeAtATime) {
  DeviceBuffer a = Take(2), b = Take(1), c = Take(3), d = Take(1);  // and 9 free at the end
  std::byte* const first = a.data();
  std::byte* const second = c.data();
  EXPECT_EQ(pool_.FreePieces(nullptr, 10).size(), 1u);
  a.Reset();
  c.Reset();
  const std::vector<FreePiece> some = pool_.FreePieces(nullptr, 2);
  ASSERT_EQ(some.size(), 2u);
  EXPECT_EQ(some[0].data, first);
  EXPECT_EQ(some[0].bytes, 2 * kUnit);
  EXPECT_EQ(some[1].data, second);
  EXPECT_EQ(some[1].end(), d.data());
  const std::vector<FreePiece> rest = pool_.FreePieces(some[1].end(), 2);
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].data, d.data() + kUnit);
  EXPECT_EQ(rest[0].end(), slab_.get() + kUnits * kUnit);
  EXPECT_TRUE(pool_.FreePieces(rest[0].end(), 2).empty());
  EXPECT_TRUE(pool_.FreePieces(nullptr, 0).empty());
}

TEST(MemoryPoolDeathTest, AbortsWhenAPieceOutlivesThePool) {
  const auto leak = [] {
    alignas(256) static std::byte slab[1024];
    DeviceBuffer buffer;  // destroyed after the pool
    MemoryPool pool(slab, sizeof slab);
    buffer = *pool.Allocate(1);
  };
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(leak(), "still in use");
}

// Random allocations and frees, against a map of the units that are taken.
TEST(MemoryPoolModelTest, NeverOverlapsAndAccountsExactly) {
  constexpr int64_t kUnits = 200;
  std::byte* const base = reinterpret_cast<std::byte*>(int64_t{1} << 40);  // never dereferenced
  MemoryPool pool(base, kUnits * kUnit);
  std::mt19937 random(7);
  std::vector<bool> taken(kUnits);
  std::vector<DeviceBuffer> buffers;
  const auto mark = [&](const DeviceBuffer& buffer, bool value) {
    const int64_t first = (buffer.data() - base) / kUnit;
    for (int64_t i = first; i < first + MemoryPool::Rounded(buffer.bytes()) / kUnit; ++i) {
      ASSERT_NE(taken.at(i), value);
      taken[i] = value;
    }
  };
  for (int step = 0; step < 20000; ++step) {
    int64_t longest = 0, run = 0, used = 0;
    for (const bool t : taken) {
      run = t ? 0 : run + 1;
      longest = std::max(longest, run);
      used += t;
    }
    const PoolStats stats = pool.stats();
    ASSERT_EQ(stats.used_bytes, used * kUnit);
    ASSERT_EQ(stats.free_bytes, (kUnits - used) * kUnit);
    ASSERT_EQ(stats.largest_free_bytes, longest * kUnit);
    ASSERT_EQ(stats.pieces, static_cast<int64_t>(buffers.size()));
    if (!buffers.empty() && random() % 2 == 0) {
      const size_t victim = random() % buffers.size();
      mark(buffers[victim], false);
      std::swap(buffers[victim], buffers.back());
      buffers.pop_back();
      continue;
    }
    const int64_t bytes = 1 + static_cast<int64_t>(random() % (40 * kUnit));
    absl::StatusOr<DeviceBuffer> buffer = pool.Allocate(bytes);
    ASSERT_EQ(buffer.ok(), MemoryPool::Rounded(bytes) <= longest * kUnit) << buffer.status();
    if (!buffer.ok()) continue;
    mark(*buffer, true);
    buffers.push_back(*std::move(buffer));
  }
}

TEST(MemoryPoolThreadsTest, HandsEachPieceToOneThreadOnly) {
  constexpr int64_t kBytes = 64 * kUnit;
  std::unique_ptr<std::byte, void (*)(void*)> slab(
      static_cast<std::byte*>(std::aligned_alloc(kUnit, kBytes)), &std::free);
  MemoryPool pool(slab.get(), kBytes);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&pool, t] {
      std::mt19937 random(t);
      for (int step = 0; step < 3000; ++step) {
        absl::StatusOr<DeviceBuffer> buffer = pool.Allocate(1 + random() % (12 * kUnit));
        if (!buffer.ok()) continue;
        std::memset(buffer->data(), t, buffer->bytes());
        EXPECT_TRUE(std::all_of(buffer->data(), buffer->data() + buffer->bytes(),
                                [t](std::byte b) { return b == static_cast<std::byte>(t); }));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.stats().used_bytes, 0);
  EXPECT_EQ(pool.stats().largest_free_bytes, kBytes);
}

}  // namespace
}  // namespace blockd
