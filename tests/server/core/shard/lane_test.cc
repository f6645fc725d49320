// Tasks that run a step, go back to the queue and come again: an iteration that nobody has yet.
#include "server/core/shard/lane.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "tests/server/base/fake_clock.h"

namespace blockd::test {
namespace {

using server::PriorityClass;
using server::TaskPtr;
using server::WorkKind;
using Strings = std::vector<std::string>;

struct Iteration : server::Task {
  Iteration(server::Operation* operation, server::ContextPtr context, std::string name, int steps)
      : Task(operation, server::Method::kFactor, std::move(context), {}, absl::UnixEpoch()),
        name(std::move(name)),
        steps_left(steps) {}
  const std::string name;
  int steps_left;
};

// Each step of a batch stands on the lane's thread until the test lets it go.
class IterativeOperation final : public server::Operation {
 public:
  Completion Run(const std::vector<TaskPtr>& batch) override {
    absl::MutexLock lock(&mutex_);
    for (Iteration* const task : server::TasksOf<Iteration>(batch)) standing_.push_back(task->name);
    std::ranges::sort(standing_);
    mutex_.Await(absl::Condition(&go_));
    go_ = false;
    standing_.clear();
    for (Iteration* const task : server::TasksOf<Iteration>(batch)) {
      task->unfinished = --task->steps_left > 0;
      if (!task->unfinished) ended_.push_back(task->name + " OK");
    }
    return nullptr;
  }
  void Fail(TaskPtr task, const absl::Status& status) override {
    absl::MutexLock lock(&mutex_);
    ended_.push_back(static_cast<Iteration&>(*task).name + " " +
                     absl::StatusCodeToString(status.code()));
  }

  // The batch that stands; waits for one.
  Strings Standing() {
    absl::MutexLock lock(&mutex_);
    const auto some = [this]()
                          ABSL_NO_THREAD_SAFETY_ANALYSIS { return !standing_.empty() && !go_; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&some), absl::Minutes(1)));
    return standing_;
  }
  void LetGo() {
    absl::MutexLock lock(&mutex_);
    go_ = true;
  }
  // The tasks that were answered, in this order, once they are so many.
  Strings Ended(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto all = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return ended_.size() >= count; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&all), absl::Minutes(1)));
    return ended_;
  }

 private:
  absl::Mutex mutex_;
  bool go_ ABSL_GUARDED_BY(mutex_) = false;
  Strings standing_ ABSL_GUARDED_BY(mutex_), ended_ ABSL_GUARDED_BY(mutex_);
};

class LaneTest : public testing::Test {
 protected:
  struct Call {
    WorkKind kind = WorkKind::kFactor;
    PriorityClass priority = PriorityClass::kInteractive;
    absl::Duration timeout = absl::InfiniteDuration();
  };
  server::ContextPtr Push(const std::string& name, int steps, const Call& call) {
    auto context = std::make_shared<server::RequestContext>();
    context->deadline = clock_.Now() + call.timeout;
    TaskPtr task = std::make_unique<Iteration>(&operation_, context, name, steps);
    server::Ticket ticket;
    ticket.key.kind = call.kind;
    ticket.priority = call.priority;
    ticket.seconds = ticket.marginal_seconds = 1e-5;  // short enough to share
    ticket.deadline = context->deadline;
    ticket.owner = context.get();
    task->set_ticket(std::move(ticket));
    EXPECT_TRUE(lane_.Push(task).ok());
    return context;
  }
  server::ContextPtr Push(const std::string& name, int steps) { return Push(name, steps, {}); }
  void Cancel(const server::ContextPtr& context) {
    context->cancelled = true;
    lane_.Cancel(context.get());
  }

  FakeClock clock_;
  IterativeOperation operation_;
  server::Lane lane_{{}, &clock_, [](absl::Time) {}};
};

