// The quota of what is pinned or leased, and calls that change how many bytes that is.
#include <algorithm>
#include <cmath>
#include <thread>

#include "tests/server/core/core_fixture.h"

namespace blockd::test {
namespace {

using server::FactorParams;
using server::Handle;
using server::Resource;

// A call that refactors.
struct Way {
  bool solves = false;  // a FactorSolve; else a Factor
  bool overwrite = false;
};

class SolverCorePinnedTest : public CoreTest {
 protected:
  static FactorParams Params(bool pin, bool keep_matrix = false, const std::string& key = "") {
    FactorParams params;
    params.pin = pin;
    params.keep_matrix = keep_matrix;
    params.idempotency_key = key;
    return params;
  }
  std::unique_ptr<Pending<server::FactorSolveReply>> FactorSolveOf(
      const Handle& handle, const server::FactorSolveOptions& options) {
    auto pending = std::make_unique<Pending<server::FactorSolveReply>>();
    pending->context->caller = "alice";
    pending->rhs = TestRhs(shape_, 1, 1);
    pending->solution.assign(pending->rhs.size(), 0);
    server::FactorSolveParams params;
    static_cast<server::FactorSolveOptions&>(params) = options;
    params.form = after_.form;
    params.matrices = {after_.view()};
    params.handles = {handle};
    params.solves = {{1, std::as_bytes(std::span(pending->rhs)),
                      std::as_writable_bytes(std::span(pending->solution))}};
    core_->FactorSolve(pending->context, std::move(params), pending->Callback());
    return pending;
  }
  static absl::Status StatusOf(Pending<server::FactorSolveReply>& pending) {
    const auto& reply = pending.Wait();
    return reply.ok() ? reply->systems[0].solve.status : reply.status();
  }
  static FactorParams RefactorOf(const Handle& handle, const server::FactorSolveOptions& options) {
    FactorParams params;
    params.handles = {handle};
    params.overwrite = options.overwrite;
    params.keep_matrix = options.keep_matrix;
    params.accuracy = options.accuracy;
    return params;
  }
  absl::Status Refactor(const Way& way, const Handle& handle,
                        server::FactorSolveOptions options = {}) {
    options.overwrite = way.overwrite;
    if (way.solves) return StatusOf(*FactorSolveOf(handle, options));
    return Factor({after_}, RefactorOf(handle, options))->Wait().status();
  }
  int64_t Pinned() { return Used(Resource::kPinnedBytes); }
  int64_t Device() { return Used(Resource::kDeviceBytes); }
  static void ExpectOver(const absl::Status& status) {
    const auto detail = server::QuotaExceededOf(status);
    ASSERT_TRUE(detail.has_value()) << status;
    EXPECT_EQ(detail->quota, "pinned_bytes");
  }
  void ForEachWay(const Setup& setup, absl::FunctionRef<void(const Way&)> test) {
    for (const Way way : {Way{false, false}, Way{false, true}, Way{true, false}, Way{true, true}}) {
      SCOPED_TRACE(testing::Message() << "solves " << way.solves << ", over " << way.overwrite);
      Start(setup);
      test(way);
      Stop();
    }
  }

