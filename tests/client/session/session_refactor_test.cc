// Frames of refactors of a session: the answers of RefactorSolveMany, what fails alone, what ends
// early, and what heals.
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/client/refactor_fixture.h"
#include "tests/client/server_fixture.h"
#include "tests/support/eventually.h"

namespace blockd::client {
namespace {

class SessionRefactorTest : public ServerTest {
 protected:
  void SetUp() override {
    StartServer(gate_);
    if (!HasFatalFailure()) client_.emplace(Connect());
  }
  void TearDown() override {
    gate_->Open();  // a test that failed may have left it closed
    owned_.clear();
    if (client_) client_->AwaitReleases(absl::Seconds(60));
    ServerTest::TearDown();
  }
  std::vector<Factorization> Held(int count) {
    std::vector<Factorization> handles;
    for (int i = 0; i < count; ++i) {
      absl::StatusOr<FactorResult> factored = client_->Factor(View(before_));
      EXPECT_TRUE(factored.ok()) << factored.status();
      owned_.push_back(std::move(factored->handle));
      handles.push_back(owned_.back());
    }
    return handles;
  }
  std::vector<double> SolutionOf(const Factorization& handle, const std::vector<double>& b) {
    std::vector<double> x(b.size());
    EXPECT_TRUE(client_->Solve(handle, b, x).ok());
    return x;
  }
  absl::StatusOr<SolveResult> Frame(SolveSession& session, std::span<const Factorization> handles,
                                    const SolveOptions& solve = {},
                                    const FactorOptions& factor = {}) {
    const auto id = session.SendRefactorMany(handles, systems_, b_, x_, solve, factor);
    return id.ok() ? session.Await(*id) : absl::StatusOr<SolveResult>(id.status());
  }

