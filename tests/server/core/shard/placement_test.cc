#include "server/core/shard/placement.h"

#include <gtest/gtest.h>

#include <set>

namespace blockd::server {
namespace {

using Order = std::vector<size_t>;

// An idle device with so much memory free, for work of 10 bytes and a second.
Offer Free(int64_t free_bytes) {
  return {.asked_bytes = 10, .free_bytes = free_bytes, .work_seconds = 1};
}

TEST(PlacementTest, EqualDevicesTakeTurns) {
  const std::vector<Offer> offers = {Free(100), Free(100), Free(100)};
  EXPECT_EQ(PlacementOrder(offers, 0), (Order{0, 1, 2}));
  EXPECT_EQ(PlacementOrder(offers, 1), (Order{1, 2, 0}));
  EXPECT_EQ(PlacementOrder(offers, 2), (Order{2, 0, 1}));
  EXPECT_EQ(PlacementOrder(offers, 3), (Order{0, 1, 2}));
  EXPECT_EQ(PlacementOrder(offers, ~uint64_t{0})[0], ~uint64_t{0} % 3);
}

TEST(PlacementTest, OfIdleDevicesTheOneWithMostMemoryIsFirst) {
  EXPECT_EQ(PlacementOrder(std::vector<Offer>{Free(100), Free(101)}, 0), (Order{1, 0}));
  EXPECT_EQ(PlacementOrder(std::vector<Offer>{Free(101), Free(100)}, 1), (Order{0, 1}));
  // Evictable memory counts too; if the sums are equal, more free memory comes first.
  Offer idle = Free(50);
  idle.evictable_bytes = 60;
  EXPECT_EQ(PlacementOrder(std::vector<Offer>{Free(100), idle}, 0), (Order{1, 0}));
  idle.evictable_bytes = 50;
  EXPECT_EQ(PlacementOrder(std::vector<Offer>{idle, Free(100)}, 0), (Order{1, 0}));
}

TEST(PlacementTest, NothingIsEvictedWhereAnotherHasRoom) {
  Offer full = Free(5);
  full.evictable_bytes = 1000;
  EXPECT_EQ(PlacementOrder(std::vector<Offer>{full, Free(10)}, 0), (Order{1, 0}));
}

TEST(PlacementTest, WhereWorkWaitsLongerIsLaterWhateverItsMemory) {
  Offer busy = Free(1000);
  busy.backlog_seconds = 1;
  EXPECT_EQ(PlacementOrder(std::vector<Offer>{busy, Free(10)}, 0), (Order{1, 0}));
  Offer evicts = Free(0);
  evicts.evictable_bytes = 10;
  EXPECT_EQ(PlacementOrder(std::vector<Offer>{busy, evicts}, 0), (Order{1, 0}));
  // Less than half of what the work itself takes is no difference.
  busy.backlog_seconds = 0.4;
  EXPECT_EQ(PlacementOrder(std::vector<Offer>{busy, Free(10)}, 0), (Order{0, 1}));
}

TEST(PlacementTest, AFasterDeviceIsBetterThoughMoreWaitsThere) {
  Offer slow = Free(100), fast = Free(100);
  slow.work_seconds = 10;
  fast.work_seconds = 1;
  fast.backlog_seconds = 5;
  EXPECT_EQ(PlacementOrder(std::vector<Offer>{slow, fast}, 0), (Order{1, 0}));
}

TEST(PlacementTest, WithoutRoomADeviceIsLastHoweverIdleItIs) {
  Offer busy = Free(10);
  busy.backlog_seconds = 100;
  Offer full = Free(4);
  full.evictable_bytes = 5;
  EXPECT_EQ(PlacementOrder(std::vector<Offer>{full, busy}, 0), (Order{1, 0}));
  // Devices may differ in what the work asks of them.
  full.asked_bytes = 9;
  EXPECT_EQ(PlacementOrder(std::vector<Offer>{full, busy}, 0), (Order{0, 1}));
}

TEST(PlacementTest, AFailedDeviceIsNever) {
  Offer failed = Free(1 << 30);
  failed.in_service = false;
  EXPECT_EQ(PlacementOrder(std::vector<Offer>{failed, Free(0), failed}, 0), (Order{1}));
  EXPECT_EQ(PlacementOrder(std::vector<Offer>{failed, failed}, 1), Order());
  EXPECT_EQ(PlacementOrder({}, 0), Order());
}

// Whatever they offer, each of those in service comes once.
TEST(PlacementTest, EachDeviceInServiceComesOnce) {
  for (int bits = 0; bits < 1 << 12; ++bits) {
    std::vector<Offer> offers;
    std::set<size_t> expected;
    for (size_t i = 0; i < 3; ++i) {
      const int its = bits >> (4 * i);
      Offer offer = Free((its & 1) * 20);
      offer.evictable_bytes = (its & 2) * 20;
      offer.backlog_seconds = (its & 4) / 3.0;
      offer.in_service = (its & 8) == 0;
      if (offer.in_service) expected.insert(i);
      offers.push_back(offer);
    }
    const Order order = PlacementOrder(offers, static_cast<uint64_t>(bits));
    EXPECT_EQ(order.size(), expected.size());
    EXPECT_EQ(std::set<size_t>(order.begin(), order.end()), expected);
  }
}

}  // namespace
}  // namespace blockd::server
