#include "blockd/client/system.h"

#include <gtest/gtest.h>

#include <functional>
#include <span>
#include <vector>

#include "blockd/client/errors.h"
#include "client/wire/requests.h"

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

TEST(SystemTest, TheLargestSizesAreTaken) {
  SystemView view = Good();
  view.num_blocks = 1;
  view.block_size = 32768;
  EXPECT_TRUE(CheckSystem(view).ok());
  view = Good();
  view.block_size = 1;
  view.num_blocks = int64_t{1} << 40;  // rows
  EXPECT_TRUE(CheckSystem(view).ok());
  ++view.num_blocks;
  EXPECT_EQ(WrongField(view), "spec.num_blocks");
  view.num_blocks = -1;
  EXPECT_EQ(WrongField(view), "spec.num_blocks");
  view = Good();
  view.block_size = 0;
  EXPECT_EQ(WrongField(view), "spec.block_size");
}

TEST(SystemTest, EveryPartOfAPaletteIsChecked) {
  const std::vector<uint32_t> three = {0, 1, 0}, two = {0, 0};
  const auto palette = [&](int64_t num_diagonal, int64_t num_coupling,
                           std::span<const uint32_t> diagonal, std::span<const uint32_t> coupling) {
    SystemView view = Good();
    view.num_diagonal = num_diagonal;
    view.num_coupling = num_coupling;
    view.diagonal_index = diagonal;
    view.coupling_index = coupling;
    return WrongField(view);
  };
  EXPECT_EQ(palette(2, 1, three, two), "OK");
  EXPECT_EQ(palette(2, 1, two, two), "spec.palette.diagonal_index");
  EXPECT_EQ(palette(2, 1, three, three), "spec.palette.coupling_index");
  EXPECT_EQ(palette(0, 1, three, two), "spec.palette.num_diagonal");
  EXPECT_EQ(palette(1, 0, three, two), "spec.palette.num_coupling");
  EXPECT_EQ(palette(int64_t{1} << 60, 1, three, two), "spec.palette");
  EXPECT_EQ(palette(1, int64_t{1} << 60, three, two), "spec.palette");
  // One block needs no coupling.
  const std::vector<uint32_t> one = {0};
  SystemView alone = MakeSystemView(1, 2, kNumbers, static_cast<const double*>(nullptr));
  alone.num_diagonal = 1;
  alone.diagonal_index = one;
  EXPECT_EQ(WrongField(alone), "OK");
  EXPECT_EQ(alone.coupling_bytes(), 0);
  alone.num_coupling = -1;
  EXPECT_EQ(WrongField(alone), "spec.palette");
}

TEST(SystemTest, EveryDifferenceOfABatchCounts) {
  const std::vector<uint32_t> index = {0, 1, 0}, other_index = {0, 0, 1}, coupling = {0, 1},
                              other_coupling = {1, 0};
  SystemView good = Good();
  good.num_diagonal = 2;
  good.num_coupling = 2;
  good.diagonal_index = index;
  good.coupling_index = coupling;
  const auto refused = [&](const std::function<void(SystemView&)>& change) {
    SystemView other = good;
    change(other);
    const SystemView both[] = {good, good, other};
    const auto detail = GetInvalidField(CheckSystems(both, {}));
    return detail.has_value() && detail->field() == "system[2]";
  };
  EXPECT_FALSE(refused([](SystemView&) {}));
  EXPECT_TRUE(refused([](SystemView& view) { view.block_size = 1; }));
  EXPECT_TRUE(refused([](SystemView& view) { view.scalar = Scalar::kFloat32; }));
  EXPECT_TRUE(refused([](SystemView& view) { view.diagonal_form = DiagonalForm::kPackedLower; }));
  EXPECT_TRUE(refused([](SystemView& view) { view.coupling_form = CouplingForm::kSuperdiagonal; }));
  EXPECT_TRUE(refused([](SystemView& view) { view.num_diagonal = 3; }));
  EXPECT_TRUE(refused([](SystemView& view) { view.num_coupling = 3; }));
  EXPECT_TRUE(refused([&](SystemView& view) { view.diagonal_index = other_index; }));
  EXPECT_TRUE(refused([&](SystemView& view) { view.coupling_index = other_coupling; }));
  const std::vector<uint32_t> four = {0, 1, 0, 0}, three = {0, 1, 0};
  EXPECT_TRUE(refused([&](SystemView& view) {
    view.num_blocks = 4;
    view.diagonal_index = four;
    view.coupling_index = three;
  }));
  // Numbers may lie elsewhere, and be wrong in themselves.
  EXPECT_FALSE(refused([](SystemView& view) { view.diagonal = kNumbers + 1; }));
  SystemView wrong = good;
  wrong.coupling = nullptr;
  const SystemView both[] = {good, wrong};
  EXPECT_EQ(GetInvalidField(CheckSystems(both, {}))->field(), "system.coupling");
}

TEST(SystemTest, HandlesMustFitTheirSystems) {
  const SystemView good = Good();
  const Factorization right{"h", 3, 2, Scalar::kFloat64};
  for (const Factorization& wrong :
       {Factorization{"h", 4, 2, Scalar::kFloat64}, Factorization{"h", 3, 3, Scalar::kFloat64},
        Factorization{"h", 3, 2, Scalar::kFloat32}}) {
    const SystemView both[] = {good, good};
    const Factorization handles[] = {right, wrong};
    EXPECT_EQ(GetInvalidField(CheckSystems(both, handles))->field(), "options.handle");
  }
  const Factorization two[] = {right, right};
  EXPECT_EQ(GetInvalidField(CheckSystems({&good, 1}, two))->field(), "options.handle");
}

TEST(SystemTest, ColumnsOfEachScalarAreCounted) {
  EXPECT_EQ(*CountColumns(6, Scalar::kFloat32, Scalar::kFloat32, 72, 72), 3);
  EXPECT_EQ(GetInvalidField(CountColumns(6, Scalar::kFloat64, Scalar::kFloat32, 48, 48).status())
                ->expected(),
            "the matrix's float64");
  EXPECT_EQ(GetInvalidField(CountColumns(6, Scalar::kFloat64, Scalar::kFloat64, 48, 96).status())
                ->field(),
            "solution");
  EXPECT_EQ(GetInvalidField(CountColumns(6, Scalar::kFloat64, Scalar::kFloat64, 56, 56).status())
                ->field(),
            "rhs");
  EXPECT_FALSE(CountColumns(0, Scalar::kFloat64, Scalar::kFloat64, 48, 48).ok());
}

}  // namespace
}  // namespace blockd::client
