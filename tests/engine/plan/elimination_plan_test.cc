#include "blockd/engine/elimination_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/plan/cost_models.h"

namespace blockd {
namespace {

constexpr Scalar kDouble = Scalar::kFloat64;

// Every chain block is an interior of one segment or a separator, and segments lie beside the
// separators that they name.
void ExpectWellCut(const Level& level) {
  std::vector<int> seen(level.chain_length);
  ASSERT_EQ(level.segments.size(), level.separators.size() + 1);
  int64_t interiors = 0, fills = 0;
  for (const Segment& segment : level.segments) {
    ASSERT_GE(segment.count, 1);
    EXPECT_EQ(segment.slot, interiors);
    EXPECT_EQ(segment.has_fill(), segment.left_separator >= 0 && segment.right_separator >= 0);
    if (segment.has_fill()) {
      EXPECT_EQ(segment.fill_slot, fills);
    }
    for (int64_t k = 0; k < segment.count; ++k) ++seen.at(segment.block(k));
    if (segment.left_separator >= 0) {
      EXPECT_EQ(level.separators.at(segment.left_separator), segment.first - 1);
    } else {
      EXPECT_EQ(segment.first, 0);
    }
    if (segment.right_separator >= 0) {
      EXPECT_EQ(level.separators.at(segment.right_separator), segment.first + segment.count);
    } else {
      EXPECT_EQ(segment.first + segment.count, level.chain_length);
    }
    // Toward the separator: the last interior eliminated is beside it.
    EXPECT_EQ(segment.reversed, segment.left_separator >= 0 && segment.right_separator < 0);
    interiors += segment.count;
    if (segment.has_fill()) fills += segment.count;
  }
  for (const int64_t separator : level.separators) ++seen.at(separator);
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), level.chain_length);
  EXPECT_EQ(level.interiors, interiors);
  EXPECT_EQ(level.fills, fills);
}

void ExpectBalanced(const Level& level) {
  if (level.separators.empty()) return;
  const int64_t first = level.segments.front().count, last = level.segments.back().count;
  EXPECT_LE(std::abs(first - last), 1);
  if (level.segments.size() == 2) return;
  const auto by_count = [](const Segment& a, const Segment& b) { return a.count < b.count; };
  const auto [least, most] =
      std::minmax_element(level.segments.begin() + 1, level.segments.end() - 1, by_count);
  EXPECT_LE(most->count - least->count, 1);
}

// The arrays of all levels fill the factor without a gap or an overlap.
void ExpectExactOffsets(const EliminationPlan& plan) {
  const int64_t n = plan.shape().block_size;
  std::vector<std::pair<int64_t, int64_t>> parts;  // offset, scalars
  for (const Level& level : plan.levels()) {
    // The last block of the base has no next.
    const int64_t nexts = level.interiors - (&level == &plan.levels().back() ? 1 : 0);
    parts.push_back({level.inverse_offset, level.interiors * TriangleScalars(n)});
    parts.push_back({level.next_offset, nexts * n * n});
    parts.push_back({level.fill_offset, level.fills * n * n});
  }
  std::sort(parts.begin(), parts.end());
  int64_t end = 0;
  for (const auto& [offset, scalars] : parts) {
    EXPECT_EQ(offset, end);
    end = offset + scalars;
  }
  EXPECT_EQ(plan.factor_bytes(), end * ScalarBytes(plan.shape().scalar));
}

