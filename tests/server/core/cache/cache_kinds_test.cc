// The cache keeps objects of any kind side by side, and gives each to those that ask for its kind.
#include <any>
#include <array>
#include <string_view>

#include "tests/server/core/cache/cache_fixture.h"

namespace blockd::test {
namespace {

using server::Handle;

// A kind that no server has.
class FakeModel final : public server::KeptObject {
 public:
  FakeModel(server::Reservation reservation, DeviceBuffer memory, int states)
      : KeptObject(std::move(reservation)), memory_(std::move(memory)), states_(states) {}
  std::string_view kind() const override { return "model"; }
  int64_t bytes() const override { return memory_.bytes(); }
  std::array<FreePiece, 3> pieces() const override {
    return {FreePiece{memory_.data(), MemoryPool::Rounded(memory_.bytes())}};
  }
  std::any Describe() const override { return states_; }

 private:
  DeviceBuffer memory_;
  const int states_;
};

class ModelPin : public server::Cache::Pin {
 public:
  static constexpr std::string_view kKind = "model";
  explicit ModelPin(Pin&& pin) : Pin(std::move(pin)) {}
};

class CacheKindsTest : public CacheTest {
 protected:
  server::KeptObjectPtr MakeModel(int64_t bytes, int states = 7) {
    return std::make_shared<FakeModel>(*budget_.Reserve(nullptr, MemoryPool::Rounded(bytes)),
                                       *pool_.Allocate(bytes), states);
  }
  Handle InsertModel(int64_t bytes, const Cache::EntryOptions& options = {}) {
    return cache_.Insert("alice", {MakeModel(bytes)}, options)[0];
  }
};

TEST_F(CacheKindsTest, AHandleIsOfOneKind) {
  const Handle model = InsertModel(1000), factorization = Insert();
  EXPECT_TRUE(cache_.Lookup<ModelPin>("alice", model).ok());
  EXPECT_TRUE(Lookup("alice", factorization).ok());
  const absl::Status other = Lookup("alice", model).status();
  EXPECT_EQ(FieldOf(other), "handle");
  EXPECT_NE(other.message().find("model"), std::string::npos) << other;
  EXPECT_NE(other.message().find("factorization"), std::string::npos) << other;
  EXPECT_EQ(FieldOf(cache_.Lookup<ModelPin>("alice", factorization).status()), "handle");
  EXPECT_TRUE(absl::IsNotFound(cache_.Lookup<ModelPin>("bob", factorization).status()));
  EXPECT_EQ(cache_.EvictableBytes(), budget_.reserved());  // the refusals have pinned nothing
}

TEST_F(CacheKindsTest, TheLeastRecentlyUsedGoesWhicheverItIs) {
  const Handle a = InsertModel(1000), b = Insert(), c = InsertModel(5000), d = Insert();
  ASSERT_TRUE(cache_.Lookup<ModelPin>("alice", a).ok());
  for (const Handle& next : {b, c, d, a}) {
    EXPECT_TRUE(cache_.Get("alice", next).ok());
    budget_.Free(EvictOldest());
    EXPECT_FALSE(cache_.Get("alice", next).ok());
  }
  EXPECT_EQ(budget_.reserved(), 0);
  EXPECT_EQ(pool_.stats().used_bytes, 0);
}

TEST_F(CacheKindsTest, PinsLeasesAndReleasesAreThoseOfAnyKind) {
  const Handle pinned = InsertModel(1000, {.pin = true});
  const Handle leased = InsertModel(1000, {.lease = absl::Minutes(1)});
  EXPECT_TRUE(EvictOldest().empty());
  EXPECT_EQ(cache_.totals().pinned, 1);
  EXPECT_EQ(cache_.totals().bytes, 2000);
  clock_.Advance(absl::Minutes(1));
  budget_.Free(EvictOldest());
  EXPECT_EQ(WhyNot(leased), server::NotFoundReason::kEvicted);
  EXPECT_EQ(*cache_.Release("alice", {&pinned, 1}), 1000);
  EXPECT_EQ(pool_.stats().used_bytes, 0);
}

TEST_F(CacheKindsTest, ItIsDescribedAsItsKindDoes) {
  const Handle handle = InsertModel(1000);
  EXPECT_EQ(std::any_cast<int>(cache_.Get("alice", handle)->details), 7);
  auto pin = cache_.Lookup<ModelPin>("alice", handle);
  server::KeptObjectPtr taken = cache_.BeginOverwrite(*pin);
  ASSERT_TRUE(taken != nullptr);
  EXPECT_EQ(std::any_cast<int>(cache_.Get("alice", handle)->details), 7);  // until it is another
  ASSERT_TRUE(cache_.Replace("alice", handle, MakeModel(2000, 8), {}).ok());
  EXPECT_EQ(std::any_cast<int>(cache_.Get("alice", handle)->details), 8);
  EXPECT_EQ(cache_.Get("alice", handle)->held_bytes, 2000);
}

TEST_F(CacheKindsTest, FragmentsOfAnyKindAreOfferedWhereTheyLie) {
  const Handle model = InsertModel(5000);
  Insert();
  std::vector<server::IdleObject> offered = cache_.IdleObjects(kTotal);
  ASSERT_EQ(offered.size(), 2u);
  std::erase_if(offered, [&](const auto& one) { return one.handle != model; });
  ASSERT_EQ(offered.size(), 1u);
  EXPECT_EQ(offered[0].pieces[0].bytes, MemoryPool::Rounded(5000));
  budget_.Free(cache_.EvictChosen(offered));
  EXPECT_EQ(WhyNot(model), server::NotFoundReason::kEvicted);
  EXPECT_EQ(cache_.totals().entries, 1);
}

}  // namespace
}  // namespace blockd::test
