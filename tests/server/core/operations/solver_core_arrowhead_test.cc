// Systems with a border: the same calls, quotas and errors as for any, with p rows more.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/server/core/failure_fixture.h"

namespace blockd::test {
namespace {

using server::Handle;
using server::SelectedInverseParams;

constexpr int64_t kBlocks = 12, kSize = 5, kArrow = 4, kRows = kBlocks * kSize + kArrow;

template <typename Pending>
void AskAsAlice(Pending& pending, size_t numbers) {
  pending.context->caller = "alice";
  for (size_t i = 0; i < numbers; ++i) {
    pending.rhs.push_back(std::sin(1.0 + 1.1 * static_cast<double>(i)));
  }
  pending.solution.assign(numbers, 0);
}

class SolverCoreArrowheadTest : public FailingCoreTest {
 protected:
  absl::Status Solve(const Handle& handle, int64_t num_rhs, std::vector<double>* b,
                     std::vector<double>* x, int64_t rows = kRows) {
    Pending<Solved> pending;
    AskAsAlice(pending, static_cast<size_t>(rows * num_rhs));
    core_->Solve(pending.context,
                 {.handle = handle,
                  .num_rhs = num_rhs,
                  .rhs = std::as_bytes(std::span(pending.rhs)),
                  .solution = std::as_writable_bytes(std::span(pending.solution))},
                 pending.Callback());
    absl::Status status = pending.Wait().status();
    *b = pending.rhs;
    *x = pending.solution;
    return status;
  }
  void ExpectSolves(const TestSystem& system, const Handle& handle) {
    std::vector<double> b, x;
    const absl::Status status = Solve(handle, 3, &b, &x);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_LT(system.Residual(x, b), 1e-13);
  }
  absl::Status FactorSolve(const TestSystem& system, std::optional<Handle> handle,
                           std::vector<double>* b, std::vector<double>* x, bool overwrite = false) {
    Pending<Solved> pending;
    AskAsAlice(pending, static_cast<size_t>(system.form.rows()));
    OneFactorSolve params;
    params.handle = handle;
    params.overwrite = overwrite;
    params.matrix = system.view();
    params.num_rhs = 1;
    params.rhs = std::as_bytes(std::span(pending.rhs));
    params.solution = std::as_writable_bytes(std::span(pending.solution));
    AskOne(*core_, pending.context, params, pending.Callback());
    absl::Status status = pending.Wait().status();
    *b = pending.rhs;
    *x = pending.solution;
    return status;
  }
  absl::Status Invert(const Handle& handle, std::vector<double>* diagonal,
                      std::vector<double>* border, std::vector<double>* corner) {
    Pending<server::CostReply> pending;
    pending.context->caller = "alice";
    diagonal->assign(kBlocks * kSize * kSize, 7);
    border->assign(kBlocks * kSize * kArrow, 7);
    corner->assign(kArrow * kArrow, 7);
    SelectedInverseParams params;
    params.handle = handle;
    params.num_blocks = kBlocks;
    params.diagonal = std::as_writable_bytes(std::span(*diagonal));
    params.border = std::as_writable_bytes(std::span(*border));
    params.corner = std::as_writable_bytes(std::span(*corner));
    core_->SelectedInverse(pending.context, params, pending.Callback());
    return pending.Wait().status();
  }
  absl::Status Sample(const Handle& handle, std::vector<double>* samples) {
    Pending<server::CostReply> pending;
    pending.context->caller = "alice";
    samples->assign(2 * kRows, 7);
    core_->Sample(pending.context,
                  {.handle = handle,
                   .seed = 3,
                   .num_samples = 2,
                   .samples = std::as_writable_bytes(std::span(*samples))},
                  pending.Callback());
    return pending.Wait().status();
  }
  int64_t BorderedCharge() {
    return Charge(arrowhead_.form.shape) +
           MemoryPool::Rounded(Border::Bytes(arrowhead_.form.shape, kArrow));
  }
  // In chunks of `chunk` bytes.
  absl::StatusOr<Handle> Upload(const TestSystem& system, size_t chunk) {
    server::FactorParams params;
    params.form = system.form;
    params.num_systems = 1;
    auto context = std::make_shared<server::RequestContext>();
    context->caller = "alice";
    auto begun = core_->BeginUpload(context, params, {}, {});
    if (!begun.ok()) return begun.status();
    auto upload = std::get<std::unique_ptr<server::FactorUpload>>(*std::move(begun));
    const std::vector<std::byte> bytes = system.bytes();
    for (size_t at = 0; at < bytes.size(); at += chunk) {
      const absl::Status status =
          upload->Write(std::span(bytes).subspan(at, std::min(chunk, bytes.size() - at)));
      if (!status.ok()) return status;
    }
    Pending<server::FactorReply> pending;
    core_->FinishUpload(std::move(upload), pending.Callback());
    if (!pending.Wait().ok()) return pending.Wait().status();
    return pending.Wait()->systems[0].handle;
  }

