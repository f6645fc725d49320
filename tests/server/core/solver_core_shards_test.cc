// Several devices in one core: where work goes and what they hold together.
#include <set>

#include "server/core/common/errors.h"
#include "tests/server/core/shards_fixture.h"

namespace blockd::test {
namespace {

using server::FactorParams;
using server::FactorReply;
using server::Handle;
using server::NotFoundReason;
using server::Resource;

class SolverCoreShardsTest : public TwoDevicesTest {};

// ---------------------------------------------------------------- where it goes

TEST_F(SolverCoreShardsTest, CallersFindBothDevicesAndSolveOnBoth) {
  StartTwo();
  std::vector<Handle> handles;
  for (int i = 0; i < 6; ++i) handles.push_back(HeldWhereIdle());
  EXPECT_EQ(HeldOn(0), 3);
  EXPECT_EQ(HeldOn(1), 3);
  EXPECT_EQ(core_->memory().factorizations, 6);
  for (const Handle& handle : handles) {
    ExpectSolves(system_, *Solve(handle, shape_));
    EXPECT_EQ(core_->Get("alice", handle)->times_solved, 1);
    EXPECT_EQ(core_->ShapeOf("alice", handle).value(), system_.form.bordered_shape());
  }
  for (int i = 0; i < 4; ++i) ExpectSolves(system_, *FactorSolve(system_));
}

TEST_F(SolverCoreShardsTest, ResultsHaveTheSameBitsOnEachDevice) {
  StartTwo();
  const CallOptions alike = {.rhs_seed = 1};
  PendingSolve first = Solve(HeldOnDevice(0), shape_, 3, alike);
  PendingSolve second = Solve(HeldOnDevice(1), shape_, 3, alike);
  ASSERT_TRUE(first->Wait().ok());
  ASSERT_TRUE(second->Wait().ok());
  EXPECT_EQ(first->solution, second->solution);
}

TEST_F(SolverCoreShardsTest, AllSystemsOfOneFactorAreOnOneDevice) {
  StartTwo();
  for (int i = 0; i < 3; ++i) {
    PendingFactor factor = Factor({system_, system_, system_, system_});
    ASSERT_TRUE(factor->Wait().ok());
    std::set<uint8_t> devices;
    for (const auto& system : factor->Wait()->systems) devices.insert(system.handle.shard());
    EXPECT_EQ(devices.size(), 1u);
  }
  EXPECT_NE(HeldOn(0), 0);
  EXPECT_NE(HeldOn(1), 0);
}

// Work that waits before one device sends the next work to the other.
TEST_F(SolverCoreShardsTest, ABusyDeviceIsLeftAlone) {
  StartTwo();
  const Handle busy = HeldOnDevice(0);
  gate_->Close();
  PendingSolve holder = Solve(busy, shape_, 64);
  gate_->WaitForDevice();
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(core_->shards().IndexOf(Held(system_)), 1u);  // else it would not be answered
    ExpectSolves(system_, *FactorSolve(system_));
  }
  gate_->Open();
  ExpectSolves(system_, *holder);
}

TEST_F(SolverCoreShardsTest, WhereOneIsFullTheOtherTakesItAndThenItIsRefused) {
  Setup setup;
  setup.memory_bytes = 1 << 18;
  StartTwo(setup);
  FactorParams pin;
  pin.pin = true;
  absl::Status status;
  while (status.ok()) status = Factor({system_}, pin)->Wait().status();
  const auto detail = server::InsufficientMemoryOf(status);
  ASSERT_TRUE(detail.has_value()) << status;
  // The total is that of one device, because a system is on one.
  EXPECT_EQ(detail->total_bytes, core_->shards()[0].device().total());
  EXPECT_GT(HeldOn(0), 1);
  EXPECT_EQ(HeldOn(0), HeldOn(1));
  EXPECT_TRUE(server::InsufficientMemoryOf(FactorSolve(system_)->Wait().status()).has_value());
  // One of them has room again.
  const auto held = core_->List("alice", std::nullopt, 1000);
  for (const auto& one : held) {
    if (core_->shards().IndexOf(one.handle) == 1) {
      EXPECT_TRUE(core_->Release("alice", {&one.handle, 1}).ok());
    }
  }
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(core_->shards().IndexOf(Held(system_, pin)), 1u);
    ExpectSolves(system_, *FactorSolve(system_));
  }
}