  const TestSystem before_{24, 5, 1};
  TestSystem after_{24, 5, 2};
  const Shape shape_ = before_.form.shape;
};

TEST_F(SolverCorePinnedTest, AMatrixThatARefactorKeepsCounts) {
  ForEachWay({}, [this](const Way& way) {
    const Handle handle = Held(before_, Params(true));
    const int64_t without = Pinned();
    EXPECT_EQ(without, Device());
    SetQuotas({.pinned_bytes = without + without / 4});
    ExpectOver(Refactor(way, handle, {.keep_matrix = true}));
    EXPECT_EQ(Pinned(), without);
    ExpectSolves(before_, *Solve(handle, shape_));
    SetQuotas({.pinned_bytes = 4 * without});
    ASSERT_TRUE(Refactor(way, handle, {.keep_matrix = true}).ok());
    EXPECT_GT(Pinned(), without);
    EXPECT_EQ(Pinned(), Device());
    ExpectSolves(after_, *Solve(handle, shape_, 1, {}, /*residual=*/true));
    ASSERT_TRUE(Refactor(way, handle).ok());
    EXPECT_EQ(Pinned(), without);
  });
}

// Nor where the quota is used up, or is less by now.
TEST_F(SolverCorePinnedTest, ARefactorThatPinsNoMoreIsNotRefused) {
  Setup setup;
  setup.limits.default_lease = absl::Hours(1);
  ForEachWay(setup, [this](const Way& way) {
    for (const bool keep_matrix : {false, true}) {
      const Handle handle = Held(before_, Params(false, keep_matrix));
      const int64_t bytes = Pinned();
      EXPECT_EQ(bytes, Device());
      for (const int64_t quota : {bytes, bytes / 2}) {
        SetQuotas({.pinned_bytes = quota});
        const absl::Status status = Refactor(way, handle, {.keep_matrix = keep_matrix});
        EXPECT_TRUE(status.ok()) << status;
        EXPECT_EQ(Pinned(), bytes);
      }
      FactorParams pinned = RefactorOf(handle, {.keep_matrix = keep_matrix});
      pinned.pin = true;
      EXPECT_EQ(Held(before_, pinned), handle);
      EXPECT_EQ(Pinned(), bytes);
      SetQuotas({});
      ASSERT_TRUE(core_->Release("alice", {&handle, 1}).ok());
    }
  });
}

// The need to keep a matrix for the accuracy is known only once the matrix is factored.
TEST_F(SolverCorePinnedTest, AGuaranteeThatKeepsNoMatrixIsNotRefused) {
  Start();
  const Handle handle = Held(before_, Params(true));
  SetQuotas({.pinned_bytes = Pinned()});
  for (const bool solves : {false, true}) {
    const absl::Status status =
        Refactor({.solves = solves}, handle, {.accuracy = Accuracy::kGuaranteed});
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(Pinned(), Device());
}

// An overwrite is refused before the old factors are lost.
TEST_F(SolverCorePinnedTest, AMatrixThatAGuaranteeKeepsCounts) {
  // Blocks of [1 r; r 1] and ones, whose growth is 1 / sqrt(1 - r^2).
  std::fill(after_.coupling.begin(), after_.coupling.end(), 0.0);
  for (size_t i = 0; i < after_.diagonal.size(); ++i) {
    const size_t row = i % 5, column = i / 5 % 5;
    after_.diagonal[i] = row == column ? 1 : row == 1 && column == 0 ? std::sqrt(1 - 1e-6) : 0;
  }
  ForEachWay({}, [this](const Way& way) {
    const Handle handle = Held(before_, Params(true));
    const int64_t without = Pinned();
    SetQuotas({.pinned_bytes = without});
    ExpectOver(Refactor(way, handle, {.accuracy = Accuracy::kGuaranteed}));
    EXPECT_EQ(Pinned(), without);
    ExpectSolves(before_, *Solve(handle, shape_));
    SetQuotas({.pinned_bytes = 4 * without});
    const absl::Status status = Refactor(way, handle, {.accuracy = Accuracy::kGuaranteed});
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_GT(Pinned(), without);
    EXPECT_EQ(Pinned(), Device());
  });
}

TEST_F(SolverCorePinnedTest, APinThatARefactorBringsIsOfWhatItLeaves) {
  Start();
  const Handle handle = Held(before_, Params(false, true));
  EXPECT_EQ(Pinned(), 0);
  FactorParams params = RefactorOf(handle, {.keep_matrix = true});
  params.pin = true;
  SetQuotas({.pinned_bytes = Device() - 1});
  ExpectOver(Factor({after_}, params)->Wait().status());
  EXPECT_FALSE(core_->Get("alice", handle)->pinned);
  params.keep_matrix = false;
  Held(after_, params);
  EXPECT_TRUE(core_->Get("alice", handle)->pinned);
  EXPECT_EQ(Pinned(), Device());
}

TEST_F(SolverCorePinnedTest, APinThatIsAddedByItsKeyIsOfTheMatrixToo) {
  Start();
  FactorParams params = Params(false, true, "k");
  const Handle handle = Held(before_, params);
  params.pin = true;
  SetQuotas({.pinned_bytes = Device() - 1});
  ExpectOver(Factor({before_}, params)->Wait().status());
  EXPECT_EQ(Pinned(), 0);
  SetQuotas({.pinned_bytes = Device()});
  EXPECT_EQ(Held(before_, params), handle);
  EXPECT_EQ(Pinned(), Device());
}

// By the time that it would be in force what it leaves is pinned.
TEST_F(SolverCorePinnedTest, APinThatComesWhileARefactorWaitsIsOfWhatThatLeaves) {
  for (const bool overwrite : {false, true}) {
    for (const bool fits : {false, true}) {
      SCOPED_TRACE(testing::Message() << "over " << overwrite << ", fits " << fits);
      Start();
      FactorParams params = Params(false, false, "k");
      const Handle handle = Held(before_, params);
      const int64_t before = Device();
      PendingFactor holder = HoldDevice();
      auto refactor = FactorSolveOf(handle, {.overwrite = overwrite, .keep_matrix = true});
      SetQuotas({.pinned_bytes = fits ? 4 * before : before});
      params.pin = true;
      EXPECT_TRUE(Factor({before_}, params)->Wait()->found);
      EXPECT_EQ(Pinned(), before);
      gate_->Open();
      const absl::Status status = StatusOf(*refactor);
      EXPECT_EQ(Pinned(), Device());
      if (fits) {
        EXPECT_TRUE(status.ok()) << status;
        ExpectSolves(after_, *Solve(handle, shape_));
      } else {
        ExpectOver(status);
        if (overwrite) {
          EXPECT_EQ(ReasonOf(SolveStatus(handle, shape_)), server::NotFoundReason::kFailedRefactor);
        } else {
          ExpectSolves(before_, *Solve(handle, shape_));
        }
      }
      holder->Wait();
      Stop();
    }
  }
}

// A handle that an operator unpins stays unpinned.
TEST_F(SolverCorePinnedTest, ARefactorOfWhatWasUnpinnedTakesNoQuota) {
  Setup setup;
  setup.limits.default_lease = absl::Hours(1);
  ForEachWay(setup, [this](const Way& way) {
    const Handle handle = Held(before_, Params(true));
    std::vector<Handle> missing;
    EXPECT_EQ(core_->shards().UnpinHandles({&handle, 1}, &missing).handles, 1);
    SetQuotas({.pinned_bytes = 0});
    const absl::Status status = Refactor(way, handle, {.keep_matrix = true});
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(Pinned(), 0);
  });
}

TEST_F(SolverCorePinnedTest, WhateverComesAtOnceTheChargesAreOfWhatIsHeld) {
  Start();
  std::vector<Handle> handles;
  for (int i = 0; i < 3; ++i) handles.push_back(Held(before_, Params(true)));
  const int64_t quota = Pinned() * 3 / 2;  // one matrix more
  SetQuotas({.pinned_bytes = quota});
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (unsigned i = 0; i < 40; ++i) {
        const absl::Status status = StatusOf(
            *FactorSolveOf(handles[(thread + i) % 3], {.keep_matrix = i % 3 != thread % 3}));
        EXPECT_TRUE(status.ok() || server::QuotaExceededOf(status).has_value()) << status;
        EXPECT_LE(Pinned(), quota);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Pinned(), Device());
}

}  // namespace
}  // namespace blockd::test