  const std::shared_ptr<test::Gate> gate_ = std::make_shared<test::Gate>();
  const problems::Problem before_ = problems::RandomSpd(16, 4, 1, 100),
                          after_ = problems::RandomSpd(16, 4, 2, 100),
                          third_ = problems::RandomSpd(16, 4, 3, 100);
  const std::vector<SystemView> systems_ = {View(after_), View(third_)};
  const std::vector<double> b_ = problems::RandomColumns(128, 2, 7);
  std::vector<double> x_ = std::vector<double>(256, 7);
  std::optional<SolverClient> client_;
  std::vector<FactorHandle> owned_;
};

TEST_F(SessionRefactorTest, TheAnswersAreThoseOfTheCall) {
  const std::vector<Factorization> framed = Held(2), called = Held(2);
  SolveSession session = client_->OpenSession();
  const auto frame = Frame(session, framed, {.residual = true}, {.keep_matrix = true});
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_TRUE(frame->FirstFailure().ok()) << frame->FirstFailure();
  std::vector<double> y(x_.size());
  const auto call = client_->RefactorSolveMany(called, systems_, b_, y, {.residual = true},
                                               {.keep_matrix = true});
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(x_, y);
  ASSERT_EQ(frame->solves.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(frame->solves[i].growth, call->solves[i].growth);
    EXPECT_EQ(frame->solves[i].backward_error, call->solves[i].backward_error);
    EXPECT_TRUE(frame->solves[i].matrix_kept);
  }
  EXPECT_EQ(frame->backward_error, call->backward_error);
  EXPECT_EQ(SolutionOf(framed[1], b_), SolutionOf(called[1], b_));
}

// Several in flight, beside requests and frames of solves, of which none shares a handle.
TEST_F(SessionRefactorTest, GoesBesideOthers) {
  const std::vector<Factorization> a = Held(2), b = Held(2), c = Held(2);
  SolveSession session = client_->OpenSession();
  std::vector<double> y(x_.size()), z(x_.size()), single(64);
  for (int round = 0; round < 3; ++round) {
    const auto first = session.SendRefactorMany(a, systems_, b_, x_);
    const auto many = session.SendMany(c, std::span(b_).first(128), std::span(z).first(128));
    const auto second = session.SendRefactorMany(b, systems_, b_, y);
    const auto one = session.Send(c[0], std::span(b_).first(64), single);
    ASSERT_TRUE(first.ok() && second.ok() && many.ok() && one.ok());
    for (const auto& id : {one, second, many, first}) ASSERT_TRUE(session.Await(*id).ok());
    EXPECT_EQ(x_, y);
    EXPECT_LT(problems::BackwardError(after_, {x_.begin(), x_.begin() + 128},
                                      {b_.begin(), b_.begin() + 128}, 2),
              1e-14);
    EXPECT_EQ(std::memcmp(single.data(), z.data(), 64 * sizeof(double)), 0);
  }
}

TEST_F(SessionRefactorTest, Float32) {
  const float two[] = {2, 2}, one[] = {1}, four[] = {4, 4}, b[] = {9, 9, 4, 5};
  const auto factored = client_->FactorBatch(
      std::vector<SystemView>{MakeSystemView(2, 1, two, one), MakeSystemView(2, 1, two, one)});
  ASSERT_TRUE(factored.ok()) << factored.status();
  const std::vector<Factorization> handles = {factored->systems[0].handle,
                                              factored->systems[1].handle};
  SolveSession session = client_->OpenSession();
  std::vector<float> x(4);
  const auto id = session.SendRefactorMany(
      handles,
      std::vector<SystemView>{MakeSystemView(2, 1, four, one), MakeSystemView(2, 1, two, one)}, b,
      x);
  ASSERT_TRUE(id.ok()) << id.status();
  const auto solved = session.Await(*id);
  ASSERT_TRUE(solved.ok() && solved->FirstFailure().ok()) << solved.status();
  EXPECT_NEAR(4 * x[0] + x[1], 9, 1e-5);
  EXPECT_NEAR(2 * x[2] + x[3], 4, 1e-5);
}

TEST_F(SessionRefactorTest, EachFailsByItself) {
  problems::Problem bad = after_;
  bad.diagonal[0] = -1;
  const std::vector<Factorization> handles = Held(2);
  SolveSession session = client_->OpenSession();
  const auto id =
      session.SendRefactorMany(handles, std::vector<SystemView>{View(bad), View(third_)}, b_, x_);
  ASSERT_TRUE(id.ok());
  const auto solved = session.Await(*id);
  ASSERT_TRUE(solved.ok()) << solved.status();
  EXPECT_TRUE(GetNotPositiveDefinite(solved->solves[0].status).has_value());
  EXPECT_TRUE(solved->solves[1].status.ok());
  EXPECT_EQ(std::vector<double>(x_.begin(), x_.begin() + 128), std::vector<double>(128, 0));
  EXPECT_EQ(SolutionOf(handles[1], {b_.begin() + 128, b_.end()}),
            std::vector<double>(x_.begin() + 128, x_.end()));
  // And one whose message the server refuses.
  EXPECT_TRUE(absl::IsInvalidArgument(
      Frame(session, std::vector<Factorization>{handles[0], handles[0]}).status()));
  EXPECT_TRUE(Frame(session, handles)->FirstFailure().ok());
}

TEST_F(SessionRefactorTest, WhatDoesNotAgreeIsRefusedBeforeItIsSent) {
  const std::vector<Factorization> handles = Held(2);
  SolveSession session = client_->OpenSession();
  std::vector<double> odd(100);
  const auto refused = [&](std::span<const Factorization> of, std::span<const SystemView> systems,
                           std::span<const double> b, std::span<double> x) {
    const absl::Status call = client_->RefactorSolveMany(of, systems, b, x).status();
    EXPECT_EQ(session.SendRefactorMany(of, systems, b, x).status(), call);
    return GetInvalidField(call).has_value();
  };
  EXPECT_TRUE(refused({}, {}, b_, x_));
  EXPECT_TRUE(refused(handles, std::span(systems_).first(1), b_, x_));
  EXPECT_TRUE(refused(handles, systems_, odd, x_));
  EXPECT_TRUE(refused(handles, systems_, b_, odd));
  EXPECT_EQ(GetInvalidField(Frame(session, handles, {.replace_last = true}).status())->field(),
            "options.replace_last");
  std::vector<Factorization> apart = handles;
  apart[1].route = "elsewhere";
  EXPECT_EQ(GetInvalidField(Frame(session, apart).status())->field(), "handle");
  EXPECT_EQ(session.outstanding(), 0);
}

TEST_F(SessionRefactorTest, MayBeCancelledAndMayBeLate) {
  const std::vector<Factorization> running = Held(1), handles = Held(2);
  SolveSession session = client_->OpenSession();
  std::vector<double> own(64), y(x_.size());
  gate_->Close();
  const auto first =
      session.SendRefactorMany(running, std::span(systems_).first(1), std::span(b_).first(64), own);
  ASSERT_TRUE(first.ok());
  gate_->WaitForDevice();
  for (int round = 0; round < 10; ++round) {  // sent or not sent yet
    const auto id = session.SendRefactorMany(handles, systems_, b_, y);
    ASSERT_TRUE(id.ok());
    EXPECT_TRUE(session.Cancel(*id).ok());
    EXPECT_TRUE(absl::IsCancelled(session.Await(*id).status()));
  }
  const auto late =
      session.SendRefactorMany(handles, systems_, b_, y, {.timeout = absl::Milliseconds(20)});
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.ok() ? session.Await(*late).status() : late.status()));
  EXPECT_EQ(y, std::vector<double>(y.size()));
  gate_->Open();
  EXPECT_TRUE(session.Await(*first)->FirstFailure().ok());
  EXPECT_TRUE(Frame(session, handles)->FirstFailure().ok());
}

