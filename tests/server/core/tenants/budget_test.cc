#include "server/core/tenants/budget.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "server/core/common/errors.h"
#include "server/core/tenants/tenants.h"

namespace blockd::server {
namespace {

// Holds reservations of given sizes, oldest first.
class Shelf : public Evictor {
 public:
  void Put(Reservation reservation) { held_.push_back(std::move(reservation)); }
  size_t size() const { return held_.size(); }
  void Clear() { held_.clear(); }

  std::vector<Evicted> Evict(int64_t bytes, double) override {
    std::vector<Evicted> evicted;
    if (EvictableBytes() < bytes) return evicted;
    while (bytes > 0) {
      bytes -= held_.front().bytes();
      evicted.push_back({std::move(held_.front()), nullptr});
      held_.erase(held_.begin());
    }
    return evicted;
  }
  int64_t EvictableBytes() override { return HeldBytes(); }
  int64_t HeldBytes() const override {
    int64_t sum = 0;
    for (const Reservation& one : held_) sum += one.bytes();
    return sum;
  }
  double HoldersWeight() const override { return 1; }

 private:
  std::vector<Reservation> held_;
};

TEST(BudgetTest, AReservationReturnsItsBytes) {
  Budget budget({.total = 100});
  {
    absl::StatusOr<Reservation> reservation = budget.Reserve(nullptr, 60);
    ASSERT_TRUE(reservation.ok());
    EXPECT_EQ(budget.reserved(), 60);
    EXPECT_EQ(budget.free(), 40);
  }
  EXPECT_EQ(budget.reserved(), 0);
  EXPECT_EQ(budget.peak_reserved(), 60);
  const Reservation less = *budget.Reserve(nullptr, 10);
  EXPECT_EQ(budget.peak_reserved(), 60);
}

TEST(BudgetTest, MovesSplitsAndMergesKeepTheSum) {
  Budget budget({.total = 100});
  Reservation all = *budget.Reserve(nullptr, 60);
  Reservation part = all.Split(25);
  EXPECT_EQ(part.bytes(), 25);
  EXPECT_EQ(all.bytes(), 35);
  EXPECT_EQ(budget.reserved(), 60);
  Reservation moved = std::move(all);
  moved.Merge(std::move(part));
  EXPECT_EQ(moved.bytes(), 60);
  EXPECT_EQ(budget.reserved(), 60);
  moved.Split(1000).Reset();
  EXPECT_EQ(budget.reserved(), 0);
}

TEST(BudgetTest, WhatDoesNotFitIsRefusedWithTheNumbers) {
  Budget budget({.total = 100});
  Reservation held = *budget.Reserve(nullptr, 70);
  const absl::StatusOr<Reservation> refused = budget.Reserve(nullptr, 31);
  const auto detail = InsufficientMemoryOf(refused.status());
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->asked_bytes, 31);
  EXPECT_EQ(detail->free_bytes, 30);
  EXPECT_EQ(detail->evictable_bytes, 0);
  EXPECT_EQ(detail->total_bytes, 100);
  EXPECT_TRUE(budget.Reserve(nullptr, 30).ok());
  EXPECT_FALSE(budget.TryReserve(nullptr, 31).has_value());
  EXPECT_TRUE(budget.TryReserve(nullptr, 30).has_value());
}

TEST(BudgetTest, EvictsOldestFirstAndNoMoreThanNeeded) {
  Budget budget({.total = 100});
  Shelf shelf;
  budget.set_evictor(&shelf);
  for (int i = 0; i < 4; ++i) shelf.Put(*budget.Reserve(nullptr, 25));
  EXPECT_FALSE(budget.TryReserve(nullptr, 1).has_value());
  EXPECT_EQ(shelf.size(), 4u);
  const absl::StatusOr<Reservation> made = budget.Reserve(nullptr, 30);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(shelf.size(), 2u);
  EXPECT_EQ(budget.reserved(), 80);
  shelf.Clear();
}

TEST(BudgetTest, EvictsNothingIfEverythingWouldNotDo) {
  Budget budget({.total = 100});
  Shelf shelf;
  budget.set_evictor(&shelf);
  Reservation fixed = *budget.Reserve(nullptr, 50);
  shelf.Put(*budget.Reserve(nullptr, 40));
  const absl::StatusOr<Reservation> refused = budget.Reserve(nullptr, 51);
  const auto detail = InsufficientMemoryOf(refused.status());
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->evictable_bytes, 40);
  EXPECT_EQ(shelf.size(), 1u);
  EXPECT_FALSE(budget.Reserve(nullptr, 101).ok());
  EXPECT_EQ(shelf.size(), 1u);
  shelf.Clear();
}

