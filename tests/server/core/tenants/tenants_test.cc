// Quotas, fair shares and rates, with tenants who want everything.
#include "server/core/tenants/tenants.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/core/common/errors.h"
#include "server/core/tenants/budget.h"
#include "server/core/tenants/permit.h"

namespace blockd::server {
namespace {

constexpr Resource kSlots = Resource::kQueueSlots;

// Takes one after the other until refused.
std::vector<Reservation> TakeAll(Budget& budget, const TenantPtr& tenant) {
  std::vector<Reservation> taken;
  for (;;) {
    absl::StatusOr<Reservation> one = budget.Reserve(tenant, 1);
    if (!one.ok()) return taken;
    taken.push_back(*std::move(one));
  }
}

TEST(TenantsTest, AQuotaIsATenantsOwn) {
  Tenants tenants;
  TenantsConfig config;
  config.tenants.push_back({.name = "small", .quotas = {.queue_slots = 3}});
  config.tenants.push_back({.name = "none", .quotas = {.queue_slots = 0}});
  tenants.Configure(config);
  Budget slots({.resource = kSlots, .total = 100});
  const TenantPtr small = *tenants.Get("small"), other = *tenants.Get("other");
  std::vector<Reservation> taken = TakeAll(slots, small);
  EXPECT_EQ(taken.size(), 3u);
  const absl::Status refused = slots.Reserve(small, 1).status();
  const auto detail = QuotaExceededOf(refused);
  ASSERT_TRUE(detail.has_value()) << refused;
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_EQ(detail->quota, "queue_slots");
  EXPECT_EQ(detail->limit, 3);
  EXPECT_EQ(detail->used, 3);
  EXPECT_EQ(detail->asked, 1);
  EXPECT_EQ(detail->tenant, "small");
  EXPECT_TRUE(RetryAfterOf(refused).has_value());
  EXPECT_FALSE(RetryAfterOf(slots.Reserve(small, 4).status()).has_value());  // never
  EXPECT_FALSE(RetryAfterOf(slots.Reserve(*tenants.Get("none"), 1).status()).has_value());
  EXPECT_EQ(TakeAll(slots, other).size(), 97u);
  EXPECT_EQ(small->used(kSlots), 3);
  taken.pop_back();
  EXPECT_EQ(small->used(kSlots), 2);
  EXPECT_TRUE(slots.Reserve(small, 1).ok());
}

TEST(TenantsTest, WhatIsLeftIsSharedBetweenThoseWhoWantEverything) {
  Tenants tenants;
  Budget slots({.resource = kSlots, .total = 1000, .share = 0.75});
  std::vector<std::vector<Reservation>> taken;
  taken.push_back(TakeAll(slots, *tenants.Get("first")));
  EXPECT_EQ(taken[0].size(), 750u);
  for (int i = 0; i < 20; ++i) {
    taken.push_back(TakeAll(slots, *tenants.Get(std::to_string(i))));
    EXPECT_GE(taken.back().size(), i == 0 ? 180u : 0u);
  }
  // Each of many hogs took three quarters of what it found. As they come and go they end with
  // equal shares, and something is always left for who asks for little.
  for (int round = 0; round < 3000; ++round) {
    const size_t i = static_cast<size_t>(round) % taken.size();
    if (!taken[i].empty()) taken[i].pop_back();
    const std::string name = i == 0 ? "first" : std::to_string(i - 1);
    for (Reservation& one : TakeAll(slots, *tenants.Get(name))) taken[i].push_back(std::move(one));
  }
  EXPECT_TRUE(slots.Reserve(*tenants.Get("newcomer"), 1).ok());
}

TEST(TenantsTest, NobodysReservationsAreBoundedByTheTotalAlone) {
  Budget slots({.resource = kSlots, .total = 10, .share = 0.5});
  EXPECT_TRUE(slots.TryReserve(nullptr, 10).has_value());
  EXPECT_FALSE(slots.TryReserve(nullptr, 11).has_value());
}

TEST(TenantsTest, SplitsAndMergesStayTheTenants) {
  Tenants tenants;
  Budget bytes({.resource = Resource::kHostBytes, .total = 100});
  const TenantPtr tenant = *tenants.Get("a");
  Reservation all = *bytes.Reserve(tenant, 60);
  {
    const Reservation part = all.Split(20);
    EXPECT_EQ(tenant->used(Resource::kHostBytes), 60);
  }
  EXPECT_EQ(tenant->used(Resource::kHostBytes), 40);
  all.Merge(*bytes.Reserve(tenant, 5));
  EXPECT_EQ(tenant->used(Resource::kHostBytes), 45);
  all.Reset();
  EXPECT_FALSE(tenant->has_anything());
}

// An empty message takes nothing of the host's budget, and its answer something.
TEST(TenantsTest, WhatIsAddedToNothingComesBackToTheTenant) {
  Tenants tenants;
  Budget budget({.resource = Resource::kHostBytes, .total = 1000});
  const TenantPtr tenant = *tenants.Get("a");
  Reservation share = *budget.Reserve(tenant, 0);
  share.Merge(*budget.Reserve(tenant, 300));
  EXPECT_EQ(tenant->used(Resource::kHostBytes), 300);
  EXPECT_EQ(share.tenant(), tenant.get());
  share.Reset();
  EXPECT_EQ(tenant->used(Resource::kHostBytes), 0);
  EXPECT_EQ(budget.reserved(), 0);
}

TEST(TenantsTest, ConfiguringAgainHoldsForTenantsThatAreThere) {
  Tenants tenants;
  const TenantPtr tenant = *tenants.Get("a");
  EXPECT_EQ(tenant->quota(kSlots), -1);
  TenantsConfig config;
  config.default_tenant.quotas.queue_slots = 5;
  tenants.Configure(config);
  EXPECT_EQ(tenant->quota(kSlots), 5);
  config.tenants.push_back({.name = "a", .weight = 3, .highest_class = PriorityClass::kRealtime});
  tenants.Configure(config);
  EXPECT_EQ(tenant->quota(kSlots), -1);
  EXPECT_EQ(tenant->weight(), 3);
  EXPECT_EQ(tenant->highest_class(), PriorityClass::kRealtime);
  ASSERT_TRUE(tenants.Get("b").ok());
  ASSERT_EQ(tenants.List().size(), 2u);
  EXPECT_TRUE(tenants.List()[0].listed);
  EXPECT_FALSE(tenants.List()[1].listed);
}

TEST(TenantsTest, ManyNamesTakeNoMemoryOfTheServers) {
  Tenants tenants(/*max_others=*/3);
  TenantsConfig config;
  config.tenants.push_back({.name = "listed"});
  tenants.Configure(config);
  Budget bytes({.resource = Resource::kHostBytes, .total = 100});
  const TenantPtr kept = *tenants.Get("kept");
  Reservation one = *bytes.Reserve(*tenants.Get("holder"), 1);  // nobody else refers to it
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(tenants.Get(std::to_string(i)).ok());
  EXPECT_LE(tenants.List().size(), 4u);
  const TenantPtr third = *tenants.Get("third");
  const TenantPtr shared = *tenants.Get("fourth");
  EXPECT_EQ(shared->name(), "other");
  EXPECT_EQ(*tenants.Get("fifth"), shared);
  EXPECT_EQ(tenants.List().size(), 5u);
  EXPECT_TRUE(tenants.Get("listed").ok());
  EXPECT_EQ(*tenants.Get("kept"), kept);
  one.Reset();
  EXPECT_EQ((*tenants.Get("sixth"))->name(), "sixth");
}

TEST(TenantsTest, ThoseOfTheFileAreThereBeforeTheyAsk) {
  Tenants tenants;
  TenantsConfig config;
  config.tenants = {{.name = "b", .weight = 2}, {.name = "a"}};
  tenants.Configure(config);
  ASSERT_EQ(tenants.List().size(), 2u);
  EXPECT_EQ(tenants.List()[0].tenant->name(), "a");
  EXPECT_EQ(tenants.List()[1].tenant->weight(), 2);
  EXPECT_EQ(tenants.List()[1].tenant, *tenants.Get("b"));
}

// The answers that `Uses` counts under this name; -1 if it has no such name.
int64_t Answered(const Tenants& tenants, const std::string& name) {
  for (const TenantUse& use : tenants.Uses()) {
    if (use.name == name) return use.counts.answered;
  }
  return -1;
}

TEST(TenantsTest, AllThatTheFileDoesNotNameAreOneToAScrape) {
  Tenants tenants;
  TenantsConfig config;
  config.tenants.push_back({.name = "listed"});
  tenants.Configure(config);
  Budget bytes({.resource = Resource::kHostBytes, .total = 100});
  const Reservation one = *bytes.Reserve(*tenants.Get("x"), 10),
                    two = *bytes.Reserve(*tenants.Get("y"), 20),
                    three = *bytes.Reserve(*tenants.Get("listed"), 30);
  (*tenants.Get("x"))->CountAnswer(true);
  (*tenants.Get("y"))->CountAnswer(false);
  const std::vector<TenantUse> uses = tenants.Uses();
  ASSERT_EQ(uses.size(), 2u);
  EXPECT_EQ(uses[0].name, "listed");
  EXPECT_EQ(uses[0].used[static_cast<size_t>(Resource::kHostBytes)], 30);
  EXPECT_EQ(uses[1].name, "other");
  EXPECT_EQ(uses[1].used[static_cast<size_t>(Resource::kHostBytes)], 30);
  EXPECT_EQ(uses[1].counts.answered, 2);
  EXPECT_EQ(uses[1].counts.over_quota, 1);
}

TEST(TenantsTest, NoCountGoesBackWhoeverIsForgottenOrListed) {
  Tenants tenants(/*max_others=*/2);
  const auto count = [&tenants](const std::string& name, int times) {
    for (int i = 0; i < times; ++i) (*tenants.Get(name))->CountAnswer(false);
  };
  TenantsConfig none, with_a;
  with_a.tenants.push_back({.name = "a"});
  count("a", 5);
  for (int i = 0; i < 100; ++i) count(std::to_string(i), 1);  // who is idle is forgotten
  EXPECT_EQ(Answered(tenants, "other"), 105);
  count("a", 3);
  tenants.Configure(with_a);
  EXPECT_EQ(Answered(tenants, "other"), 108);
  const int64_t at_first = Answered(tenants, "a");
  EXPECT_GE(at_first, 0);
  count("a", 10);
  EXPECT_EQ(Answered(tenants, "a"), at_first + 10);
  EXPECT_EQ(Answered(tenants, "other"), 108);
  tenants.Configure(none);  // neither back nor forth
  EXPECT_EQ(Answered(tenants, "a"), -1);
  EXPECT_EQ(Answered(tenants, "other"), 108);
  count("a", 2);
  EXPECT_EQ(Answered(tenants, "other"), 110);
  tenants.Configure(with_a);
  EXPECT_GE(Answered(tenants, "a"), at_first + 10);
  EXPECT_EQ(Answered(tenants, "other"), 110);
  for (int i = 0; i < 100; ++i) count(std::to_string(i), 1);
  EXPECT_EQ(Answered(tenants, "other"), 210);
}

TEST(TokenBucketTest, KnowsWhatWasTakenInTheLastSecond) {
  TokenBucket bucket;  // without a limit
  absl::Time now = absl::FromUnixSeconds(1000);
  EXPECT_EQ(bucket.TakenOfLate(now), 0);
  for (int i = 0; i < 10; ++i, now += absl::Milliseconds(100)) bucket.Take(4, now);
  EXPECT_DOUBLE_EQ(bucket.TakenOfLate(now), 40);
  EXPECT_DOUBLE_EQ(bucket.TakenOfLate(now + absl::Milliseconds(250)), 30);
  bucket.Take(6, now);
  EXPECT_DOUBLE_EQ(bucket.TakenOfLate(now + absl::Milliseconds(500)), 26);
  EXPECT_EQ(bucket.TakenOfLate(now + absl::Seconds(2)), 0);
  bucket.SetRate(1);
  bucket.Take(5, now);
  bucket.Take(5, now);  // is refused
  EXPECT_DOUBLE_EQ(bucket.TakenOfLate(now), 51);
}

TEST(TokenBucketTest, LetsThroughSoMuchASecond) {
  TokenBucket bucket;
  absl::Time now = absl::FromUnixSeconds(1000);
  EXPECT_EQ(bucket.Take(1e18, now), absl::ZeroDuration());
  bucket.SetRate(10);
  int taken = 0;
  for (int ms = 0; ms < 10'000; ++ms, now += absl::Milliseconds(1)) {
    taken += bucket.Take(1, now) == absl::ZeroDuration();
  }
  EXPECT_GE(taken, 100);
  EXPECT_LE(taken, 112);
  now += absl::Hours(1);  // saved up for no longer than a second
  int burst = 0;
  while (bucket.Take(1, now) == absl::ZeroDuration()) ++burst;
  EXPECT_LE(burst, 11);
}

TEST(TokenBucketTest, SomethingLargerThanASecondsWorthPassesAndIsPaidFor) {
  TokenBucket bucket;
  const absl::Time now = absl::FromUnixSeconds(1000);
  bucket.SetRate(100);
  EXPECT_EQ(bucket.Take(1000, now), absl::ZeroDuration());
  const absl::Duration wait = bucket.Take(1, now);
  EXPECT_GT(wait, absl::Seconds(9));
  EXPECT_EQ(bucket.Take(1, now + wait + absl::Milliseconds(20)), absl::ZeroDuration());
  bucket.SetRate(0);
  EXPECT_EQ(bucket.Take(1, now + absl::Hours(1)), absl::InfiniteDuration());
}

TEST(TokenBucketTest, FillsAgainAfterTheClockWasSetBack) {
  TokenBucket bucket;
  const absl::Time now = absl::FromUnixSeconds(100'000);
  bucket.SetRate(1);
  EXPECT_EQ(bucket.Take(1, now), absl::ZeroDuration());
  EXPECT_NE(bucket.Take(1, now - absl::Hours(1)), absl::ZeroDuration());
  EXPECT_EQ(bucket.Take(1, now - absl::Hours(1) + absl::Seconds(2)), absl::ZeroDuration());
}

TEST(PermitTest, WhatIsUnderWayIsCountedUntilThePermitGoes) {
  OngoingWork work;
  {
    Permit first, second;
    EXPECT_TRUE(work.Begin(&first.ongoing));
    Permit moved = std::move(first);
    EXPECT_TRUE(work.Begin(&second.ongoing));
    work.Close();
    Permit third;
    EXPECT_FALSE(work.Begin(&third.ongoing));
  }
  work.WaitUntilNone();
}

}  // namespace
}  // namespace blockd::server
