// How much of the host a handle takes: its system may have 256 bytes on the device, and there may
// be as many handles as the device has room for. And how much an upload.
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "tests/server/core/cache/cache_fixture.h"
#include "tests/server/core/core_fixture.h"
#include "tests/support/hooks/heap_hook.h"

namespace blockd::test {
namespace {

constexpr int kHandles = 20'000;
constexpr int64_t kMostBytes = 600;  // beside the plan, which equal shapes share

class HandleMemoryTest : public CacheTest {
 protected:
  // With the allocator's own. Handles of a caller, made in calls of `batch` systems.
  double BytesOfAHandle(int batch, const Cache::EntryOptions& options) {
    server::Budget budget({.total = kBytes}), handles({.total = kHandles}),
        pinned({.total = kBytes});
    MemoryPool pool(reinterpret_cast<void*>(0x10000), kBytes);
    Cache cache({}, kServer, &clock_, &metrics_);
    const HeapCount heap;
    for (int at = 0; at < kHandles; at += batch) {
      std::vector<server::KeptObjectPtr> made(batch);
      for (server::KeptObjectPtr& object : made) {
        object = std::make_shared<server::KeptFactorization>(
            *budget.Reserve(nullptr, charge()),
            std::make_shared<Factorization>(plan_, *pool.Allocate(plan_->factor_bytes()),
                                            StagedMatrix(), Conditioning()));
      }
      Cache::EntryGrants grants{*handles.Reserve(nullptr, batch), {}};
      if (options.pin) grants.pinned = *pinned.Reserve(nullptr, batch * charge());
      cache.Insert("alice", std::move(made), options, std::move(grants));
    }
    EXPECT_EQ(cache.totals().entries, kHandles);
    return static_cast<double>(heap.bytes()) / kHandles;
  }

  static constexpr int64_t kBytes = int64_t{1} << 30;
};

TEST_F(HandleMemoryTest, AHandleTakesLittleOfTheHost) {
  for (const int batch : {1, 4000}) {
    EXPECT_LE(BytesOfAHandle(batch, {}), kMostBytes) << batch;
    EXPECT_LE(BytesOfAHandle(batch, {.lease = absl::Hours(1)}), kMostBytes) << batch;
    EXPECT_LE(BytesOfAHandle(batch, {.pin = true}), kMostBytes) << batch;
  }
}

class UploadMemoryTest : public CoreTest {};

// The first part takes the memory that it is charged for, and gives it back with the charge.
TEST_F(UploadMemoryTest, AnUploadTakesItsFirstPartOfTheHostUntilTheDeviceHasIt) {
  Start();
  const TestSystem system(2000, 16);
  const std::vector<std::byte> bytes = system.bytes();
  const size_t first = bytes.size() / 64;
  // The most bytes of other allocations, which come and go.
  constexpr int64_t kSmall = 16 << 10;
  server::FactorParams params;
  params.form = system.form;
  params.num_systems = 1;
  const auto context = std::make_shared<server::RequestContext>();
  context->caller = "alice";
  auto begun = core_->BeginUpload(context, params, {}, {});
  ASSERT_TRUE(begun.ok()) << begun.status();
  auto& upload = *std::get<std::unique_ptr<server::FactorUpload>>(*begun);
  const HeapCount heap;
  constexpr size_t kChunk = 1500;
  size_t sent = 0;
  for (; sent + kChunk < first; sent += kChunk) {
    ASSERT_TRUE(upload.Write(std::span(bytes).subspan(sent, kChunk)).ok());
  }
  EXPECT_FALSE(upload.staged());
  EXPECT_GE(heap.bytes(), static_cast<int64_t>(sent));
  EXPECT_LE(heap.bytes(), static_cast<int64_t>(first) + kSmall);
  ASSERT_TRUE(upload.Write(std::span(bytes).subspan(sent, kChunk)).ok());
  EXPECT_TRUE(upload.staged());
  EXPECT_LE(heap.bytes(), kSmall);
}

}  // namespace
}  // namespace blockd::test
