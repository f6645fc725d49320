// Which idle factorizations go where the pool is in pieces: a slab drawn as text.
#include "server/core/cache/eviction_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>

namespace blockd::test {
namespace {

using server::IdleObject;
using server::PlanEviction;
using ::testing::Optional;

constexpr int64_t kUnit = MemoryPool::kAlignment;
const std::byte* const kSlab = reinterpret_cast<const std::byte*>(int64_t{1} << 20);

// A unit of the slab a letter: '.' is free, '#' is in use or pinned, and each other letter is of
// the idle object of that name, which lies in one place or in two.
class Slab {
 public:
  explicit Slab(const std::string& drawn) {
    for (size_t begin = 0, end = 0; begin < drawn.size(); begin = end) {
      end = std::min(drawn.find_first_not_of(drawn[begin], begin), drawn.size());
      const FreePiece piece{kSlab + static_cast<int64_t>(begin) * kUnit,
                            static_cast<int64_t>(end - begin) * kUnit};
      if (drawn[begin] == '.') free_.push_back(piece);
      if (drawn[begin] != '.' && drawn[begin] != '#') Add(drawn[begin], piece);
    }
  }
  IdleObject& Of(char name) { return idle_[name]; }

  // Who goes, in the order of their names; nullopt: it does not fit.
  std::optional<std::string> Evicts(std::vector<int64_t> units) {
    std::vector<IdleObject> idle;
    for (const auto& [name, object] : idle_) idle.push_back(object);
    for (int64_t& unit : units) unit *= kUnit;
    const auto plan = PlanEviction(free_, idle, units);
    if (!plan) return std::nullopt;
    std::string going;
    for (const IdleObject& one : *plan) going += one.handle.bytes[0];
    return going;
  }

 private:
  void Add(char name, const FreePiece& piece) {
    IdleObject& object = idle_[name];
    object.handle = server::Handle::FromBytes(std::string(server::Handle::kBytes, name)).value();
    object.pieces[object.pieces[0].bytes > 0 ? 1 : 0] = piece;
  }