TEST_F(SolverCoreShardsTest, AnUploadGoesWhereThereIsRoom) {
  Setup setup;
  setup.memory_bytes = 1 << 18;
  setup.audit = false;
  StartTwo(setup);
  FactorParams pin;
  pin.pin = true;
  while (Factor({system_}, pin)->Wait().ok()) {
  }
  for (const auto& one : core_->List("alice", std::nullopt, 1000)) {
    if (core_->shards().IndexOf(one.handle) == 1) {
      EXPECT_TRUE(core_->Release("alice", {&one.handle, 1}).ok());
    }
  }
  for (int i = 0; i < 2; ++i) {
    FactorParams params;
    params.form = system_.form;
    params.num_systems = 1;
    auto context = std::make_shared<server::RequestContext>();
    context->caller = "alice";
    auto begun = core_->BeginUpload(context, params, {}, {});
    ASSERT_TRUE(begun.ok()) << begun.status();
    auto upload = std::get<std::unique_ptr<server::FactorUpload>>(*std::move(begun));
    ASSERT_TRUE(upload->Write(system_.bytes()).ok());
    Pending<FactorReply> pending;
    core_->FinishUpload(std::move(upload), pending.Callback());
    ASSERT_TRUE(pending.Wait().ok()) << pending.Wait().status();
    const Handle handle = pending.Wait()->systems[0].handle;
    EXPECT_EQ(core_->shards().IndexOf(handle), 1u);
    ExpectSolves(system_, *Solve(handle, shape_));
  }
}

TEST_F(SolverCoreShardsTest, ARefactorStaysOnItsDevice) {
  StartTwo();
  const std::vector<Handle> handles = {HeldOnDevice(0), HeldOnDevice(1)};
  const TestSystem other(16, 4, 1);
  for (const bool overwrite : {false, true}) {
    for (const Handle& handle : handles) {
      FactorParams params;
      params.handles = {handle};
      params.overwrite = overwrite;
      PendingFactor factor = Factor({other}, params);
      ASSERT_TRUE(factor->Wait().ok()) << factor->Wait().status();
      EXPECT_EQ(factor->Wait()->systems[0].handle, handle);
      ExpectSolves(other, *Solve(handle, shape_));
    }
  }
  FactorParams params;
  params.handles = handles;
  EXPECT_EQ(FieldOf(Factor({other, other}, params)->Wait().status()), "options.handle");
  // The order of what is wrong: a handle that is not held says so.
  params.handles[1] = Handle::Random(kServer.epoch, 1);
  EXPECT_EQ(ReasonOf(Factor({other, other}, params)->Wait().status()),
            NotFoundReason::kNeverExisted);
}

// ---------------------------------------------------------------- what is held

TEST_F(SolverCoreShardsTest, AHandleOfNoDeviceNeverExisted) {
  StartTwo();
  Handle handle = HeldOnDevice(1);
  for (const int shard : {0, 2, 255}) {  // the same random bits, elsewhere
    Handle other = handle;
    other.bytes[Handle::kIdBytes - 1] = static_cast<char>(shard);
    EXPECT_EQ(ReasonOf(SolveStatus(other, shape_)), NotFoundReason::kNeverExisted);
    EXPECT_EQ(ReasonOf(core_->Release("alice", {&other, 1}).status()),
              NotFoundReason::kNeverExisted);
    const server::Epoch elsewhere = server::Epoch::Start("elsewhere");
    std::copy(elsewhere.bytes.begin(), elsewhere.bytes.end(),
              other.bytes.begin() + Handle::kIdBytes);
    EXPECT_EQ(ReasonOf(SolveStatus(other, shape_)), NotFoundReason::kOtherServer);
  }
  ExpectSolves(system_, *Solve(handle, shape_));
}

