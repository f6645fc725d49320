// The two tracks of a Solver: what waits for what, and how the CPU's factorizations make way.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "engine/cpu/threads/pending_solves.h"
#include "tests/engine/solver_fixture.h"
#include "tests/support/eventually.h"
#include "tests/support/gated_cpu.h"

namespace blockd::test {
namespace {

class TracksTest : public ::testing::Test {
 protected:
  Columns Solve() { return MustSolve(solver_, factorization_, rhs_, 1); }
  // Both have one column and no residual.
  absl::Status SolveOn(Track track) {
    Columns x = rhs_;
    SolveItem item{.factorization = factorization_, .rhs = x.data(), .solution = x.data()};
    return solver_.Solve({&item, 1}, nullptr, track)[0].status;
  }

  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  const std::shared_ptr<Gate> solve_gate_ = std::make_shared<Gate>();
  Solver solver_{
      GatedCpu({.memory_bytes = int64_t{64} << 20, .cpu_threads = 2}, gate_, solve_gate_)};
  const HostMatrix matrix_{problems::Mpc(20, 8, 1), Scalar::kFloat64};
  const Columns rhs_{problems::RandomColumns(160, 1, 1), Scalar::kFloat64};
  const std::shared_ptr<Factorization> factorization_ = MustFactor(solver_, matrix_);
};

TEST_F(TracksTest, ASolveEndsWhileAFactorizationIsHeld) {
  const Columns expected = Solve();
  gate_->Close();
  std::thread held([this] { EXPECT_NE(MustFactor(solver_, matrix_), nullptr); });
  gate_->WaitForDevice();
  EXPECT_EQ(Solve(), expected);
  EXPECT_TRUE(solver_.LogDeterminant(*factorization_).ok());
  absl::StatusOr<StagedMatrix> staged = solver_.Stage(matrix_.form());
  ASSERT_TRUE(staged.ok());
  std::vector<std::byte> bytes(64);
  EXPECT_TRUE(solver_.Write(*staged, 0, bytes).ok());
  EXPECT_TRUE(solver_.Read(*staged, 0, std::span(bytes)).ok());
  gate_->Open();
  held.join();
}

// The first level is held: the inverse is cancelled behind it, and nothing is left of it.
TEST_F(TracksTest, ASolveEndsWhileAnInverseIsHeldWhichIsCancelledBetweenLevels) {
  const auto factorization = MustFactor(solver_, matrix_, Cut(matrix_.shape(), {5, 2}));
  const int64_t used = solver_.backend().pool().stats().used_bytes;
  const Columns expected = Solve();
  std::atomic<bool> cancelled = false;
  InverseItem item{.factorization = factorization, .num_blocks = 20, .cancelled = &cancelled};
  std::vector<double> blocks(20 * 64);
  gate_->CloseAfter(1);
  std::thread held([&] {
    EXPECT_EQ(solver_.SelectedInverse(item, {blocks.data()}).code(), absl::StatusCode::kCancelled);
  });
  gate_->WaitForDevice();
  EXPECT_EQ(Solve(), expected);
  SampleItem sample{.factorization = factorization_};
  std::vector<double> x(160);
  EXPECT_TRUE(solver_.Sample(sample, x.data()).ok());
  cancelled = true;
  gate_->Open();
  held.join();
  EXPECT_EQ(solver_.backend().pool().stats().used_bytes, used);
}

// Whatever fails, and whenever, memory comes back and the next call is well.
TEST_F(TracksTest, AnInverseThatFailsLeavesNothingBehind) {
  const auto factorization = MustFactor(solver_, matrix_, Cut(matrix_.shape(), {5, 2}));
  const int64_t used = solver_.backend().pool().stats().used_bytes;
  const InverseItem item{.factorization = factorization, .num_blocks = 20};
  int64_t failures = 0;
  for (int64_t steps = 0;; ++steps) {
    gate_->FailAfter(steps);
    const absl::StatusOr<InverseBlocks> blocks = solver_.SelectedInverseOnDevice(item);
    if (!gate_->failed()) {
      EXPECT_TRUE(blocks.ok()) << blocks.status();
      break;
    }
    ++failures;
    EXPECT_EQ(blocks.status().code(), absl::StatusCode::kInternal);
    EXPECT_EQ(solver_.backend().pool().stats().used_bytes, used);
  }
  EXPECT_EQ(failures, 4);  // three levels, and the end of the track
  for (int64_t times = 0; times < 2; ++times) {
    gate_->EmptyPoolAfter(times);
    EXPECT_EQ(solver_.SelectedInverseOnDevice(item).status().code(),
              absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(solver_.backend().pool().stats().used_bytes, used);
  }
}

TEST_F(TracksTest, AFactorizationEndsWhileASolveIsHeld) {
  solve_gate_->Close();
  std::thread held([this] { EXPECT_TRUE(SolveOn(Track::kSolve).ok()); });
  solve_gate_->WaitForDevice();
  EXPECT_NE(MustFactor(solver_, matrix_), nullptr);
  EXPECT_TRUE(SolveOn(Track::kFactor).ok());
  solve_gate_->Open();
  held.join();
}

TEST_F(TracksTest, ASolveOnTheTrackOfFactorizationsStandsBehindThem) {
  gate_->Close();
  std::atomic<bool> factored = false;
  std::thread held([&] {
    EXPECT_NE(MustFactor(solver_, matrix_), nullptr);
    factored = true;
  });
  gate_->WaitForDevice();
  std::thread solve([&] { EXPECT_TRUE(SolveOn(Track::kFactor).ok()); });
  EXPECT_TRUE(SolveOn(Track::kSolve).ok());
  EXPECT_FALSE(factored);
  gate_->Open();
  held.join();
  solve.join();
}

class PendingSolvesTest : public ::testing::Test {
 protected:
  static constexpr int kThreads = 4;
  static constexpr auto kNoEnd = std::chrono::hours(1);

  // The thread of this number, at the end of a task, begins the next one after `end`, not before.
  template <typename End>
  void ExpectWaits(int32_t thread, const End& end) {
    std::atomic<bool> ended = false;
    std::thread factorization([&] {
      solves_.MakeWay(thread);
      EXPECT_TRUE(ended);
    });
    EXPECT_TRUE(Eventually([&] { return solves_.pausing() == 1; }));
    ended = true;
    end();
    factorization.join();
  }

  // Between a thread and the end of its pause only what the test does.
  std::atomic<int32_t> working_ = kThreads;
  cpu::PendingSolves solves_{kThreads, working_, {kNoEnd, std::chrono::seconds(0)}};
};

TEST_F(PendingSolvesTest, AThreadBeginsItsNextTaskOnceNoCallerWaits) {
  for (int32_t thread : {0, 3}) {  // any thread may be the one
    solves_.MakeWay(thread);       // nobody waits
    solves_.Count(2);
    solves_.Count(-1);
    ExpectWaits(thread, [&] { solves_.Count(-1); });
    solves_.MakeWay(thread);
  }
}

TEST_F(PendingSolvesTest, OneThreadMakesWayForTheCallers) {
  solves_.Count(2);
  ExpectWaits(1, [&] {
    for (int32_t thread : {0, 2, 3}) solves_.MakeWay(thread);
    EXPECT_EQ(solves_.pausing(), 1);
    solves_.Count(-2);
  });
}

TEST_F(PendingSolvesTest, AsManyThreadsMakeWayAsTheSolveHas) {
  solves_.Count(1);
  std::optional<cpu::PendingSolves::Running> running(std::in_place, &solves_, 2);
  std::thread first([&] { solves_.MakeWay(0); }), second([&] { solves_.MakeWay(1); });
  EXPECT_TRUE(Eventually([&] { return solves_.pausing() == 2; }));
  for (int32_t thread : {2, 3}) solves_.MakeWay(thread);
  running.reset();  // one of them goes on, the other waits for the caller's answer
  EXPECT_TRUE(Eventually([&] { return solves_.pausing() == 1; }));
  solves_.Count(-1);
  first.join();
  second.join();
  const cpu::PendingSolves::Running none(nullptr, kThreads);
  solves_.MakeWay(0);
}

TEST_F(PendingSolvesTest, AThreadWithoutATaskIsFreeForSolves) {
  working_ = kThreads - 1;
  solves_.Count(1);
  solves_.MakeWay(0);
  const cpu::PendingSolves::Running running(&solves_, 2);
  ExpectWaits(1, [&] {
    solves_.MakeWay(0);
    working_ = kThreads - 2;
    solves_.Count(-1);
  });
}

TEST_F(PendingSolvesTest, OneOfSeveralThreadsLingersAfterTheLastSolve) {
  working_ = 2;
  cpu::PendingSolves solves(2, working_, {kNoEnd, kNoEnd});
  const std::atomic<int32_t> one_works = 1;
  cpu::PendingSolves alone(1, one_works, {kNoEnd, kNoEnd});
  solves.MakeWay(0);  // there was no solve yet
  for (cpu::PendingSolves* one : {&solves, &alone}) {
    one->Count(1);
    one->Count(-1);
  }
  std::atomic<bool> ended = false;
  std::thread lingers([&] {
    solves.MakeWay(1);
    EXPECT_TRUE(ended);
  });
  EXPECT_TRUE(Eventually([&] { return solves.pausing() == 1; }));
  solves.MakeWay(0);
  alone.MakeWay(0);
  ended = true;
  working_ = 1;  // the other one has no task any more
  solves.Count(1);
  solves.Count(-1);
  lingers.join();
}

TEST_F(PendingSolvesTest, ThreadsTakeTurnsWhileSolvesKeepComing) {
  working_ = 2;
  cpu::PendingSolves solves(2, working_, {std::chrono::milliseconds(2), kNoEnd});
  solves.Count(1);
  std::atomic<bool> stop = false;
  std::atomic<int> tasks[2] = {};
  const auto factor = [&](int32_t thread) {
    for (; !stop; ++tasks[thread]) solves.MakeWay(thread);
  };
  std::thread first(factor, 0), second(factor, 1);
  for (int turn = 0; turn < 5; ++turn) {
    for (std::atomic<int>& done : tasks) {
      const int before = done;
      EXPECT_LE(solves.pausing(), 1);
      EXPECT_TRUE(Eventually([&] { return done > before + 1; }));
    }
  }
  stop = true;
  first.join();
  second.join();
}

TEST_F(PendingSolvesTest, SolvesWithoutEndDoNotStopAFactorization) {
  working_ = 1;
  cpu::PendingSolves solves(1, working_, {std::chrono::milliseconds(1), {}});
  solves.Count(1);
  for (int task = 0; task < 100; ++task) solves.MakeWay(0);
  solves.Count(-1);
}

}  // namespace
}  // namespace blockd::test
