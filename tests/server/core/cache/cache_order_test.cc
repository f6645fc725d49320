// The cache: who is next to go, what is counted, and what an overwrite needs.
#include "tests/server/core/cache/cache_fixture.h"

namespace blockd::test {
namespace {

using server::Handle;
using server::NotFoundReason;

TEST_F(CacheTest, AHandleThatIsReleasedTwiceInOneCallCountsOnce) {
  const Handle a = Insert(), b = Insert(), gone = Handle::Random(kServer.epoch);
  const std::vector<Handle> handles = {a, b, a};
  EXPECT_EQ(*cache_.Release("alice", handles), 2 * plan_->factor_bytes());
  EXPECT_EQ(Metric("blockd_evictions_total{reason=\"released\"}"), 2);
  EXPECT_EQ(WhyNot(a), NotFoundReason::kReleased);
  const std::vector<Handle> missing = {gone, gone};
  EXPECT_FALSE(cache_.Release("alice", missing).ok());
  EXPECT_EQ(ReasonOf(cache_.Release("alice", {&a, 1}).status()), NotFoundReason::kReleased);
}

TEST_F(CacheTest, HandlesAreInTheOrderOfTheirObjects) {
  const std::vector<server::KeptObjectPtr> objects = MakeSome(3);
  const std::vector<Handle> handles = cache_.Insert("alice", objects, {});
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(&cache_.Peek("alice", handles[i])->object(), objects[i].get());
  }
  EXPECT_EQ(EvictOneOf(handles), 0);
}

TEST_F(CacheTest, LookupsAndSolvesMoveToTheEndOfTheLineAndPeeksDoNot) {
  const std::vector<Handle> handles = {Insert(), Insert(), Insert(), Insert()};
  auto pin = Peek("alice", handles[0]);
  ASSERT_TRUE(pin.ok());
  clock_.Advance(absl::Seconds(1));
  EndSolve(pin, 1);  // 1 2 3 0
  EXPECT_EQ(cache_.Get("alice", handles[0])->idle, absl::ZeroDuration());
  ASSERT_TRUE(Lookup("alice", handles[1]).ok());  // 2 3 0 1
  EXPECT_EQ(cache_.Get("alice", handles[1])->idle, absl::ZeroDuration());
  ASSERT_TRUE(Peek("alice", handles[2]).ok());
  EXPECT_EQ(cache_.Get("alice", handles[2])->idle, absl::Seconds(1));
  EXPECT_EQ(cache_.List("alice", std::nullopt, 10).size(), 4u);
  EXPECT_EQ(EvictOneOf({handles[2], handles[3], handles[0], handles[1]}), 0);
  EXPECT_EQ(EvictOneOf({handles[3], handles[0], handles[1]}), 0);
  EXPECT_EQ(EvictOneOf({handles[0], handles[1]}), 0);
  EXPECT_EQ(EvictOneOf({handles[1]}), 0);
  EXPECT_EQ(Metric("blockd_cache_hits_total"), 1);
  EXPECT_EQ(Metric("blockd_evictions_total{reason=\"memory\"}"), 4);
}

// A thread may have asked for the time before another, and come later.
TEST_F(CacheTest, AnOlderTimeDoesNotMakeItIdle) {
  const Handle handle = Insert();
  clock_.Advance(absl::Seconds(2));
  ASSERT_TRUE(Lookup("alice", handle).ok());
  clock_.Advance(absl::Seconds(-1));
  ASSERT_TRUE(Lookup("alice", handle).ok());
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(cache_.Get("alice", handle)->idle, absl::ZeroDuration());
}

TEST_F(CacheTest, AReplacedOneMovesToTheEndOfTheLine) {
  const std::vector<Handle> handles = {Insert(), Insert()};
  clock_.Advance(absl::Seconds(1));
  ASSERT_TRUE(cache_.Replace("alice", handles[0], Make(), {}).ok());
  EXPECT_EQ(cache_.Get("alice", handles[0])->idle, absl::ZeroDuration());
  EXPECT_EQ(EvictOneOf(handles), 1);
}

TEST_F(CacheTest, CountsWhatIsPinned) {
  const Handle a = Insert("alice", {.pin = true}), b = Insert();
  EXPECT_EQ(cache_.totals().pinned, 1);
  ASSERT_TRUE(cache_.Replace("alice", b, Make(), {.pin = true}).ok());
  EXPECT_EQ(cache_.totals().pinned, 2);
  ASSERT_TRUE(cache_.Replace("alice", b, Make(), {.pin = true}).ok());
  EXPECT_EQ(cache_.totals().pinned, 2);
  const std::vector<Handle> both = {a, b};
  ASSERT_TRUE(cache_.Release("alice", both).ok());
  EXPECT_EQ(cache_.totals().pinned, 0);
  EXPECT_EQ(cache_.totals().bytes, 0);
}

TEST_F(CacheTest, ForgetsCallersWhoHaveNothing) {
  const std::vector<Handle> handles = {Insert("alice"), Insert("alice")};
  const Handle bobs = Insert("bob");
  EXPECT_EQ(cache_.totals().callers, 2);
  ASSERT_TRUE(cache_.Release("alice", {&handles[0], 1}).ok());
  EXPECT_EQ(cache_.totals().callers, 2);
  ASSERT_TRUE(cache_.Release("alice", {&handles[1], 1}).ok());
  EXPECT_EQ(cache_.totals().callers, 1);
  EXPECT_TRUE(cache_.Get("bob", bobs).ok());
}

TEST_F(CacheTest, AReplacementBringsItsOwnLeaseOrKeepsTheOld) {
  const Handle handle = Insert("alice", {.lease = absl::Minutes(1)});
  ASSERT_TRUE(cache_.Replace("alice", handle, Make(), {}).ok());
  EXPECT_EQ(cache_.Get("alice", handle)->lease_left, absl::Minutes(1));
  ASSERT_TRUE(cache_.Replace("alice", handle, Make(), {.lease = absl::Seconds(5)}).ok());
  EXPECT_EQ(cache_.Get("alice", handle)->lease_left, absl::Seconds(5));
  clock_.Advance(absl::Minutes(1));
  EXPECT_EQ(cache_.Get("alice", handle)->lease_left, absl::ZeroDuration());
}

TEST_F(CacheTest, AKeptMatrixCountsWithItsBytes) {
  const Handle handle = cache_.Insert("alice", MakeSome(1, /*keep_matrix=*/true), {})[0];
  const auto stats = cache_.Get("alice", handle);
  EXPECT_TRUE(server::ToFactorizationStats(*stats).matrix_kept);
  EXPECT_GT(stats->held_bytes, plan_->factor_bytes());
  EXPECT_EQ(cache_.totals().bytes, stats->held_bytes);
  EXPECT_EQ(cache_.EvictableBytes(), budget_.reserved());
  ASSERT_TRUE(cache_.Replace("alice", handle, Make(), {}).ok());
  EXPECT_EQ(cache_.totals().bytes, plan_->factor_bytes());
  EXPECT_EQ(cache_.HeldBytes(), plan_->factor_bytes());
}

TEST_F(CacheTest, ALeasedOneExpiresWithItsLease) {
  const Handle leased = Insert("alice", {.lease = absl::Minutes(20)});
  const Handle used = Insert();
  auto pin = Peek("alice", used);
  const Handle idle = Insert();
  clock_.Advance(absl::Minutes(10) - absl::Nanoseconds(1));
  cache_.Expire();
  EXPECT_EQ(cache_.totals().entries, 3);
  clock_.Advance(absl::Nanoseconds(1));
  cache_.Expire();  // goes on behind those that it may not end
  EXPECT_EQ(WhyNot(idle), NotFoundReason::kExpired);
  EXPECT_EQ(cache_.totals().entries, 2);
  EXPECT_EQ(Metric("blockd_evictions_total{reason=\"idle\"}"), 1);
  clock_.Advance(absl::Minutes(10));
  cache_.Expire();
  EXPECT_EQ(WhyNot(leased), NotFoundReason::kExpired);
  EXPECT_TRUE(cache_.Get("alice", used).ok());
}

TEST_F(CacheTest, ManyExpireAtOnce) {
  cache_.Insert("alice", MakeSome(300), {});
  clock_.Advance(absl::Minutes(10));
  const Handle young = Insert();
  cache_.Expire();
  EXPECT_EQ(cache_.totals().entries, 1);
  EXPECT_TRUE(cache_.Get("alice", young).ok());
}

TEST_F(CacheTest, EvictionTakesNoMoreThanItNeeds) {
  const std::vector<Handle> handles = {Insert(), Insert(), Insert()};
  EXPECT_TRUE(cache_.Evict(0, 0).empty());
  EXPECT_EQ(cache_.Evict(charge(), 0).size(), 1u);
  EXPECT_EQ(cache_.Evict(2 * charge(), 0).size(), 2u);
  EXPECT_EQ(Metric("blockd_evictions_total{reason=\"memory\"}"), 3);
  EXPECT_EQ(WhyNot(handles[2]), NotFoundReason::kEvicted);
}

TEST_F(CacheTest, AnOverwriteNeedsWhatItsPinHolds) {
  const Handle replaced = Insert(), released = Insert();
  auto old = Lookup("alice", replaced), gone = Lookup("alice", released);
  ASSERT_TRUE(cache_.Replace("alice", replaced, Make(), {}).ok());
  EXPECT_FALSE(cache_.BeginOverwrite(*old) != nullptr);  // it is another one by now
  EXPECT_TRUE(Lookup("alice", replaced).ok());
  ASSERT_TRUE(cache_.Release("alice", {&released, 1}).ok());
  EXPECT_FALSE(cache_.BeginOverwrite(*gone) != nullptr);
  EXPECT_EQ((*gone)->bytes(), plan_->factor_bytes());  // and the pin stays
}

TEST_F(CacheTest, WhatIsOverwrittenHasNoBytesAndIsNeitherHitNorMiss) {
  const Handle handle = Insert();
  auto pin = Peek("alice", handle);
  server::KeptObjectPtr taken = cache_.BeginOverwrite(*pin);
  ASSERT_TRUE(taken != nullptr);
  EXPECT_EQ(cache_.totals().bytes, 0);
  EXPECT_EQ(cache_.totals().entries, 1);
  EXPECT_EQ(cache_.Get("alice", handle)->held_bytes, 0);
  for (const absl::Status& status :
       {Lookup("alice", handle).status(), Peek("alice", handle).status()}) {
    EXPECT_TRUE(absl::IsUnavailable(status));
    EXPECT_EQ(server::RetryAfterOf(status), absl::Milliseconds(20));
  }
  EXPECT_EQ(Metric("blockd_cache_hits_total"), 0);
  EXPECT_TRUE(EvictOldest().empty());
  clock_.Advance(absl::Hours(1));
  cache_.Expire();
  ASSERT_TRUE(cache_.Replace("alice", handle, std::move(taken), {}).ok());
  EXPECT_EQ(cache_.totals().bytes, plan_->factor_bytes());
}

TEST_F(CacheTest, OnlyWhatIsOverwrittenCanFailToBe) {
  const Handle handle = Insert();
  cache_.FailOverwrite(handle);
  EXPECT_TRUE(Lookup("alice", handle).ok());
  cache_.FailOverwrite(Handle::Random(kServer.epoch));
  EXPECT_EQ(cache_.totals().entries, 1);
}

TEST_F(CacheTest, MissesAreCountedByReason) {
  const Handle handle = Insert();
  ASSERT_TRUE(cache_.Release("alice", {&handle, 1}).ok());
  EXPECT_FALSE(Lookup("alice", handle).ok());
  EXPECT_FALSE(Lookup("bob", handle).ok());
  EXPECT_EQ(Metric("blockd_cache_misses_total{reason=\"RELEASED\"}"), 1);
  EXPECT_EQ(Metric("blockd_cache_misses_total{reason=\"NEVER_EXISTED\"}"), 1);
  EXPECT_FALSE(Peek("alice", handle).ok());
  EXPECT_EQ(Metric("blockd_cache_misses_total{reason=\"RELEASED\"}"), 1);
}

TEST_F(CacheTest, ASolveOfWhatWasReleasedIsCountedAndTouchesNothing) {
  const Handle handle = Insert();
  const Handle other = Insert();
  auto pin = Lookup("alice", handle);
  ASSERT_TRUE(cache_.Release("alice", {&handle, 1}).ok());
  EndSolve(pin, 1);
  EXPECT_EQ(cache_.totals().entries, 1);
  EXPECT_EQ(EvictOneOf({other}), 0);
}

TEST_F(CacheTest, WhatACallerHadBeforeDoesNotCountAgainstIt) {
  const Handle oldest = Insert("bob");
  const std::vector<Handle> had = cache_.Insert("alice", MakeSome(4), {});
  const Handle kept = Insert("alice");
  ASSERT_TRUE(cache_.Release("alice", had).ok());
  // Nobody has more than two now: the oldest goes, whose it is.
  budget_.Free(cache_.Evict(1, 2.0 * static_cast<double>(charge())));
  EXPECT_FALSE(cache_.Get("bob", oldest).ok());
  EXPECT_TRUE(cache_.Get("alice", kept).ok());
}

}  // namespace
}  // namespace blockd::test