void ExpectSound(const EliminationPlan& plan) {
  const int64_t n = plan.shape().block_size;
  std::vector<int> eliminated(plan.shape().num_blocks);
  int64_t separators = 0;
  double flops = 0;
  ASSERT_FALSE(plan.levels().empty());
  EXPECT_TRUE(plan.levels().back().separators.empty());
  EXPECT_EQ(plan.levels().front().chain_length, plan.shape().num_blocks);
  for (size_t l = 0; l < plan.levels().size(); ++l) {
    const Level& level = plan.levels()[l];
    ExpectWellCut(level);
    ExpectBalanced(level);
    if (l > 0) {
      EXPECT_EQ(level.chain_length, static_cast<int64_t>(plan.levels()[l - 1].separators.size()));
    }
    for (const Segment& segment : level.segments) {
      for (int64_t k = 0; k < segment.count; ++k) {
        ++eliminated.at(plan.OriginalBlock(static_cast<int64_t>(l), segment.block(k)));
      }
    }
    separators += static_cast<int64_t>(level.separators.size());
    flops += (level.interiors - level.fills) * 7.0 / 3.0 + level.fills * 19.0 / 3.0;
  }
  EXPECT_EQ(std::count(eliminated.begin(), eliminated.end(), 1), plan.shape().num_blocks);
  EXPECT_EQ(plan.separators(), separators);
  EXPECT_EQ(plan.chain_scalars(), separators * 3 * n * n);
  // The very last block has no neighbour left: neither C nor an update.
  EXPECT_NEAR(plan.factor_flops(), (flops - 2) * std::pow(n, 3), 1e-9 * plan.factor_flops());
  ExpectExactOffsets(plan);
}

TEST(EliminationPlanTest, EliminatesEveryBlockOnceForEveryNumberOfSeparators) {
  for (int64_t num_blocks = 1; num_blocks <= 200; ++num_blocks) {
    for (int64_t separators = 1; 2 * separators + 1 <= num_blocks; ++separators) {
      SCOPED_TRACE(testing::Message() << "N " << num_blocks << ", separators " << separators);
      ExpectSound(Cut(num_blocks, 3, {separators}));
      if (HasFailure()) return;
    }
  }
}

TEST(EliminationPlanTest, EliminatesEveryBlockOnceThroughSeveralLevels) {
  for (int64_t num_blocks = 1; num_blocks <= 200; ++num_blocks) {
    for (int64_t step = 2; step <= 9; ++step) {
      std::vector<int64_t> separators;
      for (int64_t chain = num_blocks; chain > 2; chain = separators.back()) {
        separators.push_back(std::clamp<int64_t>(chain / step, 1, (chain - 1) / 2));
      }
      SCOPED_TRACE(testing::Message() << "N " << num_blocks << ", step " << step);
      ExpectSound(Cut(num_blocks, 5, separators));
      if (HasFailure()) return;
    }
  }
}

TEST(EliminationPlanTest, IsSoundForWhateverTheCostModelChooses) {
  for (const CostModel& costs : {CostModel(), TwoCores(), ManyLanes()}) {
    for (const int64_t num_blocks : {1, 2, 3, 4, 5, 6, 7, 31, 64, 100, 257, 1000, 4096, 65536}) {
      for (const int64_t block_size : {1, 4, 33, 256}) {
        for (const int64_t batch : {1, 2, 64, 1000}) {
          SCOPED_TRACE(testing::Message() << num_blocks << " " << block_size << " " << batch);
          const absl::StatusOr<EliminationPlan> plan =
              EliminationPlan::Make({num_blocks, block_size, kDouble}, batch, costs);
          ASSERT_TRUE(plan.ok()) << plan.status();
          ExpectSound(*plan);
          EXPECT_GT(PredictedFactorSeconds(*plan, costs, batch), 0);
          if (HasFailure()) return;
        }
      }
    }
  }
}

// As a plan with one more block, which is not there.
void ExpectOpen(const EliminationPlan& plan) {
  const int64_t last = static_cast<int64_t>(plan.levels().size()) - 1;
  std::vector<int> eliminated(plan.shape().num_blocks);
  for (int64_t l = 0; l <= last; ++l) {
    Level level = plan.levels()[l];
    for (const Segment& segment : level.segments) {
      for (int64_t k = 0; k < segment.count; ++k) {
        ++eliminated.at(plan.OriginalBlock(l, segment.block(k)));
      }
    }
    if (l < last) {
      EXPECT_EQ(level.separators.back(), level.chain_length - 1);
      EXPECT_EQ(level.segments.back().count, 0);
      ++level.segments.back().count, ++level.interiors, ++level.chain_length;
    }
    ExpectWellCut(level);
  }
  EXPECT_EQ(std::count(eliminated.begin(), eliminated.end(), 1), plan.shape().num_blocks);
  const Level& base = plan.levels().back();
  EXPECT_EQ(plan.OriginalBlock(last, base.segments[0].block(base.segments[0].count - 1)),
            plan.shape().num_blocks - 1);
  ExpectExactOffsets(plan);
}

