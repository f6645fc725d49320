// A matrix that holds NaN is not positive definite; the message says that, and where.
#include <cmath>
#include <limits>

#include "tests/server/core/core_fixture.h"

namespace blockd::test {
namespace {

using server::FactorParams;
using testing::Test;

class SolverCoreNotSpdTest : public CoreTest {
 protected:
  // The message, of a status that has its detail.
  static std::string MessageOf(const absl::Status& status, int64_t system, int64_t block) {
    const auto detail = server::NotSpdOf(status);
    EXPECT_TRUE(detail.has_value()) << status;
    if (detail) {
      EXPECT_EQ(detail->system, system) << status;
      EXPECT_EQ(detail->where.block, block) << status;
    }
    return std::string(status.message());
  }
  static void ExpectSays(const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  absl::Status UploadStatus(const MatrixForm& form, const std::vector<TestSystem>& systems,
                            std::span<const uint32_t> diagonal = {},
                            std::span<const uint32_t> coupling = {}) {
    FactorParams params;
    params.form = form;
    params.num_systems = static_cast<int64_t>(systems.size());
    Pending<server::FactorReply> pending;
    auto begun = core_->BeginUpload(pending.context, params, diagonal, coupling);
    if (!begun.ok()) return begun.status();
    auto upload = std::get<std::unique_ptr<server::FactorUpload>>(*std::move(begun));
    for (const TestSystem& system : systems) {
      absl::Status status = upload->Write(system.bytes());
      if (!status.ok()) return status;
    }
    core_->FinishUpload(std::move(upload), pending.Callback());
    const auto& reply = pending.Wait();
    return reply.ok() ? reply->systems.back().status : reply.status();
  }

  // n = 3: a block has 9 scalars, column-major.
  const TestSystem good_{6, 3};
};

TEST_F(SolverCoreNotSpdTest, FiniteMatricesGetNoHint) {
  Start();
  const std::string message = MessageOf(Factor({good_.Spoiled(4)})->Wait().status(), 0, 4);
  EXPECT_EQ(message, "not positive definite: system 0, block 4, row 0 (leading minor of order 13)");
}

TEST_F(SolverCoreNotSpdTest, NanInADiagonalBlockIsNamed) {
  Start();
  TestSystem bad = good_;
  bad.diagonal[9 * 3 + 1 * 3 + 2] = std::nan("");
  PendingFactor factor = Factor({good_, bad});
  ASSERT_TRUE(factor->Wait().ok());
  const std::string message = MessageOf(factor->Wait()->systems[1].status, 1, 3);
  ExpectSays(message, "system[1].diagonal: NaN or infinity in block 3, row 2, column 1");
  ExpectSays(message, "check_finite");
}

TEST_F(SolverCoreNotSpdTest, NanInACouplingBlockIsNamed) {
  Start();
  TestSystem bad = good_;
  bad.coupling[9 * 2 + 2 * 3 + 1] = std::nan("");
  const absl::Status status = Factor({bad})->Wait().status();
  ExpectSays(MessageOf(status, 0, 3),
             "system[0].coupling: NaN or infinity in block 2, row 1, column 2");
  const absl::Status both = FactorSolve(bad)->Wait().status();
  EXPECT_EQ(both.message(), status.message());
  EXPECT_EQ(Metric("blockd_not_positive_definite_total"), 2);
}

TEST_F(SolverCoreNotSpdTest, TheFirstBlockHasNoCouplingBeforeIt) {
  Start();
  TestSystem bad = good_.Spoiled(0);
  bad.coupling[0] = std::nan("");  // after the pivot that failed: not the reason
  const std::string message = MessageOf(Factor({bad})->Wait().status(), 0, 0);
  EXPECT_EQ(message.find("NaN"), std::string::npos) << message;
}

TEST_F(SolverCoreNotSpdTest, AnUploadIsReadBackFromTheDevice) {
  Start();
  TestSystem bad = good_;
  bad.diagonal[9 * 5] = std::nan("");
  ExpectSays(MessageOf(UploadStatus(good_.form, {good_, bad}), 1, 5),
             "system[1].diagonal: NaN or infinity in block 5, row 0, column 0");
  bad = good_;
  bad.coupling[9 * 4 + 8] = std::nan("");
  ExpectSays(MessageOf(UploadStatus(good_.form, {bad}), 0, 5),
             "system[0].coupling: NaN or infinity in block 4, row 2, column 2");
}

TEST_F(SolverCoreNotSpdTest, OfAPaletteTheBlockThatWasSentIsNamed) {
  Start();
  for (const bool in_diagonal : {true, false}) {
    TestSystem blocks(3, 3);  // three diagonal and two coupling blocks
    (in_diagonal ? blocks.diagonal : blocks.coupling)[9 + 4] = std::nan("");
    MatrixForm form = good_.form;
    form.diagonal_palette = 3;
    form.coupling_palette = 2;
    const std::vector<uint32_t> diagonal = {0, 2, 0, 2, 1, 2}, coupling = {0, 0, 0, 1, 0};
    ExpectSays(MessageOf(UploadStatus(form, {blocks}, diagonal, coupling), 0, 4),
               std::string(in_diagonal ? "system[0].diagonal" : "system[0].coupling") +
                   ": NaN or infinity in block 1, row 1, column 1");
    BlockTridiagonalView view = blocks.view();
    view.form = form;
    view.diagonal_index = diagonal.data();
    view.coupling_index = coupling.data();
    Pending<server::FactorReply> pending;
    FactorParams params;
    params.form = form;
    core_->Factor(pending.context, params, {view}, pending.Callback());
    ExpectSays(MessageOf(pending.Wait().status(), 0, 4), "in block 1, row 1, column 1");
  }
}

// A block is larger than a piece that is read back at once.
TEST_F(SolverCoreNotSpdTest, LargeBlocksAreReadInPieces) {
  Start({.memory_bytes = int64_t{64} << 20});
  TestSystem bad(2, 400);
  bad.diagonal[400 * 400 + 398 * 400 + 399] = std::nan("");
  ExpectSays(MessageOf(UploadStatus(bad.form, {bad}), 0, 1),
             "system[0].diagonal: NaN or infinity in block 1, row 399, column 398");
}

}  // namespace
}  // namespace blockd::test
