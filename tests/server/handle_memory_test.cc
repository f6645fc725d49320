// How much of the host a handle takes: its system may have 256 bytes on the device, and there may
// be as many handles as the device has room for.
#include <vector>

#include "tests/server/factorization_cache_fixture.h"
#include "tests/support/heap_hook.h"

namespace blockd::test {
namespace {

constexpr int kHandles = 20'000;
constexpr int64_t kMostBytes = 600;  // beside the plan, which equal shapes share

class HandleMemoryTest : public FactorizationCacheTest {
 protected:
  // With the allocator's own. Handles of a caller, made in calls of `batch` systems.
  double BytesOfAHandle(int batch, const Cache::EntryOptions& options) {
    server::Budget budget({.total = kBytes}), handles({.total = kHandles}),
        pinned({.total = kBytes});
    MemoryPool pool(reinterpret_cast<void*>(0x10000), kBytes);
    Cache cache({}, kServer, &clock_, &metrics_);
    const HeapCount heap;
    for (int at = 0; at < kHandles; at += batch) {
      std::vector<server::Holding> holdings(batch);
      for (server::Holding& holding : holdings) {
        holding.reservation = *budget.Reserve(nullptr, charge());
        holding.factorization = std::make_shared<Factorization>(
            plan_, *pool.Allocate(plan_->factor_bytes()), StagedMatrix(), Conditioning());
      }
      Cache::EntryGrants grants{*handles.Reserve(nullptr, batch), {}};
      if (options.pin) grants.pinned = *pinned.Reserve(nullptr, batch * charge());
      cache.Insert("alice", std::move(holdings), options, std::move(grants));
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

}  // namespace
}  // namespace blockd::test
