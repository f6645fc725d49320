#include "blockd/client/system.h"

#include <gtest/gtest.h>

#include <vector>

#include "blockd/client/errors.h"
#include "client/requests.h"

namespace blockd::client {
namespace {

const double kNumbers[16] = {};

SystemView Good() { return MakeSystemView(3, 2, kNumbers, kNumbers); }

std::string WrongField(const SystemView& view) {
  const absl::Status status = CheckSystem(view);
  const auto detail = GetInvalidField(status);
  return detail.has_value() ? detail->field() : status.ToString();
}

TEST(SystemTest, BytesFollowTheForms) {
  SystemView view = Good();
  EXPECT_TRUE(CheckSystem(view).ok());
  EXPECT_EQ(view.diagonal_bytes(), 3 * 4 * 8);
  EXPECT_EQ(view.coupling_bytes(), 2 * 4 * 8);
  view.diagonal_form = DiagonalForm::kPackedLower;
  EXPECT_EQ(view.diagonal_bytes(), 3 * 3 * 8);
  view.scalar = Scalar::kFloat32;
  EXPECT_EQ(view.coupling_bytes(), 2 * 4 * 4);
}

TEST(SystemTest, APaletteCountsItsBlocks) {
  const std::vector<uint32_t> diagonal = {0, 1, 0}, coupling = {0, 0};
  SystemView view = Good();
  view.num_diagonal = 2;
  view.num_coupling = 1;
  view.diagonal_index = diagonal;
  view.coupling_index = coupling;
  EXPECT_TRUE(CheckSystem(view).ok());
  EXPECT_EQ(view.diagonal_bytes(), 2 * 4 * 8);
  EXPECT_EQ(view.coupling_bytes(), 1 * 4 * 8);
  view.coupling_index = {};
  EXPECT_EQ(WrongField(view), "spec.palette.coupling_index");
}

TEST(SystemTest, SizesOutOfRangeAreNamed) {
  SystemView view = Good();
  view.num_blocks = 0;
  EXPECT_EQ(WrongField(view), "spec.num_blocks");
  view = Good();
  view.block_size = 32769;
  EXPECT_EQ(WrongField(view), "spec.block_size");
  view = Good();
  view.num_blocks = int64_t{1} << 62;
  EXPECT_EQ(WrongField(view), "spec.num_blocks");
  view.block_size = 32768;
  view.num_blocks = int64_t{1} << 40;
  EXPECT_EQ(WrongField(view), "spec.num_blocks");
}

TEST(SystemTest, MissingBlocksAreNamed) {
  SystemView view = Good();
  view.diagonal = nullptr;
  EXPECT_EQ(WrongField(view), "system.diagonal");
  view = Good();
  view.coupling = nullptr;
  EXPECT_EQ(WrongField(view), "system.coupling");
  view.num_blocks = 1;
  EXPECT_TRUE(CheckSystem(view).ok());
}

TEST(SystemTest, ColumnsAreCountedAndChecked) {
  const auto columns = CountColumns(6, Scalar::kFloat64, Scalar::kFloat64, 96, 96);
  ASSERT_TRUE(columns.ok());
  EXPECT_EQ(*columns, 2);
  for (const auto& wrong : {CountColumns(6, Scalar::kFloat64, Scalar::kFloat32, 48, 48),
                            CountColumns(6, Scalar::kFloat64, Scalar::kFloat64, 0, 0),
                            CountColumns(6, Scalar::kFloat64, Scalar::kFloat64, 56, 56),
                            CountColumns(6, Scalar::kFloat64, Scalar::kFloat64, 96, 48)}) {
    EXPECT_TRUE(GetInvalidField(wrong.status()).has_value()) << wrong.status();
  }
}

TEST(SystemTest, SystemsOfABatchMustBeAlike) {
  const SystemView good = Good();
  SystemView other = good;
  other.block_size = 1;
  EXPECT_FALSE(CheckSystems({}, {}).ok());
  const SystemView both[] = {good, other};
  EXPECT_EQ(GetInvalidField(CheckSystems(both, {}))->field(), "system[1]");
  const Factorization handle{"h", 3, 2, Scalar::kFloat64};
  EXPECT_TRUE(CheckSystems({&good, 1}, {&handle, 1}).ok());
  const Factorization of_another_shape{"h", 3, 1, Scalar::kFloat64};
  EXPECT_EQ(GetInvalidField(CheckSystems({&good, 1}, {&of_another_shape, 1}))->field(),
            "options.handle");
}

TEST(SystemTest, AFactorGetsAKeyOfItsOwnUnlessItRefactors) {
  const std::string first = ToProto(FactorOptions{}, {}).idempotency_key();
  const std::string second = ToProto(FactorOptions{}, {}).idempotency_key();
  EXPECT_EQ(first.size(), 16);
  EXPECT_NE(first, second);
  EXPECT_EQ(ToProto(FactorOptions{.idempotency_key = "mine"}, {}).idempotency_key(), "mine");
  const Factorization handle{"h", 3, 2, Scalar::kFloat64};
  EXPECT_EQ(ToProto(FactorOptions{}, {&handle, 1}).idempotency_key(), "");
}

}  // namespace
}  // namespace blockd::client
