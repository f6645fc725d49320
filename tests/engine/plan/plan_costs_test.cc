// Which plan the cost model chooses, and what it says that factoring and solving take.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>

#include "tests/engine/plan/cost_models.h"

namespace blockd {
namespace {

constexpr Scalar kDouble = Scalar::kFloat64;

TEST(CostModelTest, ChoosesTheSequentialSweepForTinySystems) {
  for (const CostModel& costs : {TwoCores(), ManyLanes()}) {
    for (const int64_t num_blocks : {1, 2, 3}) {
      const auto plan = EliminationPlan::Make({num_blocks, 2, kDouble}, 1, costs);
      ASSERT_TRUE(plan.ok());
      EXPECT_EQ(plan->levels().size(), 1u);
    }
  }
}

TEST(CostModelTest, ChoosesTheSequentialSweepForLargeBatches) {
  const auto two = EliminationPlan::Make({100, 64, kDouble}, 64, TwoCores());
  const auto many = EliminationPlan::Make({64, 16, kDouble}, 132 * 8, ManyLanes());
  ASSERT_TRUE(two.ok() && many.ok());
  EXPECT_EQ(two->levels().size(), 1u) << two->DebugString();
  EXPECT_EQ(many->levels().size(), 1u) << many->DebugString();
}

TEST(CostModelTest, RunsFromBothEndsToTheMiddleOnTwoLanes) {
  const auto plan = EliminationPlan::Make({512, 128, kDouble}, 1, TwoCores());
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->levels().size(), 2u) << plan->DebugString();
  EXPECT_EQ(plan->levels()[0].segments.size(), 2u);
  EXPECT_EQ(plan->levels()[0].fills, 0);
}

TEST(CostModelTest, CutsALongChainIntoManySegmentsOnManyLanes) {
  const auto plan = EliminationPlan::Make({4096, 64, kDouble}, 1, ManyLanes());
  ASSERT_TRUE(plan.ok());
  EXPECT_GT(plan->levels()[0].segments.size(), 50u) << plan->DebugString();
  EXPECT_GT(plan->levels().size(), 2u) << plan->DebugString();
}

// A model in which nothing costs anything.
CostModel Free() {
  CostModel costs;
  costs.lane_flops_per_second = costs.device_flops_per_second = costs.bytes_per_second = 1e300;
  costs.half_rate_block_size = 0;
  costs.step_seconds = costs.level_seconds = 0;
  costs.solve_step_seconds = costs.solve_level_seconds = 0;
  return costs;
}

// A plan of two levels, the base of four blocks.
struct Priced {
  explicit Priced(const CostModel& costs) : costs(costs) {
    plan = std::make_unique<EliminationPlan>(Cut(40, 2, {4}));
    const Level& level = plan->levels()[0];
    first = static_cast<double>(level.segments.front().count);
    middle = static_cast<double>(level.segments[1].count);
    ends = first + static_cast<double>(level.segments.back().count);
    fills = static_cast<double>(level.fills);
  }
  double Factor(int64_t systems) const { return PredictedFactorSeconds(*plan, costs, systems); }
  CostModel costs;
  std::unique_ptr<EliminationPlan> plan;
  double first = 0, middle = 0, ends = 0, fills = 0;
};

void ExpectClose(double a, double b) { EXPECT_NEAR(a, b, 1e-12 * std::abs(b)); }

TEST(CostModelTest, PricesTheStepsOfTheLongestSegmentInTurns) {
  CostModel costs = Free();
  costs.lanes = 3;
  costs.step_seconds = 1;
  costs.step_seconds_per_row = 0.25;
  costs.fill_seconds_per_row = 0.125;
  costs.level_seconds = 1000;
  const Priced priced(costs);
  // n = 2; five segments of seven systems on three lanes, then the base's seven.
  const double longest = std::max(priced.first * 1.5, priced.middle * 1.75);
  ExpectClose(priced.Factor(7), 1000 + 12 * longest + 1000 + 3 * (4 * 1.5));
  ExpectClose(priced.Factor(1), 1000 + 2 * longest + 1000 + 1 * (4 * 1.5));
}

TEST(CostModelTest, PricesTheFlopsOfALaneAndOfTheDevice) {
  CostModel costs = Free();
  costs.lane_flops_per_second = 2;
  costs.half_rate_block_size = 6;  // so that n = 2 has a quarter of the rates
  const Priced lane(costs);
  const double longest = std::max(lane.first * 7 / 3, lane.middle * 19 / 3);
  ExpectClose(lane.Factor(1), (5 * longest + 4 * 7.0 / 3) * 8 / 0.5);
  costs.lane_flops_per_second = 1e300;
  costs.device_flops_per_second = 4;
  const Priced device(costs);
  ExpectClose(device.Factor(3),
              3 * 8 * (device.ends * 7 / 3 + device.fills * 19 / 3 + 4 * 7.0 / 3) / 1);
}

TEST(CostModelTest, PricesTheBytesThatAreReadAndWritten) {
  CostModel costs = Free();
  costs.bytes_per_second = 16;
  const Priced priced(costs);
  ExpectClose(priced.Factor(5), 5 * 4 * 8 * (priced.ends * 3 + priced.fills * 4 + 4 * 3) / 16);
}

TEST(CostModelTest, PricesSpreadBlocksByStepsAndFlopsTogether) {
  CostModel costs = Free();
  costs.spread = true;
  costs.spread_seconds_per_row = 0.5;
  costs.spread_seconds_per_entry = 0.25;
  costs.spread_flops_per_second = 3;
  costs.spread_half_rate_block_size = 4;  // a third of the rate
  costs.spread_level_seconds = 100;
  const Priced priced(costs);
  const double step = 2 * (0.5 + 2 * 0.25);
  const double longest = std::max(priced.first, priced.middle);
  const double flops = 8 * (priced.ends * 7 / 3 + priced.fills * 19 / 3);
  ExpectClose(priced.Factor(2), 100 + std::hypot(longest * step, 2 * flops) + 100 +
                                    std::hypot(4 * step, 2 * 8 * 4 * 7.0 / 3));
}

TEST(CostModelTest, PricesASolve) {
  const auto solve = [](const CostModel& costs, int64_t columns, int64_t systems) {
    const Priced priced(costs);
    return PredictedSolveSeconds(*priced.plan, columns, costs, systems);
  };
  const Priced priced(Free());
  CostModel costs = Free();
  costs.solve_step_seconds = 1;
  costs.solve_step_seconds_per_row = 0.5;
  costs.solve_level_seconds = 100;
  costs.solve_lanes = 3;
  // 36 interiors on three lanes, then the base's four, alone or of two systems; both ways.
  ExpectClose(solve(costs, 1, 1), 2 * (36.0 / 3 * 2 + 100 + 4 * 2 + 100));
  ExpectClose(solve(costs, 1, 2), 2 * (72.0 / 3 * 2 + 100 + 8.0 / 2 * 2 + 100));
  costs = Free();
  costs.bytes_per_second = 1;
  ExpectClose(solve(costs, 3, 2), 2 * priced.plan->solve_bytes(3));
  ExpectClose(priced.plan->solve_bytes(3), 2.0 * priced.plan->factor_bytes() + 4 * 80 * 3 * 8.0);
  costs = Free();
  costs.lane_flops_per_second = 2;
  costs.half_rate_block_size = 2;  // half of the rates
  costs.solve_lanes = 3;
  ExpectClose(solve(costs, 3, 2), 2 * priced.plan->solve_flops(3) / (2 * 3) * 2);
  costs.device_flops_per_second = 1;
  ExpectClose(solve(costs, 3, 2), 2 * priced.plan->solve_flops(3) * 2);
  // Every scalar of the factor, forward and back, a product and a sum.
  ExpectClose(priced.plan->solve_flops(3), 4.0 * 3 * priced.plan->factor_bytes() / 8);
}

TEST(CostModelTest, MakesFreeEndsLongerByWhatAFillCosts) {
  const auto ends = [](const CostModel& costs) {
    const auto plan = EliminationPlan::MakeWithSeparators({5000, 8, kDouble}, {20}, costs);
    EXPECT_TRUE(plan.ok()) << plan.status();
    const Level& level = plan->levels()[0];
    return static_cast<double>(level.segments.front().count) /
           static_cast<double>(level.segments[1].count);
  };
  CostModel costs = Free();
  costs.lane_flops_per_second = 1;
  EXPECT_NEAR(ends(costs), 19.0 / 7, 0.02);
  costs = Free();
  costs.step_seconds = 1;
  costs.step_seconds_per_row = 0.5;
  costs.fill_seconds_per_row = 0.5;
  EXPECT_NEAR(ends(costs), 9.0 / 5, 0.02);
  // Where a block is spread over the device, it takes as long with a fill as without.
  costs.spread = true;
  EXPECT_NEAR(ends(costs), 1, 0.02);
}

// It is the same for every plan.
TEST(CostModelTest, AddsTheHostsTimeForEachSystem) {
  CostModel costs = ManyLanes();
  const auto without = EliminationPlan::Make({64, 16, kDouble}, 256, costs);
  ASSERT_TRUE(without.ok());
  const double solve = PredictedSolveSeconds(*without, 4, costs, 256);
  const double factor = PredictedFactorSeconds(*without, costs, 256);
  costs.system_seconds = 1;
  const auto with = EliminationPlan::Make({64, 16, kDouble}, 256, costs);
  ASSERT_TRUE(with.ok());
  EXPECT_EQ(with->DebugString(), without->DebugString());
  EXPECT_NEAR(PredictedFactorSeconds(*with, costs, 256) - factor, 256, 1e-9);
  EXPECT_NEAR(PredictedSolveSeconds(*with, 4, costs, 256) - solve, 256, 1e-9);
}

// The longest chain of the smallest blocks that a device has memory for.
TEST(CostModelTest, KeepsThePlanOfTheLongestChainSmall) {
  const auto plan = EliminationPlan::Make({400'000'000, 1, kDouble}, 1, ManyLanes());
  ASSERT_TRUE(plan.ok());
  EXPECT_GT(plan->levels()[0].segments.size(), 1000u) << plan->DebugString();
  EXPECT_LT(plan->host_bytes(), 64 << 20) << plan->DebugString();
}

}  // namespace
}  // namespace blockd
