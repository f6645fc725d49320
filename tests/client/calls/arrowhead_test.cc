// Systems with a border, through every way that the client has: TCP, uploads on several
// connections, and shared memory. Answers against the dense matrix, and the same bits on all ways.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "blockd/client/errors.h"
#include "server/server.h"
#include "tests/client/server_fixture.h"
#include "tests/support/host_matrix.h"
#include "tests/support/oracle.h"
#include "tests/support/temp_folder.h"

namespace blockd::client {
namespace {

constexpr int64_t kBlocks = 9, kSize = 6, kArrow = 4, kRows = kBlocks * kSize + kArrow;

// A system as the client sees it, and as the oracle does.
struct Arrowhead {
  explicit Arrowhead(int seed, int64_t arrow_size = kArrow)
      : problem(problems::RandomSpd(kBlocks, kSize, seed, 100)),
        border(problems::RandomColumns(kBlocks * kSize, arrow_size, seed)),
        corner(arrow_size * arrow_size, std::nan("")) {
    for (int64_t c = 0; c < arrow_size; ++c) {
      for (int64_t r = c; r < arrow_size; ++r) corner[c * arrow_size + r] = r == c ? 1e4 : 1;
    }
  }
  SystemView view() const {
    SystemView view = View(problem);
    view.arrow_size = static_cast<int64_t>(std::sqrt(corner.size()));
    view.border = border.data();
    view.corner = corner.data();
    return view;
  }
  test::HostMatrix host() const {
    test::HostMatrix host(problem, blockd::Scalar::kFloat64);
    host.SetBorder(view().arrow_size, border, corner);
    return host;
  }
  void ExpectSolved(const std::vector<double>& x, const std::vector<double>& b) const {
    const std::vector<double> exact = test::DenseCholesky(host().view()).Solve(b);
    ASSERT_EQ(x.size(), exact.size());
    for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], exact[i], 1e-11) << i;
  }

  problems::Problem problem;
  std::vector<double> border, corner;
};

enum class Way { kTcp, kUpload, kShared };

class ArrowheadTest : public ServerTest, public ::testing::WithParamInterface<Way> {
 protected:
  void SetUp() override {
    server::ServerOptions options;
    options.port = 0;
    options.metrics_port = -1;
    options.backend = "cpu";
    options.device.memory_bytes = int64_t{64} << 20;
    options.device.cpu_threads = 2;
    options.drain_grace = absl::ZeroDuration();
    options.log_level = "off";
    options.access.unix_socket = folder_ / "socket";
    options.shared_memory.enabled = true;
    auto server = server::Server::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    ClientOptions with;
    if (GetParam() == Way::kUpload) with.stream_threshold_bytes = 1;
    if (GetParam() == Way::kUpload) with.upload_connections = 3;
    if (GetParam() == Way::kShared) with.shared_memory_bytes = int64_t{4} << 20;
    const auto client = SolverClient::Connect(
        GetParam() == Way::kShared ? "unix:" + (folder_ / "socket") : target(), with);
    ASSERT_TRUE(client.ok()) << client.status();
    client_.emplace(*client);
  }
  void TearDown() override {
    if (client_) client_->AwaitReleases(absl::Seconds(60));
    ServerTest::TearDown();
  }

  const test::TempFolder folder_;
  std::optional<SolverClient> client_;
  const Arrowhead system_{3};
  const std::vector<double> b_ = problems::RandomColumns(kRows, 2, 5);
};

TEST_P(ArrowheadTest, IsFactoredAndSolved) {
  const auto factored = client_->Factor(system_.view(), {.log_determinant = true});
  ASSERT_TRUE(factored.ok()) << factored.status();
  EXPECT_NEAR(*factored->log_determinant,
              test::DenseCholesky(system_.host().view()).LogDeterminant(), 1e-10);
  const Factorization& held = factored->handle.get();
  EXPECT_EQ(held.arrow_size, kArrow);
  EXPECT_EQ(held.rows(), kRows);
  std::vector<double> x(b_.size());
  ASSERT_TRUE(client_->Solve(held, b_, std::span(x)).ok());
  system_.ExpectSolved(x, b_);
  // As the port has it.
  std::vector<double> y(b_.size());
  ASSERT_TRUE(Connect().Solve(held, b_, std::span(y)).ok());
  EXPECT_EQ(x, y);
  const auto info = client_->Get(held.handle);
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->arrow_size(), kArrow);
}