TEST(EliminationPlanTest, KeepsTheLastBlockToTheEndIfItIsOpen) {
  for (int64_t num_blocks = 1; num_blocks <= 60; ++num_blocks) {
    const Shape shape{num_blocks, 3, kDouble};
    const auto sequential = EliminationPlan::MakeOpen(shape, {});
    ASSERT_TRUE(sequential.ok()) << sequential.status();
    EXPECT_EQ(*sequential, Cut(num_blocks, 3, {}));
    for (int64_t cuts = 1; 2 * cuts <= num_blocks; ++cuts) {
      std::vector<int64_t> separators;
      for (int64_t s = cuts; s > 0; s /= 2) {
        separators.push_back(s);
        SCOPED_TRACE(testing::Message() << "N " << num_blocks << ", first cut " << cuts
                                        << ", levels " << separators.size());
        const auto plan = EliminationPlan::MakeOpen(shape, separators);
        ASSERT_TRUE(plan.ok()) << plan.status();
        ExpectOpen(*plan);
        if (2 * cuts < num_blocks && separators.size() == 1) {
          EXPECT_FALSE(*plan == Cut(num_blocks, 3, separators));
        }
      }
    }
    EXPECT_FALSE(EliminationPlan::MakeOpen(shape, {num_blocks / 2 + 1}).ok());
    EXPECT_FALSE(EliminationPlan::MakeOpen(shape, {0}).ok());
  }
}

