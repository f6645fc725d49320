// The cache: idempotency keys of what is held.
#include <any>
#include <atomic>
#include <optional>
#include <thread>

#include "absl/functional/function_ref.h"
#include "tests/server/core/cache/cache_fixture.h"

namespace blockd::test {
namespace {

using server::Handle;
using server::NotFoundReason;

class CacheKeysTest : public CacheTest {
 protected:
  using Found = absl::StatusOr<std::optional<Cache::Found>>;
  static Cache::EntryOptions Keyed() { return {.idempotency_key = "k", .answer = 42}; }
  static absl::Status Ok(const std::any& /*answer*/) { return absl::OkStatus(); }
  static absl::Status Kept(const server::KeptObject& /*object*/) { return absl::OkStatus(); }
  Found FindKey(const std::string& key = "k", const std::string& caller = "alice") {
    return cache_.FindKey(caller, key, {.check_answer = Ok, .check_object = Kept});
  }
  // The handles that the key finds; none if it finds nothing.
  std::vector<Handle> Find(const std::string& caller = "alice") {
    const Found found = FindKey("k", caller);
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() && found->has_value() ? (*found)->handles : std::vector<Handle>();
  }
};

TEST_F(CacheKeysTest, AKeyFindsItsHandlesUntilOneEnds) {
  for (const size_t ends : {0u, 1u}) {
    const std::vector<Handle> handles = cache_.Insert("alice", MakeSome(2), Keyed());
    EXPECT_EQ(Find(), handles);
    EXPECT_EQ(cache_.Get("alice", handles[0])->idempotency_key, "k");
    EXPECT_TRUE(Find("bob").empty());
    EXPECT_FALSE(FindKey("l")->has_value());
    ASSERT_TRUE(cache_.Release("alice", {&handles[ends], 1}).ok());
    EXPECT_TRUE(Find().empty());
    EXPECT_EQ(cache_.Get("alice", handles[1 - ends])->idempotency_key, "");
    ASSERT_TRUE(cache_.Release("alice", {&handles[1 - ends], 1}).ok());
  }
}

TEST_F(CacheKeysTest, AKeyEndsWithTheContent) {
  const Handle replaced = cache_.Insert("alice", MakeSome(1), Keyed())[0];
  ASSERT_TRUE(cache_.Replace("alice", replaced, Make(), {}).ok());
  EXPECT_TRUE(Find().empty());

  const Handle overwritten = cache_.Insert("alice", MakeSome(1), Keyed())[0];
  auto pin = Lookup("alice", overwritten);
  server::KeptObjectPtr taken = cache_.BeginOverwrite(*pin);
  ASSERT_TRUE(taken != nullptr);
  EXPECT_TRUE(Find().empty());
  EXPECT_EQ(cache_.Get("alice", overwritten)->idempotency_key, "");
  taken.reset();
  cache_.FailOverwrite(overwritten);

  const Handle evicted = cache_.Insert("alice", MakeSome(1), Keyed())[0];
  ASSERT_TRUE(cache_.Release("alice", {&replaced, 1}).ok());
  budget_.Free(EvictOldest());
  EXPECT_EQ(WhyNot(evicted), NotFoundReason::kEvicted);
  EXPECT_TRUE(Find().empty());
}

TEST_F(CacheKeysTest, TheLaterOfTwoHoldsTheKey) {
  const Handle first = cache_.Insert("alice", MakeSome(1), Keyed())[0];
  const Handle second = cache_.Insert("alice", MakeSome(1), Keyed())[0];
  EXPECT_EQ(Find(), std::vector<Handle>{second});
  EXPECT_EQ(cache_.Get("alice", first)->idempotency_key, "");
  ASSERT_TRUE(cache_.Release("alice", {&first, 1}).ok());
  EXPECT_EQ(Find(), std::vector<Handle>{second});
}

TEST_F(CacheKeysTest, TheAnswerIsFoundAndItsObjectsArePinned) {
  const std::vector<Handle> handles = cache_.Insert("alice", MakeSome(2), Keyed());
  const Found found = FindKey();
  ASSERT_TRUE(found.ok() && found->has_value());
  EXPECT_EQ(std::any_cast<int>((*found)->answer), 42);
  EXPECT_EQ((*found)->handles, handles);
  EXPECT_EQ(&(*found)->pins[1].object(), &cache_.Peek("alice", handles[1])->object());
  EXPECT_EQ(cache_.EvictableBytes(), 0);  // found: not evicted until it was answered
}

TEST_F(CacheKeysTest, FindingIsAUse) {
  const std::vector<Handle> keyed = cache_.Insert("alice", MakeSome(2), Keyed());
  const Handle other = Insert();
  clock_.Advance(absl::Seconds(3));
  EXPECT_EQ(Find(), keyed);
  EXPECT_EQ(cache_.Get("alice", keyed[0])->idle, absl::ZeroDuration());
  EXPECT_EQ(cache_.Get("alice", keyed[1])->idle, absl::ZeroDuration());
  EXPECT_EQ(EvictOneOf({keyed[0], keyed[1], other}), 2);
}

TEST_F(CacheKeysTest, ARefusalIsNeitherAUseNorAPromise) {
  const Handle handle = cache_.Insert("alice", MakeSome(1), Keyed())[0];
  clock_.Advance(absl::Seconds(3));
  const auto other_answer = [](const std::any&) { return absl::AbortedError("answer"); };
  const auto other_object = [](const server::KeptObject&) { return absl::AbortedError("object"); };
  using Answer = absl::FunctionRef<absl::Status(const std::any&)>;
  using Object = absl::FunctionRef<absl::Status(const server::KeptObject&)>;
  const auto find = [this](Answer check_answer, Object check_object) {
    return cache_.FindKey("alice", "k",
                          {.check_answer = check_answer,
                           .check_object = check_object,
                           .lease = absl::Minutes(1),
                           .pin = true});
  };
  EXPECT_EQ(find(other_answer, Kept).status().message(), "answer");
  EXPECT_EQ(find(Ok, other_object).status().message(), "object");
  const auto stats = cache_.Get("alice", handle);
  EXPECT_EQ(stats->idle, absl::Seconds(3));
  EXPECT_EQ(stats->lease_left, absl::ZeroDuration());
  EXPECT_FALSE(stats->pinned);
  ASSERT_TRUE(find(Ok, Kept).ok());
  EXPECT_EQ(cache_.Get("alice", handle)->lease_left, absl::Minutes(1));
  EXPECT_TRUE(cache_.Get("alice", handle)->pinned);
  EXPECT_EQ(cache_.totals().pinned, 1);
}

TEST_F(CacheKeysTest, EachObjectIsLookedAt) {
  std::vector<server::KeptObjectPtr> objects = MakeSome(1, /*keep_matrix=*/true);
  objects.push_back(Make());
  const int64_t smaller = objects[1]->bytes();
  cache_.Insert("alice", std::move(objects), Keyed());
  const auto larger = [&](const server::KeptObject& object) {
    return object.bytes() > smaller ? absl::OkStatus() : absl::AbortedError("too small");
  };
  EXPECT_TRUE(absl::IsAborted(
      cache_.FindKey("alice", "k", {.check_answer = Ok, .check_object = larger}).status()));
}

TEST_F(CacheKeysTest, AKeyOfManyFindsAllOfThem) {
  const std::vector<Handle> handles = cache_.Insert("alice", MakeSome(300), Keyed());
  const Found found =
      cache_.FindKey("alice", "k", {.check_answer = Ok, .check_object = Kept, .pin = true});
  ASSERT_TRUE(found.ok() && found->has_value());
  EXPECT_EQ((*found)->handles, handles);
  for (size_t i = 0; i < handles.size(); ++i) {
    EXPECT_EQ(&(*found)->pins[i].object(), &cache_.Peek("alice", handles[i])->object());
  }
  EXPECT_EQ(cache_.totals().pinned, 300);
}

// They are filed in portions: whoever lists them knows the first before the last is there.
TEST_F(CacheKeysTest, AKeyFindsNothingOfWhichAPartEndedBeforeItWasComplete) {
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
    const std::vector<Handle> handles = cache_.Insert("alice", MakeSome(130), Keyed());
    const Found found = FindKey();
    ASSERT_TRUE(found.ok()) << found.status();
    if (found->has_value()) {
      EXPECT_EQ((*found)->handles, handles);
      for (const Cache::Pin& pin : (*found)->pins) {
        EXPECT_EQ(pin.object().bytes(), plan_->factor_bytes());
      }
    }
    (void)cache_.Release("alice", handles);
    EXPECT_FALSE(FindKey()->has_value());
  }
  over = true;
  releaser.join();
  EXPECT_EQ(cache_.totals().entries, 0);
  EXPECT_EQ(budget_.reserved(), 0);
}

}  // namespace
}  // namespace blockd::test
