// Many solves as one request: the bits of single ones, each failing by itself, one place in the
// queue for each plan, and others that go between.
#include <cstring>

#include "tests/server/core/core_fixture.h"

namespace blockd::test {
namespace {

using server::Handle;
using server::SolveManyParams;
using server::SolveManyReply;

class SolverCoreSolveManyTest : public CoreTest {
 protected:
  using PendingMany = std::unique_ptr<Pending<SolveManyReply>>;
  struct Asked {
    Handle handle;
    Shape shape;
    int64_t num_rhs = 1;
  };

  // In place, as the transport asks.
  PendingMany SolveMany(const std::vector<Asked>& solves, const CallOptions& call = {},
                        bool residual = false) {
    auto pending = Prepare(solves, call);
    params_.residual = residual;
    core_->SolveMany(pending->context, params_, pending->Callback());
    return pending;
  }
  PendingMany Prepare(const std::vector<Asked>& solves, const CallOptions& call) {
    auto pending = std::make_unique<Pending<SolveManyReply>>();
    pending->context->caller = call.caller;
    pending->context->deadline = call.deadline;
    for (size_t i = 0; i < solves.size(); ++i) {
      const std::vector<double> rhs =
          TestRhs(solves[i].shape, solves[i].num_rhs, static_cast<int>(i));
      pending->rhs.insert(pending->rhs.end(), rhs.begin(), rhs.end());
    }
    pending->solution = pending->rhs;
    params_ = {};
    size_t at = 0;
    for (const Asked& asked : solves) {
      const auto bytes = static_cast<size_t>(asked.num_rhs * asked.shape.rows()) * 8;
      const auto columns = std::as_writable_bytes(std::span(pending->solution)).subspan(at, bytes);
      params_.handles.push_back(asked.handle);
      params_.solves.push_back({asked.num_rhs, columns, columns});
      at += bytes;
    }
    return pending;
  }
  // Each solve of it has the bits of one of its own.
  void ExpectSolo(const std::vector<Asked>& solves, Pending<SolveManyReply>& many) {
    const auto& reply = many.Wait();
    ASSERT_TRUE(reply.ok()) << reply.status();
    ASSERT_EQ(reply->outcomes.size(), solves.size());
    const double* x = many.solution.data();
    for (size_t i = 0; i < solves.size(); ++i) {
      SCOPED_TRACE(i);
      EXPECT_TRUE(reply->outcomes[i].status.ok()) << reply->outcomes[i].status;
      PendingSolve solo = Solve(solves[i].handle, solves[i].shape, solves[i].num_rhs,
                                {.rhs_seed = static_cast<int>(i)});
      ASSERT_TRUE(solo->Wait().ok());
      EXPECT_EQ(std::memcmp(x, solo->solution.data(), solo->solution.size() * 8), 0);
      EXPECT_EQ(reply->outcomes[i].backward_error_bound, solo->Wait()->backward_error_bound);
      x += solo->solution.size();
    }
  }
  const Shape& shape() const { return system_.form.shape; }
  const Shape& longer() const { return longer_.form.shape; }