TEST_F(SolverCoreShardsTest, AListIsInTheOrderOfTheHandlesPageByPage) {
  StartTwo();
  std::set<Handle> handles;
  for (int i = 0; i < 9; ++i) handles.insert(Held(system_));
  for (int i = 0; i < 3; ++i) Factor({system_}, {}, {.caller = "bob"})->Wait();
  for (const int64_t page : {1, 2, 4, 100}) {
    std::vector<Handle> listed;
    std::optional<Handle> after;
    for (;;) {
      const auto some = core_->List("alice", after, page);
      EXPECT_LE(std::ssize(some), page);
      for (const auto& one : some) listed.push_back(one.handle);
      if (std::ssize(some) < page) break;
      after = listed.back();
    }
    EXPECT_TRUE(std::equal(listed.begin(), listed.end(), handles.begin(), handles.end()));
    std::vector<Handle> all;
    after.reset();
    for (;;) {
      const auto some = core_->shards().ListAll(after, page);
      for (const auto& one : some) all.push_back(one.stats.handle);
      if (std::ssize(some) < page) break;
      after = all.back();
    }
    EXPECT_EQ(all.size(), 12u);
    EXPECT_TRUE(std::is_sorted(all.begin(), all.end()));
  }
}

TEST_F(SolverCoreShardsTest, HandlesOfBothAreReleasedEvictedAndUnpinnedTogether) {
  StartTwo();
  FactorParams pin;
  pin.pin = true;
  std::vector<Handle> handles = {HeldOnDevice(0, pin), HeldOnDevice(1, pin), HeldOnDevice(0),
                                 HeldOnDevice(1),      HeldOnDevice(0),      HeldOnDevice(1)};
  const Handle unknown = Handle::Random(kServer.epoch, 1);
  std::vector<Handle> missing;
  handles.push_back(unknown);
  EXPECT_EQ(core_->shards().UnpinHandles(handles, &missing).handles, 2);
  EXPECT_EQ(missing, std::vector<Handle>{unknown});
  missing.clear();
  const std::vector<Handle> some = {handles[0], handles[1], unknown};
  const auto evicted = core_->shards().EvictHandles(some, &missing);
  EXPECT_EQ(evicted.handles, 2);
  EXPECT_EQ(evicted.callers.size(), 1u);
  EXPECT_EQ(missing, std::vector<Handle>{unknown});
  EXPECT_EQ(ReasonOf(SolveStatus(handles[0], shape_)), NotFoundReason::kEvicted);
  EXPECT_EQ(ReasonOf(SolveStatus(handles[1], shape_)), NotFoundReason::kEvicted);
  EXPECT_TRUE(core_->Release("alice", std::span(handles).subspan(2, 2)).ok());
  EXPECT_EQ(ReasonOf(SolveStatus(handles[2], shape_)), NotFoundReason::kReleased);
  // Handles that are not held do not keep the others from being released.
  EXPECT_TRUE(absl::IsNotFound(core_->Release("alice", handles).status()));
  EXPECT_EQ(core_->memory().factorizations, 0);
}

TEST_F(SolverCoreShardsTest, AKeyIsFoundOnWhicheverDeviceHasIt) {
  StartTwo();
  std::set<uint8_t> devices;
  for (int i = 0; i < 6; ++i) {
    FactorParams params;
    params.idempotency_key = "key " + std::to_string(i);
    const Handle handle = Held(system_, params);
    devices.insert(handle.shard());
    for (int times = 0; times < 3; ++times) {
      PendingFactor again = Factor({system_}, params);
      ASSERT_TRUE(again->Wait().ok());
      EXPECT_TRUE(again->Wait()->found);
      EXPECT_EQ(again->Wait()->systems[0].handle, handle);
    }
  }
  EXPECT_EQ(devices.size(), 2u);
  EXPECT_EQ(core_->memory().factorizations, 6);
  // A pin that is added is one of the device that has it.
  FactorParams pin;
  pin.pin = true;
  for (int i = 0; i < 6; ++i) {
    pin.idempotency_key = "key " + std::to_string(i);
    EXPECT_TRUE(Factor({system_}, pin)->Wait()->found);
  }
  EXPECT_EQ(Used(Resource::kPinnedBytes), Used(Resource::kDeviceBytes));
}

