// SelectedInverse and Sample through the client: against unit columns, in chunks, and refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "tests/client/server_fixture.h"

namespace blockd::client {
namespace {

class InverseTest : public ServerTest {
 protected:
  void SetUp() override {
    StartServer();
    client_.emplace(Connect());
  }
  void TearDown() override {
    client_->AwaitReleases(absl::Seconds(60));
    ServerTest::TearDown();
  }
  std::optional<SolverClient> client_;
};

TEST_F(InverseTest, BlocksAreThoseOfTheInverse) {
  const problems::Problem problem = problems::RandomSpd(6, 4, 3, 50);
  const auto factored = client_->Factor(View(problem));
  ASSERT_TRUE(factored.ok()) << factored.status();
  const int64_t rows = problem.rows();
  std::vector<double> units(rows * rows), inverse(rows * rows);
  for (int64_t i = 0; i < rows; ++i) units[i * rows + i] = 1;
  ASSERT_TRUE(client_->Solve(factored->handle, units, inverse).ok());
  std::vector<double> diagonal(3 * 16), coupling(2 * 16), entries(3 * 4);
  const auto cost = client_->SelectedInverse(
      factored->handle, diagonal, coupling,
      {.parts = InverseParts::kTridiagonalBlocks, .first_block = 2, .num_blocks = 3});
  ASSERT_TRUE(cost.ok()) << cost.status();
  EXPECT_EQ(cost->batch_requests(), 1);
  for (int64_t b = 0; b < 3; ++b) {
    const int64_t at = (2 + b) * 4;
    for (int64_t j = 0; j < 4; ++j) {
      for (int64_t i = 0; i < 4; ++i) {
        EXPECT_NEAR(diagonal[b * 16 + j * 4 + i], inverse[(at + j) * rows + at + i], 1e-12);
        if (b == 2) continue;
        EXPECT_NEAR(coupling[b * 16 + j * 4 + i], inverse[(at + j) * rows + at + 4 + i], 1e-12);
      }
    }
  }
  ASSERT_TRUE(client_
                  ->SelectedInverse(factored->handle, entries, {},
                                    {.parts = InverseParts::kDiagonal, .first_block = 3})
                  .ok());
  EXPECT_NEAR(entries[5], inverse[(16 + 1) * rows + 16 + 1], 1e-12);
}

// 4.6 MB of blocks and 5.9 MB of samples.
TEST_F(InverseTest, LargeAnswersComeInChunks) {
  const problems::Problem problem = problems::RandomSpd(400, 38, 3, 50);
  const auto factored = client_->Factor(View(problem));
  ASSERT_TRUE(factored.ok()) << factored.status();
  const int64_t block = 38 * 38;
  std::vector<double> all(400 * block), last(block);
  ASSERT_TRUE(client_->SelectedInverse(factored->handle, all).ok());
  ASSERT_TRUE(client_->SelectedInverse(factored->handle, last, {}, {.first_block = 399}).ok());
  for (int64_t i = 0; i < block; ++i) EXPECT_NEAR(last[i], all[399 * block + i], 1e-12) << i;
  std::vector<double> samples(48 * problem.rows()), one(problem.rows());
  ASSERT_TRUE(client_->Sample(factored->handle, samples, {.seed = 4}).ok());
  ASSERT_TRUE(client_->Sample(factored->handle, one, {.seed = 4, .first_sample = 47}).ok());
  EXPECT_TRUE(std::equal(one.begin(), one.end(), samples.end() - problem.rows()));
  double squares = 0;
  for (const double x : samples) squares += x * x;
  EXPECT_TRUE(std::isfinite(squares) && squares > 0);
}

TEST_F(InverseTest, WhatDoesNotFitIsRefusedHere) {
  const problems::Problem problem = problems::RandomSpd(6, 4, 3, 50);
  const auto factored = client_->Factor(View(problem));
  ASSERT_TRUE(factored.ok()) << factored.status();
  std::vector<double> six(6 * 16), few(5);
  std::vector<float> single(6 * 16);
  const auto field = [](const absl::Status& status) {
    const auto detail = GetInvalidField(status);
    return detail ? detail->field() : status.ToString();
  };
  const Factorization handle = factored->handle;
  EXPECT_EQ(field(client_->SelectedInverse(handle, few).status()), "diagonal");
  EXPECT_EQ(field(client_->SelectedInverse(handle, six, few).status()), "coupling");
  EXPECT_EQ(field(client_->SelectedInverse(handle, single).status()), "scalar");
  EXPECT_EQ(field(client_->SelectedInverse(handle, six, {}, {.first_block = 6}).status()),
            "first_block");
  EXPECT_EQ(field(client_->SelectedInverse(handle, six, {}, {.num_blocks = 7}).status()),
            "num_blocks");
  EXPECT_EQ(field(client_->Sample(handle, few).status()), "samples");
  // And what only the server knows.
  Factorization gone = handle;
  gone.handle[0] ^= 1;
  EXPECT_TRUE(absl::IsNotFound(client_->SelectedInverse(gone, six).status()));
  std::vector<double> sample(24);
  EXPECT_TRUE(absl::IsNotFound(client_->Sample(gone, sample).status()));
}

}  // namespace
}  // namespace blockd::client
