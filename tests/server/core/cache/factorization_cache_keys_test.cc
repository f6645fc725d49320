// The cache: idempotency keys of what is held.
#include <atomic>
#include <thread>

#include "tests/server/core/cache/factorization_cache_fixture.h"

namespace blockd::test {
namespace {

using server::Handle;
using server::Holding;
using server::NotFoundReason;

class FactorizationCacheKeysTest : public FactorizationCacheTest {
 protected:
  Cache::EntryOptions Keyed(size_t systems) const {
    Cache::EntryOptions options;
    options.idempotency_key = "k";
    options.keyed.resize(systems);
    return options;
  }
  Cache::KeyRequest Request(int64_t systems) const {
    Cache::KeyRequest request;
    request.shape.chain = plan_->shape();
    request.systems = systems;
    return request;
  }
  // The handles that the key finds; none if it finds nothing.
  std::vector<Handle> Find(int64_t systems, const std::string& caller = "alice") {
    const auto found = cache_.FindKey(caller, "k", Request(systems));
    EXPECT_TRUE(found.ok()) << found.status();
    std::vector<Handle> handles;
    if (!found.ok() || !found->has_value()) return handles;
    for (const Cache::KeyedSystem& system : (*found)->systems) handles.push_back(system.handle);
    return handles;
  }
};

TEST_F(FactorizationCacheKeysTest, AKeyFindsItsHandlesUntilOneEnds) {
  for (const size_t ends : {0u, 1u}) {
    const std::vector<Handle> handles = cache_.Insert("alice", MakeSome(2), Keyed(2));
    EXPECT_EQ(Find(2), handles);
    EXPECT_EQ(cache_.Get("alice", handles[0])->idempotency_key, "k");
    EXPECT_TRUE(Find(2, "bob").empty());
    EXPECT_FALSE(cache_.FindKey("alice", "l", Request(2))->has_value());
    ASSERT_TRUE(cache_.Release("alice", {&handles[ends], 1}).ok());
    EXPECT_TRUE(Find(2).empty());
    EXPECT_EQ(cache_.Get("alice", handles[1 - ends])->idempotency_key, "");
    ASSERT_TRUE(cache_.Release("alice", {&handles[1 - ends], 1}).ok());
  }
}

TEST_F(FactorizationCacheKeysTest, AKeyEndsWithTheContent) {
  const Handle replaced = cache_.Insert("alice", MakeSome(1), Keyed(1))[0];
  ASSERT_TRUE(cache_.Replace("alice", replaced, Make(), {}).ok());
  EXPECT_TRUE(Find(1).empty());

  const Handle overwritten = cache_.Insert("alice", MakeSome(1), Keyed(1))[0];
  auto pin = cache_.Lookup("alice", overwritten);
  std::optional<Holding> taken = cache_.BeginOverwrite(*pin);
  ASSERT_TRUE(taken.has_value());
  EXPECT_TRUE(Find(1).empty());
  EXPECT_EQ(cache_.Get("alice", overwritten)->idempotency_key, "");
  taken.reset();
  cache_.FailOverwrite(overwritten);

  const Handle evicted = cache_.Insert("alice", MakeSome(1), Keyed(1))[0];
  ASSERT_TRUE(cache_.Release("alice", {&replaced, 1}).ok());
  budget_.Free(EvictOldest());
  EXPECT_EQ(WhyNot(evicted), NotFoundReason::kEvicted);
  EXPECT_TRUE(Find(1).empty());
}

TEST_F(FactorizationCacheKeysTest, TheLaterOfTwoHoldsTheKey) {
  const Handle first = cache_.Insert("alice", MakeSome(1), Keyed(1))[0];
  const Handle second = cache_.Insert("alice", MakeSome(1), Keyed(1))[0];
  EXPECT_EQ(Find(1), std::vector<Handle>{second});
  EXPECT_EQ(cache_.Get("alice", first)->idempotency_key, "");
  ASSERT_TRUE(cache_.Release("alice", {&first, 1}).ok());
  EXPECT_EQ(Find(1), std::vector<Handle>{second});
}

TEST_F(FactorizationCacheKeysTest, WhatFailedIsRemembered) {
  Cache::EntryOptions options = Keyed(3);
  options.keyed[0].status = absl::InvalidArgumentError("not positive definite");
  options.keyed[1].log_determinant = 4;
  options.keyed[2].log_determinant = 5;
  const std::vector<Handle> handles = cache_.Insert("alice", MakeSome(2), options);
  const auto found = cache_.FindKey("alice", "k", Request(3));
  ASSERT_TRUE(found.ok() && found->has_value());
  const auto& systems = (*found)->systems;
  EXPECT_EQ(systems[0].status, options.keyed[0].status);
  EXPECT_EQ(systems[1].handle, handles[0]);
  EXPECT_EQ(systems[2].handle, handles[1]);
  EXPECT_EQ(systems[1].log_determinant, 4);
  EXPECT_EQ(systems[2].log_determinant, 5);
  EXPECT_EQ((*found)->held_bytes, plan_->factor_bytes());
  EXPECT_EQ((*found)->pins[2]->data(), (*cache_.Peek("alice", handles[1]))->data());
  EXPECT_EQ(cache_.EvictableBytes(), 0);  // found: not evicted until it was answered
}

TEST_F(FactorizationCacheKeysTest, FindingIsAUse) {
  const std::vector<Handle> keyed = cache_.Insert("alice", MakeSome(2), Keyed(2));
  const Handle other = Insert();
  clock_.Advance(absl::Seconds(3));
  EXPECT_EQ(Find(2), keyed);
  EXPECT_EQ(cache_.Get("alice", keyed[0])->idle, absl::ZeroDuration());
  EXPECT_EQ(cache_.Get("alice", keyed[1])->idle, absl::ZeroDuration());
  EXPECT_EQ(EvictOneOf({keyed[0], keyed[1], other}), 2);
}

TEST_F(FactorizationCacheKeysTest, ARefusalIsNeitherAUseNorAPromise) {
  const Handle handle = cache_.Insert("alice", MakeSome(1), Keyed(1))[0];
  clock_.Advance(absl::Seconds(3));
  Cache::KeyRequest wanted = Request(1);
  wanted.pin = true;
  wanted.lease = absl::Minutes(1);
  Cache::KeyRequest wrong = wanted;
  wrong.systems = 2;
  EXPECT_EQ(FieldOf(cache_.FindKey("alice", "k", wrong).status()), "options.idempotency_key");
  wrong = wanted;
  wrong.shape.chain.scalar = Scalar::kFloat32;
  EXPECT_EQ(FieldOf(cache_.FindKey("alice", "k", wrong).status()), "options.idempotency_key");
  wrong = wanted;
  wrong.keep_matrix = true;
  EXPECT_EQ(FieldOf(cache_.FindKey("alice", "k", wrong).status()), "options.keep_matrix");
  const auto stats = cache_.Get("alice", handle);
  EXPECT_EQ(stats->idle, absl::Seconds(3));
  EXPECT_EQ(stats->lease_left, absl::ZeroDuration());
  EXPECT_FALSE(stats->pinned);
  ASSERT_TRUE(cache_.FindKey("alice", "k", wanted).ok());
  EXPECT_EQ(cache_.Get("alice", handle)->lease_left, absl::Minutes(1));
  EXPECT_TRUE(cache_.Get("alice", handle)->pinned);
  EXPECT_EQ(cache_.totals().pinned, 1);
}

TEST_F(FactorizationCacheKeysTest, AMatrixThatWasKeptIsThere) {
  cache_.Insert("alice", MakeSome(1, /*keep_matrix=*/true), Keyed(1));
  Cache::KeyRequest request = Request(1);
  request.keep_matrix = true;
  const auto found = cache_.FindKey("alice", "k", request);
  ASSERT_TRUE(found.ok() && found->has_value());
  EXPECT_GT((*found)->held_bytes, plan_->factor_bytes());
}

// `held_bytes` is the most of any system: a guaranteed accuracy keeps the matrices of some only.
TEST_F(FactorizationCacheKeysTest, OneMatrixOfTwoCounts) {
  std::vector<Holding> holdings = MakeSome(1, /*keep_matrix=*/true);
  holdings.push_back(Make());
  const int64_t larger = holdings[0].factorization->bytes();
  cache_.Insert("alice", std::move(holdings), Keyed(2));
  const auto found = cache_.FindKey("alice", "k", Request(2));
  ASSERT_TRUE(found.ok() && found->has_value());
  EXPECT_EQ((*found)->held_bytes, larger);
  Cache::KeyRequest request = Request(2);
  request.keep_matrix = true;
  EXPECT_EQ(FieldOf(cache_.FindKey("alice", "k", request).status()), "options.keep_matrix");
}

TEST_F(FactorizationCacheKeysTest, AKeyOfManyFindsAllOfThem) {
  const std::vector<Handle> handles = cache_.Insert("alice", MakeSome(300), Keyed(300));
  Cache::KeyRequest request = Request(300);
  request.pin = true;
  const auto found = cache_.FindKey("alice", "k", request);
  ASSERT_TRUE(found.ok() && found->has_value());
  for (size_t i = 0; i < handles.size(); ++i) {
    EXPECT_EQ((*found)->systems[i].handle, handles[i]);
    EXPECT_EQ((*found)->pins[i]->data(), (*cache_.Peek("alice", handles[i]))->data());
  }
  EXPECT_EQ(cache_.totals().pinned, 300);
}

// They are filed in portions: whoever lists them knows the first before the last is there.
TEST_F(FactorizationCacheKeysTest, AKeyFindsNothingOfWhichAPartEndedBeforeItWasComplete) {
  std::atomic<bool> over = false;
  std::atomic<int> released = 0;
  std::thread releaser([&] {
    while (!over) {
      for (const auto& stats : cache_.List("alice", std::nullopt, 1)) {
        released += cache_.Release("alice", {&stats.handle, 1}).ok();
      }
    }
  });
  for (int round = 0; round < 200 || released == 0; ++round) {
    const std::vector<Handle> handles = cache_.Insert("alice", MakeSome(130), Keyed(130));
    const auto found = cache_.FindKey("alice", "k", Request(130));
    ASSERT_TRUE(found.ok()) << found.status();
    if (found->has_value()) {
      for (size_t i = 0; i < handles.size(); ++i) {
        EXPECT_EQ((*found)->systems[i].handle, handles[i]);
        EXPECT_EQ((*found)->pins[i]->bytes(), plan_->factor_bytes());
      }
    }
    (void)cache_.Release("alice", handles);
    EXPECT_FALSE(cache_.FindKey("alice", "k", Request(130))->has_value());
  }
  over = true;
  releaser.join();
  EXPECT_EQ(cache_.totals().entries, 0);
  EXPECT_EQ(budget_.reserved(), 0);
}

}  // namespace
}  // namespace blockd::test
