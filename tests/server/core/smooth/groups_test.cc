// The groups in which devices work on the systems of a Smooth: they follow one another, let others
// in between, spread over devices, and find what was kept or make it again.
#include <algorithm>

#include "tests/server/core/shards_fixture.h"
#include "tests/server/core/smooth/smooth_fixture.h"

namespace blockd::test {
namespace {

using server::Handle;

class SmoothGroupsTest : public TwoDevicesTest {
 protected:
  // Groups of one system, of which as many are under way as there are devices, and one more.
  static Setup InOnes(int devices = 1) {
    Setup setup;
    setup.memory_bytes = int64_t{64} << 20;
    setup.limits.max_batch_requests = 1;
    setup.devices = devices;
    return setup;
  }
  // A system for each series, since each lacks another element.
  static SmoothModel Distinct(int64_t series, bool covariances = true) {
    SmoothModel model({.steps = 12,
                       .states = 3,
                       .observations = 1,
                       .series = static_cast<int>(series),
                       .missing = 0});
    for (int64_t k = 0; k < series; ++k) model.y[k * 12 + k] = kMissing;
    if (!covariances) {
      model.params.covariances = SmoothedCovariances::kNone;
      model.params.lag_one = false;
    }
    return model;
  }
  std::unique_ptr<AskedSmooth> Keep(const SmoothModel& model, server::PostWork post = nullptr) {
    server::KeepModel kept;
    kept.keep = true;
    return AskSmooth(*core_, model.params, {}, std::move(post), kept);
  }
  static void ExpectSame(const SmoothAnswer& answer, const SmoothAnswer& expected) {
    ASSERT_TRUE(answer.reply.ok()) << answer.reply.status();
    ASSERT_TRUE(expected.reply.ok()) << expected.reply.status();
    EXPECT_EQ(answer.means, expected.means);
    EXPECT_EQ(answer.covariances, expected.covariances);
    EXPECT_EQ(answer.lag_one, expected.lag_one);
    EXPECT_EQ(answer.samples, expected.samples);
    EXPECT_EQ(answer.reply->log_likelihood, expected.reply->log_likelihood);
  }
};

// Its last systems wait for a place among the groups, and one of them is gone by then.
TEST_F(SmoothGroupsTest, AKeptSystemThatIsReleasedBeforeItsTurnIsFactoredAgain) {
  for (const bool covariances : {false, true}) {
    SCOPED_TRACE(covariances);
    Setup setup = InOnes();
    setup.limits.max_batch_requests = 2;
    Start(setup);
    const SmoothModel model = Distinct(6, covariances);
    const auto first = Keep(model);
    ASSERT_TRUE(first->Wait().reply.ok()) << first->answer.reply.status();
    const std::vector<Handle> handles = first->answer.reply->handles;
    const auto found = Keep(model);
    ExpectSame(found->Wait(), first->answer);
    EXPECT_TRUE(found->answer.reply->found);
    PendingFactor holder = HoldDevice();
    const int64_t before = gate_->factorizations();
    const auto again = Keep(model);
    EXPECT_TRUE(core_->Release("alice", {&handles[5], 1}).ok());
    gate_->Open();
    ExpectSame(again->Wait(), first->answer);
    EXPECT_FALSE(again->answer.reply->found);
    EXPECT_EQ(again->answer.reply->handles[4], handles[4]);
    EXPECT_NE(again->answer.reply->handles[5], handles[5]);
    EXPECT_EQ(gate_->factorizations() - before, 1);
    EXPECT_TRUE(holder->Wait().ok());
    Stop();
  }
}

TEST_F(SmoothGroupsTest, OnlyWhatIsNotKeptIsFactored) {
  Start();
  const SmoothModel model = Distinct(5);
  const auto first = Keep(model);
  ASSERT_TRUE(first->Wait().reply.ok()) << first->answer.reply.status();
  const std::vector<Handle> handles = first->answer.reply->handles;
  for (const size_t released : {0, 3}) {
    EXPECT_TRUE(core_->Release("alice", {&handles[released], 1}).ok());
  }
  const int64_t before = gate_->factorizations();
  const auto again = Keep(model);
  ExpectSame(again->Wait(), first->answer);
  EXPECT_EQ(gate_->factorizations() - before, 1);  // of both together
  EXPECT_EQ(std::ssize(core_->List("alice", std::nullopt, 100)), 5);
  for (const size_t kept : {1, 2, 4}) {
    EXPECT_EQ(again->answer.reply->handles[kept], handles[kept]);
    EXPECT_EQ(core_->Get("alice", handles[kept])->times_solved, 1);
  }
}

TEST_F(SmoothGroupsTest, WhatALeaseKeepsCountsForThePinnedQuota) {
  Start();
  server::TenantsConfig config;
  const SmoothModel model = Distinct(2), other = Distinct(3);
  server::KeepModel kept;
  kept.keep = true;
  kept.lease = absl::Minutes(1);
  const auto ask = [&](const SmoothModel& model) {
    const auto smooth = AskSmooth(*core_, model.params, {}, nullptr, kept);
    return smooth->Wait().reply.status();
  };
  ASSERT_TRUE(ask(model).ok());
  const int64_t pinned = Used(server::Resource::kPinnedBytes);
  EXPECT_GT(pinned, 0);
  config.default_tenant.quotas.pinned_bytes = pinned + pinned / 4;  // not for one more system
  core_->tenants().Configure(config);
  EXPECT_TRUE(ask(model).ok());  // it is kept
  EXPECT_TRUE(server::QuotaExceededOf(ask(other)).has_value());
}

// The thread that ends a group feeds a device: it goes on while the next one is assembled.
TEST_F(SmoothGroupsTest, NoLaneAssemblesAGroup) {
  for (const bool cancelled : {false, true}) {
    SCOPED_TRACE(cancelled);
    Start(InOnes());
    const SmoothModel model = Distinct(4);
    const CallOptions other = {.caller = "other"};
    PendingFactor held = Factor({system_}, {}, other);
    const Handle handle = held->Wait()->systems[0].handle;
    PendingFactor holder = HoldDevice();
    absl::Mutex mutex;
    std::vector<absl::AnyInvocable<void()>> posted;
    const auto smooth = AskSmooth(*core_, model.params, {}, [&](absl::AnyInvocable<void()> work) {
      absl::MutexLock lock(&mutex);
      posted.push_back(std::move(work));
    });
    const auto has_posted = [&] {
      absl::MutexLock lock(&mutex);
      return posted.size() == 2;  // one for each of the groups that are over
    };
    gate_->Open();
    RepeatUntil(has_posted, [] {});
    const int64_t before = gate_->factorizations();
    EXPECT_TRUE(Solve(handle, shape_, 1, other)->Wait().ok());
    EXPECT_TRUE(Factor({system_}, {}, other)->Wait().ok());
    EXPECT_EQ(gate_->factorizations(), before + 1);  // its alone
    EXPECT_FALSE(smooth->done.HasBeenNotified());
    if (cancelled) core_->Cancel(*smooth->context);
    for (bool more = true; more;) {
      std::vector<absl::AnyInvocable<void()>> works;
      {
        absl::MutexLock lock(&mutex);
        works.swap(posted);
      }
      for (auto& work : works) work();
      absl::MutexLock lock(&mutex);
      more = !posted.empty() || !smooth->done.HasBeenNotified();
    }
    const absl::Status status = smooth->Wait().reply.status();
    EXPECT_EQ(absl::IsCancelled(status), cancelled) << status;
    EXPECT_EQ(status.ok(), !cancelled) << status;
    EXPECT_EQ(gate_->factorizations(), before + (cancelled ? 1 : 3));
    EXPECT_TRUE(core_->List("alice", std::nullopt, 1).empty());
    EXPECT_TRUE(holder->Wait().ok());
    posted.clear();
    Stop();
  }
}

// Many inverses are left when somebody else's Factor has its turn.
TEST_F(SmoothGroupsTest, OthersRunBetweenItsSteps) {
  Setup setup;
  setup.memory_bytes = int64_t{64} << 20;
  setup.limits.max_shared_batch = absl::Nanoseconds(1);
  Start(setup);
  SmoothModel model = Distinct(10);
  model.params.num_samples = 2;
  const auto alone = AskSmooth(*core_, model.params);
  ASSERT_TRUE(alone->Wait().reply.ok()) << alone->answer.reply.status();
  PendingFactor holder = HoldDevice();
  const auto smooth = AskSmooth(*core_, model.params);
  absl::Notification factored;
  bool was_first = false;
  auto context = std::make_shared<server::RequestContext>();
  context->caller = "other";
  server::FactorParams params;
  params.form = system_.form;
  core_->Factor(context, params, {system_.view()}, [&](absl::StatusOr<server::FactorReply> reply) {
    EXPECT_TRUE(reply.ok()) << reply.status();
    was_first = !smooth->done.HasBeenNotified();
    factored.Notify();
  });
  gate_->Open();
  factored.WaitForNotification();
  EXPECT_TRUE(was_first);
  ExpectSame(smooth->Wait(), alone->answer);
  // One that ran alone, and a first step before those of ten inverses and ten draws.
  EXPECT_GE(Metric("blockd_batch_requests_count{kind=\"smooth\"}"), 1 + 1 + 20);
  EXPECT_TRUE(holder->Wait().ok());
}

TEST_F(SmoothGroupsTest, OneThatIsCancelledBetweenItsStepsGivesAllBack) {
  for (const bool keep : {false, true}) {
    SCOPED_TRACE(keep);
    Setup setup;
    setup.memory_bytes = int64_t{64} << 20;
    setup.limits.max_shared_batch = absl::Nanoseconds(1);
    Start(setup);
    const SmoothModel model = Distinct(10);
    PendingFactor holder = HoldDevice();
    server::KeepModel kept;
    kept.keep = keep;
    const auto smooth = AskSmooth(*core_, model.params, {}, nullptr, kept);
    auto context = std::make_shared<server::RequestContext>();
    context->caller = "other";
    server::FactorParams params;
    params.form = system_.form;
    absl::Notification factored;
    core_->Factor(context, params, {system_.view()}, [&](const auto&) {
      core_->Cancel(*smooth->context);  // its first step is done, and it waits for the next one
      factored.Notify();
    });
    gate_->Open();
    factored.WaitForNotification();
    EXPECT_TRUE(absl::IsCancelled(smooth->Wait().reply.status()));
    // Who asks again finds what was factored.
    EXPECT_EQ(std::ssize(core_->List("alice", std::nullopt, 100)), keep ? 10 : 0);
    EXPECT_TRUE(holder->Wait().ok());
    Stop();
  }
}

// Only the group that is under way beside the one that fails may be factored.
TEST_F(SmoothGroupsTest, NoneBeginsOnceOneHasFailed) {
  Start(InOnes());
  SmoothModel model = UnseenState(12, 6);
  for (int k = 0; k < 6; ++k) model.y[k * 12 + k] = kMissing;
  const auto smooth = Keep(model);
  EXPECT_TRUE(server::NotSpdOf(smooth->Wait().reply.status()).has_value());
  EXPECT_LE(gate_->factorizations(), 2);
}

// There is room for some of its systems at once: then those go together, one group after another.
TEST_F(SmoothGroupsTest, GroupsAreAsLargeAsTheMemoryLets) {
  Setup setup;
  setup.memory_bytes = int64_t{800} << 10;
  Start(setup);
  SmoothModel model({.steps = 40, .states = 16, .observations = 1, .series = 16, .missing = 0});
  for (int k = 0; k < 16; ++k) model.y[k * 40 + k] = kMissing;
  const auto smooth = AskSmooth(*core_, model.params);
  ASSERT_TRUE(smooth->Wait().reply.ok()) << smooth->answer.reply.status();
  EXPECT_LE(Metric("blockd_batch_requests_count{kind=\"smooth\"}"), 4);
}

TEST_F(SmoothGroupsTest, CallsOfOneNewModelKeepItOnce) {
  Start();
  const SmoothModel model = Distinct(2);
  PendingFactor holder = HoldDevice();
  const auto one = Keep(model), other = Keep(model);
  gate_->Open();
  ExpectSame(one->Wait(), other->Wait());
  EXPECT_EQ(one->answer.reply->handles, other->answer.reply->handles);
  EXPECT_EQ(std::ssize(core_->List("alice", std::nullopt, 100)), 2);
  EXPECT_TRUE(holder->Wait().ok());
}

// Smooths of one plan factor and solve together, each with the bits that it has alone.
TEST_F(SmoothGroupsTest, SmoothsRunTogether) {
  Start();
  const SmoothModel model = Distinct(2), other_model = Distinct(1);
  const auto alone = AskSmooth(*core_, model.params);
  alone->Wait();
  const auto other_alone = AskSmooth(*core_, other_model.params);
  other_alone->Wait();
  PendingFactor holder = HoldDevice();
  const auto one = AskSmooth(*core_, model.params), other = AskSmooth(*core_, other_model.params);
  gate_->Open();
  ExpectSame(one->Wait(), alone->answer);
  ExpectSame(other->Wait(), other_alone->answer);
  // One of the runs had both.
  EXPECT_EQ(Metric("blockd_batch_requests_sum{kind=\"smooth\"}"),
            Metric("blockd_batch_requests_count{kind=\"smooth\"}") + 1);
  EXPECT_TRUE(holder->Wait().ok());
}

TEST_F(SmoothGroupsTest, GroupsSpreadOverDevicesAndAreFoundThere) {
  Start(InOnes(2));
  const SmoothModel model = Distinct(8);
  const auto first = Keep(model);
  ASSERT_TRUE(first->Wait().reply.ok()) << first->answer.reply.status();
  EXPECT_GT(HeldOn(0), 0);
  EXPECT_GT(HeldOn(1), 0);
  EXPECT_EQ(HeldOn(0) + HeldOn(1), 8);
  const auto second = Keep(model);
  ExpectSame(second->Wait(), first->answer);
  EXPECT_TRUE(second->answer.reply->found);
  EXPECT_EQ(second->answer.reply->handles, first->answer.reply->handles);
  SmoothModel means = Distinct(8, false);
  const auto third = Keep(means);
  ASSERT_TRUE(third->Wait().reply.ok()) << third->answer.reply.status();
  EXPECT_TRUE(third->answer.reply->found);
  EXPECT_EQ(third->answer.means, first->answer.means);
}

// The other device makes it.
TEST_F(SmoothGroupsTest, WhatADeviceHeldThatFailedIsMadeAgain) {
  Start(InOnes(2));
  const SmoothModel model = Distinct(8);
  const auto first = Keep(model);
  ASSERT_TRUE(first->Wait().reply.ok()) << first->answer.reply.status();
  HoldOnBothAndFail(1);
  const auto second = Keep(model);
  ExpectSame(second->Wait(), first->answer);
  EXPECT_FALSE(second->answer.reply->found);
}

}  // namespace
}  // namespace blockd::test
