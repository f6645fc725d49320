// SelectedInverse, Sample and Smooth where the device fails or has no memory, and where quotas and
// deadlines end them.
#include "tests/server/core/failure_fixture.h"
#include "tests/server/core/smooth/smooth_fixture.h"

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

}  // namespace
}  // namespace blockd::test
