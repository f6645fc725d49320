// A Factor that arrives twice with its key factors once, and every reply is right for what its own
// call asked.
#include "tests/server/core/core_fixture.h"

namespace blockd::test {
namespace {

using server::FactorParams;
using server::Handle;

class SolverCoreIdempotencyTest : public CoreTest {
 protected:
  SolverCoreIdempotencyTest() {
    keyed_.idempotency_key = "content";
    keyed_with_log_.idempotency_key = "content";
    keyed_with_log_.log_determinant = true;
  }
  // One for each HoldDevice is the holder's.
  double Factored() const {
    return Metric("blockd_batch_items_sum{kind=\"factor\"}") - static_cast<double>(holds());
  }
  server::FactorizationStats Stats(const Handle& handle) {
    const auto stats = core_->Get("alice", handle);
    EXPECT_TRUE(stats.ok()) << stats.status();
    return stats.ok() ? *stats : server::FactorizationStats();
  }
  // Runs `check` on a first and a second call: one after the other, then both at once, with a
  // device that is held until both have come.
  void InSequenceAndAtOnce(const std::vector<TestSystem>& systems, const FactorParams& first,
                           const std::vector<TestSystem>& again, const FactorParams& second,
                           const std::function<void(Pending<server::FactorReply>&,
                                                    Pending<server::FactorReply>&)>& check) {
    for (const bool at_once : {false, true}) {
      SCOPED_TRACE(at_once ? "at once" : "in sequence");
      Start(setup_);
      PendingFactor holder = HoldDevice();
      if (!at_once) gate_->Open();
      PendingFactor a = Factor(systems, first);
      if (!at_once) a->Wait();
      PendingFactor b = Factor(again, second);
      if (at_once) {
        EXPECT_FALSE(b->answered());
      }
      gate_->Open();
      a->Wait();
      b->Wait();
      check(*a, *b);
      Stop();
    }
  }