TEST_P(ArrowheadTest, IsRefactored) {
  const auto factored = client_->Factor(system_.view());
  ASSERT_TRUE(factored.ok()) << factored.status();
  const Factorization& held = factored->handle.get();
  std::vector<double> x(b_.size());
  const Arrowhead next(8), other(8, kArrow + 1);
  ASSERT_TRUE(client_->Refactor(held, next.view()).ok());
  ASSERT_TRUE(client_->Solve(held, b_, std::span(x)).ok());
  next.ExpectSolved(x, b_);
  const Arrowhead third(9);
  const auto stepped = client_->RefactorSolve(held, third.view(), b_, std::span(x));
  ASSERT_TRUE(stepped.ok()) << stepped.status();
  third.ExpectSolved(x, b_);
  EXPECT_FALSE(client_->Refactor(held, other.view()).ok());
  EXPECT_FALSE(client_->Refactor(held, View(next.problem)).ok());
  ASSERT_TRUE(client_->Solve(held, b_, std::span(x)).ok());
  third.ExpectSolved(x, b_);
}

TEST_P(ArrowheadTest, ComesInBatchesAndFrames) {
  const std::array systems = {Arrowhead(1), Arrowhead(2)};
  const std::array views = {systems[0].view(), systems[1].view()};
  const auto factored = client_->FactorBatch(views);
  ASSERT_TRUE(factored.ok()) << factored.status();
  std::vector<Factorization> held;
  for (const auto& system : factored->systems) {
    ASSERT_TRUE(system.status.ok());
    held.push_back(system.handle.get());
  }
  const std::vector<double> b = problems::RandomColumns(kRows, 2, 6);
  std::vector<double> x(b.size());
  const auto expect = [&](const Arrowhead& first, const Arrowhead& second) {
    first.ExpectSolved({x.begin(), x.begin() + kRows}, {b.begin(), b.begin() + kRows});
    second.ExpectSolved({x.begin() + kRows, x.end()}, {b.begin() + kRows, b.end()});
  };
  ASSERT_TRUE(client_->SolveMany(held, b, std::span(x)).ok());
  expect(systems[0], systems[1]);
  const std::array next = {systems[1].view(), systems[0].view()};
  const auto many = client_->RefactorSolveMany(held, next, b, std::span(x));
  ASSERT_TRUE(many.ok()) << many.status();
  expect(systems[1], systems[0]);
  SolveSession session = client_->OpenSession();
  std::ranges::fill(x, 0);
  ASSERT_TRUE(session.SendRefactorMany(held, views, b, std::span(x)).ok());
  ASSERT_TRUE(session.Next().ok());
  expect(systems[0], systems[1]);
}

TEST_P(ArrowheadTest, KeepsNothingWhereNothingIsAsked) {
  std::vector<double> x(b_.size());
  const auto solved =
      client_->FactorSolve(system_.view(), b_, std::span(x), {}, {.log_determinant = true});
  ASSERT_TRUE(solved.ok()) << solved.status();
  system_.ExpectSolved(x, b_);
}