TEST_F(SolverCoreShardsTest, AFactorWaitsForTheOneWithItsKeyOnEitherDevice) {
  StartTwo();
  for (size_t device = 0; device < 2; ++device) {
    const Handle busy = HeldOnDevice(1 - device);
    // Both are held, so that all of them come while the first is under way.
    GateOf(0).Close();
    GateOf(1).Close();
    PendingSolve holder = Solve(busy, shape_, 64);
    FactorParams params;
    params.idempotency_key = "key of " + std::to_string(device);
    std::vector<PendingFactor> alike;
    for (int i = 0; i < 4; ++i) alike.push_back(Factor({system_}, params));
    GateOf(0).Open();
    GateOf(1).Open();
    int found = 0;
    for (const PendingFactor& one : alike) {
      ASSERT_TRUE(one->Wait().ok()) << one->Wait().status();
      found += one->Wait()->found;
      EXPECT_EQ(one->Wait()->systems[0].handle, alike[0]->Wait()->systems[0].handle);
    }
    EXPECT_EQ(found, 3);
  }
}

// ---------------------------------------------------------------- quotas

TEST_F(SolverCoreShardsTest, AQuotaOfDeviceBytesIsOfAllDevicesTogether) {
  StartTwo();
  const int64_t charge = Charge(shape_);
  SetQuotas({.device_bytes = 5 * charge + charge / 2});
  // The workspace of a Factor counts too while it runs: so many are held as fit with it.
  absl::Status status;
  while (status.ok()) status = Factor({system_})->Wait().status();
  const auto detail = server::QuotaExceededOf(status);
  ASSERT_TRUE(detail.has_value()) << status;
  EXPECT_EQ(detail->quota, "device_bytes");
  EXPECT_EQ(detail->used, static_cast<double>(Used(Resource::kDeviceBytes)));
  EXPECT_LE(Used(Resource::kDeviceBytes), 5 * charge + charge / 2);
  EXPECT_GT(HeldOn(0), 0);
  EXPECT_GT(HeldOn(1), 0);
  EXPECT_EQ(Used(Resource::kDeviceBytes),
            core_->shards()[0].device().reserved() + core_->shards()[1].device().reserved());
  // And not of others.
  EXPECT_TRUE(Factor({system_}, {}, {.caller = "bob"})->Wait().ok());
}

