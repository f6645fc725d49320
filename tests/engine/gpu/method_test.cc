// Which method a shape is factored and solved by, on which device, and what that costs: an H200's
// plans are those that were measured.
#include "engine/gpu/method.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace blockd::gpu {
namespace {

constexpr Scalar kDouble = Scalar::kFloat64, kFloat = Scalar::kFloat32;

const DeviceLimits kH200 = {132, 233472, 232448, CudaArchitecture(9, 0)};
const DeviceLimits kA100 = {108, 167936, 166912, CudaArchitecture(8, 0)};
const DeviceLimits kMi210 = {104, 65536, 65536, HipArchitecture("gfx90a:sramecc+:xnack-")};

struct Choice {
  Shape shape;
  Method factor, solve;
};

TEST(MethodTest, FollowsTheShape) {
  const Method segment = Method::kSegment, lockstep = Method::kLockstep, list = Method::kTaskList;
  const std::vector<Choice> choices = {
      {{1, 1, kDouble}, segment, segment},       {{100, 64, kDouble}, segment, segment},
      {{100, 65, kDouble}, lockstep, segment},   {{100, 128, kDouble}, lockstep, segment},
      {{100, 129, kDouble}, lockstep, lockstep}, {{100, 256, kDouble}, lockstep, lockstep},
      {{100, 128, kFloat}, segment, segment},    {{100, 129, kFloat}, lockstep, lockstep},
      {{100, 132, kFloat}, lockstep, list},      {{100, 192, kFloat}, lockstep, list},
      {{100, 193, kFloat}, list, lockstep},      {{128, 256, kFloat}, list, list},
      {{129, 256, kFloat}, lockstep, list},      {{204, 256, kFloat}, lockstep, list},
      {{205, 256, kFloat}, lockstep, lockstep},  {{4, 768, kFloat}, list, lockstep},
      {{4, 769, kFloat}, lockstep, lockstep},    {{1000000, 256, kFloat}, lockstep, lockstep},
  };
  for (const Choice& choice : choices) {
    SCOPED_TRACE(testing::Message()
                 << "N " << choice.shape.num_blocks << " n " << choice.shape.block_size << " bytes "
                 << ScalarBytes(choice.shape.scalar));
    EXPECT_EQ(FactorMethod(choice.shape, kH200), choice.factor);
    EXPECT_EQ(SolveMethod(choice.shape, kH200), choice.solve);
  }
}

TEST(MethodTest, FollowsTheSharedMemory) {
  EXPECT_EQ(FactorMethod({100, 128, kFloat}, kA100), Method::kLockstep);
  EXPECT_EQ(FactorMethod({100, 64, kFloat}, kA100), Method::kSegment);
  EXPECT_EQ(FactorMethod({100, 256, kFloat}, kA100), Method::kTaskList);
  EXPECT_EQ(FactorMethod({100, 33, kDouble}, kMi210), Method::kLockstep);
  EXPECT_EQ(FactorMethod({100, 32, kDouble}, kMi210), Method::kSegment);
  EXPECT_EQ(FactorMethod({100, 256, kFloat}, kMi210), Method::kLockstep);
}

TEST(MethodTest, AnH200KeepsItsPlans) {
  struct Measured {
    Shape shape;
    int64_t batch;
    std::vector<size_t> separators;
    double seconds;
  };
  const std::vector<Measured> plans = {
      {{256, 1024, kDouble}, 1, {37, 15, 7, 3, 1}, 0x1.694a0c19430fbp-5},
      {{512, 512, kDouble}, 1, {81, 40, 15, 7, 3, 1}, 0x1.d044d3feda7b8p-7},
      {{1024, 256, kDouble}, 1, {91, 45, 15, 7, 3, 1}, 0x1.4e2a4b5521fc7p-8},
      {{2048, 128, kDouble}, 1, {257, 91, 45, 15, 7, 3, 1}, 0x1.0c34d38ede2b3p-9},
      {{4096, 64, kDouble}, 1, {257, 91, 45, 15, 7, 3, 1}, 0x1.d3a2b3a6d71bcp-12},
      {{8192, 32, kDouble}, 1, {518, 182, 46, 15, 7, 3, 1}, 0x1.efbfc3ea1fd7dp-13},
      {{100, 256, kDouble}, 1, {33, 11, 3, 1}, 0x1.0ef2577d98505p-10},
      {{1000, 4, kDouble}, 1, {204, 41, 6}, 0x1.e290945ded1ep-16},
      {{100000, 4, kDouble}, 1, {1879, 325, 46, 7}, 0x1.3b4035f36233ap-14},
      {{64, 16, kDouble}, 1, {22, 7, 3, 1}, 0x1.2a1b27b02ee21p-15},
      {{64, 16, kDouble}, 256, {3, 1}, 0x1.ae9b6eae40588p-14},
      {{256, 1024, kFloat}, 1, {46, 15, 7, 3, 1}, 0x1.7b517a83a2815p-6},
      {{512, 512, kFloat}, 1, {91, 45, 15, 7, 3, 1}, 0x1.030f5095e294p-7},
      {{1024, 256, kFloat}, 1, {257, 91, 45, 15, 7, 3, 1}, 0x1.8c45a12cd9cfdp-9},
      {{2048, 128, kFloat}, 1, {128, 46, 15, 7, 3, 1}, 0x1.1d321c4d4d67ep-10},
      {{4096, 64, kFloat}, 1, {257, 128, 63, 31, 15, 7, 3, 1}, 0x1.42f27a3363381p-12},
      {{8192, 32, kFloat}, 1, {518, 182, 46, 15, 7, 3, 1}, 0x1.ef257ecf64453p-13},
      {{100, 256, kFloat}, 1, {33, 11, 3, 1}, 0x1.44006fc57aaa4p-11},
      {{64, 16, kFloat}, 1, {22, 7, 3, 1}, 0x1.29ed0f642019cp-15},
      {{64, 16, kFloat}, 256, {3, 1}, 0x1.ae5c35de981b8p-14},
  };
  for (const Measured& measured : plans) {
    SCOPED_TRACE(testing::Message()
                 << "N " << measured.shape.num_blocks << " n " << measured.shape.block_size
                 << " bytes " << ScalarBytes(measured.shape.scalar));
    const auto plan =
        EliminationPlan::Make(measured.shape, measured.batch, CostsOf(measured.shape, kH200));
    ASSERT_TRUE(plan.ok()) << plan.status();
    std::vector<size_t> separators;
    for (const Level& level : plan->levels()) separators.push_back(level.separators.size());
    separators.pop_back();  // the base has none
    EXPECT_EQ(separators, measured.separators);
    EXPECT_DOUBLE_EQ(PredictedFactorSeconds(*plan, CostsOf(measured.shape, kH200), measured.batch),
                     measured.seconds);
  }
}

TEST(MethodTest, ASlowerDeviceIsPricedAsOne) {
  EXPECT_TRUE(kH200.architecture.measured);
  for (const DeviceLimits& device : {kA100, kMi210}) {
    EXPECT_FALSE(device.architecture.measured);
    for (const int64_t n : {16, 64, 128, 256, 512}) {
      for (const Scalar scalar : {kDouble, kFloat}) {
        const Shape shape{1000, n, scalar};
        const CostModel costs = CostsOf(shape, device), fast = CostsOf(shape, kH200);
        EXPECT_LT(costs.bytes_per_second, fast.bytes_per_second);
        EXPECT_LT(costs.device_flops_per_second, fast.device_flops_per_second);
        const auto plan = EliminationPlan::Make(shape, 1, costs);
        const auto fast_plan = EliminationPlan::Make(shape, 1, fast);
        ASSERT_TRUE(plan.ok() && fast_plan.ok());
        EXPECT_GT(PredictedFactorSeconds(*plan, costs), PredictedFactorSeconds(*fast_plan, fast));
        EXPECT_GT(PredictedSolveSeconds(*plan, 1, costs),
                  PredictedSolveSeconds(*fast_plan, 1, fast));
      }
    }
  }
}

}  // namespace
}  // namespace blockd::gpu