TEST_P(ArrowheadTest, HasBlocksOfTheInverseAndSamples) {
  const auto factored = client_->Factor(system_.view());
  ASSERT_TRUE(factored.ok()) << factored.status();
  const Factorization& held = factored->handle.get();
  std::vector<double> units(kRows * kRows), inverse(kRows * kRows);
  for (int64_t i = 0; i < kRows; ++i) units[i * kRows + i] = 1;
  ASSERT_TRUE(client_->Solve(held, units, std::span(inverse)).ok());
  constexpr int64_t kFirst = 2, kCount = 5, kChain = kRows - kArrow;
  std::vector<double> diagonal(kCount * kSize * kSize), border(kCount * kSize * kArrow),
      corner(kArrow * kArrow);
  const auto cost =
      client_->SelectedInverse(held, diagonal, {}, {.first_block = kFirst, .num_blocks = kCount},
                               {.border = border, .corner = corner});
  ASSERT_TRUE(cost.ok()) << cost.status();
  for (int64_t c = 0; c < kArrow; ++c) {
    const double* const column = &inverse[(kChain + c) * kRows];
    for (int64_t r = 0; r < kCount * kSize; ++r) {
      EXPECT_NEAR(border[c * kCount * kSize + r], column[kFirst * kSize + r], 1e-12);
    }
    for (int64_t r = 0; r < kArrow; ++r) {
      EXPECT_NEAR(corner[c * kArrow + r], column[kChain + r], 1e-12);
    }
  }
  EXPECT_NEAR(diagonal[0], inverse[kFirst * kSize * (kRows + 1)], 1e-12);
  std::vector<double> samples(3 * kRows), last(kRows);
  ASSERT_TRUE(client_->Sample(held, std::span(samples), {.seed = 4}).ok());
  ASSERT_TRUE(client_->Sample(held, std::span(last), {.seed = 4, .first_sample = 2}).ok());
  EXPECT_TRUE(std::equal(last.begin(), last.end(), samples.begin() + 2 * kRows));
  const auto field = [](const absl::Status& status) {
    const auto wrong = GetInvalidField(status);
    return wrong ? wrong->field() : status.ToString();
  };
  EXPECT_EQ(
      field(client_
                ->SelectedInverse(held, diagonal, {}, {.first_block = kFirst, .num_blocks = kCount},
                                  {.border = corner, .corner = corner})
                .status()),
      "border");
  const auto chain = client_->Factor(View(system_.problem));
  ASSERT_TRUE(chain.ok());
  std::vector<double> all(kBlocks * kSize * kSize);
  EXPECT_EQ(
      field(client_->SelectedInverse(chain->handle, all, {}, {}, {.border = {}, .corner = corner})
                .status()),
      "corner");
}

TEST_P(ArrowheadTest, ComesBackWhenItIsLost) {
  FactorOptions options;
  options.restore.keep_copy = true;
  const auto factored = client_->Factor(system_.view(), options);
  ASSERT_TRUE(factored.ok()) << factored.status();
  const SolverClient other = Connect();
  const problems::Problem large = problems::RandomSpd(64, 64, 1, 100);
  std::vector<FactorResult> others;
  while (client_->Get(factored->handle.get().handle).ok()) {
    ASSERT_LT(others.size(), 100) << "nothing was evicted";
    auto more = other.Factor(View(large));
    ASSERT_TRUE(more.ok()) << more.status();
    others.push_back(*std::move(more));
  }
  std::vector<double> x(b_.size());
  const auto solved = client_->Solve(factored->handle, b_, std::span(x));
  ASSERT_TRUE(solved.ok()) << solved.status();
  system_.ExpectSolved(x, b_);
}

TEST_P(ArrowheadTest, WhatIsWrongHasItsName) {
  const auto field = [&](const SystemView& view) {
    const absl::Status status = client_->Factor(view).status();
    const auto wrong = GetInvalidField(status);
    return wrong ? wrong->field() : status.ToString();
  };
  SystemView view = system_.view();
  for (const int64_t rows : {int64_t{-1}, int64_t{1025}, int64_t{1} << 60}) {
    view.arrow_size = rows;
    EXPECT_EQ(field(view), "spec.arrow_size");
  }
  view = system_.view();
  view.border = nullptr;
  EXPECT_EQ(field(view), "system.border");
  view = system_.view();
  view.corner = nullptr;
  EXPECT_EQ(field(view), "system.corner");
  Arrowhead bad = system_;
  bad.corner[kArrow + 1] = -1;
  const auto where = GetNotPositiveDefinite(client_->Factor(bad.view()).status());
  ASSERT_TRUE(where.has_value());
  EXPECT_EQ(where->block(), kBlocks);
  EXPECT_EQ(where->row(), 1);
}

std::string WayName(const ::testing::TestParamInfo<Way>& info) {
  return info.param == Way::kTcp ? "Tcp" : info.param == Way::kUpload ? "Upload" : "Shared";
}
INSTANTIATE_TEST_SUITE_P(EveryWay, ArrowheadTest,
                         ::testing::Values(Way::kTcp, Way::kUpload, Way::kShared), WayName);

}  // namespace
}  // namespace blockd::client
