// Classes, tenants and their weights: who is next, and that nobody starves. Time is simulated.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/core/shard/scheduler.h"
#include "server/core/tenants/tenants.h"

namespace blockd::server {
namespace {

struct Job : Work {
  Job(int id, Ticket ticket) : Work(std::move(ticket)), id(id) {}
  const int id;
};

class SchedulerFairnessTest : public testing::Test {
 protected:
  // Tenants "0", "1", ... of these weights.
  void Configure(const std::vector<double>& weights) {
    TenantsConfig config;
    for (size_t i = 0; i < weights.size(); ++i) {
      config.tenants.push_back({.name = std::to_string(i), .weight = weights[i]});
    }
    tenants_.Configure(config);
    for (size_t i = 0; i < weights.size(); ++i) all_.push_back(*tenants_.Get(std::to_string(i)));
  }
  // Work that shares no batch with any other tenant's.
  Ticket TicketOf(size_t tenant, double seconds,
                  PriorityClass priority = PriorityClass::kInteractive) {
    Ticket ticket;
    ticket.tenant = all_[tenant].get();
    ticket.seconds = ticket.marginal_seconds = seconds;
    ticket.priority = priority;
    while (plans_.size() <= tenant) {
      const Shape shape{static_cast<int64_t>(2 + plans_.size()), 2, Scalar::kFloat64};
      plans_.push_back(
          std::make_shared<const EliminationPlan>(*EliminationPlan::Make(shape, 1, CostModel())));
    }
    ticket.key.plan = plans_[tenant];
    return ticket;
  }
  void Push(Ticket ticket) {
    scheduler_.Push(std::make_unique<Job>(next_id_++, std::move(ticket)), now_);
  }
  // Runs the next batch: time goes on by what it takes. Empty: nothing waits.
  std::vector<WorkPtr> RunNext() {
    std::vector<EndedWork> ended;
    std::vector<WorkPtr> batch = scheduler_.Take(now_, false, &ended);
    for (const WorkPtr& work : batch) {
      now_ += absl::Seconds(work->ticket().seconds);
      seconds_[work->ticket().tenant] += work->ticket().seconds;
    }
    missed_ += static_cast<int64_t>(ended.size());
    return batch;
  }
  double SecondsOf(size_t tenant) { return seconds_[all_[tenant].get()]; }
  static int IdOf(const WorkPtr& work) { return static_cast<const Job&>(*work).id; }