  Setup setup_;
  FactorParams keyed_, keyed_with_log_;
  const TestSystem system_{6, 3}, other_{6, 3, 1};
};

TEST_F(SolverCoreIdempotencyTest, ARepetitionFindsTheHandles) {
  InSequenceAndAtOnce({system_, other_}, keyed_with_log_, {system_, other_}, keyed_with_log_,
                      [&](auto& first, auto& second) {
                        ASSERT_TRUE(first.Wait().ok() && second.Wait().ok());
                        EXPECT_FALSE(first.Wait()->found);
                        EXPECT_TRUE(second.Wait()->found);
                        ASSERT_EQ(second.Wait()->systems.size(), 2u);
                        for (size_t i = 0; i < 2; ++i) {
                          EXPECT_EQ(second.Wait()->systems[i].handle,
                                    first.Wait()->systems[i].handle);
                          EXPECT_EQ(second.Wait()->systems[i].log_determinant,
                                    first.Wait()->systems[i].log_determinant);
                        }
                        EXPECT_EQ(second.Wait()->factor_bytes, first.Wait()->factor_bytes);
                        EXPECT_EQ(second.Wait()->cost.batch_requests, 0);
                        EXPECT_EQ(Factored(), 3);  // the holder's too
                        EXPECT_EQ(Metric("blockd_factorizations"), 3);
                      });
}

TEST_F(SolverCoreIdempotencyTest, ALogDeterminantThatOnlyTheSecondAsksForIsComputed) {
  InSequenceAndAtOnce({system_, other_}, keyed_, {system_, other_}, keyed_with_log_,
                      [&](auto& first, auto& second) {
                        ASSERT_TRUE(first.Wait().ok() && second.Wait().ok());
                        EXPECT_FALSE(first.Wait()->systems[0].log_determinant.has_value());
                        ASSERT_TRUE(second.Wait()->systems[0].log_determinant.has_value());
                        EXPECT_NEAR(*second.Wait()->systems[0].log_determinant,
                                    system_.LogDeterminant(), 1e-10);
                        EXPECT_NEAR(second.Wait()->systems[1].log_determinant.value_or(0),
                                    other_.LogDeterminant(), 1e-10);
                        EXPECT_EQ(Factored(), 3);
                      });
}

TEST_F(SolverCoreIdempotencyTest, ALogDeterminantThatOnlyTheFirstAskedForIsNotSaid) {
  InSequenceAndAtOnce({system_}, keyed_with_log_, {system_}, keyed_, [](auto& first, auto& second) {
    ASSERT_TRUE(first.Wait().ok() && second.Wait().ok());
    EXPECT_TRUE(first.Wait()->systems[0].log_determinant.has_value());
    EXPECT_FALSE(second.Wait()->systems[0].log_determinant.has_value());
  });
}

TEST_F(SolverCoreIdempotencyTest, AKeyOfAnotherShapeOrNumberIsRefused) {
  const std::vector<std::vector<TestSystem>> others = {
      {TestSystem(7, 3)}, {TestSystem(6, 4)}, {system_, system_}};
  for (const std::vector<TestSystem>& again : others) {
    InSequenceAndAtOnce({system_}, keyed_, again, keyed_, [&](auto& first, auto& second) {
      ASSERT_TRUE(first.Wait().ok());
      EXPECT_EQ(FieldOf(second.Wait().status()), "options.idempotency_key");
      EXPECT_EQ(Metric("blockd_factorizations"), 2);
    });
  }
}

TEST_F(SolverCoreIdempotencyTest, AMatrixThatWasNotKeptIsRefused) {
  FactorParams keeping = keyed_;
  keeping.keep_matrix = true;
  InSequenceAndAtOnce({system_}, keyed_, {system_}, keeping, [&](auto& first, auto& second) {
    ASSERT_TRUE(first.Wait().ok());
    EXPECT_EQ(FieldOf(second.Wait().status()), "options.keep_matrix");
    EXPECT_FALSE(Stats(first.Wait()->systems[0].handle).matrix_kept);
  });
  for (const FactorParams& again : {keyed_, keeping}) {
    InSequenceAndAtOnce({system_}, keeping, {system_}, again, [&](auto& first, auto& second) {
      ASSERT_TRUE(first.Wait().ok() && second.Wait().ok());
      EXPECT_EQ(second.Wait()->systems[0].handle, first.Wait()->systems[0].handle);
      EXPECT_EQ(second.Wait()->factor_bytes, first.Wait()->factor_bytes);
    });
  }
}

TEST_F(SolverCoreIdempotencyTest, TheSecondCallsPinIsHonoured) {
  FactorParams pinned = keyed_;
  pinned.pin = true;
  InSequenceAndAtOnce({system_, other_}, keyed_, {system_, other_}, pinned,
                      [&](auto& first, auto& second) {
                        ASSERT_TRUE(first.Wait().ok() && second.Wait().ok());
                        for (const server::FactoredSystem& system : first.Wait()->systems) {
                          EXPECT_TRUE(Stats(system.handle).pinned);
                        }
                        EXPECT_EQ(Metric("blockd_pinned_factorizations"), 2);
                      });
  InSequenceAndAtOnce({system_}, pinned, {system_}, keyed_, [&](auto& first, auto&) {
    EXPECT_TRUE(Stats(first.Wait()->systems[0].handle).pinned);  // the first one's promise holds
  });
}

TEST_F(SolverCoreIdempotencyTest, TheLongerLeaseHolds) {
  FactorParams brief = keyed_, longer = keyed_;
  brief.lease = absl::Seconds(10);
  longer.lease = absl::Minutes(2);
  const std::pair<FactorParams, FactorParams> orders[] = {{brief, longer}, {longer, brief}};
  for (const auto& [one, two] : orders) {
    InSequenceAndAtOnce({system_}, one, {system_}, two, [&](auto& first, auto& second) {
      ASSERT_TRUE(second.Wait().ok());
      EXPECT_EQ(Stats(first.Wait()->systems[0].handle).lease_left, absl::Minutes(2));
    });
  }
  // The default of the server is what a call without a lease asks for.
  setup_.limits.default_lease = absl::Minutes(1);
  InSequenceAndAtOnce({system_}, brief, {system_}, keyed_, [&](auto& first, auto& second) {
    ASSERT_TRUE(second.Wait().ok());
    EXPECT_EQ(Stats(first.Wait()->systems[0].handle).lease_left, absl::Minutes(1));
  });
}

TEST_F(SolverCoreIdempotencyTest, ABatchWithABadSystemIsNotFactoredAgain) {
  const std::vector<TestSystem> systems = {system_, system_.Spoiled(2), other_};
  InSequenceAndAtOnce(systems, keyed_, systems, keyed_with_log_, [&](auto& first, auto& second) {
    ASSERT_TRUE(first.Wait().ok() && second.Wait().ok());
    EXPECT_TRUE(second.Wait()->found);
    EXPECT_EQ(Factored(), 4);
    const auto& again = second.Wait()->systems;
    for (const size_t i : {size_t{0}, size_t{2}}) {
      EXPECT_EQ(again[i].handle, first.Wait()->systems[i].handle);
      EXPECT_NEAR(again[i].log_determinant.value_or(0), systems[i].LogDeterminant(), 1e-10);
      PendingSolve solve = Solve(again[i].handle, system_.form.shape);
      ExpectSolves(systems[i], *solve);
    }
    const auto detail = server::NotSpdOf(again[1].status);
    ASSERT_TRUE(detail.has_value());
    EXPECT_EQ(detail->system, 1);
    EXPECT_EQ(detail->where.block, 2);
    EXPECT_FALSE(again[1].log_determinant.has_value());
    // Free again with the first of its handles.
    ASSERT_TRUE(core_->Release("alice", {&again[2].handle, 1}).ok());
    PendingFactor third = Factor(systems, keyed_);
    ASSERT_TRUE(third->Wait().ok());
    EXPECT_FALSE(third->Wait()->found);
  });
}

TEST_F(SolverCoreIdempotencyTest, ASecondCallSharesAFailureThatAllMatricesHave) {
  for (const size_t systems : {1u, 2u}) {
    Start();
    PendingFactor holder = HoldDevice();
    const std::vector<TestSystem> bad(systems, system_.Spoiled(1));
    PendingFactor first = Factor(bad, keyed_), second = Factor(bad, keyed_);
    PendingFactor other = Factor({TestSystem(7, 3)}, keyed_);  // nothing holds the key from it
    gate_->Open();
    for (PendingFactor* factor : {&first, &second}) {
      const auto& reply = (*factor)->Wait();
      EXPECT_EQ(reply.ok(), systems == 2);
      const absl::Status status = reply.ok() ? reply->systems[1].status : reply.status();
      EXPECT_TRUE(server::NotSpdOf(status).has_value()) << status;
      if (reply.ok()) {
        EXPECT_FALSE(reply->found);
      }
    }
    ASSERT_TRUE(other->Wait().ok()) << other->Wait().status();
    EXPECT_EQ(Factored(), 2.0 + static_cast<double>(systems));
    Stop();
  }
}

TEST_F(SolverCoreIdempotencyTest, AFailureLeavesTheKeyFree) {
  Start();
  EXPECT_FALSE(Factor({system_.Spoiled(1)}, keyed_)->Wait().ok());
  PendingFactor fresh = Factor({system_}, keyed_);
  ASSERT_TRUE(fresh->Wait().ok());
  EXPECT_FALSE(fresh->Wait()->found);
}

TEST_F(SolverCoreIdempotencyTest, TheKeyIsTheCallersOwn) {
  Start();
  PendingFactor holder = HoldDevice();
  PendingFactor alice = Factor({system_}, keyed_);
  PendingFactor bob = Factor({other_}, keyed_, {.caller = "bob"});
  gate_->Open();
  ASSERT_TRUE(alice->Wait().ok());
  ASSERT_TRUE(bob->Wait().ok());
  PendingFactor carol = Factor({other_}, keyed_, {.caller = "carol"});
  ASSERT_TRUE(carol->Wait().ok());
  EXPECT_FALSE(bob->Wait()->found || carol->Wait()->found);
  EXPECT_NE(alice->Wait()->systems[0].handle, bob->Wait()->systems[0].handle);
  EXPECT_NE(alice->Wait()->systems[0].handle, carol->Wait()->systems[0].handle);
  EXPECT_TRUE(core_->Get("bob", bob->Wait()->systems[0].handle).ok());
}

TEST_F(SolverCoreIdempotencyTest, AKeyIsFreeOnceOneOfItsHandlesEndsOrChanges) {
  Start();
  const Handle first = Held(system_, keyed_);
  EXPECT_EQ(Stats(first).idempotency_key, "content");
  ASSERT_TRUE(core_->Release("alice", {&first, 1}).ok());
  const Handle second = Held(system_, keyed_);
  EXPECT_NE(first, second);
  for (const bool overwrite : {false, true}) {
    const Handle held = Held(system_, keyed_);
    FactorParams refactor;
    refactor.handles = {held};
    refactor.overwrite = overwrite;
    EXPECT_EQ(Held(other_, refactor), held);
    EXPECT_EQ(Stats(held).idempotency_key, "");
    EXPECT_NE(Held(system_, keyed_), held);
  }
}

TEST_F(SolverCoreIdempotencyTest, AnUploadFindsHeldFactorizations) {
  Start();
  const Handle handle = Held(system_, keyed_);
  FactorParams params = keyed_with_log_;
  params.form = system_.form;
  params.num_systems = 1;
  auto context = std::make_shared<server::RequestContext>();
  context->caller = "alice";
  auto begun = core_->BeginUpload(context, params, {}, {});
  ASSERT_TRUE(begun.ok()) << begun.status();
  ASSERT_TRUE(std::holds_alternative<server::FactorReply>(*begun));
  const auto& reply = std::get<server::FactorReply>(*begun);
  EXPECT_EQ(reply.systems[0].handle, handle);
  EXPECT_NEAR(reply.systems[0].log_determinant.value_or(0), system_.LogDeterminant(), 1e-10);
  params.keep_matrix = true;
  EXPECT_EQ(FieldOf(core_->BeginUpload(context, params, {}, {}).status()), "options.keep_matrix");
  EXPECT_EQ(Reserved(), Charge(system_.form.shape));
}

}  // namespace
}  // namespace blockd::test
