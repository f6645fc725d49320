#include <algorithm>

#include "tests/server/core/cache/cache_fixture.h"

namespace blockd::test {
namespace {

using server::Handle;
using server::KeptStats;
using server::NotFoundReason;

TEST_F(CacheTest, FindsWhatWasInserted) {
  const Handle handle = Insert();
  const auto pin = Lookup("alice", handle);
  ASSERT_TRUE(pin.ok());
  EXPECT_EQ((*pin)->bytes(), plan_->factor_bytes());
  EXPECT_EQ(cache_.totals().entries, 1);
  EXPECT_EQ(cache_.totals().bytes, plan_->factor_bytes());
}

TEST_F(CacheTest, AForeignHandleLooksAsIfItNeverExisted) {
  const Handle handle = Insert("alice");
  EXPECT_EQ(WhyNot(handle, "bob"), NotFoundReason::kNeverExisted);
  EXPECT_EQ(WhyNot(Handle::Random(kServer.epoch)), NotFoundReason::kNeverExisted);
  EXPECT_FALSE(cache_.Release("bob", {&handle, 1}).ok());
  EXPECT_TRUE(Lookup("alice", handle).ok());
  ASSERT_TRUE(cache_.Release("alice", {&handle, 1}).ok());
  EXPECT_EQ(WhyNot(handle, "bob"), NotFoundReason::kNeverExisted);
  EXPECT_EQ(WhyNot(handle, "alice"), NotFoundReason::kReleased);
}

TEST_F(CacheTest, AHandleFromBeforeTheRestartIsTold) {
  const Handle handle = Handle::Random(server::Epoch::Start("this"));
  EXPECT_EQ(WhyNot(handle), NotFoundReason::kRestarted);
  const auto detail = server::HandleNotFoundOf(Peek("alice", handle).status());
  EXPECT_EQ(detail->server.name, "this");
  EXPECT_EQ(detail->server.epoch, kServer.epoch);
}

TEST_F(CacheTest, AHandleOfAnotherServerIsTold) {
  const server::Epoch other = server::Epoch::Start("other");
  const Handle handle = Handle::Random(other);
  EXPECT_EQ(WhyNot(handle), NotFoundReason::kOtherServer);
  const auto detail = server::HandleNotFoundOf(cache_.Release("alice", {&handle, 1}).status());
  EXPECT_EQ(detail->reason, NotFoundReason::kOtherServer);
  EXPECT_EQ(detail->handle.epoch(), other);
  EXPECT_EQ(detail->server.name, "this");
}

TEST_F(CacheTest, ReleaseTakesEffectAtOnceAndMemoryReturnsWithTheLastPin) {
  const Handle handle = Insert();
  auto first = Lookup("alice", handle);
  auto second = Lookup("alice", handle);
  EXPECT_EQ(*cache_.Release("alice", {&handle, 1}), plan_->factor_bytes());
  EXPECT_EQ(WhyNot(handle), NotFoundReason::kReleased);
  EXPECT_EQ(budget_.reserved(), charge());
  first = absl::CancelledError();
  EXPECT_EQ(budget_.reserved(), charge());
  EndSolve(second, 3);  // one that was under way
  EXPECT_EQ(budget_.reserved(), 0);
  EXPECT_EQ(pool_.stats().used_bytes, 0);
}

TEST_F(CacheTest, ReleaseEndsAllThatAreHeldAndNamesTheFirstThatIsNot) {
  const std::vector<Handle> handles = {Insert(), Handle::Random(kServer.epoch), Insert(),
                                       Handle::Random(kServer.epoch)};
  const absl::Status status = cache_.Release("alice", handles).status();
  EXPECT_EQ(server::HandleNotFoundOf(status)->handle, handles[1]);
  EXPECT_EQ(cache_.totals().entries, 0);
  EXPECT_EQ(budget_.reserved(), 0);
}

TEST_F(CacheTest, EvictsLeastRecentlyUsedFirst) {
  const Handle a = Insert(), b = Insert(), c = Insert();
  ASSERT_TRUE(Lookup("alice", a).ok());
  budget_.Free(cache_.Evict(charge() + 1, 0));
  EXPECT_EQ(WhyNot(b), NotFoundReason::kEvicted);
  EXPECT_EQ(WhyNot(c), NotFoundReason::kEvicted);
  EXPECT_TRUE(Lookup("alice", a).ok());
  EXPECT_EQ(budget_.reserved(), charge());
  EXPECT_EQ(pool_.stats().used_bytes, charge());
}

TEST_F(CacheTest, NeverEvictsWhatIsInUsePinnedOrLeased) {
  const Handle used = Insert();
  const Handle pinned = Insert("alice", {.pin = true});
  const Handle leased = Insert("alice", {.lease = absl::Minutes(1)});
  const Handle idle = Insert();
  auto pin = Lookup("alice", used);
  EXPECT_EQ(cache_.EvictableBytes(), charge());
  EXPECT_TRUE(cache_.Evict(charge() + 1, 0).empty());  // all or nothing
  EXPECT_TRUE(Lookup("alice", idle).ok());
  EXPECT_EQ(cache_.Evict(charge(), 0).size(), 1u);
  EXPECT_EQ(WhyNot(idle), NotFoundReason::kEvicted);
  EXPECT_TRUE(EvictOldest().empty());

  clock_.Advance(absl::Minutes(1));  // the lease is over
  budget_.Free(EvictOldest());
  EXPECT_EQ(WhyNot(leased), NotFoundReason::kEvicted);
  pin = absl::CancelledError();  // the use is over
  budget_.Free(EvictOldest());
  EXPECT_EQ(WhyNot(used), NotFoundReason::kEvicted);
  EXPECT_TRUE(EvictOldest().empty());
  EXPECT_TRUE(Lookup("alice", pinned).ok());
}

TEST_F(CacheTest, ALeaseRunsFromTheLastUse) {
  const Handle handle = Insert("alice", {.lease = absl::Minutes(1)});
  clock_.Advance(absl::Seconds(50));
  ASSERT_TRUE(Lookup("alice", handle).ok());
  clock_.Advance(absl::Seconds(50));
  EXPECT_EQ(cache_.EvictableBytes(), 0);
  EXPECT_EQ(cache_.Get("alice", handle)->lease_left, absl::Seconds(10));
  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(cache_.EvictableBytes(), charge());
}

TEST_F(CacheTest, IdleEntriesExpire) {
  const Handle idle = Insert();
  const Handle pinned = Insert("alice", {.pin = true});
  clock_.Advance(absl::Minutes(6));
  const Handle young = Insert();
  clock_.Advance(absl::Minutes(4));
  cache_.Expire();
  EXPECT_EQ(WhyNot(idle), NotFoundReason::kExpired);
  EXPECT_TRUE(Lookup("alice", pinned).ok());
  EXPECT_TRUE(Lookup("alice", young).ok());
  EXPECT_EQ(budget_.reserved(), 2 * charge());
}

TEST_F(CacheTest, RemembersOnlySoManyEnds) {
  std::vector<Handle> handles;
  for (int i = 0; i < 5; ++i) {
    handles.push_back(Insert());
    ASSERT_TRUE(cache_.Release("alice", {&handles.back(), 1}).ok());
  }
  EXPECT_EQ(WhyNot(handles[1]), NotFoundReason::kNeverExisted);
  EXPECT_EQ(WhyNot(handles[2]), NotFoundReason::kReleased);
  EXPECT_EQ(WhyNot(handles[4]), NotFoundReason::kReleased);
}

TEST_F(CacheTest, ReplaceKeepsTheNameAndFreesTheOldWithItsPins) {
  const Handle handle = Insert();
  auto old = Lookup("alice", handle);
  clock_.Advance(absl::Minutes(1));
  ASSERT_TRUE(cache_.Replace("alice", handle, Make(), {}).ok());
  auto fresh = Lookup("alice", handle);
  ASSERT_TRUE(fresh.ok());
  EXPECT_NE((*old)->data(), (*fresh)->data());
  EXPECT_EQ(budget_.reserved(), 2 * charge());
  old = absl::CancelledError();
  EXPECT_EQ(budget_.reserved(), charge());
  const auto stats = cache_.Get("alice", handle);
  EXPECT_EQ(stats->times_refactored, 1);
  EXPECT_EQ(stats->age, absl::ZeroDuration());
}

TEST_F(CacheTest, WhoRunsTheServerEvictsAnybodysEachHandleOnce) {
  const Handle pinned = Insert("alice", {.pin = true}), plain = Insert("bob"), used = Insert("bob"),
               stranger = Handle::Random(kServer.epoch);
  auto pin = Lookup("bob", used);
  std::vector<Handle> missing;
  const Handle named[] = {pinned, plain, stranger, used, plain};
  const Cache::Changed evicted = cache_.EvictHandles(named, &missing);
  EXPECT_EQ(evicted.handles, 3);
  EXPECT_EQ(evicted.bytes, 3 * plan_->factor_bytes());
  EXPECT_EQ(evicted.callers, (absl::btree_set<std::string>{"alice", "bob"}));
  EXPECT_EQ(missing, std::vector<Handle>{stranger});
  EXPECT_EQ(WhyNot(pinned), NotFoundReason::kEvicted);
  EXPECT_EQ(WhyNot(plain, "bob"), NotFoundReason::kEvicted);
  EXPECT_EQ(budget_.reserved(), charge());  // what is in use goes with its use
  pin = absl::CancelledError();
  EXPECT_EQ(budget_.reserved(), 0);
  EXPECT_EQ(cache_.totals().pinned, 0);
}

TEST_F(CacheTest, WhatIsUnpinnedMayBeEvicted) {
  const Handle pinned = Insert("alice", {.pin = true}),
               leased = Insert("bob", {.lease = absl::Hours(1)}), plain = Insert("bob"),
               stranger = Handle::Random(kServer.epoch);
  EXPECT_EQ(cache_.EvictableBytes(), charge());
  std::vector<Handle> missing;
  const Handle named[] = {pinned, leased, plain, stranger, pinned};
  const Cache::Changed unpinned = cache_.UnpinHandles(named, &missing);
  EXPECT_EQ(unpinned.handles, 2);
  EXPECT_EQ(unpinned.callers, (absl::btree_set<std::string>{"alice", "bob"}));
  EXPECT_EQ(missing, std::vector<Handle>{stranger});
  EXPECT_EQ(cache_.EvictableBytes(), 3 * charge());
  EXPECT_FALSE(cache_.Get("alice", pinned)->pinned);
  EXPECT_EQ(cache_.UnpinHandles(named, &missing).handles, 0);
}

TEST_F(CacheTest, ReplaceOfWhatIsGoneSaysWhyAndKeepsNothing) {
  const Handle handle = Insert();
  ASSERT_TRUE(cache_.Release("alice", {&handle, 1}).ok());
  EXPECT_EQ(ReasonOf(cache_.Replace("alice", handle, Make(), {})), NotFoundReason::kReleased);
  EXPECT_EQ(budget_.reserved(), 0);
}

TEST_F(CacheTest, AnOverwriteNeedsTheEntryForItself) {
  const Handle handle = Insert();
  auto mine = Lookup("alice", handle);
  {
    auto other = Lookup("alice", handle);
    EXPECT_FALSE(cache_.BeginOverwrite(*mine) != nullptr);
  }
  server::KeptObjectPtr taken = cache_.BeginOverwrite(*mine);
  ASSERT_TRUE(taken != nullptr);
  EXPECT_EQ(taken.use_count(), 1);
  EXPECT_EQ(taken->charge(), charge());
  EXPECT_TRUE(absl::IsUnavailable(Lookup("alice", handle).status()));
  EXPECT_EQ(cache_.EvictableBytes(), 0);
  ASSERT_TRUE(cache_.Replace("alice", handle, std::move(taken), {}).ok());
  EXPECT_TRUE(Lookup("alice", handle).ok());
}

TEST_F(CacheTest, AFailedOverwriteEndsTheHandle) {
  const Handle handle = Insert();
  auto pin = Lookup("alice", handle);
  ASSERT_TRUE(cache_.BeginOverwrite(*pin) != nullptr);
  cache_.FailOverwrite(handle);
  EXPECT_EQ(WhyNot(handle), NotFoundReason::kFailedRefactor);
  EXPECT_EQ(cache_.totals().entries, 0);
  EXPECT_EQ(cache_.totals().bytes, 0);
}

TEST_F(CacheTest, ListsTheCallersOwnInTheOrderOfTheirHandles) {
  std::vector<Handle> handles;
  for (int i = 0; i < 5; ++i) handles.push_back(Insert("alice"));
  Insert("bob");
  std::sort(handles.begin(), handles.end());
  std::vector<Handle> listed;
  std::optional<Handle> after;
  for (;;) {
    const std::vector<KeptStats> page = cache_.List("alice", after, 2);
    if (page.empty()) break;
    for (const KeptStats& stats : page) listed.push_back(stats.handle);
    after = page.back().handle;
  }
  EXPECT_EQ(listed, handles);
  EXPECT_TRUE(cache_.List("carol", std::nullopt, 10).empty());
}

TEST_F(CacheTest, CountsUsesAndTimes) {
  const Handle handle = Insert("alice", {.lease = absl::Minutes(1), .pin = true});
  clock_.Advance(absl::Seconds(5));
  {
    auto pins =
        cache_.LookupAll<server::FactorizationPin>("alice", std::vector<Handle>{handle, handle});
    EndSolve(pins[0], 7);
    EndSolve(pins[1], 1);
  }
  clock_.Advance(absl::Seconds(2));
  const auto stats = cache_.Get("alice", handle);
  ASSERT_TRUE(stats.ok());
  EXPECT_EQ(stats->times_solved, 2);
  EXPECT_EQ(stats->rhs_solved, 8);
  EXPECT_EQ(stats->age, absl::Seconds(7));
  EXPECT_EQ(stats->idle, absl::Seconds(2));
  EXPECT_EQ(stats->lease_left, absl::Seconds(58));
  EXPECT_TRUE(stats->pinned);
  EXPECT_FALSE(server::ToFactorizationStats(*stats).matrix_kept);
  EXPECT_EQ(stats->held_bytes, plan_->factor_bytes());
}

}  // namespace
}  // namespace blockd::test
