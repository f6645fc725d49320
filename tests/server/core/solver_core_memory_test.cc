// Memory: refused before bytes come, evicted in order, never exceeded, whole again after
// fragmentation.
#include <algorithm>

#include "tests/server/core/core_fixture.h"

namespace blockd::test {
namespace {

using server::FactorParams;
using server::Handle;
using server::NotFoundReason;

class SolverCoreMemoryTest : public CoreTest {
 protected:
  // Room for `count` factorizations of system_ and the work on one of them.
  void StartWithRoomFor(int count) {
    Start();
    const int64_t charge = Charge(system_.form.shape);
    Stop();
    Start({.memory_bytes = count * charge + charge / 2});
  }
  bool IsHeld(const Handle& handle) { return core_->Get("alice", handle).ok(); }
  NotFoundReason WhyNot(const Handle& handle) {
    return ReasonOf(core_->Get("alice", handle).status());
  }

  const TestSystem system_{64, 16};
};

TEST_F(SolverCoreMemoryTest, HoldsWhatItChargesToTheByte) {
  Start();
  const Handle handle = Held(system_);
  EXPECT_EQ(Reserved(), Charge(system_.form.shape));
  EXPECT_EQ(core_->memory().evictable_bytes, Reserved());
  EXPECT_EQ(core_->memory().free_bytes, core_->memory().total_bytes - Reserved());
  const int64_t held_bytes = core_->Get("alice", handle)->held_bytes;
  EXPECT_EQ(MemoryPool::Rounded(held_bytes), Charge(system_.form.shape));
  EXPECT_EQ(*core_->Release("alice", {&handle, 1}), held_bytes);
  EXPECT_EQ(Reserved(), 0);
}

TEST_F(SolverCoreMemoryTest, EvictsTheLeastRecentlyUsedUnderPressure) {
  StartWithRoomFor(3);
  const Handle a = Held(system_), b = Held(system_), c = Held(system_);
  ASSERT_TRUE(SolveStatus(a, system_.form.shape).ok());
  const Handle d = Held(system_);
  EXPECT_EQ(WhyNot(b), NotFoundReason::kEvicted);
  EXPECT_TRUE(IsHeld(a) && IsHeld(c) && IsHeld(d));
  EXPECT_EQ(Metric("blockd_evictions_total{reason=\"memory\"}"), 1);
}

TEST_F(SolverCoreMemoryTest, PinnedLeasedAndUsedEntriesSurvivePressure) {
  StartWithRoomFor(3);
  FactorParams pinned, leased;
  pinned.pin = true;
  leased.lease = absl::Minutes(1);
  const Handle a = Held(system_, pinned), b = Held(system_, leased), c = Held(system_);
  for (int i = 0; i < 3; ++i) Held(system_);  // each takes the place of the one before
  EXPECT_TRUE(IsHeld(a) && IsHeld(b));
  EXPECT_EQ(WhyNot(c), NotFoundReason::kEvicted);
  const Handle last = Held(system_, pinned);
  const absl::Status refused = Factor({system_})->Wait().status();
  const auto detail = server::InsufficientMemoryOf(refused);
  ASSERT_TRUE(detail.has_value()) << refused;
  EXPECT_EQ(detail->evictable_bytes, 0);
  EXPECT_GT(detail->asked_bytes, detail->free_bytes);
  EXPECT_EQ(detail->total_bytes, core_->memory().total_bytes);
  EXPECT_FALSE(server::RetryAfterOf(refused).has_value());  // waiting would not help
  EXPECT_TRUE(IsHeld(a) && IsHeld(b) && IsHeld(last));
  clock_.Advance(absl::Minutes(1));  // the lease is over
  EXPECT_TRUE(Factor({system_})->Wait().ok());
  EXPECT_EQ(WhyNot(b), NotFoundReason::kEvicted);
}

TEST_F(SolverCoreMemoryTest, AnEntryWithQueuedSolvesIsNotEvicted) {
  StartWithRoomFor(2);
  const Handle used = Held(system_);
  PendingFactor holder = HoldDevice();
  PendingSolve solve = Solve(used, system_.form.shape);
  PendingFactor second = Factor({system_});
  PendingFactor third = Factor({system_});
  gate_->Open();
  EXPECT_TRUE(absl::IsResourceExhausted(third->Wait().status()));
  ExpectSolves(system_, *solve);
  EXPECT_TRUE(second->Wait().ok());
  EXPECT_TRUE(IsHeld(used));
}

TEST_F(SolverCoreMemoryTest, WorkUnderWayMayLeaveNoRoomUntilItIsOver) {
  Start();
  const Handle held = Held(system_);
  // Uploads that take all there is.
  FactorParams params;
  params.num_systems = 1;
  auto context = std::make_shared<server::RequestContext>();
  std::vector<std::unique_ptr<server::FactorUpload>> uploads;
  for (int64_t blocks = 4096; blocks >= 1; blocks /= 2) {
    params.form = TestSystem(blocks, 4).form;
    for (;;) {
      auto begun = core_->BeginUpload(context, params, {}, {});
      if (!begun.ok()) break;
      auto upload = std::get<std::unique_ptr<server::FactorUpload>>(*std::move(begun));
      ASSERT_TRUE(upload->Write(FirstPart(*upload)).ok());
      uploads.push_back(std::move(upload));
    }
  }
  // The idle factorization was evicted for the uploads; memory of work under way is not evicted.
  EXPECT_EQ(WhyNot(held), NotFoundReason::kEvicted);
  const absl::Status refused = Factor({system_})->Wait().status();
  const auto detail = server::InsufficientMemoryOf(refused);
  ASSERT_TRUE(detail.has_value()) << refused;
  EXPECT_LT(detail->free_bytes, detail->asked_bytes);
  EXPECT_LT(detail->asked_bytes, detail->total_bytes);
  EXPECT_EQ(detail->evictable_bytes, 0);
  EXPECT_TRUE(server::RetryAfterOf(refused).has_value());  // it fits once they are over
  uploads.clear();
  EXPECT_TRUE(Factor({system_})->Wait().ok());
}

TEST_F(SolverCoreMemoryTest, RefusesBeforeTheFirstByteAndEvictsNothingInVain) {
  StartWithRoomFor(2);
  const Handle held = Held(system_);
  FactorParams params;
  params.form = TestSystem(640, 16).form;
  params.num_systems = 1;
  auto context = std::make_shared<server::RequestContext>();
  const auto refused = core_->BeginUpload(context, params, {}, {});
  EXPECT_TRUE(server::InsufficientMemoryOf(refused.status()).has_value()) << refused.status();
  // A system that no machine holds is refused without making its plan.
  params.form.shape = {int64_t{1} << 25, 1 << 15, Scalar::kFloat64};
  EXPECT_TRUE(server::InsufficientMemoryOf(core_->BeginUpload(context, params, {}, {}).status())
                  .has_value());
  EXPECT_TRUE(IsHeld(held));
}

TEST_F(SolverCoreMemoryTest, ABatchWhoseWorkspaceDoesNotFitRunsInPieces) {
  StartWithRoomFor(1);
  FactorParams pinned;
  pinned.pin = true;
  const Handle handle = Held(system_, pinned);
  const int64_t free_bytes = core_->memory().free_bytes;
  const int64_t rhs_bytes = system_.form.shape.rows() * 8;
  const int64_t columns = free_bytes / rhs_bytes / 3;  // two fit together, four do not
  ASSERT_GT(columns, 1);
  gate_->Close();
  PendingSolve holder = Solve(handle, system_.form.shape);
  gate_->WaitForDevice();
  std::vector<PendingSolve> solves;
  for (int i = 0; i < 8; ++i) solves.push_back(Solve(handle, system_.form.shape, columns));
  gate_->Open();
  for (PendingSolve& solve : solves) {
    ExpectSolves(system_, *solve);
    EXPECT_GE(solve->Wait()->cost.batch_requests, 2);
    EXPECT_LT(solve->Wait()->cost.batch_requests, 4);
  }
  // One that cannot fit even alone is solved for some columns after others.
  PendingSolve large = Solve(handle, system_.form.shape, 2 * free_bytes / rhs_bytes);
  ExpectSolves(system_, *large);
  EXPECT_EQ(large->Wait()->cost.batch_requests, 1);
}

TEST_F(SolverCoreMemoryTest, AFragmentedPoolIsMadeWholeByEviction) {
  StartWithRoomFor(8);
  std::vector<Handle> handles;
  const TestSystem half(32, 16);
  for (int i = 0; i < 16; ++i) handles.push_back(Held(half));
  // Every second one goes: plenty is free, but in pieces of half of what is asked for.
  for (size_t i = 0; i < handles.size(); i += 2) {
    ASSERT_TRUE(core_->Release("alice", {&handles[i], 1}).ok());
  }
  const TestSystem large(128, 16);
  ASSERT_GT(core_->memory().free_bytes, Charge(large.form.shape));
  ASSERT_LT(core_->memory().pool.largest_free_bytes, Charge(large.form.shape));
  const Handle handle = Held(large);
  PendingSolve solve = Solve(handle, large.form.shape);
  ExpectSolves(large, *solve);
  EXPECT_GT(Metric("blockd_evictions_total{reason=\"fragmentation\"}"), 0);
  EXPECT_LT(Metric("blockd_evictions_total{reason=\"fragmentation\"}"), 8);  // no more than needed
  EXPECT_EQ(Metric("blockd_evictions_total{reason=\"memory\"}"), 0);
}

// Nothing may be evicted: what the budget has room for is refused as any other lack of memory is.
TEST_F(SolverCoreMemoryTest, APoolInPiecesIsALackOfMemory) {
  StartWithRoomFor(8);
  FactorParams pinned;
  pinned.pin = true;
  std::vector<Handle> handles;
  const TestSystem half(32, 16);
  for (int i = 0; i < 16; ++i) handles.push_back(Held(half, pinned));
  for (size_t i = 0; i < handles.size(); i += 2) {
    ASSERT_TRUE(core_->Release("alice", {&handles[i], 1}).ok());
  }
  const TestSystem large(128, 16);
  ASSERT_GT(core_->memory().free_bytes, Charge(large.form.shape));
  ASSERT_LT(core_->memory().pool.largest_free_bytes, Charge(large.form.shape));
  for (const absl::Status& status :
       {Factor({large})->Wait().status(), FactorSolve(large)->Wait().status()}) {
    const auto detail = server::InsufficientMemoryOf(status);
    ASSERT_TRUE(detail.has_value()) << status;
    EXPECT_GT(detail->asked_bytes, core_->memory().pool.largest_free_bytes);
    EXPECT_EQ(detail->evictable_bytes, 0);
    EXPECT_TRUE(server::RetryAfterOf(status).has_value());
  }
}

// Between what is pinned there is nowhere room enough, whatever is evicted: so nothing is.
TEST_F(SolverCoreMemoryTest, APoolThatCannotBeMadeWholeEvictsNothing) {
  StartWithRoomFor(8);
  FactorParams pinned;
  pinned.pin = true;
  std::vector<Handle> handles, idle;
  const TestSystem half(32, 16);
  for (int i = 0; i < 16; ++i) handles.push_back(Held(half, i % 4 == 1 ? pinned : FactorParams()));
  for (size_t i = 0; i < handles.size(); i += 2) {
    ASSERT_TRUE(core_->Release("alice", {&handles[i], 1}).ok());
    if (i % 4 == 2) idle.push_back(handles[i + 1]);
  }
  const TestSystem large(128, 16), fits(80, 16);
  ASSERT_GT(core_->memory().free_bytes, Charge(large.form.shape));
  const absl::Status refused = Factor({large})->Wait().status();
  const auto detail = server::InsufficientMemoryOf(refused);
  ASSERT_TRUE(detail.has_value()) << refused;
  EXPECT_EQ(detail->evictable_bytes, 4 * Charge(half.form.shape));
  for (const Handle& handle : idle) EXPECT_TRUE(IsHeld(handle));
  EXPECT_EQ(Metric("blockd_evictions_total{reason=\"fragmentation\"}"), 0);
  Held(fits);  // in the place of one of them
  EXPECT_EQ(Metric("blockd_evictions_total{reason=\"fragmentation\"}"), 1);
  EXPECT_EQ(
      std::count_if(idle.begin(), idle.end(), [this](auto& handle) { return IsHeld(handle); }), 3);
}

TEST_F(SolverCoreMemoryTest, IdleFactorizationsExpireWithoutTraffic) {
  Start({.limits = {.idle_expiry = absl::Seconds(8)}});
  FactorParams pinned;
  pinned.pin = true;
  const Handle idle = Held(system_), kept = Held(system_, pinned);
  clock_.Advance(absl::Seconds(7));
  const Handle young = Held(system_);
  EXPECT_TRUE(IsHeld(idle));
  // The sweep runs on a thread of its own, which may begin late. It comes four times in the time
  // after which they expire: long before the young one is old.
  clock_.Advance(absl::Seconds(3));
  RepeatUntil([&] { return !IsHeld(idle); }, [&] { clock_.Advance(absl::Milliseconds(10)); });
  EXPECT_EQ(WhyNot(idle), NotFoundReason::kExpired);
  EXPECT_TRUE(IsHeld(kept));
  EXPECT_TRUE(IsHeld(young));
  RepeatUntil([&] { return Reserved() == 2 * Charge(system_.form.shape); }, [] {});
}

TEST_F(SolverCoreMemoryTest, TheDefaultLeaseIsThatOfCallsWithoutOne) {
  Start({.limits = {.default_lease = absl::Minutes(1)}});
  FactorParams shorter;
  shorter.lease = absl::Seconds(10);
  const Handle usual = Held(system_), brief = Held(system_, shorter);
  EXPECT_EQ(core_->Get("alice", usual)->lease_left, absl::Minutes(1));
  EXPECT_EQ(core_->Get("alice", brief)->lease_left, absl::Seconds(10));
  EXPECT_EQ(core_->memory().evictable_bytes, 0);
  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(core_->memory().evictable_bytes, Charge(system_.form.shape));
  clock_.Advance(absl::Seconds(50));
  EXPECT_EQ(core_->memory().evictable_bytes, 2 * Charge(system_.form.shape));
}

TEST_F(SolverCoreMemoryTest, TheLongestLeaseIsAccepted) {
  Start({.limits = {.max_lease = absl::Minutes(5)}});
  FactorParams params;
  params.lease = absl::Minutes(5);
  EXPECT_EQ(core_->Get("alice", Held(system_, params))->lease_left, absl::Minutes(5));
}

// A solve needs less than the budget has free, in one piece that the pool has not: it goes in
// parts, and takes nobody's factorization.
TEST_F(SolverCoreMemoryTest, ASolveInAFragmentedPoolGoesInParts) {
  StartWithRoomFor(8);
  std::vector<Handle> handles;
  const TestSystem half(32, 16);
  for (int i = 0; i < 16; ++i) handles.push_back(Held(half));
  for (size_t i = 0; i < handles.size(); i += 2) {
    ASSERT_TRUE(core_->Release("alice", {&handles[i], 1}).ok());
  }
  const int64_t column = half.form.shape.rows() * 8;
  const int64_t columns = core_->memory().pool.largest_free_bytes / column + 10;
  ASSERT_GT(core_->memory().free_bytes, 2 * columns * column);
  PendingSolve solve = Solve(handles[15], half.form.shape, columns);
  ExpectSolves(half, *solve);
  EXPECT_EQ(Metric("blockd_evictions_total{reason=\"fragmentation\"}"), 0);
  EXPECT_EQ(Metric("blockd_evictions_total{reason=\"memory\"}"), 0);
}

TEST_F(SolverCoreMemoryTest, AnUploadInAFragmentedPoolMakesRoomForItself) {
  StartWithRoomFor(8);
  std::vector<Handle> handles;
  const TestSystem half(32, 16), large(60, 16);
  for (int i = 0; i < 16; ++i) handles.push_back(Held(half));
  for (size_t i = 0; i < handles.size(); i += 2) {
    ASSERT_TRUE(core_->Release("alice", {&handles[i], 1}).ok());
  }
  FactorParams params;
  params.form = large.form;
  params.num_systems = 1;
  ASSERT_LT(core_->memory().pool.largest_free_bytes, large.form.bytes());
  Pending<server::FactorReply> pending;
  pending.context->caller = "alice";
  auto begun = core_->BeginUpload(pending.context, params, {}, {});
  ASSERT_TRUE(begun.ok()) << begun.status();
  auto upload = std::get<std::unique_ptr<server::FactorUpload>>(*std::move(begun));
  ASSERT_TRUE(upload->Write(large.bytes()).ok());
  core_->FinishUpload(std::move(upload), pending.Callback());
  ASSERT_TRUE(pending.Wait().ok()) << pending.Wait().status();
  PendingSolve solve = Solve(pending.Wait()->systems[0].handle, large.form.shape);
  ExpectSolves(large, *solve);
  EXPECT_GT(Metric("blockd_evictions_total{reason=\"fragmentation\"}"), 0);
}

TEST_F(SolverCoreMemoryTest, ASolveThatFitsNoOtherWayGoesInPartsWithTheSameBits) {
  StartWithRoomFor(2);
  const Handle handle = Held(system_), idle = Held(system_);
  const int64_t column = system_.form.shape.rows() * 8;
  const int64_t columns = Charge(system_.form.shape) / column;
  PendingSolve in_parts = Solve(handle, system_.form.shape, columns, {.rhs_seed = 3});
  ExpectSolves(system_, *in_parts);
  EXPECT_TRUE(IsHeld(idle));
  ASSERT_TRUE(core_->Release("alice", {&idle, 1}).ok());
  PendingSolve whole = Solve(handle, system_.form.shape, columns, {.rhs_seed = 3});
  ExpectSolves(system_, *whole);
  EXPECT_EQ(in_parts->solution, whole->solution);
}

// Nothing is free, and nothing may be evicted: what Solves need is kept for them.
TEST_F(SolverCoreMemoryTest, PinsLeaveSolvesTheirReserve) {
  const int64_t reserve = 64 << 10;
  Start({.memory_bytes = 1 << 20, .solve_reserve_bytes = reserve});
  FactorParams pinned;
  pinned.pin = true;
  const TestSystem tiny(1, 1);
  const Handle mine = Held(system_, pinned);
  for (;;) {
    PendingFactor more = Factor({tiny}, pinned, {.caller = "mallory"});
    if (!more->Wait().ok()) break;
  }
  EXPECT_LT(core_->memory().free_bytes, 4096);
  EXPECT_EQ(core_->memory().evictable_bytes, 0);
  for (const int64_t columns : {1, 3, 40}) {
    PendingSolve solve = Solve(mine, system_.form.shape, columns);
    ExpectSolves(system_, *solve);
  }
  EXPECT_EQ(Metric("blockd_solve_reserve_bytes"), static_cast<double>(reserve));
}

TEST_F(SolverCoreMemoryTest, AFactorSolveKeepsNothing) {
  Start();
  PendingSolve solve = FactorSolve(system_, 5, {}, /*residual=*/true);
  ExpectSolves(system_, *solve);
  EXPECT_LT(solve->Wait()->backward_error.value_or(1), 1e-14);
  EXPECT_TRUE(solve->Wait()->log_determinant.has_value());
  EXPECT_EQ(Reserved(), 0);
  PendingSolve bad = FactorSolve(system_.Spoiled(5));
  EXPECT_TRUE(server::NotSpdOf(bad->Wait().status()).has_value());
  EXPECT_EQ(Reserved(), 0);
}

}  // namespace
}  // namespace blockd::test
