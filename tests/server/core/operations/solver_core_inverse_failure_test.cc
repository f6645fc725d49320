// SelectedInverse, Sample and Smooth where the device fails or has no memory, where quotas and
// deadlines end them, and where their factorization is evicted between two steps.
#include "tests/server/core/failure_fixture.h"
#include "tests/server/core/operations/smooth_fixture.h"

namespace blockd::test {
namespace {

using server::Handle;
using PendingCost = std::unique_ptr<Pending<server::CostReply>>;

class SolverCoreInverseFailureTest : public FailingCoreTest {
 protected:
  PendingCost Invert(const Handle& handle, const CallOptions& call = {}) {
    PendingCost pending = Asked(call);
    pending->solution.resize(64 * 64);
    server::SelectedInverseParams params;
    params.handle = handle;
    params.diagonal = std::as_writable_bytes(std::span(pending->solution));
    core_->SelectedInverse(pending->context, params, pending->Callback());
    return pending;
  }
  PendingCost Sample(const Handle& handle, const CallOptions& call = {}) {
    PendingCost pending = Asked(call);
    pending->solution.resize(static_cast<size_t>(2 * shape_.rows()));
    server::SampleParams params;
    params.handle = handle;
    params.num_samples = 2;
    params.samples = std::as_writable_bytes(std::span(pending->solution));
    core_->Sample(pending->context, params, pending->Callback());
    return pending;
  }
  absl::Status SmoothStatus() { return AskSmooth(*core_, smooth_.params)->Wait().reply.status(); }
  // The quota that a call was refused for.
  static std::string QuotaOf(const absl::Status& status) {
    const auto over = server::QuotaExceededOf(status);
    return over ? over->quota : status.ToString();
  }
  void Limit(const server::TenantQuotas& quotas) {
    core_->tenants().Configure({.default_tenant = {.quotas = quotas}, .tenants = {}});
  }
  // Ends the handles that alice holds.
  void EvictAll() {
    std::vector<Handle> held, missing;
    for (const auto& held_one : core_->List("alice", std::nullopt, 100)) {
      held.push_back(held_one.handle);
    }
    core_->shards().EvictHandles(held, &missing);
    EXPECT_TRUE(missing.empty());
    EXPECT_FALSE(held.empty());
  }

  const SmoothModel smooth_{
      {.steps = 12, .states = 3, .observations = 2, .series = 1, .missing = 0}};