TEST_F(SessionRefactorTest, ASessionMayEndWithSomeInFlight) {
  const std::vector<Factorization> handles = Held(2);
  gate_->Close();
  {
    SolveSession session = client_->OpenSession();
    for (int i = 0; i < 10; ++i) {
      ASSERT_TRUE(session.SendRefactorMany(handles, systems_, b_, x_).ok());
    }
    gate_->WaitForDevice();
  }
  EXPECT_EQ(x_, std::vector<double>(x_.size(), 7));
}

// -------------------------------------------------------------------------------------- scripted

class HealingSessionRefactorTest : public HealingRefactorTest {
 protected:
  static std::vector<SystemView> Systems(const std::vector<const double*>& values) {
    std::vector<SystemView> systems;
    for (const double* a : values) systems.push_back(System(a));
    return systems;
  }
  // With new values for each; x is 8 over them.
  absl::StatusOr<SolveResult> Frame(SolveSession& session,
                                    const std::vector<Factorization>& handles,
                                    const std::vector<const double*>& values,
                                    const SolveOptions& options = {}) {
    const std::vector<double> b(handles.size(), 8);
    x_.assign(handles.size(), 7);
    const auto id = session.SendRefactorMany(handles, Systems(values), b, x_, options);
    if (!id.ok()) return id.status();
    return session.Await(*id);
  }

  std::vector<double> x_;
};

TEST_F(HealingSessionRefactorTest, ThoseThatAreLostAreRestoredAndSentAgainAlone) {
  const SolverClient client = Connect();
  const FactorHandle a = Factor(client, {.keep_copy = true}),
                     b = Factor(client, {.keep_copy = true});
  Lose(v1::HandleNotFound::EVICTED);
  const FactorHandle c = Factor(client, {.keep_copy = true}), d = Factor(client, {});
  SolveSession session = client.OpenSession();
  const auto solved = Frame(session, {a, c, b, d}, {kFour, kTwo, kTwo, kFour});
  ASSERT_TRUE(solved.ok()) << solved.status();
  EXPECT_TRUE(solved->FirstFailure().ok()) << solved->FirstFailure();
  EXPECT_EQ(x_, (std::vector<double>{2, 4, 4, 2}));
  const auto came = frames_.Get();
  ASSERT_EQ(came.size(), 2u);
  EXPECT_EQ(came[1].handle_size(), 2);
  EXPECT_EQ(client.restore_counters().restores, 2);
  EXPECT_EQ(session.outstanding(), 0);
}

TEST_F(HealingSessionRefactorTest, AllOfThemKeepTheirPlaces) {
  const SolverClient client = Connect();
  const FactorHandle a = Factor(client, {.keep_copy = true}),
                     b = Factor(client, {.keep_copy = true});
  Lose(v1::HandleNotFound::EXPIRED);
  SolveSession session = client.OpenSession();
  ASSERT_TRUE(Frame(session, {a, b}, {kFour, kTwo})->FirstFailure().ok());
  EXPECT_EQ(x_, (std::vector<double>{2, 4}));
}

TEST_F(HealingSessionRefactorTest, NewValuesAreThoseThatAreRestoredFromThenOn) {
  const SolverClient client = Connect();
  const FactorHandle handle = Factor(client, {.keep_copy = true});
  SolveSession session = client.OpenSession();
  {
    const std::vector<double> gone(kFour, kFour + 1);  // what is sent may go at once
    ASSERT_TRUE(Frame(session, {handle}, {gone.data()})->FirstFailure().ok());
  }
  Lose(v1::HandleNotFound::EVICTED);
  EXPECT_EQ(Solve(client, handle).value_or(0), 2);
  EXPECT_EQ(handle.restore_counters().restores, 1);
}

// Lost while the answer is on its way, and restored with the values before.
TEST_F(HealingSessionRefactorTest, OldValuesThatWereRestoredMeanwhileAreReplaced) {
  const SolverClient client = Connect();
  const FactorHandle handle = Factor(client, {.keep_copy = true});
  meanwhile_ = [&](size_t frames) {
    if (frames == 1) {
      Lose(v1::HandleNotFound::EVICTED);
      EXPECT_EQ(Solve(client, handle).value_or(0), 4);
    }
    return grpc::Status::OK;
  };
  SolveSession session = client.OpenSession();
  ASSERT_TRUE(Frame(session, {handle}, {kFour})->FirstFailure().ok());
  EXPECT_EQ(x_[0], 2);
  EXPECT_EQ(frames_.Get().size(), 2u);
  EXPECT_EQ(Solve(client, handle).value_or(0), 2);
}

