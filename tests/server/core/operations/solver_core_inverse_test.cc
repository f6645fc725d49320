// SelectedInverse and Sample: the engine's bits, ranges, and who may ask and when.
#include <cstring>

#include "tests/server/core/core_fixture.h"

namespace blockd::test {
namespace {

using server::Handle;
using server::SampleParams;
using server::SelectedInverseParams;
using PendingCost = std::unique_ptr<Pending<server::CostReply>>;

class SolverCoreInverseTest : public CoreTest {
 protected:
  PendingCost Invert(const Handle& handle, InverseParts parts, int64_t first, int64_t count,
                     std::vector<double>& diagonal, std::vector<double>& coupling,
                     const std::string& caller = "alice",
                     server::PriorityClass priority = server::PriorityClass::kInteractive) {
    auto pending = std::make_unique<Pending<server::CostReply>>();
    pending->context->caller = caller;
    pending->context->priority = priority;
    const Shape shape = system_.form.shape;
    const int64_t blocks = count == 0 ? shape.num_blocks - first : count;
    diagonal.assign(InverseDiagonalBytes(shape, parts, blocks) / 8, 7);
    coupling.assign(InverseCouplingBytes(shape, parts, blocks) / 8, 7);
    SelectedInverseParams params;
    params.handle = handle;
    params.parts = parts;
    params.first_block = first;
    params.num_blocks = count;
    params.diagonal = std::as_writable_bytes(std::span(diagonal));
    params.coupling = std::as_writable_bytes(std::span(coupling));
    core_->SelectedInverse(pending->context, params, pending->Callback());
    return pending;
  }
  PendingCost Sample(const Handle& handle, uint64_t seed, uint64_t first, int64_t count,
                     std::vector<double>& samples) {
    auto pending = std::make_unique<Pending<server::CostReply>>();
    pending->context->caller = "alice";
    samples.assign(static_cast<size_t>(system_.form.shape.rows() * std::max<int64_t>(count, 0)), 7);
    SampleParams params;
    params.handle = handle;
    params.seed = seed;
    params.first_sample = first;
    params.num_samples = count;
    params.samples = std::as_writable_bytes(std::span(samples));
    core_->Sample(pending->context, params, pending->Callback());
    return pending;
  }