  Tenants tenants_;
  std::vector<TenantPtr> all_;
  std::vector<std::shared_ptr<const EliminationPlan>> plans_;
  Scheduler scheduler_{{.max_requests = 4}};
  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::map<const Tenant*, double> seconds_;
  int64_t missed_ = 0;
  int next_id_ = 0;
};

// 10^6 works of four tenants who always have some waiting, of very different sizes.
TEST_F(SchedulerFairnessTest, ATenantGetsItsWeight) {
  const std::vector<double> weights = {1, 2, 4, 1};
  const std::vector<double> sizes = {1e-4, 3e-3, 5e-5, 2e-2};
  Configure(weights);
  for (size_t t = 0; t < 4; ++t) {
    for (int i = 0; i < 8; ++i) Push(TicketOf(t, sizes[t]));
  }
  for (int64_t done = 0; done < 1'000'000;) {
    const std::vector<WorkPtr> batch = RunNext();
    ASSERT_FALSE(batch.empty());
    done += static_cast<int64_t>(batch.size());
    for (const WorkPtr& work : batch) {
      const auto tenant = static_cast<size_t>(std::stoi(work->ticket().tenant->name()));
      Push(TicketOf(tenant, sizes[tenant]));
    }
  }
  const double all = SecondsOf(0) + SecondsOf(1) + SecondsOf(2) + SecondsOf(3);
  for (size_t t = 0; t < 4; ++t) {
    EXPECT_NEAR(SecondsOf(t) / all, weights[t] / 8, 0.05 * weights[t] / 8) << t;
  }
}

// Who asks for little is not held up by who asks for much: at most one batch is before it.
TEST_F(SchedulerFairnessTest, OneWorkBesideACrowdIsNext) {
  Configure({1, 1});
  for (int i = 0; i < 500; ++i) Push(TicketOf(0, 1e-3));
  for (int round = 0; round < 50; ++round) {
    RunNext();
    const int id = next_id_;
    Push(TicketOf(1, 1e-3));
    const std::vector<WorkPtr> batch = RunNext();
    ASSERT_EQ(batch.size(), 1u);
    EXPECT_EQ(IdOf(batch[0]), id);
  }
}

// A tenant that asks for nothing does not save up its share.
TEST_F(SchedulerFairnessTest, WhoWasAwayGetsNoMoreThanItsShareAfterwards) {
  Configure({1, 1});
  for (int i = 0; i < 1000; ++i) {
    Push(TicketOf(0, 1e-3));
    RunNext();
  }
  for (int i = 0; i < 200; ++i) Push(TicketOf(0, 1e-3)), Push(TicketOf(1, 1e-3));
  seconds_.clear();
  for (int i = 0; i < 100; ++i) RunNext();
  EXPECT_NEAR(SecondsOf(0), SecondsOf(1), 5e-3);
}

TEST_F(SchedulerFairnessTest, ABatchIsShortWhereTenantsShare) {
  Configure({1, 1});
  for (int i = 0; i < 4; ++i) Push(TicketOf(0, 6e-4));
  EXPECT_EQ(RunNext().size(), 4u);  // nobody else has been seen
  for (int i = 0; i < 4; ++i) Push(TicketOf(0, 4e-4));
  Push(TicketOf(1, 1e-4));
  std::vector<size_t> sizes;
  while (!scheduler_.empty()) sizes.push_back(RunNext().size());
  EXPECT_LE(*std::max_element(sizes.begin(), sizes.end()), 2u);
  now_ += absl::Seconds(2);  // the other one is gone
  for (int i = 0; i < 4; ++i) Push(TicketOf(0, 4e-4));
  EXPECT_EQ(RunNext().size(), 4u);
}

TEST_F(SchedulerFairnessTest, CompatibleWorkOfOthersJoinsAndIsChargedToThem) {
  Configure({1, 1});
  Ticket mine = TicketOf(0, 1e-4), theirs = TicketOf(1, 1e-4);
  theirs.key = mine.key;
  Push(mine), Push(theirs);
  const std::vector<WorkPtr> batch = RunNext();
  ASSERT_EQ(batch.size(), 2u);
  EXPECT_EQ(SecondsOf(0), SecondsOf(1));
}

TEST_F(SchedulerFairnessTest, HigherClassesGoFirst) {
  Configure({1});
  Push(TicketOf(0, 1e-4, PriorityClass::kBulk));
  Push(TicketOf(0, 1e-4, PriorityClass::kInteractive));
  Ticket urgent = TicketOf(0, 1e-4, PriorityClass::kRealtime);
  urgent.deadline = now_ + absl::Seconds(1);
  Push(urgent);
  EXPECT_EQ(IdOf(RunNext()[0]), 2);
  EXPECT_EQ(IdOf(RunNext()[0]), 1);
  EXPECT_EQ(IdOf(RunNext()[0]), 0);
}

TEST_F(SchedulerFairnessTest, LowerClassesDoNotStarve) {
  Configure({1, 1, 1});
  const auto refill = [this](size_t tenant, PriorityClass priority) {
    Ticket ticket = TicketOf(tenant, 1e-3, priority);
    if (priority == PriorityClass::kRealtime) ticket.deadline = now_ + absl::Hours(1);
    Push(ticket);
  };
  const PriorityClass classes[] = {PriorityClass::kRealtime, PriorityClass::kInteractive,
                                   PriorityClass::kBulk};
  for (size_t t = 0; t < 3; ++t) refill(t, classes[t]);
  for (int i = 0; i < 20000; ++i) {
    for (const WorkPtr& work : RunNext()) {
      const auto tenant = static_cast<size_t>(std::stoi(work->ticket().tenant->name()));
      refill(tenant, classes[tenant]);
    }
  }
  const double all = SecondsOf(0) + SecondsOf(1) + SecondsOf(2);
  EXPECT_GT(SecondsOf(0) / all, 0.8);
  EXPECT_GT(SecondsOf(1) / all, 0.06);
  EXPECT_GT(SecondsOf(2) / all, 0.03);
}

TEST_F(SchedulerFairnessTest, RealtimeGoesByDeadline) {
  Configure({1, 1});
  std::vector<int> ids;
  for (const int ms : {90, 30, 60, 20}) {
    Ticket ticket = TicketOf(static_cast<size_t>(ms / 10 % 2), 1e-4, PriorityClass::kRealtime);
    ticket.key.kind = WorkKind::kFactor;
    ticket.items = 1;
    ticket.deadline = now_ + absl::Milliseconds(ms);
    Push(ticket);
  }
  Scheduler& scheduler = scheduler_;
  while (!scheduler.empty()) {
    for (const WorkPtr& work : RunNext()) ids.push_back(IdOf(work));
  }
  EXPECT_EQ(ids[0], 3);  // 20 ms; its batch has the same tenant's others, in their order
  EXPECT_TRUE(std::is_permutation(ids.begin(), ids.end(), std::vector<int>{0, 1, 2, 3}.begin()));
}

// A tenant that claims that everything is urgent does not take the device from one that says so of
// a little.
TEST_F(SchedulerFairnessTest, RealtimeIsSharedToo) {
  Configure({1, 1});
  const auto push = [this](size_t tenant, absl::Duration left) {
    Ticket ticket = TicketOf(tenant, 1e-3, PriorityClass::kRealtime);
    ticket.deadline = now_ + left;
    Push(ticket);
  };
  for (int i = 0; i < 400; ++i) push(0, absl::Milliseconds(500));
  int64_t answered = 0;
  for (int round = 0; round < 20; ++round) {
    push(1, absl::Milliseconds(600));  // later than all of them
    for (int i = 0; i < 8; ++i) {
      for (const WorkPtr& work : RunNext()) answered += work->ticket().tenant == all_[1].get();
    }
  }
  EXPECT_GE(answered, 15);
}

// An open loop of requests with deadlines of 2 to 200 ms.
struct OpenLoop {
  double per_second = 0;
  double mean_seconds = 2e-4;  // of one request beside others
  double batch_seconds = 0;    // of a batch, however many it has
  int64_t max_requests = 1;    // of one
};

// The part that is late.
double LatePart(const OpenLoop& loop, PriorityClass priority) {
  constexpr int64_t kRequests = 200'000;
  Scheduler scheduler({.max_requests = loop.max_requests});
  std::mt19937_64 random(7);
  std::exponential_distribution<double> gap(loop.per_second);
  std::uniform_real_distribution<double> log_deadline(std::log(2e-3), std::log(200e-3));
  std::exponential_distribution<double> size(1 / loop.mean_seconds);
  absl::Time arrival = absl::UnixEpoch(), now = arrival;
  int64_t late = 0, left = kRequests;
  while (left > 0 || !scheduler.empty()) {
    while (left > 0 && (arrival <= now || scheduler.empty())) {
      now = std::max(now, arrival);
      Ticket ticket;
      ticket.priority = priority;
      ticket.marginal_seconds = std::min(size(random), 5 * loop.mean_seconds);
      ticket.seconds = ticket.marginal_seconds + loop.batch_seconds;
      ticket.deadline = arrival + absl::Seconds(std::exp(log_deadline(random)));
      scheduler.Push(std::make_unique<Job>(0, std::move(ticket)), now);
      arrival += absl::Seconds(gap(random));
      --left;
    }
    std::vector<EndedWork> ended = scheduler.TakeExpired(now);
    const std::vector<WorkPtr> batch = scheduler.Take(now, false, &ended);
    if (!batch.empty()) now += absl::Seconds(loop.batch_seconds);
    for (const WorkPtr& work : batch) now += absl::Seconds(work->ticket().marginal_seconds);
    for (const WorkPtr& work : batch) late += now > work->ticket().deadline;
    late += static_cast<int64_t>(ended.size());
  }
  return static_cast<double>(late) / kRequests;
}

TEST(SchedulerDeadlineTest, AtEightyPercentLoadATenthIsLateOfWhatIsInTheOrderOfArrival) {
  const double by_arrival = LatePart({.per_second = 4000}, PriorityClass::kInteractive);
  EXPECT_GT(by_arrival, 0.005);
  EXPECT_LE(LatePart({.per_second = 4000}, PriorityClass::kRealtime), by_arrival / 10);
}

// The earliest deadline alone would miss a quarter: what it runs is just late, one after the other.
TEST(SchedulerDeadlineTest, UnderOverloadLittleMoreIsLateThanCannotBeDone) {
  EXPECT_LE(LatePart({.per_second = 6000}, PriorityClass::kRealtime), 0.17);
}

TEST(SchedulerDeadlineTest, OfShortBatchesAThirdIsLateOfWhatIsInTheOrderOfArrival) {
  for (const double per_second : {30e3, 40e3, 42e3, 44e3}) {
    const OpenLoop loop = {
        .per_second = per_second, .mean_seconds = 2e-5, .batch_seconds = 1e-4, .max_requests = 32};
    const double by_arrival = LatePart(loop, PriorityClass::kInteractive);
    EXPECT_LE(LatePart(loop, PriorityClass::kRealtime), std::max(1e-4, by_arrival / 3))
        << by_arrival << " in the order of arrival, at " << per_second;
  }
}

// As on a GPU. A batch that stops before the first deadline would be short there, and short batches
// make all others late: 89% for 9%.
TEST(SchedulerDeadlineTest, WhereABatchIsHardlyLongerThanOneRequestItGrows) {
  for (const double per_second : {20e3, 30e3, 38e3, 42e3}) {
    const OpenLoop loop = {
        .per_second = per_second, .mean_seconds = 2e-5, .batch_seconds = 5e-4, .max_requests = 128};
    const double by_arrival = LatePart(loop, PriorityClass::kInteractive);
    EXPECT_LE(LatePart(loop, PriorityClass::kRealtime), 1e-4 + 1.05 * by_arrival)
        << by_arrival << " in the order of arrival, at " << per_second;
  }
}

TEST(SchedulerDeadlineTest, WorkThatWouldBeLateGoesAfterWorkThatWouldNot) {
  Scheduler scheduler({.max_requests = 1});
  const absl::Time now = absl::UnixEpoch();
  const auto push = [&](int id, int milliseconds, double seconds) {
    Ticket ticket;
    ticket.priority = PriorityClass::kRealtime;
    ticket.seconds = ticket.marginal_seconds = seconds;
    ticket.deadline = now + absl::Milliseconds(milliseconds);
    scheduler.Push(std::make_unique<Job>(id, std::move(ticket)), now);
  };
  push(0, 10, 8e-3);
  push(1, 20, 8e-3);
  push(2, 30, 1e-3);
  std::vector<EndedWork> ended;
  const auto take = [&](const Pace& pace) {
    const std::vector<WorkPtr> batch = scheduler.Take(now, false, &ended, pace);
    return static_cast<const Job&>(*batch[0]).id;
  };
  // The first ends in time after 10 ms only if the device is free and as fast as predicted.
  EXPECT_EQ(take({.busy_seconds = 3e-3}), 1);
  EXPECT_EQ(take({.least_stretch = 1.5}), 2);
  EXPECT_EQ(take({.least_stretch = 1.5}), 0);  // nothing else is there
  EXPECT_TRUE(ended.empty());
}

TEST(SchedulerDeadlineTest, ABatchDoesNotGrowPastItsFirstDeadline) {
  Scheduler scheduler({});
  const absl::Time now = absl::UnixEpoch();
  for (const int milliseconds : {1, 4, 90, 90, 90}) {
    Ticket ticket;
    ticket.priority = PriorityClass::kRealtime;
    ticket.seconds = ticket.marginal_seconds = 1e-3;
    ticket.deadline = now + absl::Milliseconds(milliseconds);
    scheduler.Push(std::make_unique<Job>(milliseconds, std::move(ticket)), now);
  }
  std::vector<EndedWork> ended;
  const auto take = [&] {
    std::vector<int> ids;
    for (const WorkPtr& work : scheduler.Take(now, false, &ended, {.busy_seconds = 1e-3})) {
      ids.push_back(static_cast<const Job&>(*work).id);
    }
    return ids;
  };
  // 2 ms, 3 ms, 4 ms: the one that is late anyway is no part of it.
  EXPECT_EQ(take(), (std::vector<int>{4, 90, 90}));
  EXPECT_EQ(take(), (std::vector<int>{90}));
  EXPECT_EQ(take(), (std::vector<int>{1}));
}

TEST_F(SchedulerFairnessTest, SaysWhatIsBefore) {
  Configure({1, 1});
  Push(TicketOf(0, 2e-3)), Push(TicketOf(0, 3e-3)), Push(TicketOf(1, 7e-3));
  EXPECT_DOUBLE_EQ(scheduler_.SecondsBefore(TicketOf(0, 1)), 5e-3);
  EXPECT_DOUBLE_EQ(scheduler_.seconds(), 12e-3);
  Ticket urgent = TicketOf(0, 1e-3, PriorityClass::kRealtime);
  urgent.deadline = now_ + absl::Milliseconds(10);
  Push(urgent);
  urgent.deadline = now_ + absl::Milliseconds(5);
  EXPECT_EQ(scheduler_.SecondsBefore(urgent), 0);
  urgent.deadline = now_ + absl::Milliseconds(20);
  EXPECT_DOUBLE_EQ(scheduler_.SecondsBefore(urgent), 1e-3);
}

}  // namespace
}  // namespace blockd::server
