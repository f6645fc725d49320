// The factorizations that a shared server loses because its pool is in pieces: a model of its
// callers, without a device. The steps are the same each time, but for earlier losses.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/core/cache/cache.h"
#include "server/core/cache/eviction_plan.h"
#include "tests/server/base/fake_clock.h"
#include "tests/server/core/core_fixture.h"

namespace blockd::test {
namespace {

using server::Handle;
using server::Reservation;

// The policy of evictions if there is enough room, but not in one piece.
enum class Policy {
  kOldest,    // the least recently used go, one after the other, until all lies in one piece
  kCheapest,  // those of the cheapest places go
  kNever,     // it does not happen: the pool is so large that only the budget ends
};

struct Counts {
  int64_t memory = 0, fragmentation = 0;  // factorizations that were evicted
  int64_t memory_bytes = 0, fragmentation_bytes = 0;
  int64_t missed = 0;  // lookups of what was evicted
  int64_t refused = 0;
  double used = 0;  // of the pool, on average
};

class Model {
 public:
  Model(Policy policy, bool large_uploads)
      : policy_(policy),
        large_uploads_(large_uploads),
        pool_(reinterpret_cast<void*>(0x10000), policy == Policy::kNever ? 8 * kBytes : kBytes) {
    budget_.set_evictor(&cache_);
    const std::pair<int64_t, int64_t> shapes[] = {{1, 1},   {3, 5},   {16, 4},  {32, 8},
                                                  {64, 16}, {20, 32}, {256, 32}};
    // A device with many lanes: its plans have workspace.
    const CostModel costs{.lanes = 132,
                          .lane_flops_per_second = 2e11,
                          .device_flops_per_second = 2.5e13,
                          .half_rate_block_size = 64,
                          .bytes_per_second = 4e12,
                          .step_seconds = 2e-6,
                          .level_seconds = 5e-6};
    for (const auto& [num_blocks, n] : shapes) {
      plans_.push_back(std::make_shared<const EliminationPlan>(
          *EliminationPlan::Make({num_blocks, n, Scalar::kFloat64}, 1, costs)));
    }
  }

  Counts Run() {
    for (int i = 0; i < kSteps; ++i) Step();
    counts_.used /= kSteps;
    return counts_;
  }

 private:
  static constexpr int kSteps = 40'000, kCallers = 8;
  static constexpr int64_t kBytes = 20 << 20;
  static constexpr size_t kMostHeld = 12, kLarge = 6;  // of a caller; of the shapes

  struct Work {
    DeviceBuffer factor, chains, matrix;
  };
  struct Upload {
    DeviceBuffer staged;
    Reservation room;
  };

  size_t Below(size_t n) { return random_() % n; }
  static std::string NameOf(size_t caller) { return "caller " + std::to_string(caller / 2); }

  void Step() {
    counts_.used += static_cast<double>(pool_.stats().used_bytes) / kBytes;
    const size_t caller = Below(kCallers), what = Below(100);
    std::vector<Handle>& held = held_[caller];
    if (what < 2) return uploads_.size() < 2 ? BeginUpload() : EndUpload();
    if (what < 16 || held.empty()) return Factor(caller, plans_[Below(kLarge)]);
    const size_t which = std::min(Below(held.size()), Below(held.size()));  // some more than others
    if (what < 20) return Forget(caller, which, /*release=*/true);
    if (cache_.Lookup<server::FactorizationPin>(NameOf(caller), held[which]).ok()) return;
    ++counts_.missed;
    Forget(caller, which, /*release=*/false);
  }

  void Forget(size_t caller, size_t which, bool release) {
    std::vector<Handle>& held = held_[caller];
    if (release) (void)cache_.Release(NameOf(caller), {&held[which], 1});
    held.erase(held.begin() + static_cast<ptrdiff_t>(which));
  }

