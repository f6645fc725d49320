// Many threads, one Solver.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/engine/solver_fixture.h"

namespace blockd::test {
namespace {

class ConcurrencyTest : public SolverTest {};

TEST_P(ConcurrencyTest, EightThreadsGetTheAnswersThatOneWouldGet) {
  constexpr int kThreads = 8, kRounds = 12;
  struct Job {
    HostMatrix matrix;
    Columns rhs, expected;
  };
  std::vector<Job> jobs;
  for (int t = 0; t < kThreads; ++t) {
    const int64_t n = 1 + t * 5;
    HostMatrix matrix(problems::Mpc(10 + t * 7, n, t), scalar());
    Columns rhs(problems::RandomColumns(matrix.shape().rows(), 1 + t % 4, t), scalar());
    const auto factorization = MustFactor(solver(), matrix);
    Columns expected = MustSolve(solver(), factorization, rhs, 1 + t % 4);
    jobs.push_back({std::move(matrix), std::move(rhs), std::move(expected)});
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, &jobs, t] {
      for (int round = 0; round < kRounds; ++round) {
        const Job& job = jobs[(t + round) % kThreads];
        const int64_t num_rhs = 1 + (t + round) % kThreads % 4;
        const auto factorization = MustFactor(solver(), job.matrix, nullptr, round % 2 == 0);
        ASSERT_NE(factorization, nullptr);
        EXPECT_EQ(MustSolve(solver(), factorization, job.rhs, num_rhs), job.expected);
        EXPECT_TRUE(solver().LogDeterminant(*factorization).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(ConcurrencyTest, ManyThreadsSolveWithOneFactorization) {
  const HostMatrix matrix(problems::Mpc(50, 12, 1), scalar());
  const auto factorization = MustFactor(solver(), matrix);
  const Columns rhs(problems::RandomColumns(600, 3, 1), scalar());
  const Columns expected = MustSolve(solver(), factorization, rhs, 3);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, this] {
      for (int round = 0; round < 20; ++round) {
        EXPECT_EQ(MustSolve(solver(), factorization, rhs, 3), expected);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Uploads arrive on other threads than the solver's.
TEST_P(ConcurrencyTest, StagingRunsBesideFactoring) {
  const HostMatrix matrix(problems::Mpc(40, 16, 1), scalar());
  const BlockTridiagonalView view = matrix.view();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, this] {
      for (int round = 0; round < 10; ++round) {
        absl::StatusOr<StagedMatrix> staged = solver().Stage(matrix.form());
        ASSERT_TRUE(staged.ok()) << staged.status();
        const auto bytes = [](const void* data, int64_t size) {
          return std::span(static_cast<const std::byte*>(data), size);
        };
        ASSERT_TRUE(
            solver().Write(*staged, 0, bytes(view.diagonal, view.form.diagonal_bytes())).ok());
        ASSERT_TRUE(solver()
                        .Write(*staged, StagedMatrix::Offset(view.form, MatrixPart::kCoupling),
                               bytes(view.coupling, view.form.coupling_bytes()))
                        .ok());
        FactorItem item;
        item.staged = &*staged;
        const auto plan = solver().Plan(matrix.shape());
        ASSERT_TRUE(plan.ok());
        EXPECT_TRUE(solver().Factor(*plan, {&item, 1})[0].status.ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Threads that write parts of one matrix at once, each part in pieces of its own.
TEST_P(ConcurrencyTest, SeveralThreadsStageOneMatrix) {
  const HostMatrix matrix(problems::Mpc(300, 40, 1), scalar());
  const std::span all(static_cast<const std::byte*>(matrix.view().diagonal),
                      static_cast<size_t>(matrix.form().diagonal_bytes()));
  absl::StatusOr<StagedMatrix> staged = solver().Stage(matrix.form());
  ASSERT_TRUE(staged.ok()) << staged.status();
  constexpr size_t kThreads = 8, kPiece = 10007;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (size_t at = t * kPiece; at < all.size(); at += kThreads * kPiece) {
        const auto piece = all.subspan(at, std::min(kPiece, all.size() - at));
        EXPECT_TRUE(solver().Write(*staged, static_cast<int64_t>(at), piece).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::byte> back(all.size());
  ASSERT_TRUE(solver().Read(*staged, 0, back).ok());
  EXPECT_TRUE(std::equal(back.begin(), back.end(), all.begin()));
}

TEST_P(ConcurrencyTest, PiecesAreStagedOneBehindTheOther) {
  const HostMatrix matrix(problems::Mpc(400, 48, 1), scalar());
  const std::span all(static_cast<const std::byte*>(matrix.view().diagonal),
                      static_cast<size_t>(matrix.form().diagonal_bytes()));
  constexpr size_t kMiB = size_t{1} << 20;
  // None, the least, more than a copy on its way takes, and what ends where one does.
  for (const std::vector<size_t>& sizes : std::vector<std::vector<size_t>>{
           {}, {0}, {0, 1, 0, 7, 8192, 0}, {2 * kMiB + 3, 5}, {kMiB, kMiB, 8}, {kMiB, 2 * kMiB}}) {
    absl::StatusOr<StagedMatrix> staged = solver().Stage(matrix.form());
    ASSERT_TRUE(staged.ok()) << staged.status();
    std::vector<std::byte> back(all.size());
    ASSERT_TRUE(solver().Write(*staged, 0, back).ok());
    std::vector<std::span<const std::byte>> pieces;
    size_t at = 0;
    for (const size_t size : sizes) {
      pieces.push_back(all.subspan(at, size));
      at += size;
    }
    ASSERT_LE(at + 16, all.size());
    EXPECT_TRUE(solver().Write(*staged, 16, pieces).ok());
    ASSERT_TRUE(solver().Read(*staged, 0, back).ok());
    EXPECT_TRUE(
        std::equal(all.begin(), all.begin() + static_cast<ptrdiff_t>(at), back.begin() + 16));
    const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
    EXPECT_TRUE(std::all_of(back.begin(), back.begin() + 16, is_zero));
    EXPECT_TRUE(std::all_of(back.begin() + 16 + static_cast<ptrdiff_t>(at), back.end(), is_zero));
  }
  // More than there is room for, all together.
  absl::StatusOr<StagedMatrix> staged = solver().Stage(matrix.form());
  ASSERT_TRUE(staged.ok()) << staged.status();
  const std::span<const std::byte> pieces[] = {all.first(8), all.first(9)};
  EXPECT_FALSE(solver().Write(*staged, StagedMatrix::BufferBytes(matrix.form()) - 16, pieces).ok());
}

// Two tracks and writes at once: every answer has the bits that it has when nothing else goes on.
TEST_P(ConcurrencyTest, SolvesBesideFactorizationsAndWritesHaveTheirBits) {
  struct Held {
    HostMatrix matrix;
    Columns rhs, expected;
    std::shared_ptr<Factorization> factorization;
    double log_determinant;
  };
  std::vector<Held> held;
  // Each of a method of its own on a GPU.
  for (const auto& [blocks, n, columns] : {std::tuple{33, 16, 1}, {9, 40, 3}, {5, 140, 2}}) {
    HostMatrix matrix(problems::Mpc(blocks, n, n), scalar());
    Columns rhs(problems::RandomColumns(matrix.shape().rows(), columns, n), scalar());
    auto factorization = MustFactor(solver(), matrix, nullptr, true);
    ASSERT_NE(factorization, nullptr);
    Columns expected = MustSolve(solver(), factorization, rhs, columns);
    const auto log_determinant = solver().LogDeterminant(*factorization);
    ASSERT_TRUE(log_determinant.ok());
    held.push_back({std::move(matrix), std::move(rhs), std::move(expected),
                    std::move(factorization), *log_determinant});
  }
  const auto columns_of = [](const Held& each) {
    return static_cast<int64_t>(each.rhs.bytes().size()) /
           (each.matrix.shape().rows() * ScalarBytes(each.matrix.shape().scalar));
  };
  std::atomic<bool> stop = false;
  std::vector<std::thread> others;
  others.emplace_back([&, this] {
    for (size_t round = 0; !stop.load(); ++round) {
      const Held& each = held[round % held.size()];
      const auto again = MustFactor(solver(), each.matrix, nullptr, round % 2 == 0);
      ASSERT_NE(again, nullptr);
      EXPECT_EQ(MustSolve(solver(), again, each.rhs, columns_of(each)), each.expected);
      // On the track of factorizations it has the same bits.
      Columns x = each.rhs;
      SolveItem item{.factorization = again, .rhs = x.data(), .solution = x.data()};
      item.num_rhs = columns_of(each);
      EXPECT_TRUE(solver().Solve({&item, 1}, nullptr, Track::kFactor)[0].status.ok());
      EXPECT_EQ(x, each.expected);
    }
  });
  others.emplace_back([&, this] {
    const HostMatrix& matrix = held[1].matrix;
    const std::span bytes(static_cast<const std::byte*>(matrix.view().diagonal),
                          static_cast<size_t>(matrix.form().diagonal_bytes()));
    std::vector<std::byte> back(bytes.size());
    while (!stop.load()) {
      absl::StatusOr<StagedMatrix> staged = solver().Stage(matrix.form());
      ASSERT_TRUE(staged.ok()) << staged.status();
      ASSERT_TRUE(solver().Write(*staged, 0, bytes).ok());
      ASSERT_TRUE(solver().Read(*staged, 0, back).ok());
      EXPECT_TRUE(std::equal(back.begin(), back.end(), bytes.begin()));
    }
  });
  for (int round = 0; round < 12; ++round) {
    const Held& each = held[round % held.size()];
    EXPECT_EQ(MustSolve(solver(), each.factorization, each.rhs, columns_of(each)), each.expected);
    EXPECT_EQ(*solver().LogDeterminant(*each.factorization), each.log_determinant);
    SolveItem item{.factorization = each.factorization};
    Columns x = each.rhs;
    item.rhs = item.solution = x.data();
    item.num_rhs = columns_of(each);
    item.residual = true;
    EXPECT_LE(*solver().Solve({&item, 1})[0].backward_error, ErrorBound(each.matrix.shape()));
  }
  stop = true;
  for (std::thread& other : others) other.join();
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, ConcurrencyTest, ::testing::ValuesIn(Targets()), TargetName);

}  // namespace
}  // namespace blockd::test