  SolveManyParams params_;
  const TestSystem system_{6, 3}, other_{6, 3, 1}, longer_{9, 3};
};

TEST_F(SolverCoreSolveManyTest, MixedHandlesShapesAndColumnsHaveTheBitsOfSingleSolves) {
  Start();
  const Handle a = Held(system_), b = Held(other_), c = Held(longer_);
  const std::vector<Asked> solves = {{a, shape()},     {c, longer(), 2}, {b, shape(), 3},
                                     {a, shape(), 5},  {a, shape()},     {c, longer()},
                                     {b, shape(), 17}, {b, shape()}};
  auto many = SolveMany(solves);
  ExpectSolo(solves, *many);
  const auto stats = core_->Get("alice", a);
  EXPECT_EQ(stats->times_solved, 6);  // three of them in the frame
  EXPECT_EQ(stats->rhs_solved, 14);
}

TEST_F(SolverCoreSolveManyTest, HandlesOfTwoDevicesHaveTheBitsOfSingleSolves) {
  Start({.devices = 2});
  std::vector<Asked> solves;
  for (int i = 0; i < 4; ++i) {
    solves.push_back(
        {Held(i % 2 == 0 ? system_ : longer_), i % 2 == 0 ? shape() : longer(), 1 + i});
    solves.push_back({Held(other_), shape(), 2});
  }
  size_t on_first = 0;
  for (const Asked& asked : solves) on_first += core_->shards().IndexOf(asked.handle) == 0;
  EXPECT_GT(on_first, 0u);
  EXPECT_LT(on_first, solves.size());
  auto many = SolveMany(solves);
  ExpectSolo(solves, *many);
  // One that is not held, wherever it would be, fails alone.
  const Handle gone = solves[3].handle;
  ASSERT_TRUE(core_->Release("alice", {&gone, 1}).ok());
  auto some = SolveMany(solves);
  ASSERT_TRUE(some->Wait().ok());
  for (size_t i = 0; i < solves.size(); ++i) {
    EXPECT_EQ(some->Wait()->outcomes[i].status.ok(), i != 3) << i;
  }
}

TEST_F(SolverCoreSolveManyTest, ItIsOneRequestOfTheQueueForEachPlan) {
  Start();
  const Handle a = Held(system_), b = Held(other_), c = Held(longer_);
  PendingFactor holder = HoldDevice();
  auto many = SolveMany({{a, shape()}, {c, longer(), 2}, {b, shape()}, {a, shape()}});
  EXPECT_EQ(Metric("blockd_queue_requests{kind=\"solve\"}"), 2);
  EXPECT_EQ(core_->tenants().Get("alice").value()->used(server::Resource::kQueueSlots), 2);
  PendingSolve beside = Solve(b, shape());
  gate_->Open();
  ASSERT_TRUE(many->Wait().ok());
  ExpectSolves(other_, *beside);
  // The batch of `beside` has three solves of the frame and this one.
  EXPECT_EQ(beside->Wait()->cost.batch_requests, 4);
  EXPECT_EQ(beside->Wait()->cost.batch_items, 4);
  EXPECT_EQ(many->Wait()->cost.batch_requests, 5);
  EXPECT_EQ(many->Wait()->cost.batch_items, 6);
  EXPECT_EQ(core_->tenants().Get("alice").value()->used(server::Resource::kQueueSlots), 0);
}

TEST_F(SolverCoreSolveManyTest, ASolveThatFailsFailsAlone) {
  Start();
  server::FactorParams keep;
  keep.keep_matrix = true;
  const Handle a = Held(system_), gone = Held(other_), kept = Held(other_, keep);
  ASSERT_TRUE(core_->Release("alice", {&gone, 1}).ok());
  auto many = SolveMany({{a, shape()}, {gone, shape()}, {a, longer()}, {kept, shape()}}, {});
  const auto& reply = many->Wait();
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(reply->outcomes[0].status.ok());
  EXPECT_EQ(ReasonOf(reply->outcomes[1].status), server::NotFoundReason::kReleased);
  EXPECT_EQ(FieldOf(reply->outcomes[2].status), "rhs");
  EXPECT_TRUE(reply->outcomes[3].status.ok());
  auto measured = SolveMany({{a, shape()}, {kept, shape()}}, {}, /*residual=*/true);
  ASSERT_TRUE(measured->Wait().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(measured->Wait()->outcomes[0].status));
  EXPECT_TRUE(measured->Wait()->outcomes[1].backward_error.has_value());
}

TEST_F(SolverCoreSolveManyTest, WhereAllFailThereIsStillAnAnswer) {
  Start();
  const Handle gone = Held(other_);
  ASSERT_TRUE(core_->Release("alice", {&gone, 1}).ok());
  auto many = SolveMany({{gone, shape()}, {gone, shape()}});
  ASSERT_TRUE(many->Wait().ok());
  for (const SolveOutcome& outcome : many->Wait()->outcomes) {
    EXPECT_TRUE(absl::IsNotFound(outcome.status));
  }
  EXPECT_EQ(FieldOf(SolveMany({})->Wait().status()), "handle");
}

TEST_F(SolverCoreSolveManyTest, NaNIsFoundWhereItIsAskedForAndHarmsNoOther) {
  Start();
  const Handle a = Held(system_);
  auto many = Prepare({{a, shape()}, {a, shape()}}, {});
  many->solution[0] = std::numeric_limits<double>::quiet_NaN();
  params_.check_finite = true;
  core_->SolveMany(many->context, params_, many->Callback());
  ASSERT_TRUE(many->Wait().ok());
  EXPECT_EQ(FieldOf(many->Wait()->outcomes[0].status), "rhs");
  EXPECT_TRUE(many->Wait()->outcomes[1].status.ok());
}

TEST_F(SolverCoreSolveManyTest, Float64MustBeAligned) {
  Start();
  const Handle a = Held(system_);
  std::vector<double> room(static_cast<size_t>(2 * shape().rows()) + 1);
  const auto bytes = std::as_writable_bytes(std::span(room));
  const auto size = static_cast<size_t>(shape().rows()) * 8;
  Pending<SolveManyReply> many;
  many.context->caller = "alice";
  params_.handles = {a, a};
  params_.solves = {{1, bytes.subspan(0, size), bytes.subspan(0, size)},
                    {1, bytes.subspan(size + 4, size), bytes.subspan(size + 4, size)}};
  core_->SolveMany(many.context, params_, many.Callback());
  ASSERT_TRUE(many.Wait().ok());
  EXPECT_TRUE(many.Wait()->outcomes[0].status.ok());
  EXPECT_EQ(FieldOf(many.Wait()->outcomes[1].status), "rhs");
}

TEST_F(SolverCoreSolveManyTest, ACancelledOneGivesEverythingBackAtOnce) {
  Start();
  const Handle a = Held(system_), c = Held(longer_);
  PendingFactor holder = HoldDevice();
  auto many = SolveMany({{a, shape()}, {c, longer()}, {a, shape()}});
  core_->Cancel(*many->context);
  EXPECT_TRUE(many->answered());
  EXPECT_TRUE(absl::IsCancelled(many->Wait().status()));
  EXPECT_EQ(Metric("blockd_queue_requests{kind=\"solve\"}"), 0);
  EXPECT_EQ(core_->tenants().Get("alice").value()->used(server::Resource::kQueueSlots), 0);
  gate_->Open();
}

TEST_F(SolverCoreSolveManyTest, ALateOneIsDeadlineExceeded) {
  Start();
  const Handle a = Held(system_), c = Held(longer_);
  PendingFactor holder = HoldDevice();
  auto many =
      SolveMany({{a, shape()}, {c, longer()}}, {.deadline = clock_.Now() + absl::Seconds(5)});
  clock_.Advance(absl::Seconds(6));
  EXPECT_TRUE(absl::IsDeadlineExceeded(many->Wait().status())) << many->Wait().status();
  gate_->Open();
}

TEST_F(SolverCoreSolveManyTest, EachSolveCountsForTheRate) {
  Start();
  const Handle a = Held(system_);
  core_->tenants().Configure(
      {.default_tenant = {.quotas = {.requests_per_second = 3}}, .tenants = {}});
  auto first = SolveMany({{a, shape()}, {a, shape()}, {a, shape()}});
  EXPECT_TRUE(first->Wait().ok()) << first->Wait().status();
  const absl::Status over = SolveMany({{a, shape()}, {a, shape()}})->Wait().status();
  const auto quota = server::QuotaExceededOf(over);
  ASSERT_TRUE(quota.has_value()) << over;
  EXPECT_EQ(quota->quota, "requests_per_second");
  EXPECT_EQ(quota->asked, 2);
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(SolveMany({{a, shape()}, {a, shape()}})->Wait().ok());
}

TEST_F(SolverCoreSolveManyTest, AFullQueueRefusesItAsAWhole) {
  Start({.limits = {.max_queued_requests = 2}});
  const Handle a = Held(system_), c = Held(longer_);
  PendingFactor holder = HoldDevice();
  PendingSolve waiting = Solve(a, shape());
  auto many = SolveMany({{a, shape()}, {c, longer()}});  // two places, and one is left
  EXPECT_FALSE(many->Wait().ok());
  EXPECT_TRUE(server::RetryAfterOf(many->Wait().status()).has_value()) << many->Wait().status();
  auto fits = SolveMany({{a, shape()}, {a, shape()}});
  gate_->Open();
  EXPECT_TRUE(fits->Wait().ok());
  ExpectSolves(system_, *waiting);
}

// With room for a few columns, or for one, it runs in pieces that cut across its solves.
TEST_F(SolverCoreSolveManyTest, WithLittleRoomItRunsInPiecesWithTheSameBits) {
  for (const int64_t reserve : {int64_t{4} << 10, int64_t{8} << 10, int64_t{1} << 20}) {
    SCOPED_TRACE(reserve);
    Start({.solve_reserve_bytes = reserve});
    const Handle a = Held(system_), b = Held(other_);
    const std::vector<Asked> solves = {
        {a, shape(), 2}, {b, shape(), 7}, {a, shape()}, {b, shape()}, {a, shape(), 30}};
    PendingFactor full = Factor({TestSystem(2, 2)});
    auto many = SolveMany(solves);
    ExpectSolo(solves, *many);
    full->Wait();
    Stop();
  }
}

// Where another tenant asks, a long one goes in pieces, and the other's goes between.
TEST_F(SolverCoreSolveManyTest, OthersGoBetweenThePiecesOfALongOne) {
  Start({.limits = {.max_shared_batch = absl::Nanoseconds(1)}});
  const Handle a = Held(system_), b = Held(other_);
  const Handle others = [&] {
    PendingFactor factor = Factor({longer_}, {}, {.caller = "bob"});
    return factor->Wait()->systems[0].handle;
  }();
  std::vector<Asked> solves;
  for (int i = 0; i < 40; ++i) solves.push_back({i % 2 == 0 ? a : b, shape(), 1 + i % 3});
  PendingFactor holder = HoldDevice();
  auto many = SolveMany(solves);
  PendingSolve between = Solve(others, longer(), 1, {.caller = "bob"});
  bool many_was_answered = true;
  between->at_answer = [&] { many_was_answered = many->answered(); };
  gate_->Open();
  ExpectSolves(longer_, *between);
  EXPECT_FALSE(many_was_answered);
  ExpectSolo(solves, *many);
}

TEST_F(SolverCoreSolveManyTest, TheDevicesTimeIsSharedBySolves) {
  Start();
  const Handle a = Held(system_);
  const double before = Metric("blockd_batch_requests_sum{kind=\"solve\"}");
  ASSERT_TRUE(SolveMany({{a, shape()}, {a, shape(), 4}, {a, shape()}})->Wait().ok());
  EXPECT_EQ(Metric("blockd_batch_requests_sum{kind=\"solve\"}") - std::max(before, 0.0), 3);
  EXPECT_EQ(Metric("blockd_batch_items_sum{kind=\"solve\"}"), 6);
}

}  // namespace
}  // namespace blockd::test