  std::vector<FreePiece> free_;
  std::map<char, IdleObject> idle_;
};

TEST(EvictionPlanTest, EvictsNothingForWhatFits) {
  EXPECT_THAT(Slab("aa....bb").Evicts({4}), Optional(std::string()));
  EXPECT_THAT(Slab("aa....bb").Evicts({1, 3}), Optional(std::string()));
  EXPECT_THAT(Slab("aaaa").Evicts({}), Optional(std::string()));
  EXPECT_THAT(Slab("####").Evicts({0}), Optional(std::string()));
}

TEST(EvictionPlanTest, EvictsNothingInVain) {
  EXPECT_EQ(Slab("aa##..bb").Evicts({5}), std::nullopt);
  EXPECT_EQ(Slab("#a#b#c#.").Evicts({2}), std::nullopt);
  EXPECT_EQ(Slab("########").Evicts({1}), std::nullopt);
  EXPECT_EQ(Slab("aa..bb##").Evicts({7}), std::nullopt);
  EXPECT_EQ(Slab("").Evicts({1}), std::nullopt);
  EXPECT_EQ(Slab("aa..##bb").Evicts({4, 2, 1}), std::nullopt);  // the third is too much
}

TEST(EvictionPlanTest, TakesTheFewestBytes) {
  EXPECT_THAT(Slab("aaa.b..c.ddd").Evicts({3}), Optional(std::string("b")));
  EXPECT_THAT(Slab("aaa.bb.c.ddd").Evicts({3}), Optional(std::string("c")));
  EXPECT_THAT(Slab("aabb#ccc").Evicts({3}), Optional(std::string("c")));
}

TEST(EvictionPlanTest, TakesWindowsAtTheEnds) {
  EXPECT_THAT(Slab("a.#bb#c#dd").Evicts({2}), Optional(std::string("a")));
  EXPECT_THAT(Slab("aa#bb#cc#.d").Evicts({2}), Optional(std::string("d")));
  EXPECT_THAT(Slab(".a.").Evicts({3}), Optional(std::string("a")));
  EXPECT_THAT(Slab("abcd").Evicts({4}), Optional(std::string("abcd")));
}

TEST(EvictionPlanTest, SpreadsOverFreeAndIdleOfACheckerboard) {
  EXPECT_THAT(Slab("#a.#.b#.c.#").Evicts({3}), Optional(std::string("c")));
  EXPECT_THAT(Slab("#a.b#c.d.e#").Evicts({5}), Optional(std::string("cde")));
  EXPECT_THAT(Slab("#.#.#ab#.#").Evicts({2}), Optional(std::string("ab")));
}

TEST(EvictionPlanTest, WhatWasNotUsedForLongGoesForMoreBytes) {
  Slab slab("aaaaaa#bbb");
  EXPECT_THAT(slab.Evicts({3}), Optional(std::string("b")));
  slab.Of('a').age = 3;
  EXPECT_THAT(slab.Evicts({3}), Optional(std::string("a")));
  slab.Of('b').age = 2;
  EXPECT_THAT(slab.Evicts({3}), Optional(std::string("b")));
}

TEST(EvictionPlanTest, WhoHasMoreThanItsPartLosesFirst) {
  Slab slab("aaaaaa#b");
  slab.Of('a').within_part = false;
  slab.Of('b').age = 1'000'000'000;
  EXPECT_THAT(slab.Evicts({1}), Optional(std::string("a")));
  slab.Of('b').within_part = false;
  EXPECT_THAT(slab.Evicts({1}), Optional(std::string("b")));
}

TEST(EvictionPlanTest, AnObjectInTwoPlacesIsLostOnceAndWhole) {
  // Its matrix lies elsewhere: 4 are lost with it, and 3 with b.
  EXPECT_THAT(Slab("aa#bbb#aa").Evicts({2}), Optional(std::string("b")));
  // Side by side it costs no more than it has.
  EXPECT_THAT(Slab("aa.aa#bbbbb").Evicts({5}), Optional(std::string("a")));
  // The object that is evicted for the first piece leaves room for the second.
  EXPECT_THAT(Slab("aaa#bb#aaa").Evicts({3, 3}), Optional(std::string("a")));
}

TEST(EvictionPlanTest, PlacesPiecesOneAfterTheOtherWhereTheFitIsBest) {
  EXPECT_THAT(Slab("...#..#a").Evicts({2, 3}), Optional(std::string()));
  EXPECT_THAT(Slab("...#..#a").Evicts({2, 3, 1}), Optional(std::string("a")));
  EXPECT_THAT(Slab("....#aa").Evicts({2, 2, 2}), Optional(std::string("a")));
  EXPECT_THAT(Slab("a.b#cc").Evicts({3, 2}), Optional(std::string("abc")));
}

// A piece that changed hands while the lists were made is in both of them.
TEST(EvictionPlanTest, PiecesInBothListsAreNotCountedTwice) {
  const FreePiece free[] = {{kSlab, 4 * kUnit}};
  IdleObject idle;
  idle.pieces[0] = {kSlab + 2 * kUnit, 2 * kUnit};
  const int64_t five[] = {5 * kUnit}, pieces[] = {3 * kUnit, kUnit};
  EXPECT_EQ(PlanEviction(free, {&idle, 1}, five), std::nullopt);
  EXPECT_EQ(PlanEviction(free, {&idle, 1}, pieces)->size(), 0u);
  idle.pieces[0] = {kSlab + 3 * kUnit, 3 * kUnit};
  EXPECT_EQ(PlanEviction(free, {&idle, 1}, five), std::nullopt);
}

// The cost of the cheapest window of objects in one place each, by trying all of them.
double CheapestByTrying(const std::string& drawn, int64_t units) {
  double best = -1;
  for (size_t first = 0; first + static_cast<size_t>(units) <= drawn.size(); ++first) {
    const std::string window = drawn.substr(first, static_cast<size_t>(units));
    double cost = 0;
    for (char name = 'a'; name <= 'z'; ++name) {
      if (window.find(name) == std::string::npos) continue;
      cost += static_cast<double>(std::count(drawn.begin(), drawn.end(), name));
    }
    if (window.find('#') == std::string::npos && (best < 0 || cost < best)) best = cost;
  }
  return best;
}

TEST(EvictionPlanTest, IsTheBestOfAllWindows) {
  std::mt19937 random(5);
  for (int round = 0; round < 3000; ++round) {
    std::string drawn;
    for (char name = 'a'; name < 'a' + 12; ++name) {
      const size_t kind = random() % 8;
      drawn += std::string(1 + random() % 4, kind == 0 ? '#' : kind < 4 ? '.' : name);
    }
    const auto units = static_cast<int64_t>(1 + random() % 12);
    const std::optional<std::string> going = Slab(drawn).Evicts({units});
    double cost = going ? 0 : -1;
    for (const char name : going.value_or("")) {
      cost += static_cast<double>(std::count(drawn.begin(), drawn.end(), name));
    }
    ASSERT_EQ(cost, CheapestByTrying(drawn, units)) << drawn << " for " << units;
  }
}

}  // namespace
}  // namespace blockd::test