TEST(BudgetTest, AssignmentGivesBackWhatWasThere) {
  Budget budget({.total = 100});
  Reservation a = *budget.Reserve(nullptr, 30), b = *budget.Reserve(nullptr, 20);
  a = std::move(b);
  EXPECT_EQ(a.bytes(), 20);
  EXPECT_EQ(b.bytes(), 0);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(budget.reserved(), 20);
  Reservation& same = a;
  a = std::move(same);
  EXPECT_EQ(a.bytes(), 20);
  Reservation c = std::move(a);
  EXPECT_EQ(c.bytes(), 20);
  EXPECT_EQ(budget.reserved(), 20);
}

TEST(BudgetTest, AnEmptyReservationTakesOverAnother) {
  Budget budget({.total = 100});
  {
    Reservation empty;
    empty.Merge(*budget.Reserve(nullptr, 30));
    EXPECT_EQ(empty.bytes(), 30);
    empty.Merge(Reservation());
    EXPECT_EQ(empty.bytes(), 30);
    EXPECT_EQ(empty.Split(-5).bytes(), 0);
    EXPECT_EQ(empty.bytes(), 30);
    const Reservation all = empty.Split(31);
    EXPECT_EQ(all.bytes(), 30);
    EXPECT_EQ(empty.bytes(), 0);
  }
  EXPECT_EQ(budget.reserved(), 0);
}

TEST(BudgetTest, EvictsExactlyWhatIsMissing) {
  Budget budget({.total = 100});
  Shelf shelf;
  budget.set_evictor(&shelf);
  for (int i = 0; i < 4; ++i) shelf.Put(*budget.Reserve(nullptr, 25));
  const Reservation made = *budget.Reserve(nullptr, 25);
  EXPECT_EQ(shelf.size(), 3u);
  const Reservation all = *budget.Reserve(nullptr, 75);
  EXPECT_EQ(shelf.size(), 0u);
  EXPECT_EQ(budget.free(), 0);
  EXPECT_EQ(budget.peak_reserved(), 100);
}

// It would fit once the work under way is over: beside what is free and what may be evicted.
TEST(BudgetTest, ARetryHelpsWhereWorkIsInTheWay) {
  Budget budget({.total = 100, .retry_delay = absl::Milliseconds(70)});
  Shelf idle;
  class Held : public Evictor {
   public:
    explicit Held(Shelf* idle) : idle_(idle) {}
    std::vector<Evicted> Evict(int64_t bytes, double fair) override {
      return idle_->Evict(bytes, fair);
    }
    int64_t EvictableBytes() override { return idle_->EvictableBytes(); }
    double HoldersWeight() const override { return 1; }
    int64_t HeldBytes() const override { return idle_->EvictableBytes() + pinned.bytes(); }
    Reservation pinned;

   private:
    Shelf* const idle_;
  } held(&idle);
  budget.set_evictor(&held);
  held.pinned = *budget.Reserve(nullptr, 25);
  idle.Put(*budget.Reserve(nullptr, 40));
  Reservation work = *budget.Reserve(nullptr, 30);  // 5 are free
  const absl::Status waits = budget.Reserve(nullptr, 75).status(),
                     never = budget.Reserve(nullptr, 76).status();
  EXPECT_EQ(RetryAfterOf(waits), absl::Milliseconds(70));
  EXPECT_TRUE(InsufficientMemoryOf(waits).has_value());
  EXPECT_EQ(InsufficientMemoryOf(waits)->evictable_bytes, 40);
  EXPECT_EQ(InsufficientMemoryOf(waits)->free_bytes, 5);
  EXPECT_TRUE(InsufficientMemoryOf(never).has_value());
  EXPECT_FALSE(RetryAfterOf(never).has_value());
  EXPECT_EQ(idle.size(), 1u);
  work.Reset();
  EXPECT_TRUE(budget.Reserve(nullptr, 75).ok());
  EXPECT_EQ(idle.size(), 0u);
  held.pinned.Reset();
}

TEST(BudgetTest, WithoutAnEvictorARetryHelpsUpToTheTotal) {
  Budget budget({.total = 100});
  const Reservation work = *budget.Reserve(nullptr, 60);
  EXPECT_EQ(RetryAfterOf(budget.Reserve(nullptr, 100).status()), absl::Milliseconds(50));
  EXPECT_FALSE(RetryAfterOf(budget.Reserve(nullptr, 101).status()).has_value());
}

TEST(BudgetTest, FreeGivesBackMemoryAndPromise) {
  Budget budget({.total = 100});
  auto memory = std::make_shared<int>(1);
  const std::weak_ptr<int> alive = memory;
  std::vector<Evicted> evicted;
  evicted.push_back({*budget.Reserve(nullptr, 40), std::move(memory)});
  budget.Free(std::move(evicted));
  EXPECT_TRUE(alive.expired());
  EXPECT_EQ(budget.reserved(), 0);
}

