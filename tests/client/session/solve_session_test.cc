#include "blockd/client/solve_session.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <thread>
#include <vector>

#include "tests/client/server_fixture.h"

namespace blockd::client {
namespace {

class SolveSessionTest : public ServerTest {
 protected:
  void SetUp() override {
    StartServer();
    if (!HasFatalFailure()) Connect();
  }
  void Connect() {
    client_.emplace(ServerTest::Connect({.chunk_bytes = 1000}));
    absl::StatusOr<FactorResult> factored = client_->Factor(View(problem_));
    ASSERT_TRUE(factored.ok()) << factored.status();
    handle_ = std::move(factored->handle);
  }
  void TearDown() override {
    handle_ = {};
    if (client_) client_->AwaitReleases(absl::Seconds(60));
    ServerTest::TearDown();
  }

  const problems::Problem problem_ = problems::RandomSpd(16, 4, 1, 100);
  std::optional<SolverClient> client_;
  FactorHandle handle_;
};

class HeldSessionTest : public SolveSessionTest {
 protected:
  void SetUp() override {
    StartServer(gate_);
    if (!HasFatalFailure()) Connect();
  }
  void TearDown() override {
    gate_->Open();  // a test that failed may have left it closed
    SolveSessionTest::TearDown();
  }
  const std::shared_ptr<test::Gate> gate_ = std::make_shared<test::Gate>();
};

TEST_F(SolveSessionTest, ManyRequestsInFlightAreAllAnswered) {
  constexpr int kRequests = 200;
  SolveSession session = client_->OpenSession();
  std::vector<std::vector<double>> b, x;
  std::map<uint64_t, int> request_of;
  for (int k = 0; k < kRequests; ++k) {
    // Some longer than a chunk.
    b.push_back(problems::RandomColumns(problem_.rows(), 1 + k % 5, k));
    x.emplace_back(b[k].size());
  }
  for (int k = 0; k < kRequests; ++k) {
    const auto id = session.Send(handle_, b[k], x[k]);
    ASSERT_TRUE(id.ok()) << id.status();
    request_of[*id] = k;
  }
  EXPECT_EQ(session.outstanding(), kRequests);
  for (int k = 0; k < kRequests; ++k) {
    const auto answer = session.Next();
    ASSERT_TRUE(answer.ok()) << answer.status();
    ASSERT_TRUE(answer->result.ok()) << answer->result.status();
    const int request = request_of.at(answer->id);
    request_of.erase(answer->id);
    EXPECT_LT(problems::BackwardError(problem_, x[request], b[request], 1 + request % 5), 1e-14);
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(session.Next().status()));
}

TEST_F(SolveSessionTest, AnswersCanBeAwaitedInAnyOrder) {
  SolveSession session = client_->OpenSession();
  std::vector<double> x1(problem_.rows()), x2(problem_.rows());
  const auto first = session.Send(handle_, problem_.rhs, x1);
  const auto second = session.Send(handle_, problem_.rhs, x2);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE(session.Await(*second).ok());
  EXPECT_TRUE(session.Await(*first).ok());
  EXPECT_LT(problems::BackwardError(problem_, x1, problem_.rhs, 1), 1e-14);
  EXPECT_TRUE(absl::IsNotFound(session.Await(*first).status()));
  EXPECT_EQ(x1, x2);
}

TEST_F(SolveSessionTest, AFailureIsOfItsRequestAlone) {
  SolveSession session = client_->OpenSession();
  std::vector<double> x(problem_.rows());
  Factorization unknown = handle_;
  unknown.handle = std::string(24, 'x');
  const auto bad = session.Send(unknown, problem_.rhs, x);
  ASSERT_TRUE(bad.ok());
  const absl::Status status = session.Await(*bad).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_TRUE(GetHandleNotFound(status).has_value());
  const auto good = session.Send(handle_, problem_.rhs, x);
  ASSERT_TRUE(good.ok());
  EXPECT_TRUE(session.Await(*good).ok());
  EXPECT_LT(problems::BackwardError(problem_, x, problem_.rhs, 1), 1e-14);
}

TEST_F(SolveSessionTest, WrongSizesAreRefusedBeforeTheyAreSent) {
  SolveSession session = client_->OpenSession();
  std::vector<double> x(3);
  EXPECT_TRUE(GetInvalidField(session.Send(handle_, problem_.rhs, x).status()).has_value());
  EXPECT_EQ(session.outstanding(), 0);
}

TEST_F(SolveSessionTest, OneThreadSendsWhileAnotherReceives) {
  constexpr int kRequests = 100;
  SolveSession session = client_->OpenSession();
  std::vector<std::vector<double>> x(kRequests, std::vector<double>(problem_.rows()));
  std::vector<double> first(problem_.rows());
  ASSERT_TRUE(
      session.Send(handle_, problem_.rhs, first).ok());  // so that Next has what to wait for
  std::thread sender([&] {
    for (int k = 0; k < kRequests; ++k) {
      EXPECT_TRUE(session.Send(handle_, problem_.rhs, x[k]).ok());
    }
  });
  for (int received = 0; received < kRequests + 1;) {
    const auto answer = session.Next();
    if (absl::IsFailedPrecondition(answer.status())) continue;  // the sender is behind
    ASSERT_TRUE(answer.ok() && answer->result.ok());
    ++received;
  }
  sender.join();
  EXPECT_EQ(x.front(), x.back());
}

TEST_F(SolveSessionTest, TheEndOfTheServerFailsWhatIsUnanswered) {
  SolveSession session = client_->OpenSession();
  std::vector<double> x(problem_.rows());
  ASSERT_TRUE(session.Send(handle_, problem_.rhs, x).ok());
  ASSERT_TRUE(session.Next()->result.ok());
  server_->Drain();
  server_.reset();
  // A request that was taken before the end is heard of is answered with the end.
  absl::Status status;
  while (status.ok()) {
    const auto id = session.Send(handle_, problem_.rhs, x);
    status = id.ok() ? session.Await(*id).status() : id.status();
  }
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

// The device is held, so that the answers cannot be there.
TEST_F(HeldSessionTest, AnAnswerThatIsNotThereYetCanBeAwaitedAgain) {
  SolveSession session = client_->OpenSession();
  std::vector<double> x(problem_.rows());
  gate_->Close();
  const auto id = session.Send(handle_, problem_.rhs, x);
  ASSERT_TRUE(id.ok());
  for (const absl::Duration wait : {absl::ZeroDuration(), absl::Milliseconds(20)}) {
    const auto early = session.Await(*id, wait);
    EXPECT_TRUE(absl::IsDeadlineExceeded(early.status())) << early.status();
  }
  EXPECT_EQ(session.outstanding(), 1);
  gate_->Open();
  const auto answer = session.Await(*id);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_LT(problems::BackwardError(problem_, x, problem_.rhs, 1), 1e-14);
  EXPECT_EQ(session.outstanding(), 0);
}

TEST_F(HeldSessionTest, ASessionMayEndWithRequestsInFlight) {
  std::vector<std::vector<double>> x(50, std::vector<double>(problem_.rows(), 7));
  gate_->Close();
  {
    SolveSession session = client_->OpenSession();
    for (auto& solution : x) ASSERT_TRUE(session.Send(handle_, problem_.rhs, solution).ok());
    gate_->WaitForDevice();
  }
  gate_->Open();
  EXPECT_TRUE(client_->ServerInfo().ok());
  // Nobody writes to what was the session's.
  for (const auto& solution : x) EXPECT_EQ(solution, std::vector<double>(problem_.rows(), 7));
}

}  // namespace
}  // namespace blockd::client