 private:
  PendingCost Asked(const CallOptions& call) {
    auto pending = std::make_unique<Pending<server::CostReply>>();
    pending->context->caller = call.caller;
    pending->context->deadline = call.deadline;
    return pending;
  }
};

TEST_F(SolverCoreInverseFailureTest, AtEveryStepOfAnInverse) {
  Handle handle;
  ExpectAmong(FailEveryStep([&] { handle = Held(system_); },
                            [&] { return Invert(handle)->Wait().status(); }),
              {"SelectedInverse"});
}

TEST_F(SolverCoreInverseFailureTest, AtEveryStepOfSamples) {
  Handle handle;
  ExpectAmong(FailEveryStep([&] { handle = Held(system_); },
                            [&] { return Sample(handle)->Wait().status(); }),
              {"PackColumns", "Solve", "UnpackColumns"});
}

TEST_F(SolverCoreInverseFailureTest, AtEveryStepOfASmooth) {
  const auto smooth = [&] {
    const absl::Status status = SmoothStatus();
    EXPECT_EQ(core_->memory().factorizations, 0);
    return status;
  };
  ExpectAmong(FailEveryStep([] {}, smooth),
              {"Factor", "LogDeterminant", "Solve", "SelectedInverse"});
}

TEST_F(SolverCoreInverseFailureTest, NoMemoryForAnInverseOrSamples) {
  Handle handle;
  const auto prepare = [&] { handle = Held(system_); };
  const auto invert = [&] { return Invert(handle)->Wait().status(); };
  const auto sample = [&] { return Sample(handle)->Wait().status(); };
  EXPECT_EQ(EmptyPoolAtEach(1, prepare, invert), 0);
  EXPECT_GT(EmptyPoolAtEach(100, prepare, invert), 0);
  EXPECT_EQ(EmptyPoolAtEach(1, prepare, sample), 0);
  EXPECT_GT(EmptyPoolAtEach(100, prepare, sample), 0);
}

TEST_F(SolverCoreInverseFailureTest, NoMemoryForASmooth) {
  const auto smooth = [&] { return SmoothStatus(); };
  EXPECT_EQ(EmptyPoolAtEach(
                1, [] {}, smooth),
            0);
  EXPECT_GT(EmptyPoolAtEach(
                100, [] {}, smooth),
            0);
}

// The workspace of these calls counts for the tenant's memory, the calls for its rate and places.
TEST_F(SolverCoreInverseFailureTest, QuotasHoldThemBack) {
  Start();
  const Handle handle = Held(system_);
  const auto each = [&] {
    return std::vector<absl::Status>{Invert(handle)->Wait().status(),
                                     Sample(handle)->Wait().status(), SmoothStatus()};
  };
  server::TenantQuotas quotas;
  quotas.device_bytes = Reserved() + 1;  // all that it holds, and nothing to work in
  Limit(quotas);
  for (const absl::Status& status : each()) EXPECT_EQ(QuotaOf(status), "device_bytes");
  quotas = {};
  quotas.requests_per_second = 1;
  Limit(quotas);
  EXPECT_TRUE(SolveStatus(handle, shape_).ok());  // takes the one of this second
  for (const absl::Status& status : each()) EXPECT_EQ(QuotaOf(status), "requests_per_second");
  quotas = {};
  quotas.queue_slots = 1;
  Limit({});
  PendingFactor holder = HoldDevice();
  Limit(quotas);
  PendingCost waiting = Invert(handle);
  for (const absl::Status& status : each()) EXPECT_EQ(QuotaOf(status), "queue_slots");
  gate_->Open();
  EXPECT_TRUE(waiting->Wait().ok());
  Limit({});
  for (const absl::Status& status : each()) EXPECT_TRUE(status.ok()) << status;
}

TEST_F(SolverCoreInverseFailureTest, ADeadlineThatPassesWhileTheyWaitEndsThem) {
  Start();
  const Handle handle = Held(system_);
  PendingFactor holder = HoldDevice();
  const int64_t before = Reserved();
  const CallOptions call{.deadline = clock_.Now() + absl::Seconds(1)};
  PendingCost inverse = Invert(handle, call), sample = Sample(handle, call);
  const auto smooth = AskSmooth(*core_, smooth_.params, call);
  EXPECT_GT(Reserved(), before);
  clock_.Advance(absl::Seconds(2));
  gate_->Open();
  for (const absl::Status& status :
       {inverse->Wait().status(), sample->Wait().status(), smooth->Wait().reply.status()}) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  }
  EXPECT_TRUE(holder->Wait().ok());
  EXPECT_TRUE(SolveStatus(handle, shape_).ok());
}

// The solve has the factorization, what comes after it does not find it: all is done once more.
TEST_F(SolverCoreInverseFailureTest, ASmoothWhoseFactorizationIsEvictedFactorsAgain) {
  constexpr int kAttempts = 3;
  for (int evictions = 1; evictions <= kAttempts; ++evictions) {
    SCOPED_TRACE(evictions);
    Start({.solve_gate = true});
    solve_gate_->Close();
    const int64_t before = gate_->factorizations();
    const auto smooth = AskSmooth(*core_, smooth_.params);
    for (int i = 1; i <= evictions; ++i) {
      solve_gate_->WaitForDevice();
      EvictAll();
      if (i == kAttempts) break;
      gate_->Close();
      solve_gate_->Open();
      gate_->WaitForDevice();
      if (i < evictions) solve_gate_->Close();
      gate_->Open();
    }
    solve_gate_->Open();
    const SmoothAnswer& answer = smooth->Wait();
    EXPECT_EQ(gate_->factorizations() - before, std::min(evictions + 1, kAttempts));
    if (evictions == kAttempts) {
      EXPECT_EQ(ReasonOf(answer.reply.status()), server::NotFoundReason::kEvicted);
    } else {
      ASSERT_TRUE(answer.reply.ok()) << answer.reply.status();
      const auto undisturbed = AskSmooth(*core_, smooth_.params);
      EXPECT_EQ(answer.means, undisturbed->Wait().means);
      EXPECT_EQ(answer.covariances, undisturbed->answer.covariances);
      EXPECT_EQ(answer.reply->log_likelihood, undisturbed->answer.reply->log_likelihood);
    }
    EXPECT_EQ(core_->memory().factorizations, 0);
    Stop();
  }
}

// The lane that finds it evicted feeds a device: it goes on while the model is assembled again.
TEST_F(SolverCoreInverseFailureTest, NoLaneAssemblesTheModelOfASmoothAgain) {
  for (const bool cancelled : {false, true}) {
    SCOPED_TRACE(cancelled);
    Start({.solve_gate = true});
    const CallOptions other = {.caller = "other"};
    PendingFactor held = Factor({system_}, {}, other);
    const Handle handle = held->Wait()->systems[0].handle;
    solve_gate_->Close();
    absl::AnyInvocable<void()> assembly;
    absl::Notification is_posted;
    const auto smooth = AskSmooth(*core_, smooth_.params, {}, [&](absl::AnyInvocable<void()> work) {
      assembly = std::move(work);
      is_posted.Notify();
    });
    solve_gate_->WaitForDevice();
    EvictAll();
    const int64_t before = gate_->factorizations();
    solve_gate_->Open();
    RepeatUntil([&] { return is_posted.HasBeenNotified() || smooth->done.HasBeenNotified(); },
                [] {});
    ASSERT_TRUE(is_posted.HasBeenNotified());
    EXPECT_TRUE(Solve(handle, shape_, 1, other)->Wait().ok());
    EXPECT_TRUE(Factor({system_}, {}, other)->Wait().ok());
    EXPECT_EQ(gate_->factorizations(), before + 1);  // its alone
    if (cancelled) core_->Cancel(*smooth->context);
    assembly();
    assembly = nullptr;
    const absl::Status status = smooth->Wait().reply.status();
    EXPECT_EQ(absl::IsCancelled(status), cancelled) << status;
    EXPECT_EQ(status.ok(), !cancelled) << status;
    EXPECT_EQ(gate_->factorizations(), before + (cancelled ? 1 : 2));
    EXPECT_TRUE(core_->List("alice", std::nullopt, 1).empty());
    Stop();
  }
}

}  // namespace
}  // namespace blockd::test