// Threads on both devices try to get more than the quota between a look and a take.
TEST_F(SolverCoreShardsTest, NoRaceOfTwoDevicesGetsMoreThanTheQuota) {
  Setup setup;
  setup.audit = false;
  StartTwo(setup);
  const int64_t quota = 3 * (Charge(shape_) + 4096);
  SetQuotas({.device_bytes = quota});
  server::TenantPtr alice = core_->tenants().Get("alice").value();
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (size_t device = 0; device < 2; ++device) {
    threads.emplace_back([&, device] {
      server::Budget& budget = core_->shards()[device].device();
      for (int i = 0; i < 20000; ++i) {
        const auto taken = budget.Reserve(alice, quota * 2 / 3);
        if (alice->used(Resource::kDeviceBytes) > quota) over = true;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(over);
  EXPECT_EQ(alice->used(Resource::kDeviceBytes), 0);
}

TEST_F(SolverCoreShardsTest, AShareOfPinnedMemoryIsOfAllDevicesTogether) {
  Setup setup;
  setup.memory_bytes = 1 << 18;
  setup.tenant_share = 0.5;
  StartTwo(setup);
  FactorParams pin;
  pin.pin = true;
  absl::Status status;
  while (status.ok()) status = Factor({system_}, pin)->Wait().status();
  const auto detail = server::QuotaExceededOf(status);
  ASSERT_TRUE(detail.has_value()) << status;
  EXPECT_EQ(detail->quota, "pinned_bytes");
  const int64_t total = core_->memory().total_bytes;
  EXPECT_LE(Used(Resource::kPinnedBytes), total / 2);
  EXPECT_GT(Used(Resource::kPinnedBytes), total / 2 - 2 * Charge(shape_));
}

TEST_F(SolverCoreShardsTest, HandlesAndPlacesAreTheServersNotADevices) {
  Setup setup;
  setup.limits.max_handles = 3;
  StartTwo(setup);
  for (int i = 0; i < 3; ++i) Held(system_);
  const auto detail = server::QuotaExceededOf(Factor({system_})->Wait().status());
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->quota, "handles");
  EXPECT_EQ(Used(Resource::kHandles), 3);
}

// ---------------------------------------------------------------- all together

TEST_F(SolverCoreShardsTest, GaugesAreSumsAndBesideThemEachDevicesOwn) {
  StartTwo();
  for (int i = 0; i < 5; ++i) Held(system_);
  for (const char* name :
       {"factorizations", "budget_bytes", "budget_reserved_bytes", "budget_evictable_bytes"}) {
    const std::string all = std::string("blockd_") + name;
    const std::string each = std::string("blockd_shard_") + name;
    EXPECT_EQ(Metric(all), Metric(each + "{device=\"0\"}") + Metric(each + "{device=\"1\"}"));
    EXPECT_GT(Metric(each + "{device=\"0\"}"), 0);
    EXPECT_GT(Metric(each + "{device=\"1\"}"), 0);
  }
  EXPECT_EQ(Metric("blockd_factorizations"), 5);
}

TEST_F(SolverCoreShardsTest, ADrainWaitsForBothDevices) {
  StartTwo();
  const std::vector<Handle> handles = {HeldOnDevice(0), HeldOnDevice(1)};
  GateOf(0).Close();
  GateOf(1).Close();
  PendingSolve first = Solve(handles[0], shape_), second = Solve(handles[1], shape_);
  GateOf(0).WaitForDevice();
  GateOf(1).WaitForDevice();
  std::atomic<bool> drained{false};
  std::thread drain([&] {
    core_->Drain();
    drained = true;
  });
  GateOf(0).Open();
  ExpectSolves(system_, *first);
  EXPECT_FALSE(drained);
  GateOf(1).Open();
  drain.join();
  ExpectSolves(system_, *second);
  EXPECT_TRUE(absl::IsUnavailable(SolveStatus(handles[0], shape_)));
}

// Places in what is said are those of the message, whichever device says it.
TEST_F(SolverCoreShardsTest, RefactorsOfOneMessageGoToTheDevicesOfTheirHandles) {
  StartTwo();
  const std::vector<Handle> handles = {HeldOnDevice(0), HeldOnDevice(1), HeldOnDevice(0),
                                       HeldOnDevice(1)};
  const std::vector<TestSystem> after = {TestSystem(16, 4, 1), TestSystem(16, 4, 2),
                                         TestSystem(16, 4, 3), TestSystem(16, 4, 4).Spoiled(5)};
  const std::vector<double> rhs = TestRhs(shape_, 1, 5);
  std::vector<std::vector<double>> solutions(4, std::vector<double>(rhs.size()));
  Pending<server::FactorSolveReply> many;
  many.context->caller = "alice";
  server::FactorSolveParams params;
  params.form = system_.form;
  params.handles = handles;
  for (size_t i = 0; i < handles.size(); ++i) {
    params.matrices.push_back(after[i].view());
    params.solves.push_back(
        {1, std::as_bytes(std::span(rhs)), std::as_writable_bytes(std::span(solutions[i]))});
  }
  core_->FactorSolve(many.context, params, many.Callback());
  ASSERT_TRUE(many.Wait().ok()) << many.Wait().status();
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(many.Wait()->systems[i].solve.status.ok());
    EXPECT_LT(after[i].Residual(solutions[i], rhs), 1e-12);
    PendingSolve later = Solve(handles[i], shape_);
    ExpectSolves(after[i], *later);
  }
  const auto failed = server::NotSpdOf(many.Wait()->systems[3].solve.status);
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->system, 3);
  ExpectSolves(system_, *Solve(handles[3], shape_));  // the old factors are in force
}

}  // namespace
}  // namespace blockd::test