  static int64_t MatrixBytes(const EliminationPlan& plan) {
    MatrixForm form;
    form.shape = plan.shape();
    return StagedMatrix::BufferBytes(form);
  }
  // As Solver::FactorPieces.
  static std::vector<int64_t> PiecesOf(const EliminationPlan& plan, bool keep_matrix) {
    const int64_t n = plan.shape().block_size;
    std::vector<int64_t> pieces = {plan.factor_bytes(), plan.chain_scalars() * 8};
    if (keep_matrix) pieces.push_back(MatrixBytes(plan));
    pieces.push_back(4 * n * n * 8);
    return pieces;
  }
  static int64_t Sum(const std::vector<int64_t>& pieces) {
    int64_t sum = 0;
    for (const int64_t piece : pieces) sum += MemoryPool::Rounded(piece);
    return sum;
  }

  absl::StatusOr<Reservation> Reserve(int64_t bytes) {
    const Cache::Totals before = cache_.totals();
    absl::StatusOr<Reservation> room = budget_.Reserve(nullptr, bytes);
    counts_.memory += before.entries - cache_.totals().entries;
    counts_.memory_bytes += before.bytes - cache_.totals().bytes;
    counts_.refused += !room.ok();
    return room;
  }

  void MakeRoom(const std::vector<int64_t>& pieces) {
    const Cache::Totals before = cache_.totals();
    if (policy_ == Policy::kCheapest) {
      const auto idle = cache_.IdleObjects(kBytes / cache_.HoldersWeight());
      const auto chosen = server::PlanEviction(pool_.FreePieces(nullptr, SIZE_MAX), idle, pieces);
      if (chosen) budget_.Free(cache_.EvictChosen(*chosen));
    } else {
      do {
        budget_.Free(cache_.Evict(1, -1));
      } while (pool_.stats().largest_free_bytes < Sum(pieces) && cache_.EvictableBytes() > 0);
    }
    counts_.fragmentation += before.entries - cache_.totals().entries;
    counts_.fragmentation_bytes += before.bytes - cache_.totals().bytes;
  }

  bool Take(DeviceBuffer* buffer, int64_t bytes) {
    absl::StatusOr<DeviceBuffer> taken = pool_.Allocate(bytes);
    if (!taken.ok()) return false;
    *buffer = *std::move(taken);
    return true;
  }
  // As Solver::Factor; what has no factor then failed.
  void RunTogether(const EliminationPlan& plan, bool keep_matrix, std::span<Work> works) {
    for (Work& work : works) {
      if (Take(&work.factor, plan.factor_bytes()) && Take(&work.chains, PiecesOf(plan, false)[1]) &&
          (!keep_matrix || Take(&work.matrix, MatrixBytes(plan)))) {
        continue;
      }
      work = {};
    }
    DeviceBuffer scratch;
    const bool runs = Take(&scratch, PiecesOf(plan, false)[2]);
    for (Work& work : works) {
      work.chains.Reset();
      if (!runs) work = {};
    }
  }

  // One system, or two in a batch.
  void Factor(size_t caller, const std::shared_ptr<const EliminationPlan>& shared_plan) {
    const EliminationPlan& plan = *shared_plan;
    std::vector<Work> works(1 + Below(4) / 3);
    const bool keep = Below(10) < 3;
    const std::vector<int64_t> pieces = PiecesOf(plan, keep);
    const int64_t charge = Sum({plan.factor_bytes(), keep ? MatrixBytes(plan) : 0});
    absl::StatusOr<Reservation> room = Reserve(std::ssize(works) * Sum(pieces));
    if (!room.ok()) return;
    RunTogether(plan, keep, works);
    for (Work& work : works) {
      if (work.factor) continue;
      MakeRoom(pieces);
      RunTogether(plan, keep, {&work, 1});
    }
    std::vector<server::KeptObjectPtr> made;
    for (Work& work : works) {
      counts_.refused += !work.factor;
      if (!work.factor) continue;
      MatrixForm form;
      form.shape = plan.shape();
      StagedMatrix matrix;
      if (keep) matrix = StagedMatrix(form, std::move(work.matrix));
      auto factorization = std::make_shared<Factorization>(shared_plan, std::move(work.factor),
                                                           std::move(matrix), Conditioning());
      made.push_back(std::make_shared<server::KeptFactorization>(room->Split(charge),
                                                                 std::move(factorization)));
    }
    for (const Handle& handle : cache_.Insert(NameOf(caller), std::move(made), {})) {
      held_[caller].push_back(handle);
    }
    // Half of what is too many is left to eviction.
    while (held_[caller].size() > kMostHeld) {
      Forget(caller, Below(held_[caller].size()), /*release=*/Below(2) == 0);
    }
  }

