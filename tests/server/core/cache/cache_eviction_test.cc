// Evictions against fragmentation: what could go, where it lies, and all of a choice or nothing.
#include <algorithm>
#include <atomic>
#include <span>
#include <thread>

#include "tests/server/core/cache/cache_fixture.h"

namespace blockd::test {
namespace {

using server::Handle;
using server::IdleObject;
using server::NotFoundReason;

class CacheEvictionTest : public CacheTest {
 protected:
  std::vector<Handle> InsertSome(int count) { return cache_.Insert("alice", MakeSome(count), {}); }
  double Evictions() const { return Metric("blockd_evictions_total{reason=\"fragmentation\"}"); }
};

TEST_F(CacheEvictionTest, OnlyWhatIsIdleIsOffered) {
  const Handle used = Insert();
  Insert("alice", {.pin = true});
  const Handle leased = Insert("alice", {.lease = absl::Minutes(1)});
  const Handle overwritten = Insert();
  const Handle idle = Insert("bob");
  auto pin = Peek("alice", used), writes = Peek("alice", overwritten);
  auto taken = cache_.BeginOverwrite(*writes);
  ASSERT_TRUE(taken != nullptr);
  std::vector<IdleObject> offered = cache_.IdleObjects(kTotal);
  ASSERT_EQ(offered.size(), 1u);
  EXPECT_EQ(offered[0].handle, idle);
  clock_.Advance(absl::Minutes(1));  // the lease is over
  offered = cache_.IdleObjects(kTotal);
  ASSERT_EQ(offered.size(), 2u);
  EXPECT_TRUE(std::any_of(offered.begin(), offered.end(),
                          [&](const IdleObject& one) { return one.handle == leased; }));
}

TEST_F(CacheEvictionTest, ItIsSaidWhereFactorAndMatrixLieAndHowOldTheirUseIs) {
  const Handle a = cache_.Insert("alice", MakeSome(1, /*keep_matrix=*/true), {})[0];
  Insert("bob");
  const auto offered = cache_.IdleObjects(static_cast<double>(charge()));
  ASSERT_EQ(offered.size(), 2u);
  for (const IdleObject& one : offered) {
    const bool is_a = one.handle == a;
    EXPECT_EQ(one.age, is_a ? 2 : 1);
    EXPECT_EQ(one.within_part, !is_a);
    EXPECT_EQ(one.pieces[0].bytes, charge());
    EXPECT_EQ(one.pieces[1].bytes > 0, is_a);
    if (!is_a) continue;
    auto pin = Peek("alice", a);
    EXPECT_EQ(one.pieces[0].data, (*pin)->data());
    EXPECT_EQ(one.pieces[1].data, (*pin)->matrix().data());
    EXPECT_EQ(one.pieces[0].bytes + one.pieces[1].bytes, budget_.reserved() - charge());
  }
}

// A border is memory of its own: what lies behind the factor is somebody else's.
TEST_F(CacheEvictionTest, ItIsSaidWhereABorderLies) {
  constexpr int64_t kBorderRows = 3;
  DeviceBuffer buffer = *pool_.Allocate(Border::Bytes(plan_->shape(), kBorderRows));
  const DeviceBuffer others = *pool_.Allocate(4096);
  const auto kept = Make(false, Border(plan_->shape(), kBorderRows, 0, std::move(buffer)));
  const Factorization& held = *kept->factorization();
  const auto* const factor = static_cast<const std::byte*>(held.data());
  const std::byte* const border = held.border().columns();
  const int64_t border_bytes = held.border().bytes();
  cache_.Insert("alice", {kept}, {});
  const auto offered = cache_.IdleObjects(kTotal);
  ASSERT_EQ(offered.size(), 1u);
  const auto& pieces = offered[0].pieces;
  EXPECT_EQ(pieces[0].data, factor);
  EXPECT_EQ(pieces[0].bytes, charge());
  EXPECT_EQ(pieces[1].bytes, 0);
  EXPECT_EQ(pieces[2].data, border);
  EXPECT_EQ(pieces[2].bytes, MemoryPool::Rounded(border_bytes));
}

TEST_F(CacheEvictionTest, AllOfManyAreOfferedAndEvicted) {
  InsertSome(200);
  const auto offered = cache_.IdleObjects(kTotal);
  EXPECT_EQ(offered.size(), 200u);
  budget_.Free(cache_.EvictChosen(offered));
  EXPECT_EQ(cache_.totals().entries, 0);
  EXPECT_EQ(budget_.reserved(), 0);
  EXPECT_EQ(pool_.stats().used_bytes, 0);
  EXPECT_EQ(Evictions(), 200);
}

TEST_F(CacheEvictionTest, NothingGoesIfOneOfThemIsUsedMeanwhile) {
  for (const int count : {3, 200}) {
    const std::vector<Handle> handles = InsertSome(count);
    const auto offered = cache_.IdleObjects(kTotal);
    {
      const auto pin = Lookup("alice", offered.back().handle);
      EXPECT_TRUE(cache_.EvictChosen(offered).empty());
    }
    EXPECT_EQ(cache_.totals().entries, count);
    budget_.Free(cache_.EvictChosen(offered));  // a use that is over does not matter
    EXPECT_EQ(cache_.totals().entries, 0);
  }
}

TEST_F(CacheEvictionTest, NothingGoesIfOneOfThemIsGonePinnedOrElsewhereMeanwhile) {
  const auto change = [this](int how, const Handle& handle) {
    if (how == 0) return cache_.Release("alice", {&handle, 1}).status();
    Cache::EntryOptions options;
    options.pin = how == 1;
    if (how == 2) options.lease = absl::Hours(1);
    return cache_.Replace("alice", handle, Make(), options);
  };
  for (int how = 0; how < 4; ++how) {
    InsertSome(3);
    const auto offered = cache_.IdleObjects(kTotal);
    ASSERT_TRUE(change(how, offered[1].handle).ok());
    const int64_t entries = cache_.totals().entries;
    EXPECT_TRUE(cache_.EvictChosen(offered).empty()) << how;
    EXPECT_EQ(cache_.totals().entries, entries);
    std::vector<Handle> missing, all;
    for (const IdleObject& one : offered) all.push_back(one.handle);
    cache_.EvictHandles(all, &missing);
  }
  EXPECT_EQ(Evictions(), 0);
}

TEST_F(CacheEvictionTest, WhatOthersUseStaysWhileMuchIsEvicted) {
  constexpr int kEntries = 400;
  const std::vector<Handle> handles = InsertSome(kEntries);
  std::atomic<bool> stop = false;
  std::vector<std::thread> users;
  for (size_t user = 0; user < 2; ++user) {
    users.emplace_back([&, user] {
      for (size_t i = user; !stop; i += 7) {
        const Handle& handle = handles[i % handles.size()];
        const auto pin = Lookup("alice", handle);
        if (!pin.ok()) continue;
        // It is held as long as it is in use: nobody evicts it now.
        EXPECT_TRUE(cache_.Get("alice", handle).ok());
      }
    });
  }
  size_t evicted = 0;
  for (int round = 0; round < 1000 && evicted < kEntries / 2; ++round) {
    const std::vector<IdleObject> offered = cache_.IdleObjects(kTotal);
    const size_t count = std::min<size_t>(offered.size(), 1 + round % 90);
    std::vector<server::Evicted> gone = cache_.EvictChosen(std::span(offered).first(count));
    evicted += gone.size();
    budget_.Free(std::move(gone));
  }
  stop = true;
  for (std::thread& user : users) user.join();
  EXPECT_GT(evicted, 0u);
  EXPECT_EQ(cache_.totals().entries, kEntries - static_cast<int64_t>(evicted));
  EXPECT_EQ(budget_.reserved(), cache_.totals().entries * charge());
  EXPECT_EQ(pool_.stats().used_bytes, budget_.reserved());
}

}  // namespace
}  // namespace blockd::test
