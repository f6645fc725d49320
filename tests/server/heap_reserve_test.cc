#include "server/core/heap_reserve.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

namespace blockd::server {
namespace {

constexpr auto kAll = static_cast<int64_t>(ReserveRegion::kBytes);

class HeapReserveTest : public ::testing::Test {
 protected:
  HeapReserveTest() { EXPECT_FALSE(reserve_.Replenish()); }
  HeapReserve reserve_;
};

TEST_F(HeapReserveTest, HasNothingBeforeItIsReplenished) {
  HeapReserve empty;
  EXPECT_EQ(empty.free_bytes(), 0);
  EXPECT_EQ(empty.Take(1), nullptr);
  EXPECT_FALSE(empty.is_short());
  EXPECT_FALSE(empty.Has(nullptr));
  EXPECT_FALSE(empty.Has(&empty));
}

TEST_F(HeapReserveTest, IsShortFromAPieceOnUntilItIsReplenished) {
  EXPECT_EQ(reserve_.free_bytes(), kAll);
  EXPECT_FALSE(reserve_.is_short());
  void* const piece = reserve_.Take(100);
  ASSERT_NE(piece, nullptr);
  EXPECT_TRUE(reserve_.is_short());
  EXPECT_TRUE(reserve_.Has(piece));
  EXPECT_GE(reserve_.SizeOf(piece), 100u);
  EXPECT_FALSE(reserve_.Replenish());
  EXPECT_FALSE(reserve_.is_short());
  reserve_.Return(piece);
  EXPECT_EQ(reserve_.free_bytes(), kAll);
}

TEST_F(HeapReserveTest, GivesOutAllOfIt) {
  std::vector<void*> pieces;
  while (void* const piece = reserve_.Take(HeapReserve::kSmallBytes)) pieces.push_back(piece);
  EXPECT_EQ(pieces.size(), ReserveRegion::kBytes / HeapReserve::kSmallBytes);
  EXPECT_EQ(reserve_.Take(1), nullptr);
  EXPECT_EQ(reserve_.free_bytes(), 0);
  // What is taken stays where it is, and there is as much again.
  EXPECT_FALSE(reserve_.Replenish());
  EXPECT_EQ(reserve_.free_bytes(), kAll);
  for (void* const piece : pieces) {
    EXPECT_TRUE(reserve_.Has(piece));
    reserve_.Return(piece);
  }
  EXPECT_EQ(reserve_.free_bytes(), 2 * kAll);
  EXPECT_FALSE(reserve_.Replenish());
  EXPECT_EQ(reserve_.free_bytes(), kAll);  // the surplus is the system's again
  void* const whole = reserve_.Take(ReserveRegion::kBytes);
  EXPECT_NE(whole, nullptr);
  reserve_.Return(whole);
}

TEST_F(HeapReserveTest, RefusesWhatIsTooLargeOrTooAligned) {
  EXPECT_EQ(reserve_.Take(ReserveRegion::kBytes + 1), nullptr);
  EXPECT_EQ(reserve_.Take(~size_t{0}), nullptr);
  EXPECT_EQ(reserve_.Take(8, 2 * ReserveRegion::kAlignment), nullptr);
  EXPECT_FALSE(reserve_.is_short());
}

TEST_F(HeapReserveTest, PiecesOfAllSizesAreAlignedApartAndComeBack) {
  std::mt19937 random(1);
  std::vector<std::pair<unsigned char*, size_t>> pieces;
  for (int step = 0; step < 20'000; ++step) {
    if (pieces.size() < 200 && random() % 2 == 0) {
      const size_t bytes = random() % (size_t{1} << random() % 18);
      const size_t alignment = size_t{1} << random() % 13;
      auto* const piece = static_cast<unsigned char*>(reserve_.Take(bytes, alignment));
      ASSERT_NE(piece, nullptr);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(piece) % alignment, 0u);
      EXPECT_GE(reserve_.SizeOf(piece), bytes);
      std::memset(piece, static_cast<int>(bytes % 251), bytes);
      pieces.emplace_back(piece, bytes);
    } else if (!pieces.empty()) {
      std::swap(pieces[random() % pieces.size()], pieces.back());
      const auto [piece, bytes] = pieces.back();
      for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(piece[i], bytes % 251);
      reserve_.Return(piece);
      pieces.pop_back();
    }
  }
  for (const auto& [piece, bytes] : pieces) reserve_.Return(piece);
  EXPECT_EQ(reserve_.free_bytes(), kAll);
  EXPECT_FALSE(reserve_.Replenish());
  void* const whole = reserve_.Take(ReserveRegion::kBytes);  // all pieces have grown together again
  EXPECT_NE(whole, nullptr);
  reserve_.Return(whole);
}

TEST_F(HeapReserveTest, MayFailAppliesWhileOneLives) {
  EXPECT_FALSE(HeapMayFail::Applies());
  {
    const HeapMayFail outer;
    { const HeapMayFail inner; }
    EXPECT_TRUE(HeapMayFail::Applies());
  }
  EXPECT_FALSE(HeapMayFail::Applies());
}

}  // namespace
}  // namespace blockd::server