  void BeginUpload() {
    const size_t shape = large_uploads_ && uploads_.empty() ? kLarge : Below(kLarge);
    const int64_t bytes = MatrixBytes(*plans_[shape]);
    absl::StatusOr<Reservation> room = Reserve(MemoryPool::Rounded(bytes));
    if (!room.ok()) return;
    Upload upload{{}, *std::move(room)};
    if (!Take(&upload.staged, bytes)) {
      MakeRoom({bytes});
      counts_.refused += !Take(&upload.staged, bytes);
    }
    uploads_.push_back(std::move(upload));
  }
  void EndUpload() { uploads_.erase(uploads_.begin()); }

  using Cache = server::Cache;
  const Policy policy_;
  const bool large_uploads_;
  std::mt19937 random_{1};
  FakeClock clock_;
  server::Metrics metrics_{server::BuildInfo{}};
  std::vector<std::shared_ptr<const EliminationPlan>> plans_;
  MemoryPool pool_;
  server::Budget budget_{{.total = kBytes}};
  Cache cache_{{}, {"this", server::Epoch::Start("this")}, &clock_, &metrics_};
  std::array<std::vector<Handle>, kCallers> held_;
  std::vector<Upload> uploads_;
  Counts counts_;
};

Counts CountsOf(Policy policy, bool large_uploads) {
  static constexpr const char* kNames[] = {"oldest", "cheapest", "never"};
  const Counts counts = Model(policy, large_uploads).Run();
  std::printf(
      "%-8s evicted for memory %ld (%ld MiB), for fragmentation %ld (%ld MiB); missed %ld; "
      "%.0f%% in use\n",
      kNames[static_cast<int>(policy)], static_cast<long>(counts.memory),
      static_cast<long>(counts.memory_bytes >> 20), static_cast<long>(counts.fragmentation),
      static_cast<long>(counts.fragmentation_bytes >> 20), static_cast<long>(counts.missed),
      100 * counts.used);
  EXPECT_EQ(counts.refused, 0);
  return counts;
}

class FragmentationTest : public testing::TestWithParam<bool> {};

// oldest   evicted for memory 18 (1 MiB), for fragmentation 3133 (469 MiB); missed 885; 80% in use
// cheapest evicted for memory 1163 (31 MiB), for fragmentation 1649 (415 MiB); missed 463; 90% in
// use never    evicted for memory 2792 (408 MiB), for fragmentation 0 (0 MiB); missed 245; 94% in
// use
TEST_P(FragmentationTest, CostsLittleMoreThanTheMemoryThatIsThere) {
  const Counts oldest = CountsOf(Policy::kOldest, GetParam());
  const Counts cheapest = CountsOf(Policy::kCheapest, GetParam());
  const Counts never = CountsOf(Policy::kNever, GetParam());
  EXPECT_GT(oldest.fragmentation, 50 * oldest.memory);  // what there was to mend
  EXPECT_LT(cheapest.fragmentation, 2 * cheapest.memory);
  EXPECT_LT(cheapest.fragmentation + cheapest.memory, never.memory * 11 / 10);
  EXPECT_LT(cheapest.fragmentation_bytes + cheapest.memory_bytes, never.memory_bytes * 12 / 10);
  EXPECT_LT(cheapest.missed - never.missed, (oldest.missed - never.missed) / 2);
  EXPECT_GT(cheapest.used, oldest.used + 0.05);
}

INSTANTIATE_TEST_SUITE_P(LargeUploads, FragmentationTest, testing::Bool());

}  // namespace
}  // namespace blockd::test