TEST_F(HealingSessionRefactorTest, AStreamThatEndsIsOpenedAgain) {
  const SolverClient client = Connect();
  const FactorHandle heals = Factor(client, {.keep_copy = true}), plain = Factor(client, {});
  meanwhile_ = [&](size_t frames) {
    return frames == 1 ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone") : grpc::Status::OK;
  };
  SolveSession session = client.OpenSession();
  const auto solved = Frame(session, {heals, plain}, {kFour, kFour});
  ASSERT_TRUE(solved.ok()) << solved.status();
  EXPECT_TRUE(solved->solves[0].status.ok()) << solved->solves[0].status;
  EXPECT_EQ(x_[0], 2);
  EXPECT_TRUE(absl::IsUnavailable(solved->solves[1].status));
  // And it stays broken for a frame of which nothing heals only until one that heals comes.
  meanwhile_ = [](size_t) { return grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone"); };
  EXPECT_TRUE(absl::IsUnavailable(Frame(session, {plain}, {kTwo}).status()));
  meanwhile_ = nullptr;
  EXPECT_TRUE(absl::IsUnavailable(Frame(session, {plain}, {kTwo}).status()));
  EXPECT_TRUE(Frame(session, {heals}, {kTwo})->FirstFailure().ok());
}

TEST_F(HealingSessionRefactorTest, OneThatDoesNotHealSaysWhatItMet) {
  const SolverClient client = Connect();
  const FactorHandle plain = Factor(client, {}),
                     never = Factor(client, {.keep_copy = true, .max_restores = 0});
  Lose(v1::HandleNotFound::RESTARTED);
  const FactorHandle held = Factor(client, {});
  SolveSession session = client.OpenSession();
  const auto solved = Frame(session, {plain, held, never}, {kFour, kFour, kFour});
  ASSERT_TRUE(solved.ok()) << solved.status();
  EXPECT_EQ(GetHandleNotFound(solved->solves[0].status)->reason(), v1::HandleNotFound::RESTARTED);
  EXPECT_TRUE(solved->solves[1].status.ok());
  EXPECT_EQ(GetHandleNotFound(solved->solves[2].status)->reason(), v1::HandleNotFound::RESTARTED);
  EXPECT_EQ(x_, (std::vector<double>{0, 2, 0}));
}

// Two factorizations that evict one another would go on for ever.
TEST_F(HealingSessionRefactorTest, IsNotRestoredForEver) {
  const SolverClient client = Connect();
  const FactorHandle handle = Factor(client, {.keep_copy = true, .max_restores = 3});
  LoseAll();
  SolveSession session = client.OpenSession();
  const auto solved = Frame(session, {handle}, {kFour});
  ASSERT_TRUE(solved.ok()) << solved.status();
  EXPECT_TRUE(absl::IsNotFound(solved->FirstFailure())) << solved->FirstFailure();
  EXPECT_LE(frames_.Get().size(), 5u);
}

// A restoration that takes its time holds up neither a deadline nor a cancellation.
TEST_F(HealingSessionRefactorTest, EndsInTimeWhileSomethingIsRestored) {
  const SolverClient client = Connect();
  absl::Notification go_on;
  const FactorHandle handle = Factor(client, {.matrix = [&](size_t) -> absl::StatusOr<OwnedSystem> {
                                       go_on.WaitForNotification();
                                       return OwnedSystem{System(kTwo)};
                                     }});
  Lose(v1::HandleNotFound::EVICTED);
  SolveSession session = client.OpenSession();
  const std::vector<Factorization> handles = {handle};
  const std::vector<SystemView> systems = Systems({kFour});
  const std::vector<double> b = {8};
  std::vector<double> late = {7}, cancelled = {7};
  auto id = session.SendRefactorMany(handles, systems, b, late, {.timeout = absl::Seconds(3)});
  ASSERT_TRUE(id.ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(session.Await(*id).status()));
  late[0] = 7;
  id = session.SendRefactorMany(handles, systems, b, cancelled);
  ASSERT_TRUE(id.ok());
  EXPECT_TRUE(test::Eventually([&] { return handle.restore_counters().waited == 2; }));
  EXPECT_TRUE(session.Cancel(*id).ok());
  EXPECT_TRUE(absl::IsCancelled(session.Await(*id).status()));
  cancelled[0] = 7;
  go_on.Notify();
  EXPECT_TRUE(Frame(session, {handle}, {kFour})->FirstFailure().ok());
  EXPECT_EQ(x_[0], 2);
  EXPECT_EQ(late[0] + cancelled[0], 14);  // nobody has written to them
}

}  // namespace
}  // namespace blockd::client
