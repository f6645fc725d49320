#include "server/core/shard/scheduler.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

namespace blockd::server {
namespace {

struct Item : Work {
  Item(int id, Ticket ticket) : Work(std::move(ticket)), id(id) {}
  const int id;
};
int IdOf(const WorkPtr& work) { return static_cast<const Item&>(*work).id; }

using PlanPtr = std::shared_ptr<const EliminationPlan>;

PlanPtr MakePlan(int64_t num_blocks) {
  return std::make_shared<const EliminationPlan>(
      *EliminationPlan::Make({num_blocks, 2, Scalar::kFloat64}, 1, CostModel()));
}

constexpr absl::Duration kDelay = absl::Milliseconds(10);

class SchedulerTest : public testing::Test {
 protected:
  void Push(int id, int key = 0, Ticket ticket = {}) {
    ticket.key.plan = plans_[static_cast<size_t>(key)];
    queue_->Push(std::make_unique<Item>(id, ticket), now_);
  }
  std::vector<EndedWork> Cancel(const int& owner) { return queue_->Cancel(&owner, now_); }
  std::vector<int> Take(bool flush = false) {
    std::vector<int> ids;
    for (const WorkPtr& work : queue_->Take(now_, flush, &ended_)) ids.push_back(IdOf(work));
    return ids;
  }
  void Use(const SchedulerLimits& limits) { queue_ = std::make_unique<Scheduler>(limits); }

