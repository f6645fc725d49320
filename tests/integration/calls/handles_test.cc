// Handles over a real socket: whose they are, how they end and why, and what memory they may take.
#include <algorithm>
#include <atomic>
#include <thread>

#include "server/core/common/handle.h"
#include "tests/integration/fixture.h"

namespace blockd::test {
namespace {

using problems::RandomSpd;

class HandlesTest : public IntegrationTest {
 protected:
  grpc::Status Use(const std::string& handle, const std::string& caller = "") {
    v1::SolveRequest request;
    request.set_handle(handle);
    request.set_num_rhs(1);
    request.set_rhs(BytesOf(problem_.rhs));
    return SolveStatus(request, nullptr, caller);
  }
  grpc::Status Get(const std::string& handle, v1::FactorizationInfo* info,
                   const std::string& caller = "") {
    v1::GetFactorizationRequest request;
    request.set_handle(handle);
    return stub().GetFactorization(NewContext(caller).get(), request, info);
  }

  const problems::Problem problem_ = RandomSpd(64, 32, 1, 100);  // a factor of about 1.5 MB
  const HostMatrix matrix_{problem_, Scalar::kFloat64};
};

TEST_F(HandlesTest, AReleasedHandleIsGoneAndItsMemoryBack) {
  Start();
  const std::string handle = Factor(matrix_);
  EXPECT_GT(ReservedBytes(), 0);
  v1::ReleaseReply reply;
  ASSERT_TRUE(IsOk(ReleaseStatus({handle}, &reply)));
  EXPECT_GT(reply.released_bytes(), 0);
  EXPECT_TRUE(Eventually([&] { return ReservedBytes() == 0; }));
  EXPECT_TRUE(IsNotFound(Use(handle), v1::HandleNotFound::RELEASED));
  EXPECT_TRUE(IsNotFound(ReleaseStatus({handle}), v1::HandleNotFound::RELEASED));
  v1::FactorizationInfo info;
  EXPECT_TRUE(IsNotFound(Get(handle, &info), v1::HandleNotFound::RELEASED));
}

TEST_F(HandlesTest, ReleaseTakesAllThatAreHeldEvenIfOthersAreNot) {
  Start();
  const std::string one = Factor(matrix_), two = Factor(matrix_);
  std::string never = one;
  never[0] = static_cast<char>(never[0] ^ 1);
  EXPECT_TRUE(IsNotFound(ReleaseStatus({one, never, two}), v1::HandleNotFound::NEVER_EXISTED));
  EXPECT_TRUE(IsNotFound(Use(one), v1::HandleNotFound::RELEASED));
  EXPECT_TRUE(IsNotFound(Use(two), v1::HandleNotFound::RELEASED));
}

TEST_F(HandlesTest, AHandleOfAnotherServerOrStartSaysSoInEveryCall) {
  server::ServerOptions options = Options();
  options.server_name = "solver-7";
  Start(options);
  v1::ServerInfo server;
  ASSERT_TRUE(IsOk(stub().GetServerInfo(NewContext().get(), {}, &server)));
  const std::string held = Factor(matrix_);
  std::string restarted = held, other = held;
  restarted.back() = static_cast<char>(held.back() ^ 1);  // the epoch is the handle's end
  other[16] = static_cast<char>(held[16] ^ 1);            // and the server's name begins it
  for (const auto& [handle, reason] : {std::pair(restarted, v1::HandleNotFound::RESTARTED),
                                       std::pair(other, v1::HandleNotFound::OTHER_SERVER)}) {
    v1::FactorRequest refactor = FactorRequestOf(matrix_);
    refactor.mutable_options()->add_handle(handle);
    v1::FactorizationInfo info;
    v1::SolveStreamRequest request;
    request.mutable_request()->set_handle(handle);
    request.mutable_request()->set_num_rhs(1);
    const auto context = NewContext();
    const auto stream = stub().SolveStream(context.get());
    ASSERT_TRUE(stream->Write(request));
    v1::SolveStreamReply streamed;
    ASSERT_TRUE(stream->Read(&streamed));
    stream->WritesDone();
    EXPECT_TRUE(IsOk(stream->Finish()));
    const v1::RpcStatus answers[] = {RpcStatusOf(Use(handle)), RpcStatusOf(ReleaseStatus({handle})),
                                     RpcStatusOf(Get(handle, &info)),
                                     RpcStatusOf(FactorStatus(refactor)), streamed.status()};
    for (const v1::RpcStatus& answer : answers) {
      const auto detail = DetailOf<v1::HandleNotFound>(answer);
      ASSERT_TRUE(detail) << answer.message();
      EXPECT_EQ(detail->reason(), reason);
      EXPECT_EQ(detail->owner_epoch(), handle.substr(16));
      EXPECT_EQ(detail->server_name(), "solver-7");
      EXPECT_EQ(detail->server_epoch(), server.server_epoch());
    }
  }
  EXPECT_EQ(server.server_name(), "solver-7");
}

TEST_F(HandlesTest, HandlesBelongToTheirCaller) {
  Start();
  v1::FactorRequest request = FactorRequestOf(matrix_);
  const std::string handle = Factor(request, "alice").system(0).handle();
  const auto never = v1::HandleNotFound::NEVER_EXISTED;
  v1::FactorizationInfo info;
  EXPECT_TRUE(IsNotFound(Use(handle, "mallory"), never));
  EXPECT_TRUE(IsNotFound(Get(handle, &info, "mallory"), never));
  EXPECT_TRUE(IsNotFound(ReleaseStatus({handle}, nullptr, "mallory"), never));
  request.mutable_options()->add_handle(handle);
  EXPECT_TRUE(IsNotFound(FactorStatus(request, nullptr, "mallory"), never));
  v1::ListFactorizationsReply page;
  ASSERT_TRUE(IsOk(stub().ListFactorizations(NewContext("mallory").get(), {}, &page)));
  EXPECT_EQ(page.factorization_size(), 0);
  EXPECT_TRUE(IsOk(Use(handle, "alice")));
  ASSERT_TRUE(IsOk(Get(handle, &info, "alice")));
  EXPECT_EQ(info.times_solved(), 1);
}

TEST_F(HandlesTest, AFactorizationTellsAboutItself) {
  Start();
  v1::FactorRequest request = FactorRequestOf(matrix_);
  request.mutable_options()->set_keep_matrix(true);
  request.mutable_options()->set_pin(true);
  request.mutable_options()->set_idempotency_key("k");
  request.mutable_options()->mutable_lease()->set_seconds(1000);
  const v1::FactorReply reply = Factor(request);
  const std::string handle = reply.system(0).handle();
  EXPECT_TRUE(IsOk(Use(handle)));
  v1::FactorizationInfo info;
  ASSERT_TRUE(IsOk(Get(handle, &info)));
  EXPECT_EQ(info.handle(), handle);
  EXPECT_EQ(info.num_blocks(), 64);
  EXPECT_EQ(info.block_size(), 32);
  EXPECT_EQ(info.scalar(), v1::FLOAT64);
  EXPECT_EQ(info.held_bytes(), reply.factor_bytes());
  EXPECT_TRUE(info.matrix_kept());
  EXPECT_TRUE(info.pinned());
  EXPECT_GT(info.lease_seconds(), 900);
  EXPECT_EQ(info.times_solved(), 1);
  EXPECT_EQ(info.rhs_solved(), 1);
  EXPECT_EQ(info.times_refactored(), 0);
  EXPECT_EQ(info.idempotency_key(), "k");
  EXPECT_GE(info.age_seconds(), info.idle_seconds());
}

TEST_F(HandlesTest, ListingGoesPageByPageInOrder) {
  Start();
  const HostMatrix small(RandomSpd(2, 2, 1, 10), Scalar::kFloat64);
  std::vector<std::string> made;
  const v1::FactorReply factored = Factor(FactorRequestOf(small, 7));
  for (const auto& system : factored.system()) made.push_back(system.handle());
  std::sort(made.begin(), made.end());
  for (const int page_size : {0, 1, 3, 7, 1000}) {
    SCOPED_TRACE(page_size);
    std::vector<std::string> listed;
    v1::ListFactorizationsRequest request;
    request.set_page_size(page_size);
    int pages = 0;
    do {
      v1::ListFactorizationsReply page;
      ASSERT_TRUE(IsOk(stub().ListFactorizations(NewContext().get(), request, &page)));
      for (const auto& info : page.factorization()) listed.push_back(info.handle());
      request.set_page_token(page.next_page_token());
      ++pages;
    } while (!request.page_token().empty());
    EXPECT_EQ(listed, made);
    EXPECT_EQ(pages, page_size == 0 || page_size >= 7 ? 1 : (7 + page_size - 1) / page_size);
  }
}

TEST_F(HandlesTest, AnUnusedFactorizationExpires) {
  server::ServerOptions options = Options();
  options.core.idle_expiry = absl::Milliseconds(50);
  Start(options);
  const std::string handle = Factor(matrix_);
  EXPECT_TRUE(Eventually([&] { return Metric("blockd_factorizations") == 0; }));
  EXPECT_TRUE(IsNotFound(Use(handle), v1::HandleNotFound::EXPIRED));
  EXPECT_TRUE(Eventually([&] { return ReservedBytes() == 0; }));
}

class PressureTest : public HandlesTest {
 protected:
  void SetUp() override {
    server::ServerOptions options = Options();
    options.device.memory_bytes = 8 << 20;
    options.core.default_lease = absl::ZeroDuration();
    Start(options);
  }
  void TearDown() override {
    EXPECT_LE(Metric("blockd_budget_peak_reserved_bytes"), Metric("blockd_budget_bytes"));
    EXPECT_LE(Metric("blockd_pool_peak_used_bytes"), Metric("blockd_pool_bytes"));
    HandlesTest::TearDown();
  }
};

TEST_F(PressureTest, TheLeastRecentlyUsedGoesAndPinnedOnesStay) {
  v1::FactorRequest request = FactorRequestOf(matrix_);
  request.mutable_options()->set_pin(true);
  const std::string pinned = Factor(request).system(0).handle();
  request.mutable_options()->set_pin(false);
  request.mutable_options()->mutable_lease()->set_seconds(1000);
  const std::string leased = Factor(request).system(0).handle();
  const std::string first = Factor(matrix_);
  for (int i = 0; i < 12; ++i) {
    const std::string next = Factor(matrix_);
    EXPECT_TRUE(IsOk(Use(next)));
    EXPECT_TRUE(IsOk(Use(pinned)));
  }
  EXPECT_TRUE(IsNotFound(Use(first), v1::HandleNotFound::EVICTED));
  EXPECT_TRUE(IsOk(Use(pinned)));
  EXPECT_TRUE(IsOk(Use(leased)));
  EXPECT_GT(Metric("blockd_evictions_total"), 0);
}

TEST_F(PressureTest, WhatDoesNotFitBesideThePinnedIsRefusedWithTheNumbers) {
  v1::FactorRequest request = FactorRequestOf(matrix_);
  request.mutable_options()->set_pin(true);
  grpc::Status status;
  std::vector<std::string> held;
  for (int i = 0; i < 20 && status.ok(); ++i) {
    v1::FactorReply reply;
    status = FactorStatus(request, &reply);
    if (status.ok()) held.push_back(reply.system(0).handle());
  }
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const auto memory = DetailOf<v1::InsufficientMemory>(status);
  ASSERT_TRUE(memory);
  EXPECT_GT(memory->asked_bytes(), memory->free_bytes() + memory->evictable_bytes());
  EXPECT_LE(memory->total_bytes(), 8 << 20);
  EXPECT_EQ(memory->evictable_bytes(), 0);
  ASSERT_GE(held.size(), 2u);
  for (const std::string& handle : held) EXPECT_TRUE(IsOk(Use(handle)));
  EXPECT_TRUE(IsOk(ReleaseStatus(held)));
  EXPECT_TRUE(Eventually([&] { return ReservedBytes() == 0; }));
}

TEST_F(PressureTest, ManyThreadsUnderPressureNeverExceedTheBudgetNorGetWrongAnswers) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const problems::Problem problem = RandomSpd(40 + 8 * t, 32, t, 100);
      const HostMatrix matrix(problem, Scalar::kFloat64);
      for (int i = 0; i < 12; ++i) {
        v1::FactorReply factored;
        const grpc::Status status = FactorStatus(FactorRequestOf(matrix), &factored);
        if (!status.ok()) {
          EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED)
              << status.error_message();
          continue;
        }
        v1::SolveRequest request;
        request.set_handle(factored.system(0).handle());
        request.set_num_rhs(1);
        request.set_rhs(BytesOf(problem.rhs));
        v1::SolveReply reply;
        const grpc::Status solved = SolveStatus(request, &reply);
        if (solved.ok()) {
          ExpectSolves(matrix, ValuesOf(reply.solution()), problem.rhs);
        } else {
          EXPECT_TRUE(IsNotFound(solved, v1::HandleNotFound::EVICTED));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(HandlesTest, TwoClientsRaceOnOneHandle) {
  Start();
  const std::string handle = Factor(matrix_);
  const problems::Problem other_problem = RandomSpd(64, 32, 2, 100);
  const HostMatrix other(other_problem, Scalar::kFloat64);
  std::atomic<bool> stop{false};
  std::atomic<int> solved{0};
  // One solves all the time and must see one of the two factorizations, whole.
  std::thread solver([&] {
    const auto mine = v1::Solver::NewStub(NewChannel());
    v1::SolveRequest request;
    request.set_handle(handle);
    request.set_num_rhs(1);
    request.set_rhs(BytesOf(problem_.rhs));
    while (!stop) {
      v1::SolveReply reply;
      const grpc::Status status = mine->Solve(NewContext().get(), request, &reply);
      if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {  // while it is overwritten
        EXPECT_TRUE(DetailOf<v1::RetryAfter>(status)) << status.error_message();
        continue;
      }
      if (!status.ok()) {
        EXPECT_TRUE(IsNotFound(status, v1::HandleNotFound::RELEASED));
        continue;
      }
      const std::vector<double> x = ValuesOf(reply.solution());
      EXPECT_LE(std::min(BackwardError(matrix_.view(), x, problem_.rhs),
                         BackwardError(other.view(), x, problem_.rhs)),
                4 * 32 * Epsilon(Scalar::kFloat64));
      ++solved;
    }
  });
  // The other refactors it back and forth, then releases it.
  for (int i = 0; i < 10; ++i) {
    v1::FactorRequest request = FactorRequestOf(i % 2 == 0 ? other : matrix_);
    request.mutable_options()->add_handle(handle);
    request.mutable_options()->set_overwrite(i % 4 >= 2);
    EXPECT_TRUE(IsOk(FactorStatus(request)));
  }
  EXPECT_TRUE(Eventually([&] { return solved > 10; }));
  EXPECT_TRUE(IsOk(ReleaseStatus({handle})));
  stop = true;
  solver.join();
  EXPECT_TRUE(IsNotFound(Use(handle), v1::HandleNotFound::RELEASED));
  EXPECT_TRUE(Eventually([&] { return ReservedBytes() == 0; }));
}

}  // namespace
}  // namespace blockd::test