TEST_F(LaneTest, TasksJoinABatchBetweenStepsAndLeaveItEachByItself) {
  Push("a", 4);
  EXPECT_EQ(operation_.Standing(), Strings({"a"}));
  Push("b", 1);
  Push("c", 2);
  operation_.LetGo();
  EXPECT_EQ(operation_.Standing(), Strings({"a", "b", "c"}));
  operation_.LetGo();
  EXPECT_EQ(operation_.Standing(), Strings({"a", "c"}));
  Push("other", 1, {.kind = WorkKind::kInverse});  // another key: a batch of its own
  operation_.LetGo();
  EXPECT_EQ(operation_.Standing(), Strings({"other"}));
  operation_.LetGo();
  EXPECT_EQ(operation_.Standing(), Strings({"a"}));
  operation_.LetGo();
  EXPECT_EQ(operation_.Ended(4), Strings({"b OK", "c OK", "other OK", "a OK"}));
  EXPECT_EQ(lane_.size(WorkKind::kFactor), 0);
}

TEST_F(LaneTest, ARealtimeTaskOvertakesBetweenSteps) {
  Push("a", 3);
  EXPECT_EQ(operation_.Standing(), Strings({"a"}));
  Push("late", 1);
  Push("now", 2, {.priority = PriorityClass::kRealtime, .timeout = absl::Seconds(1)});
  operation_.LetGo();
  for (int step = 0; step < 2; ++step) {
    EXPECT_EQ(operation_.Standing(), Strings({"now"}));
    operation_.LetGo();
  }
  EXPECT_EQ(operation_.Standing(), Strings({"a", "late"}));
  operation_.LetGo();
  EXPECT_EQ(operation_.Standing(), Strings({"a"}));
  operation_.LetGo();
  EXPECT_EQ(operation_.Ended(3), Strings({"now OK", "late OK", "a OK"}));
}

TEST_F(LaneTest, OneThatIsCancelledEndsAfterItsStepAndTheOthersGoOn) {
  const server::ContextPtr a = Push("a", 3);
  EXPECT_EQ(operation_.Standing(), Strings({"a"}));
  Push("b", 3);
  operation_.LetGo();
  EXPECT_EQ(operation_.Standing(), Strings({"a", "b"}));
  Cancel(a);
  operation_.LetGo();
  EXPECT_EQ(operation_.Ended(1), Strings({"a CANCELLED"}));
  for (int step = 0; step < 2; ++step) {
    EXPECT_EQ(operation_.Standing(), Strings({"b"}));
    operation_.LetGo();
  }
  EXPECT_EQ(operation_.Ended(2).back(), "b OK");
}

TEST_F(LaneTest, OneThatIsCancelledBetweenStepsEndsAtOnce) {
  const server::ContextPtr a = Push("a", 3);
  EXPECT_EQ(operation_.Standing(), Strings({"a"}));
  Push("now", 1, {.priority = PriorityClass::kRealtime, .timeout = absl::Seconds(1)});
  operation_.LetGo();
  EXPECT_EQ(operation_.Standing(), Strings({"now"}));
  Cancel(a);
  EXPECT_EQ(operation_.Ended(1), Strings({"a CANCELLED"}));
  operation_.LetGo();
  EXPECT_EQ(operation_.Ended(2).back(), "now OK");
}

TEST_F(LaneTest, ADeadlineThatComesDuringAStepEndsThatTaskAlone) {
  Push("a", 3);
  EXPECT_EQ(operation_.Standing(), Strings({"a"}));
  Push("b", 3, {.timeout = absl::Seconds(1)});
  operation_.LetGo();
  EXPECT_EQ(operation_.Standing(), Strings({"a", "b"}));
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(lane_.EndExpired(clock_.Now()), absl::InfiniteFuture());
  operation_.LetGo();
  EXPECT_EQ(operation_.Ended(1), Strings({"b DEADLINE_EXCEEDED"}));
  EXPECT_EQ(operation_.Standing(), Strings({"a"}));
  operation_.LetGo();
  EXPECT_EQ(operation_.Ended(2).back(), "a OK");
}

}  // namespace
}  // namespace blockd::test