  const TestSystem arrowhead_{kBlocks, kSize, 1, kArrow};
};

TEST_F(SolverCoreArrowheadTest, IsFactoredSolvedAndGivenBack) {
  Start();
  const int64_t before = Reserved();
  server::FactorParams params;
  params.log_determinant = true;
  const PendingFactor factored = Factor({arrowhead_}, params);
  ASSERT_TRUE(factored->Wait().ok()) << factored->Wait().status();
  const server::FactoredSystem& system = factored->Wait()->systems[0];
  EXPECT_NEAR(*system.log_determinant, arrowhead_.LogDeterminant(), 1e-11);
  EXPECT_EQ(Reserved() - before, BorderedCharge());
  const auto stats = core_->Get("alice", system.handle);
  ASSERT_TRUE(stats.ok());
  EXPECT_EQ(stats->shape, arrowhead_.form.bordered_shape());
  EXPECT_EQ(stats->held_bytes, factored->Wait()->factor_bytes);
  EXPECT_EQ(stats->backward_error_bound, system.backward_error_bound);
  EXPECT_GT(system.backward_error_bound, BackwardErrorGoal(arrowhead_.form.shape));
  ExpectSolves(arrowhead_, system.handle);
  ASSERT_TRUE(core_->Release("alice", {&system.handle, 1}).ok());
  EXPECT_EQ(Reserved(), before);
}

TEST_F(SolverCoreArrowheadTest, RightHandSidesHaveTheRowsOfTheBorder) {
  Start();
  const Handle handle = Held(arrowhead_);
  std::vector<double> b, x;
  for (const int64_t rows : {kRows - kArrow, kRows - 1, kRows + 1}) {
    EXPECT_EQ(FieldOf(Solve(handle, 1, &b, &x, rows)), "rhs");
  }
}

TEST_F(SolverCoreArrowheadTest, WhatBordersDoNotHaveIsRefused) {
  Start();
  const auto field = [&](auto set) {
    server::FactorParams params;
    set(params);
    return FieldOf(Factor({arrowhead_}, params)->Wait().status());
  };
  EXPECT_EQ(field([](auto& params) { params.keep_matrix = true; }), "options.keep_matrix");
  EXPECT_EQ(field([](auto& params) { params.accuracy = Accuracy::kGuaranteed; }),
            "options.accuracy");
  EXPECT_EQ(field([](auto& params) { params.condition_estimate = true; }),
            "options.condition_estimate");
  TestSystem wide = arrowhead_;
  for (const int64_t rows : {int64_t{-1}, kMaxBorderRows + 1}) {
    wide.form.border_rows = rows;
    EXPECT_EQ(FieldOf(Factor({wide})->Wait().status()), "spec.arrow_size");
  }
  Pending<Solved> pending;
  AskAsAlice(pending, kRows);
  OneFactorSolve params;
  params.matrix = arrowhead_.view();
  params.num_rhs = 1;
  params.rhs = std::as_bytes(std::span(pending.rhs));
  params.solution = std::as_writable_bytes(std::span(pending.solution));
  params.residual = true;
  AskOne(*core_, pending.context, params, pending.Callback());
  EXPECT_EQ(FieldOf(pending.Wait().status()), "options.residual");
  const Handle handle = Held(arrowhead_);
  for (const bool residual : {true, false}) {
    Pending<Solved> solve;
    AskAsAlice(solve, kRows);
    core_->Solve(solve.context,
                 {.handle = handle,
                  .num_rhs = 1,
                  .rhs = std::as_bytes(std::span(solve.rhs)),
                  .solution = std::as_writable_bytes(std::span(solve.solution)),
                  .residual = residual,
                  .max_refinements = residual ? 0 : 1},
                 solve.Callback());
    EXPECT_EQ(FieldOf(solve.Wait().status()),
              residual ? "options.residual" : "options.max_refinements");
  }
}

TEST_F(SolverCoreArrowheadTest, TheBorderIsPartOfTheShapeOfAHandle) {
  Start();
  server::FactorParams params;
  params.handles = {Held(arrowhead_)};
  const TestSystem other(kBlocks, kSize, 2, kArrow + 1), chain(kBlocks, kSize, 2);
  EXPECT_EQ(FieldOf(Factor({other}, params)->Wait().status()), "spec");
  EXPECT_EQ(FieldOf(Factor({chain}, params)->Wait().status()), "spec");
  ExpectSolves(arrowhead_, params.handles[0]);
  for (const bool overwrite : {false, true, true}) {
    const TestSystem next(kBlocks, kSize, overwrite ? 5 : 4, kArrow);
    params.overwrite = overwrite;
    ASSERT_TRUE(Factor({next}, params)->Wait().ok());
    ExpectSolves(next, params.handles[0]);
    EXPECT_EQ(Reserved(), BorderedCharge());
  }
}

TEST_F(SolverCoreArrowheadTest, AKeyIsOfOneBorder) {
  Start();
  server::FactorParams params;
  params.idempotency_key = "key";
  const Handle held = Held(arrowhead_, params);
  EXPECT_EQ(Held(arrowhead_, params), held);
  const TestSystem chain(kBlocks, kSize, 1), other(kBlocks, kSize, 1, kArrow + 1);
  EXPECT_EQ(FieldOf(Factor({chain}, params)->Wait().status()), "options.idempotency_key");
  EXPECT_EQ(FieldOf(Factor({other}, params)->Wait().status()), "options.idempotency_key");
}

TEST_F(SolverCoreArrowheadTest, IsSolvedForAtOnceWithItsFactor) {
  Start();
  std::vector<double> b, x;
  ASSERT_TRUE(FactorSolve(arrowhead_, std::nullopt, &b, &x).ok());
  EXPECT_LT(arrowhead_.Residual(x, b), 1e-13);
  const Handle handle = Held(arrowhead_);
  for (const bool overwrite : {false, true}) {
    const TestSystem next(kBlocks, kSize, 4 + overwrite, kArrow);
    ASSERT_TRUE(FactorSolve(next, handle, &b, &x, overwrite).ok());
    EXPECT_LT(next.Residual(x, b), 1e-13);
    ExpectSolves(next, handle);
    EXPECT_EQ(Reserved(), BorderedCharge());
  }
}

// Cut anywhere, with the bits of one call.
TEST_F(SolverCoreArrowheadTest, ComesInChunks) {
  Start({.audit = false});
  std::vector<double> b, x, y;
  ASSERT_TRUE(Solve(Held(arrowhead_), 2, &b, &x).ok());
  for (const size_t chunk : {7, 1000, 1 << 20}) {
    const absl::StatusOr<Handle> handle = Upload(arrowhead_, chunk);
    ASSERT_TRUE(handle.ok()) << handle.status();
    ASSERT_TRUE(Solve(*handle, 2, &b, &y).ok());
    EXPECT_EQ(x, y);
  }
}

TEST_F(SolverCoreArrowheadTest, SharesABatchWithChains) {
  Start();
  const TestSystem chain(kBlocks, kSize, 3);
  const Handle handles[] = {Held(arrowhead_), Held(chain)};
  std::vector<double> b, x, y;
  ASSERT_TRUE(Solve(handles[0], 1, &b, &x).ok());
  ASSERT_TRUE(Solve(handles[1], 1, &b, &y, kRows - kArrow).ok());
  Pending<server::SolveManyReply> pending;
  pending.context->caller = "alice";
  std::vector<double> columns[4];
  server::SolveManyParams params;
  for (size_t i = 0; i < 4; ++i) {
    const size_t rows = i % 2 == 0 ? kRows : kRows - kArrow;
    for (size_t r = 0; r < rows; ++r) {
      columns[i].push_back(std::sin(1.0 + 1.1 * static_cast<double>(r)));
    }
    const auto bytes = std::as_writable_bytes(std::span(columns[i]));
    params.handles.push_back(handles[i % 2]);
    params.solves.push_back({1, bytes, bytes});
  }
  core_->SolveMany(pending.context, params, pending.Callback());
  ASSERT_TRUE(pending.Wait().ok());
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(pending.Wait()->outcomes[i].status.ok());
    EXPECT_EQ(columns[i], i % 2 == 0 ? x : y);
  }
}

TEST_F(SolverCoreArrowheadTest, HasBlocksOfTheInverseAndSamples) {
  Start();
  const Handle handle = Held(arrowhead_);
  std::vector<double> diagonal, border, corner, samples;
  ASSERT_TRUE(Invert(handle, &diagonal, &border, &corner).ok());
  // Columns of the border: A z = e.
  std::vector<double> b(kRows * kArrow), z(kRows * kArrow);
  for (int64_t c = 0; c < kArrow; ++c) {
    b[static_cast<size_t>(c * kRows + kRows - kArrow + c)] = 1;
    std::copy_n(&border[static_cast<size_t>(c * (kRows - kArrow))], kRows - kArrow,
                &z[static_cast<size_t>(c * kRows)]);
    std::copy_n(&corner[static_cast<size_t>(c * kArrow)], kArrow,
                &z[static_cast<size_t>(c * kRows + kRows - kArrow)]);
  }
  EXPECT_LT(arrowhead_.Residual(z, b), 1e-13);
  ASSERT_TRUE(Sample(handle, &samples).ok());
  EXPECT_NE(samples.back(), 7);
  std::vector<double> again;
  ASSERT_TRUE(Sample(handle, &again).ok());
  EXPECT_EQ(samples, again);
  EXPECT_EQ(Reserved(), BorderedCharge());
}

// A part of the inverse that is not wanted is not written, wherever its span points.
TEST_F(SolverCoreArrowheadTest, MayLeaveTheBorderOutOfTheInverse) {
  Start();
  const Handle handle = Held(arrowhead_);
  std::vector<double> whole, border, corner;
  ASSERT_TRUE(Invert(handle, &whole, &border, &corner).ok());
  std::vector<double> values(whole.size() + border.size() + corner.size(), 7);
  const auto bytes = std::as_writable_bytes(std::span(values));
  Pending<server::CostReply> pending;
  pending.context->caller = "alice";
  SelectedInverseParams params;
  params.handle = handle;
  params.num_blocks = kBlocks;
  params.diagonal = bytes.first(whole.size() * 8);
  params.coupling = params.border = params.corner = bytes.subspan(whole.size() * 8, 0);
  core_->SelectedInverse(pending.context, params, pending.Callback());
  ASSERT_TRUE(pending.Wait().ok());
  EXPECT_TRUE(std::equal(whole.begin(), whole.end(), values.begin()));
  EXPECT_EQ(std::count(values.begin() + std::ssize(whole), values.end(), 7),
            std::ssize(border) + std::ssize(corner));
}

TEST_F(SolverCoreArrowheadTest, SaysWhereTheBorderIsWrong) {
  Start({.audit = false});
  const absl::Status status = Factor({arrowhead_.Spoiled(kBlocks)})->Wait().status();
  const auto where = server::NotSpdOf(status);
  ASSERT_TRUE(where.has_value()) << status;
  EXPECT_EQ(where->where.block, kBlocks);
  EXPECT_EQ(where->where.row, 0);
  EXPECT_EQ(where->where.minor, kRows - kArrow + 1);
  EXPECT_TRUE(server::NotSpdOf(Upload(arrowhead_.Spoiled(kBlocks), 999).status()).has_value());
  for (const bool in_corner : {false, true}) {
    TestSystem bad = arrowhead_;
    if (in_corner) {
      bad.corner[kArrow + 2] = std::nan("");  // row 2, column 1
    } else {
      bad.border[2 * (kRows - kArrow) + 17] = std::nan("");
    }
    const std::string field = in_corner ? "system[0].corner" : "system[0].border";
    const std::string place =
        in_corner ? "NaN or infinity in row 2, column 1" : "NaN or infinity in row 2, column 17";
    // Without a look at it: the pivot of row 2 fails.
    const absl::Status plain = Factor({bad})->Wait().status();
    EXPECT_TRUE(server::NotSpdOf(plain).has_value());
    EXPECT_THAT(std::string(plain.message()), testing::HasSubstr(field + ": " + place));
    const absl::Status uploaded = Upload(bad, 999).status();
    EXPECT_THAT(std::string(uploaded.message()), testing::HasSubstr(field + ": " + place));
    server::FactorParams params;
    params.check_finite = true;
    const absl::Status checked = Factor({bad}, params)->Wait().status();
    EXPECT_EQ(FieldOf(checked), field);
    EXPECT_THAT(std::string(checked.message()), testing::HasSubstr(place));
  }
}

TEST_F(SolverCoreArrowheadTest, EveryStepMayFail) {
  Handle handle;
  std::vector<double> b, x, y, z;
  const auto hold = [&] { handle = Held(arrowhead_); };
  ExpectAmong(FailEveryStep([] {}, [&] { return Factor({arrowhead_})->Wait().status(); }),
              {"Factor", "Solve", "MultiplyBorder"});
  ExpectAmong(FailEveryStep(hold, [&] { return Solve(handle, 2, &b, &x); }),
              {"Solve", "MultiplyBorder", "AddBorder"});
  ExpectAmong(FailEveryStep(hold, [&] { return Invert(handle, &x, &y, &z); }),
              {"SelectedInverse", "AddBorder", "AddBorderSquares"});
  ExpectAmong(FailEveryStep(hold, [&] { return Sample(handle, &x); }), {"AddBorder", "Solve"});
  ExpectAmong(FailEveryStep(hold, [&] { return FactorSolve(arrowhead_, handle, &b, &x); }),
              {"Factor", "MultiplyBorder", "AddBorder"});
}

TEST_F(SolverCoreArrowheadTest, NoMemoryAtAnyAllocation) {
  Handle handle;
  std::vector<double> b, x, y, z;
  const auto hold = [&] { handle = Held(arrowhead_); };
  for (const int64_t empty : {1, 1000}) {
    const bool often = empty > 1;
    const auto refused = [&](const auto& prepare, const auto& call) {
      const int times = EmptyPoolAtEach(empty, prepare, call);
      EXPECT_EQ(times > 0, often) << times;
    };
    refused([] {}, [&] { return Factor({arrowhead_})->Wait().status(); });
    refused(hold, [&] { return Solve(handle, 2, &b, &x); });
    refused(hold, [&] { return Invert(handle, &x, &y, &z); });
    refused(hold, [&] { return Sample(handle, &x); });
    refused(hold, [&] { return FactorSolve(arrowhead_, handle, &b, &x); });
  }
}

}  // namespace
}  // namespace blockd::test