  const TestSystem system_{7, 3};
};

// Against unit columns.
TEST_F(SolverCoreInverseTest, BlocksAreThoseOfTheInverse) {
  Start();
  const Handle handle = Held(system_);
  const int64_t rows = 21;
  std::vector<double> inverse(rows * rows);
  for (int64_t i = 0; i < rows; ++i) inverse[i * rows + i] = 1;
  {
    auto pending = std::make_unique<Pending<Solved>>();
    pending->context->caller = "alice";
    const auto bytes = std::as_writable_bytes(std::span(inverse));
    core_->Solve(pending->context,
                 {.handle = handle, .num_rhs = rows, .rhs = bytes, .solution = bytes},
                 pending->Callback());
    ASSERT_TRUE(pending->Wait().ok());
  }
  std::vector<double> diagonal, coupling;
  for (const auto& [first, count] :
       {std::pair<int64_t, int64_t>{0, 0}, {0, 7}, {2, 3}, {6, 0}, {6, 1}}) {
    SCOPED_TRACE(first);
    PendingCost inverted =
        Invert(handle, InverseParts::kWithCouplings, first, count, diagonal, coupling);
    ASSERT_TRUE(inverted->Wait().ok()) << inverted->Wait().status();
    EXPECT_EQ(inverted->Wait()->cost.batch_requests, 1);
    const int64_t blocks = std::ssize(diagonal) / 9;
    for (int64_t b = 0; b < blocks; ++b) {
      for (int64_t j = 0; j < 3; ++j) {
        for (int64_t i = 0; i < 3; ++i) {
          const int64_t row = (first + b) * 3;
          EXPECT_NEAR(diagonal[b * 9 + j * 3 + i], inverse[(row + j) * rows + row + i], 1e-13);
          if (b + 1 == blocks) continue;
          EXPECT_NEAR(coupling[b * 9 + j * 3 + i], inverse[(row + j) * rows + row + 3 + i], 1e-13);
        }
      }
    }
    std::vector<double> entries, none;
    ASSERT_TRUE(
        Invert(handle, InverseParts::kDiagonalEntries, first, count, entries, none)->Wait().ok());
    ASSERT_EQ(std::ssize(entries), blocks * 3);
    for (int64_t i = 0; i < blocks * 3; ++i) {
      EXPECT_NEAR(entries[i], diagonal[i / 3 * 9 + i % 3 * 4], 1e-15);
    }
  }
  EXPECT_EQ(Metric("blockd_batch_requests_count{kind=\"inverse\"}"), 10);
}

TEST_F(SolverCoreInverseTest, WhatTheSystemDoesNotHaveIsRefused) {
  Start();
  const Handle handle = Held(system_);
  std::vector<double> diagonal, coupling;
  const auto field = [&](int64_t first, int64_t count) {
    auto pending = std::make_unique<Pending<server::CostReply>>();
    pending->context->caller = "alice";
    SelectedInverseParams params;
    params.handle = handle;
    params.first_block = first;
    params.num_blocks = count;
    core_->SelectedInverse(pending->context, params, pending->Callback());
    return FieldOf(pending->Wait().status());
  };
  const int64_t largest = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(field(7, 1), "first_block");
  EXPECT_EQ(field(-1, 1), "first_block");
  EXPECT_EQ(field(largest, 1), "first_block");
  EXPECT_EQ(field(0, 8), "num_blocks");
  EXPECT_EQ(field(6, 2), "num_blocks");
  EXPECT_EQ(field(1, largest), "num_blocks");
  EXPECT_EQ(field(0, -1), "num_blocks");
  EXPECT_EQ(field(0, 7), "diagonal");  // no memory for it
  std::vector<double> samples;
  EXPECT_EQ(FieldOf(Sample(handle, 1, 0, 0, samples)->Wait().status()), "num_samples");
  EXPECT_EQ(FieldOf(Sample(handle, 1, 0, -5, samples)->Wait().status()), "num_samples");
  EXPECT_EQ(Reserved(), Charge(system_.form.shape));
}

TEST_F(SolverCoreInverseTest, SamplesHaveTheSameBitsHoweverTheyAreDrawn) {
  Start({.memory_bytes = int64_t{64} << 20});
  const Handle handle = Held(system_);
  std::vector<double> all, one;
  ASSERT_TRUE(Sample(handle, 5, 1000, 600, all)->Wait().ok());
  for (const uint64_t i : {0, 1, 255, 256, 599}) {
    ASSERT_TRUE(Sample(handle, 5, 1000 + i, 1, one)->Wait().ok());
    EXPECT_EQ(std::memcmp(one.data(), all.data() + i * 21, 21 * sizeof(double)), 0) << i;
  }
  ASSERT_TRUE(Sample(handle, 6, 1000, 1, one)->Wait().ok());
  EXPECT_NE(one[0], all[0]);
}

TEST_F(SolverCoreInverseTest, OnlyWhoMadeItMayAsk) {
  Start();
  const Handle handle = Held(system_);
  std::vector<double> diagonal, coupling;
  PendingCost others =
      Invert(handle, InverseParts::kDiagonalBlocks, 0, 0, diagonal, coupling, "bob");
  EXPECT_EQ(ReasonOf(others->Wait().status()), server::NotFoundReason::kNeverExisted);
  ASSERT_TRUE(core_->Release("alice", {&handle, 1}).ok());
  PendingCost late = Invert(handle, InverseParts::kDiagonalBlocks, 0, 0, diagonal, coupling);
  EXPECT_EQ(ReasonOf(late->Wait().status()), server::NotFoundReason::kReleased);
}

TEST_F(SolverCoreInverseTest, OneThatWaitsHoldsWhatItNeedsAndCanBeCancelled) {
  Start();
  const Handle handle = Held(system_);
  PendingFactor holder = HoldDevice();
  const int64_t before = Reserved();
  std::vector<double> diagonal, coupling, samples;
  PendingCost inverse = Invert(handle, InverseParts::kDiagonalBlocks, 0, 0, diagonal, coupling);
  PendingCost sample = Sample(handle, 1, 0, 4, samples);
  EXPECT_GT(Reserved(), before);
  // It is released, but not gone, as long as somebody waits with it.
  ASSERT_TRUE(core_->Release("alice", {&handle, 1}).ok());
  core_->Cancel(*sample->context);
  EXPECT_TRUE(absl::IsCancelled(sample->Wait().status()));
  gate_->Open();
  EXPECT_TRUE(inverse->Wait().ok()) << inverse->Wait().status();
  EXPECT_NE(diagonal[0], 7);
}

// Two that wait are not one batch: what is more urgent goes before the second.
TEST_F(SolverCoreInverseTest, WhatIsUrgentDoesNotWaitForAllThatWait) {
  Start();
  const Handle handle = Held(system_);
  PendingFactor holder = HoldDevice();
  std::vector<double> diagonals[3], none;
  std::vector<PendingCost> inverses;
  for (std::vector<double>& diagonal : diagonals) {
    inverses.push_back(Invert(handle, InverseParts::kDiagonalBlocks, 0, 0, diagonal, none, "alice",
                              server::PriorityClass::kBulk));
  }
  auto urgent = std::make_unique<Pending<server::FactorReply>>();
  urgent->context->caller = "alice";
  // All but the one that the lane may have taken already come after it.
  int before = 0;
  urgent->at_answer = [&] {
    for (const PendingCost& inverse : inverses) before += inverse->answered() ? 1 : 0;
  };
  server::FactorParams params;
  params.form = system_.form;
  params.num_systems = 1;
  core_->Factor(urgent->context, params, {system_.view()}, urgent->Callback());
  gate_->Open();
  EXPECT_TRUE(urgent->Wait().ok()) << urgent->Wait().status();
  EXPECT_LE(before, 1);
  for (const PendingCost& inverse : inverses) EXPECT_TRUE(inverse->Wait().ok());
}

TEST_F(SolverCoreInverseTest, WithoutMemoryForItItIsRefused) {
  Start({.memory_bytes = int64_t{1} << 20});
  const TestSystem fits(20, 30);
  const Handle handle = Held(fits);
  std::vector<double> diagonal(20 * 900);
  auto pending = std::make_unique<Pending<server::CostReply>>();
  pending->context->caller = "alice";
  SelectedInverseParams params;
  params.handle = handle;
  params.diagonal = std::as_writable_bytes(std::span(diagonal));
  // Somebody has the rest.
  const int64_t free = core_->memory().free_bytes;
  absl::StatusOr<server::Reservation> rest =
      core_->shards()[0].device().Reserve(nullptr, free - 1000);
  ASSERT_TRUE(rest.ok());
  core_->SelectedInverse(pending->context, params, pending->Callback());
  EXPECT_TRUE(absl::IsResourceExhausted(pending->Wait().status())) << pending->Wait().status();
  rest->Reset();
  EXPECT_EQ(core_->memory().free_bytes, free);
}

}  // namespace
}  // namespace blockd::test
