// Threads that race on handles and on memory: nobody gets a wrong answer, nothing stays behind.
#include <atomic>
#include <thread>

#include "tests/server/core/core_fixture.h"

namespace blockd::test {
namespace {

using server::FactorParams;
using server::Handle;

class SolverCoreRaceTest : public CoreTest {
 protected:
  // An answer is right for one of the two matrices that race.
  void ExpectSolvesOneOf(const TestSystem& a, const TestSystem& b, Pending<Solved>& solve) {
    const double residual =
        std::min(a.Residual(solve.solution, solve.rhs), b.Residual(solve.solution, solve.rhs));
    EXPECT_LT(residual, 1e-12);
  }
  // A call of its own, since the fixture's keep their matrices in one list.
  absl::StatusOr<server::FactorReply> FactorOne(const TestSystem& system,
                                                const FactorParams& params) {
    Pending<server::FactorReply> pending;
    pending.context->caller = "alice";
    FactorParams own = params;
    own.form = system.form;
    core_->Factor(pending.context, own, {system.view()}, pending.Callback());
    return pending.Wait();
  }
};

TEST_F(SolverCoreRaceTest, SolveRefactorAndReleaseOnOneHandle) {
  const TestSystem a(10, 4, 0), b(10, 4, 60);
  {
    Start();
    for (int round = 0; round < 20; ++round) {
      const Handle handle = Held(a);
      std::thread solver([&] {
        for (int i = 0; i < 20; ++i) {
          PendingSolve solve = Solve(handle, a.form.shape);
          const absl::Status status = solve->Wait().status();
          if (status.ok()) {
            ExpectSolvesOneOf(a, b, *solve);
          } else {
            EXPECT_TRUE(absl::IsNotFound(status) || absl::IsUnavailable(status)) << status;
          }
        }
      });
      std::thread refactorer([&] {
        for (int i = 0; i < 6; ++i) {
          FactorParams params;
          params.handles = {handle};
          params.overwrite = i % 2 == 1;
          const absl::Status status = FactorOne(i % 3 == 0 ? b : a, params).status();
          EXPECT_TRUE(status.ok() || absl::IsNotFound(status)) << status;
        }
      });
      std::thread releaser([&] {
        for (int i = 0; i < round; ++i) std::this_thread::yield();
        if (round % 2 == 0) {
          EXPECT_TRUE(core_->Release("alice", {&handle, 1}).ok());
        }
      });
      solver.join();
      refactorer.join();
      releaser.join();
      core_->Release("alice", {&handle, 1}).IgnoreError();
    }
    EXPECT_EQ(core_->memory().factorizations, 0);
    Stop();
  }
}

TEST_F(SolverCoreRaceTest, ManyCallersUnderMemoryPressureNeverExceedTheBudget) {
  const TestSystem system(24, 8);
  Start();
  const int64_t charge = Charge(system.form.shape);
  Stop();
  Start({.memory_bytes = 6 * charge});
  FactorParams pinned;
  pinned.pin = true;
  const Handle kept = Held(system, pinned);
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) {
        FactorParams params;
        if (i % 5 == 0) params.lease = absl::Milliseconds(1);
        const auto reply = FactorOne(system, params);
        if (!reply.ok()) {
          EXPECT_TRUE(absl::IsResourceExhausted(reply.status())) << reply.status();
          clock_.Advance(absl::Milliseconds(1));
          continue;
        }
        const Handle handle = reply->systems[0].handle;
        PendingSolve solve = Solve(handle, system.form.shape, 1 + t);
        if (solve->Wait().ok()) {
          EXPECT_LT(system.Residual(solve->solution, solve->rhs), 1e-12);
        }
        if (i % 3 == 0) core_->Release("alice", {&handle, 1}).IgnoreError();
        if (Reserved() > core_->memory().total_bytes) over = true;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(over);
  PendingSolve solve = Solve(kept, system.form.shape);
  ExpectSolves(system, *solve);
  EXPECT_LE(Metric("blockd_budget_peak_reserved_bytes"), Metric("blockd_budget_bytes"));
  EXPECT_LE(Metric("blockd_pool_peak_used_bytes"), Metric("blockd_pool_bytes"));
}

TEST_F(SolverCoreRaceTest, ConcurrentFactorsWithOneKeyMakeOneFactorization) {
  Start();
  const TestSystem system(10, 4);
  FactorParams params;
  params.idempotency_key = "k";
  std::vector<std::thread> threads;
  std::vector<Handle> handles(8);
  for (size_t t = 0; t < handles.size(); ++t) {
    threads.emplace_back([&, t] {
      const auto reply = FactorOne(system, params);
      ASSERT_TRUE(reply.ok()) << reply.status();
      handles[t] = reply->systems[0].handle;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Handle& handle : handles) EXPECT_EQ(handle, handles[0]);
  EXPECT_EQ(core_->memory().factorizations, 1);
  EXPECT_EQ(Metric("blockd_batch_items_sum{kind=\"factor\"}"), 1);
}

TEST_F(SolverCoreRaceTest, AbandonedUploadsAndScrapesRaceWithWork) {
  Start({.audit = false});
  const TestSystem system(16, 4);
  std::atomic<bool> stop{false};
  std::thread scraper([&] {
    while (!stop) metrics_->Text();
  });
  std::thread uploader([&] {
    for (int i = 0; i < 50; ++i) {
      FactorParams params;
      params.form = system.form;
      params.num_systems = 1;
      auto begun = core_->BeginUpload(std::make_shared<server::RequestContext>(), params, {}, {});
      ASSERT_TRUE(begun.ok()) << begun.status();
      auto upload = std::get<std::unique_ptr<server::FactorUpload>>(*std::move(begun));
      const std::vector<std::byte> bytes = system.bytes();
      ASSERT_TRUE(upload->Write(std::span(bytes).first(bytes.size() / 2)).ok());
    }
  });
  for (int i = 0; i < 50; ++i) {
    const auto reply = FactorOne(system, {});
    ASSERT_TRUE(reply.ok()) << reply.status();
    ASSERT_TRUE(core_->Release("alice", {&reply->systems[0].handle, 1}).ok());
  }
  uploader.join();
  stop = true;
  scraper.join();
  EXPECT_EQ(Reserved(), 0);
}

}  // namespace
}  // namespace blockd::test