TEST(BudgetTest, AReservationIsExtendedAndGivesAllOfItBack) {
  Budget budget({.resource = Resource::kHostBytes, .total = 100});
  {
    Reservation held;
    EXPECT_TRUE(budget.Extend(nullptr, 30, &held).ok());
    EXPECT_TRUE(budget.Extend(nullptr, 70, &held).ok());
    EXPECT_EQ(held.bytes(), 100);
    Reservation other;
    EXPECT_EQ(RetryAfterOf(budget.Extend(nullptr, 1, &other)), absl::Milliseconds(50));
    EXPECT_EQ(other.bytes(), 0);
  }
  EXPECT_EQ(budget.reserved(), 0);
}

TEST(BudgetTest, WhatNeverFitsSaysWhichLimitAndHowFar) {
  Budget budget({.resource = Resource::kHostBytes, .total = 100, .limit = "max_inflight"});
  Reservation held;
  // Nor does it help to wait where what is held already is in the way.
  ASSERT_TRUE(budget.Extend(nullptr, 60, &held).ok());
  const absl::Status status = budget.Extend(nullptr, 41, &held);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_FALSE(RetryAfterOf(status).has_value());
  const auto limit = LimitExceededOf(status);
  ASSERT_TRUE(limit.has_value());
  EXPECT_EQ(limit->limit, "max_inflight");
  EXPECT_EQ(limit->asked_bytes, 101);
  EXPECT_EQ(limit->limit_bytes, 100);
  EXPECT_EQ(held.bytes(), 60);
}

TEST(BudgetTest, IsNeverExceededUnderContention) {
  Budget budget({.total = 1000});
  std::atomic<bool> exceeded{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&budget, &exceeded, t] {
      for (int i = 0; i < 2000; ++i) {
        absl::StatusOr<Reservation> one = budget.Reserve(nullptr, 100 + 50 * t);
        if (budget.reserved() > 1000) exceeded = true;
        if (one.ok()) one->Split(30).Reset();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(exceeded);
  EXPECT_LE(budget.peak_reserved(), 1000);
  EXPECT_EQ(budget.reserved(), 0);
}

TEST(BudgetTest, AQuotaHoldsForAGroupTogetherAndRoomForEachAlone) {
  BudgetGroup group;
  Budget first({.total = 100, .group = &group}), second({.total = 100, .group = &group});
  Tenants tenants;
  TenantsConfig config;
  config.default_tenant.quotas.device_bytes = 120;
  tenants.Configure(config);
  const TenantPtr tenant = *tenants.Get("ada");
  EXPECT_TRUE(InsufficientMemoryOf(first.Reserve(tenant, 101).status()).has_value());
  absl::StatusOr<Reservation> most = first.Reserve(tenant, 90);
  ASSERT_TRUE(most.ok());
  const absl::Status refused = second.Reserve(tenant, 31).status();
  const std::optional<QuotaExceeded> detail = QuotaExceededOf(refused);
  ASSERT_TRUE(detail.has_value()) << refused;
  EXPECT_EQ(detail->used, 90);
  EXPECT_EQ(second.Check(tenant, 31), refused);
  EXPECT_FALSE(second.TryReserve(tenant, 31).has_value());
  EXPECT_TRUE(second.Reserve(tenant, 30).ok());
  EXPECT_TRUE(second.Reserve(*tenants.Get("bob"), 100).ok());
  most->Reset();
  EXPECT_TRUE(second.Reserve(tenant, 100).ok());
  EXPECT_EQ(tenant->used(Resource::kDeviceBytes), 0);
}

TEST(BudgetTest, AShareIsOfAllThatAGroupHasWithoutWhatLeftIt) {
  BudgetGroup group;
  Budget first({.total = 100, .share = 0.5, .group = &group});
  Budget second({.total = 100, .share = 0.5, .group = &group});
  Tenants tenants;
  const TenantPtr tenant = *tenants.Get("ada");
  const Reservation all = *first.Reserve(tenant, 100);
  EXPECT_TRUE(QuotaExceededOf(second.Reserve(tenant, 1).status()).has_value());
  EXPECT_TRUE(second.Reserve(*tenants.Get("bob"), 50).ok());
  EXPECT_TRUE(QuotaExceededOf(second.Reserve(*tenants.Get("bob"), 51).status()).has_value());
  second.LeaveGroup();
  EXPECT_TRUE(QuotaExceededOf(second.Reserve(*tenants.Get("bob"), 1).status()).has_value());
}

}  // namespace
}  // namespace blockd::server
