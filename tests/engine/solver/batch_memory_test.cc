// The memory and the uploads of a batch of factorizations together: each piece where it belongs,
// each system with the bits that it has alone, and pieces of its own where the pool has none for
// all.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tests/engine/solver_fixture.h"

namespace blockd::test {
namespace {

class BatchMemoryTest : public SolverTest {
 protected:
  Backend& backend() const { return solver().backend(); }
  DeviceBuffer Allocate(int64_t bytes) const {
    absl::StatusOr<DeviceBuffer> buffer = backend().pool().Allocate(bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return buffer.ok() ? *std::move(buffer) : DeviceBuffer();
  }
  std::vector<std::byte> Contents(const DeviceBuffer& buffer) const {
    std::vector<std::byte> contents(static_cast<size_t>(buffer.bytes()));
    EXPECT_TRUE(
        backend().Download(Track::kFactor, contents.data(), buffer.data(), buffer.bytes()).ok());
    EXPECT_TRUE(backend().Synchronize(Track::kFactor).ok());
    return contents;
  }
};

// Pieces of all sizes, beside one another and apart, forward and backward, larger than what goes at
// once: everything else stays as it was, but for the padding behind a piece.
TEST_P(BatchMemoryTest, ManyUploadsPutEachPieceInItsPlace) {
  constexpr int64_t kBytes = int64_t{13} << 20;
  constexpr int64_t kMegabyte = int64_t{1} << 20;
  const DeviceBuffer buffer = Allocate(kBytes);
  std::vector<std::byte> expected(kBytes, std::byte{0xab});
  ASSERT_TRUE(backend().Upload(Track::kFactor, buffer.data(), expected.data(), kBytes).ok());
  std::vector<std::byte> host(kBytes);
  for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<std::byte>(i * 7 + i / 251);
  const std::vector<std::pair<int64_t, int64_t>> pieces = {{0, 8},
                                                           {256, 256},
                                                           {512, 1},
                                                           {768, 1000},
                                                           {2048, 0},
                                                           {4096, 100},
                                                           {8192, 5},
                                                           {1 * kMegabyte, 2 * kMegabyte},
                                                           {3 * kMegabyte, 2 * kMegabyte + 8},
                                                           {6 * kMegabyte, 5 * kMegabyte},
                                                           {20480, 300},
                                                           {16384, 300},
                                                           {kBytes - 8, 8},
                                                           {11 * kMegabyte, kMegabyte / 2}};
  std::vector<HostCopy> copies;
  std::vector<bool> padding(kBytes, false);
  for (const auto& [at, bytes] : pieces) {
    copies.push_back({buffer.data() + at, host.data() + at, bytes});
    std::copy_n(host.begin() + at, bytes, expected.begin() + at);
    if (bytes == 0) continue;
    for (int64_t i = at + bytes; i < std::min(MemoryPool::Rounded(at + bytes), kBytes); ++i) {
      padding[static_cast<size_t>(i)] = true;
    }
  }
  for (const auto& [at, bytes] : pieces) std::fill_n(padding.begin() + at, bytes, false);
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(backend().UploadMany(Track::kFactor, copies).ok());
    const std::vector<std::byte> contents = Contents(buffer);
    int64_t wrong = 0;
    for (size_t i = 0; i < contents.size(); ++i) wrong += !padding[i] && contents[i] != expected[i];
    EXPECT_EQ(wrong, 0);
  }
  EXPECT_TRUE(backend().UploadMany(Track::kFactor, {}).ok());
}

// Some keep their matrix, some estimate their condition, some overwrite memory of their own, one is
// not positive definite.
TEST_P(BatchMemoryTest, EachSystemOfABatchHasTheBitsThatItHasAlone) {
  constexpr int64_t kBlocks = 24, kSize = 5;
  std::vector<HostMatrix> matrices;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    matrices.emplace_back(problems::Mpc(kBlocks, kSize, seed), scalar());
  }
  matrices[7].SetDiagonal(20, 2, 2, -1);
  const Columns rhs(problems::RandomColumns(kBlocks * kSize, 2, 1), scalar());
  for (const std::vector<int64_t>& cut : std::vector<std::vector<int64_t>>{{}, {1}, {6, 2}}) {
    const PlanPtr plan = Cut(matrices[0].shape(), cut);
    std::vector<FactorItem> items(matrices.size());
    std::vector<DeviceBuffer> recycled(matrices.size());
    for (size_t i = 0; i < items.size(); ++i) {
      items[i].matrix = matrices[i].view();
      items[i].keep_matrix = i % 3 == 0;
      items[i].estimate_condition = i % 4 == 1;
      if (i % 5 != 2) continue;
      recycled[i] = Allocate(plan->factor_bytes());
      items[i].recycle = &recycled[i];
    }
    const std::vector<FactorOutcome> outcomes = solver().Factor(plan, items);
    int64_t held = 0;
    for (size_t i = 0; i < items.size(); ++i) {
      SCOPED_TRACE(i);
      if (i == 7) {
        ASSERT_TRUE(outcomes[i].not_positive_definite.has_value()) << outcomes[i].status;
        EXPECT_EQ(outcomes[i].not_positive_definite->block, 20);
        continue;
      }
      ASSERT_TRUE(outcomes[i].status.ok()) << outcomes[i].status;
      const auto alone = MustFactor(solver(), matrices[i], plan);
      EXPECT_EQ(MustSolve(solver(), outcomes[i].factorization, rhs, 2),
                MustSolve(solver(), alone, rhs, 2));
      EXPECT_EQ(static_cast<bool>(outcomes[i].factorization->matrix()), items[i].keep_matrix);
      EXPECT_EQ(outcomes[i].factorization->conditioning().condition_estimate.has_value(),
                items[i].estimate_condition);
      held += MemoryPool::Rounded(plan->factor_bytes()) +
              (items[i].keep_matrix ? StagedMatrix::BufferBytes(matrices[i].form()) : 0);
    }
    EXPECT_EQ(Pool().used_bytes, held);
  }
}

// Full blocks, packed ones and palettes, which lie one behind the other.
TEST_P(BatchMemoryTest, MatricesOfSeveralFormsShareABatch) {
  const problems::Problem palette =
      problems::KalmanPalette({.states = 4, .observations = 8, .steps = 15});
  const HostMatrix full(problems::Expand(palette), scalar());
  const HostMatrix few(palette, scalar(), {.palette = true});
  const HostMatrix packed(palette, scalar(), {.diagonal = DiagonalForm::kPackedLower});
  const PlanPtr plan = Cut(full.shape(), {4});
  std::vector<FactorItem> items(6);
  const BlockTridiagonalView views[] = {few.view(), full.view(), packed.view()};
  for (size_t i = 0; i < items.size(); ++i) items[i].matrix = views[i % 3];
  const Columns rhs(problems::RandomColumns(full.shape().rows(), 1, 1), scalar());
  const std::vector<FactorOutcome> outcomes = solver().Factor(plan, items);
  for (size_t i = 0; i < items.size(); ++i) {
    ASSERT_TRUE(outcomes[i].status.ok()) << outcomes[i].status;
    EXPECT_EQ(MustSolve(solver(), outcomes[i].factorization, rhs, 1),
              MustSolve(solver(), outcomes[0].factorization, rhs, 1));
  }
}

// There is a piece for each of what they need, and none for all.
TEST_P(BatchMemoryTest, APoolInPiecesServesABatchAllTheSame) {
  const HostMatrix matrix(problems::Mpc(40, 9, 1), scalar());
  const PlanPtr plan = Cut(matrix.shape(), {9, 3});
  constexpr int64_t kSystems = 64;  // so that all of it fits no hole
  std::vector<FactorItem> items(kSystems);
  for (FactorItem& item : items) item.matrix = matrix.view();
  std::vector<int64_t> sizes;
  for (const int64_t piece : solver().FactorPieces(*plan, items[0])) {
    sizes.insert(sizes.end(), kSystems, MemoryPool::Rounded(piece));
  }
  sizes.push_back(MemoryPool::Rounded(backend().FactorScratchBytes(*plan, kSystems)));
  std::erase(sizes, 0);
  std::vector<DeviceBuffer> holes, walls;
  for (const int64_t bytes : sizes) {
    holes.push_back(Allocate(bytes));
    walls.push_back(Allocate(MemoryPool::kAlignment));
  }
  walls.push_back(Allocate(Pool().largest_free_bytes));
  holes.clear();
  for (const FactorOutcome& outcome : solver().Factor(plan, items)) {
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, BatchMemoryTest, ::testing::ValuesIn(Targets()), TargetName);

}  // namespace
}  // namespace blockd::test