  const std::vector<PlanPtr> plans_ = {MakePlan(4), MakePlan(5)};
  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::vector<EndedWork> ended_;
  std::unique_ptr<Scheduler> queue_ = std::make_unique<Scheduler>(SchedulerLimits{});
};

using Ids = std::vector<int>;

TEST_F(SchedulerTest, WithoutDelayTakesEverythingCompatible) {
  EXPECT_EQ(queue_->NextClose(), absl::InfiniteFuture());
  for (int id = 0; id < 5; ++id) Push(id);
  EXPECT_LE(queue_->NextClose(), now_);
  EXPECT_EQ(Take(), (Ids{0, 1, 2, 3, 4}));
  EXPECT_EQ(Take(), Ids{});
  EXPECT_TRUE(queue_->empty());
}

TEST_F(SchedulerTest, KeysAndKindsAreApartAndTheOldestGoesFirst) {
  Ticket factor;
  factor.key.kind = WorkKind::kFactor;
  Push(0, 1);
  Push(1, 0);
  Push(2, 1);
  Push(3, 0, factor);
  Push(4, 0);
  EXPECT_EQ(queue_->size(WorkKind::kSolve), 4);
  EXPECT_EQ(queue_->size(WorkKind::kFactor), 1);
  EXPECT_EQ(Take(), (Ids{0, 2}));
  Push(5, 1);  // a busy key does not overtake the others
  EXPECT_EQ(Take(), (Ids{1, 4}));
  EXPECT_EQ(Take(), (Ids{3}));
  EXPECT_EQ(Take(), (Ids{5}));
}

TEST_F(SchedulerTest, ClosesOnCount) {
  Use({.max_requests = 2, .max_delay = kDelay});
  Push(0);
  EXPECT_EQ(Take(), Ids{});
  Push(1);
  EXPECT_EQ(queue_->NextClose(), absl::InfinitePast());
  Push(2);
  EXPECT_EQ(Take(), (Ids{0, 1}));
  EXPECT_EQ(Take(), Ids{});
}

TEST_F(SchedulerTest, ClosesOnItemsAndOnBytes) {
  Use({.max_items = 10, .max_bytes = 100, .max_delay = kDelay});
  Push(0, 0, {.items = 6});
  EXPECT_EQ(Take(), Ids{});
  Push(1, 0, {.items = 6});
  EXPECT_EQ(Take(), (Ids{0}));  // both together are too many
  Push(2, 1, {.bytes = 70});
  Push(3, 1, {.bytes = 30});
  EXPECT_EQ(Take(), (Ids{2, 3}));
}

TEST_F(SchedulerTest, ATaskLargerThanABatchGoesAlone) {
  Use({.max_items = 10, .max_bytes = 100});
  Push(0, 0, {.items = 50, .bytes = 5000});
  Push(1, 0, {.items = 1, .bytes = 1});
  EXPECT_EQ(Take(), (Ids{0}));
  EXPECT_EQ(Take(), (Ids{1}));
}

TEST_F(SchedulerTest, ClosesAfterTheDelayOfTheOldest) {
  Use({.max_delay = kDelay});
  Push(0);
  now_ += kDelay / 2;
  Push(1);
  EXPECT_EQ(Take(), Ids{});
  EXPECT_EQ(queue_->NextClose(), now_ + kDelay / 2);
  now_ += kDelay / 2;
  EXPECT_EQ(Take(), (Ids{0, 1}));
}

TEST_F(SchedulerTest, ClosesEarlyForADeadline) {
  Use({.max_delay = kDelay});
  Push(0);
  Push(1, 0, {.deadline = now_ + absl::Milliseconds(4)});
  EXPECT_EQ(queue_->NextClose(), now_ + absl::Milliseconds(2));
  now_ += absl::Milliseconds(2);
  EXPECT_EQ(Take(), (Ids{0, 1}));
}

TEST_F(SchedulerTest, FlushClosesEverything) {
  Use({.max_delay = absl::Hours(1)});
  Push(0);
  EXPECT_EQ(Take(), Ids{});
  EXPECT_EQ(Take(/*flush=*/true), (Ids{0}));
}

TEST_F(SchedulerTest, ExpiredAndCancelledTasksDoNotRun) {
  const int owner = 0;
  Push(0, 0, {.deadline = now_ + absl::Seconds(1)});
  Push(1, 0, {.owner = &owner});
  Push(2);
  Push(3, 1, {.deadline = now_ + absl::Seconds(1)});
  now_ += absl::Seconds(1);
  const std::vector<EndedWork> cancelled = Cancel(owner);
  ASSERT_EQ(cancelled.size(), 1u);
  EXPECT_EQ(IdOf(cancelled[0].work), 1);
  EXPECT_TRUE(absl::IsCancelled(cancelled[0].status));
  EXPECT_EQ(Take(), (Ids{2}));
  ASSERT_EQ(ended_.size(), 1u);
  EXPECT_EQ(IdOf(ended_[0].work), 0);
  EXPECT_TRUE(absl::IsDeadlineExceeded(ended_[0].status));
  EXPECT_EQ(Take(), Ids{});  // the key that had only an expired task
  EXPECT_EQ(ended_.size(), 2u);
  EXPECT_TRUE(queue_->empty());
}

TEST_F(SchedulerTest, WhatHasEndedIsTakenAndTheRestKeepsItsOrder) {
  const int owner = 0;
  const absl::Time deadline = now_ + absl::Seconds(5);
  Push(0);
  Push(1, 0, {.items = 3, .bytes = 7, .owner = &owner});
  Push(2, 0, {.deadline = deadline});
  Push(3, 1, {.deadline = now_});
  EXPECT_EQ(queue_->NextDeadline(), now_);
  EXPECT_EQ(queue_->TakeExpired(now_).size(), 1u);
  EXPECT_EQ(Cancel(owner).size(), 1u);
  EXPECT_EQ(queue_->size(), 2);
  EXPECT_EQ(queue_->NextDeadline(), deadline);
  EXPECT_EQ(Take(), (Ids{0, 2}));
}

TEST_F(SchedulerTest, EqualPlansShareABatchThoughTheyAreTwoObjects) {
  Ticket twin;
  Push(0, 0);
  PlanPtr other = MakePlan(4);
  ASSERT_NE(other, plans_[0]);
  twin.key.plan = std::move(other);
  queue_->Push(std::make_unique<Item>(1, twin), now_);
  Push(2, 1);
  EXPECT_EQ(Take(), (Ids{0, 1}));
  EXPECT_EQ(Take(), (Ids{2}));
}

TEST_F(SchedulerTest, KeysAreEqualByKindAndByTheValueOfTheirPlans) {
  const PlanPtr twin = MakePlan(4), none;
  const BatchKey key{WorkKind::kSolve, plans_[0]};
  EXPECT_EQ(key, (BatchKey{WorkKind::kSolve, plans_[0]}));
  EXPECT_EQ(key, (BatchKey{WorkKind::kSolve, twin}));
  EXPECT_NE(key, (BatchKey{WorkKind::kFactor, plans_[0]}));
  EXPECT_NE(key, (BatchKey{WorkKind::kFactor, twin}));
  EXPECT_NE(key, (BatchKey{WorkKind::kSolve, plans_[1]}));
  EXPECT_NE(key, (BatchKey{WorkKind::kSolve, none}));
  EXPECT_EQ((BatchKey{WorkKind::kSolve, none}), (BatchKey{WorkKind::kSolve, none}));
}

// The queue keeps the plan that its key has, whoever brought it.
TEST_F(SchedulerTest, AKeyOutlivesTheTaskThatBroughtIt) {
  Use({.max_requests = 1});
  {
    Ticket first;
    first.key.plan = MakePlan(4);
    queue_->Push(std::make_unique<Item>(0, first), now_);
  }
  Push(1, 0);
  EXPECT_EQ(Take(), (Ids{0}));
  Push(2, 0);
  EXPECT_EQ(Take(), (Ids{1}));
  EXPECT_EQ(Take(), (Ids{2}));
}

TEST_F(SchedulerTest, FillsABatchToEachLimitAndNotBeyond) {
  Use({.max_items = 10});
  Push(0, 0, {.items = 6});
  Push(1, 0, {.items = 4});
  Push(2, 0, {.items = 6});
  Push(3, 0, {.items = 5});
  EXPECT_EQ(Take(), (Ids{0, 1}));
  EXPECT_EQ(Take(), (Ids{2}));
  EXPECT_EQ(Take(), (Ids{3}));
  Use({.max_bytes = 10});
  Push(0, 0, {.bytes = 6});
  Push(1, 0, {.bytes = 4});
  Push(2, 0, {.bytes = 6});
  Push(3, 0, {.bytes = 5});
  EXPECT_EQ(Take(), (Ids{0, 1}));
  EXPECT_EQ(Take(), (Ids{2}));
  EXPECT_EQ(Take(), (Ids{3}));
}

TEST_F(SchedulerTest, ClosesWhenALimitIsReachedExactly) {
  Use({.max_items = 10, .max_bytes = 100, .max_delay = kDelay});
  Push(0, 0, {.items = 9, .bytes = 99});
  EXPECT_EQ(queue_->NextClose(), now_ + kDelay);
  Push(1, 0, {.items = 1});
  EXPECT_EQ(Take(), (Ids{0, 1}));
  Push(2, 0, {.items = 9, .bytes = 99});
  EXPECT_EQ(queue_->NextClose(), now_ + kDelay);
  Push(3, 0, {.bytes = 1});
  EXPECT_EQ(Take(), (Ids{2, 3}));
}

TEST_F(SchedulerTest, WhatStaysBehindKeepsItsTimeToClose) {
  Use({.max_requests = 2, .max_delay = kDelay});
  Push(0);
  const absl::Time close = now_ + kDelay;
  now_ += kDelay / 2;
  Push(1);
  Push(2);
  EXPECT_EQ(Take(), (Ids{0, 1}));
  EXPECT_EQ(queue_->NextClose(), close);
  EXPECT_EQ(Take(/*flush=*/true), (Ids{2}));
  Push(3);  // the next one waits anew
  EXPECT_EQ(queue_->NextClose(), now_ + kDelay);
}

// Its items and bytes no longer count toward a full batch, whichever way it ended.
TEST_F(SchedulerTest, WhatEndedLeavesNothingBehind) {
  const int owner = 0;
  Use({.max_items = 10, .max_bytes = 100, .max_delay = kDelay});
  Push(0);
  Push(1, 0, {.items = 9, .bytes = 99, .owner = &owner});
  EXPECT_EQ(Cancel(owner).size(), 1u);
  Push(2, 0, {.items = 9, .bytes = 99});
  EXPECT_EQ(queue_->NextClose(), now_ + kDelay);
  EXPECT_EQ(Take(/*flush=*/true), (Ids{0, 2}));

  Push(3, 0, {.items = 9, .bytes = 99, .owner = &owner});
  Push(4, 0, {.items = 6, .bytes = 60});
  Push(5, 0, {.items = 6, .bytes = 60});
  EXPECT_EQ(Cancel(owner).size(), 1u);
  EXPECT_EQ(Take(), (Ids{4}));
  EXPECT_EQ(queue_->NextClose(), now_ + kDelay);
}

TEST_F(SchedulerTest, CancelsByOwnerAndLeavesTheRest) {
  const int mine = 0, other = 0;
  Push(0, 0, {.owner = &mine});
  Push(1, 1, {.owner = &mine});
  Push(2, 0, {.owner = &other});
  const std::vector<EndedWork> ended = Cancel(mine);
  ASSERT_EQ(ended.size(), 2u);
  EXPECT_TRUE(absl::IsCancelled(ended[0].status));
  EXPECT_TRUE(Cancel(mine).empty());
  EXPECT_EQ(Take(), (Ids{2}));
  EXPECT_TRUE(Cancel(other).empty());
}

TEST_F(SchedulerTest, ALongWorkRunsInPiecesOnlyWhereOthersAre) {
  const Tenant one("one"), other("other");
  Use({.max_shared_seconds = 0.25});
  const Ticket large = {.tenant = &one, .seconds = 10, .piece_seconds = 0.125};
  const auto granted = [&] {
    const std::vector<WorkPtr> batch = queue_->Take(now_, false, &ended_);
    EXPECT_EQ(batch.size(), 1u);
    return std::min(batch[0]->granted_seconds(), batch[0]->ticket().seconds);
  };
  Push(0, 0, large);
  EXPECT_EQ(granted(), 10);  // nobody else is there
  Push(1, 0, {.tenant = &other, .seconds = 1});
  EXPECT_EQ(granted(), 1);
  // Both have the same key, and yet each runs alone. Tenant `one` was charged 10 seconds, `other`
  // 1; each piece is charged with the time that it takes.
  Push(2, 0, large);
  Push(3, 0, large);
  EXPECT_EQ(granted(), 0.25);
  EXPECT_EQ(granted(), 0.25);
  Ticket coarse = large;
  coarse.piece_seconds = 2;
  Push(4, 0, coarse);
  EXPECT_EQ(granted(), 2);
  // One tenant's classes are others, too.
  Use({.max_shared_seconds = 0.25});
  Push(5, 1, {.tenant = &one, .priority = PriorityClass::kInteractive, .seconds = 0.01});
  EXPECT_EQ(granted(), 0.01);
  Ticket bulk = large;
  bulk.priority = PriorityClass::kBulk;
  Push(6, 0, bulk);
  EXPECT_EQ(granted(), 0.25);
}

// A batch, and a piece, is limited in the time that it takes, not in what a wrong prediction says.
TEST_F(SchedulerTest, WhatTakesLongerThanPredictedGetsLess) {
  const Tenant one("one"), other("other");
  for (const double stretch : {1.0, 4.0, 0.5}) {
    Use({.max_shared_seconds = 0.25});
    const Ticket large = {.tenant = &one, .seconds = 10, .piece_seconds = 0.01};
    Push(0, 0, large);
    Push(1, 1, {.tenant = &other, .seconds = 0.01, .marginal_seconds = 0.01});
    std::vector<WorkPtr> batch = queue_->Take(now_, false, &ended_, {stretch});
    EXPECT_EQ(batch[0]->granted_seconds(), 0.25 / stretch);
    batch = queue_->Take(now_, false, &ended_, {stretch});
    const Ticket small = {.tenant = &other, .seconds = 0.05, .marginal_seconds = 0.05};
    for (int id = 2; id < 22; ++id) Push(id, 1, small);
    EXPECT_EQ(queue_->Take(now_, false, &ended_, {stretch}).size(), stretch == 1   ? 5u
                                                                    : stretch == 4 ? 1u
                                                                                   : 10u);
  }
}

TEST_F(SchedulerTest, CountsByKind) {
  const int owner = 0;
  Ticket factor, both;
  factor.key.kind = WorkKind::kFactor;
  both.key.kind = WorkKind::kFactorSolve;
  both.owner = &owner;
  Push(0);
  Push(1, 0, factor);
  Push(2, 0, factor);
  Push(3, 0, both);
  EXPECT_EQ(queue_->size(), 4);
  EXPECT_EQ(queue_->size(WorkKind::kFactorSolve), 1);
  EXPECT_EQ(Cancel(owner).size(), 1u);
  EXPECT_EQ(queue_->size(WorkKind::kFactorSolve), 0);
  Take();
  EXPECT_EQ(queue_->size(WorkKind::kSolve), 0);
  EXPECT_EQ(queue_->size(WorkKind::kFactor), 2);
  EXPECT_EQ(queue_->size(), 2);
}

TEST_F(SchedulerTest, ADeadlineIsSaidBeforeACancellation) {
  const int owner = 0;
  Push(0, 0, {.deadline = now_, .owner = &owner});
  Push(1, 0, {.deadline = now_ + absl::Nanoseconds(1)});
  const std::vector<EndedWork> ended = Cancel(owner);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(ended[0].status));
  EXPECT_EQ(Take(), (Ids{1}));
}

TEST_F(SchedulerTest, ADeadlineThatHasPassedClosesAtOnce) {
  Use({.max_delay = kDelay});
  Push(0, 0, {.deadline = now_ - absl::Seconds(1)});
  EXPECT_EQ(queue_->NextClose(), now_);
}

}  // namespace
}  // namespace blockd::server