TEST(EliminationPlanTest, RefusesWhatCannotBeCut) {
  const auto code = [](int64_t num_blocks, const std::vector<int64_t>& separators) {
    return EliminationPlan::MakeWithSeparators({num_blocks, 2, kDouble}, separators)
        .status()
        .code();
  };
  EXPECT_EQ(code(2, {1}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(3, {1}), absl::StatusCode::kOk);
  EXPECT_EQ(code(10, {5}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(10, {0}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(10, {-3}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(10, {4, 2}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(10, {4, 1}), absl::StatusCode::kOk);
  EXPECT_EQ(code(10, {int64_t{1} << 62}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(0, {}), absl::StatusCode::kInvalidArgument);
}

TEST(EliminationPlanTest, RefusesInvalidShapesAndBatches) {
  const CostModel costs;
  EXPECT_EQ(EliminationPlan::Make({0, 4, kDouble}, 1, costs).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(EliminationPlan::Make({4, 0, kDouble}, 1, costs).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(EliminationPlan::Make({4, 4, kDouble}, 0, costs).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(EliminationPlanTest, IsAPureFunctionOfItsArguments) {
  const auto plan = [] { return *EliminationPlan::Make({1000, 32, kDouble}, 3, ManyLanes()); };
  const EliminationPlan first = plan(), second = plan();
  EXPECT_EQ(first.DebugString(), second.DebugString());
  EXPECT_EQ(first.factor_bytes(), second.factor_bytes());
  ASSERT_EQ(first.levels().size(), second.levels().size());
  for (size_t l = 0; l < first.levels().size(); ++l) {
    EXPECT_EQ(first.levels()[l].separators, second.levels()[l].separators);
  }
}

TEST(EliminationPlanTest, IsEqualToAnotherByWhatItEliminates) {
  const Shape shape{60, 8, kDouble};
  const auto make = [&](const std::vector<int64_t>& separators, const CostModel& costs = {}) {
    return *EliminationPlan::MakeWithSeparators(shape, separators, costs);
  };
  const EliminationPlan plan = make({9, 3});
  const EliminationPlan again = make({9, 3});
  EXPECT_EQ(plan, plan);
  EXPECT_EQ(plan, again);
  EXPECT_EQ(plan.fingerprint(), again.fingerprint());
  // Longer ends, which are the only difference.
  CostModel spread;
  spread.spread = true;
  const EliminationPlan others[] = {
      make({}),
      make({9}),
      make({9, 4}),
      make({10, 3}),
      make({9, 3}, spread),
      *EliminationPlan::MakeWithSeparators({61, 8, kDouble}, {9, 3}),
      *EliminationPlan::MakeWithSeparators({60, 9, kDouble}, {9, 3}),
      *EliminationPlan::MakeWithSeparators({60, 8, Scalar::kFloat32}, {9, 3})};
  for (const EliminationPlan& other : others) {
    EXPECT_FALSE(plan == other) << other.DebugString();
    EXPECT_NE(plan.fingerprint(), other.fingerprint()) << other.DebugString();
  }
  // One more interior in the first segment instead of the last makes another plan.
  EXPECT_FALSE(*EliminationPlan::MakeWithSeparators({4, 2, kDouble}, {1}) ==
               *EliminationPlan::MakeWithSeparators({5, 2, kDouble}, {1}));
}

// The cost for another batch or on another device is not part of a plan.
TEST(EliminationPlanTest, IsEqualWhateverItWasMadeFor) {
  const auto one = EliminationPlan::Make({512, 128, kDouble}, 1, TwoCores());
  ASSERT_TRUE(one.ok());
  const auto cut = EliminationPlan::MakeWithSeparators({512, 128, kDouble}, {1}, TwoCores());
  ASSERT_TRUE(cut.ok());
  EXPECT_EQ(*one, *cut);
  EXPECT_GT(PredictedFactorSeconds(*one, TwoCores(), 8), PredictedFactorSeconds(*one, TwoCores()));
  EXPECT_EQ(PredictedFactorSeconds(*one, TwoCores(), 8),
            PredictedFactorSeconds(*cut, TwoCores(), 8));
}

TEST(EliminationPlanTest, StoresHalfTheBytesForFloat32) {
  const EliminationPlan plan = Cut(20, 9, {4, 1});
  const absl::StatusOr<EliminationPlan> half =
      EliminationPlan::MakeWithSeparators({20, 9, Scalar::kFloat32}, {4, 1});
  ASSERT_TRUE(half.ok());
  EXPECT_EQ(plan.factor_bytes(), 2 * half->factor_bytes());
}

TEST(EliminationPlanTest, GrowsItsSolveCostWithTheRightHandSides) {
  const EliminationPlan plan = Cut(50, 8, {3});
  EXPECT_GT(plan.solve_flops(1), 0);
  EXPECT_NEAR(plan.solve_flops(16), 16 * plan.solve_flops(1), 1e-6 * plan.solve_flops(16));
  // The factor is read once, forward and back, however many right-hand sides there are.
  EXPECT_GE(plan.solve_bytes(1), 2.0 * plan.factor_bytes());
  EXPECT_GT(plan.solve_bytes(2), plan.solve_bytes(1));
  EXPECT_LT(plan.solve_bytes(16), 16 * plan.solve_bytes(1));
}

TEST(EliminationPlanTest, CountsWhatASolveNeeds) {
  const EliminationPlan plan = Cut(40, 3, {4, 1});
  // Two vectors for each of five separators, and one for each of eight segments.
  EXPECT_EQ(plan.solve_chain_scalars(7), (2 * 5 + (5 + 2 + 1)) * 3 * 7);
  EXPECT_EQ(Cut(9, 3, {}).solve_chain_scalars(2), 1 * 3 * 2);
  EXPECT_GE(plan.host_bytes(), static_cast<int64_t>(sizeof(EliminationPlan) + 3 * sizeof(Level) +
                                                    8 * sizeof(Segment) + 5 * sizeof(int64_t)));
}

TEST(TriangleTest, LaysPanelsOneAfterAnother) {
  for (int64_t n = 1; n <= 100; ++n) {
    int64_t scalars = 0;
    for (int64_t p = 0; p * kPanel < n; ++p) {
      EXPECT_EQ(TrianglePanelOffset(n, p), scalars) << "n " << n << ", panel " << p;
      scalars += (n - p * kPanel) * std::min(kPanel, n - p * kPanel);
    }
    EXPECT_EQ(TriangleScalars(n), scalars) << "n " << n;
  }
}

}  // namespace
}  // namespace blockd
