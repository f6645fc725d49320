// Many solves in one message, in a call and as frames of a session: the answers of single ones,
// what is sent, what of the server's is believed, and what heals.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/client/heal_fixture.h"
#include "tests/client/server_fixture.h"

namespace blockd::client {
namespace {

class SolveManyTest : public ServerTest {
 protected:
  void SetUp() override {
    StartServer(gate_);
    if (!HasFatalFailure()) Begin();
  }
  void Begin() {
    client_.emplace(Connect());
    for (size_t k = 0; k < problems_.size(); ++k) {
      absl::StatusOr<FactorResult> factored = client_->Factor(View(problems_[k]));
      ASSERT_TRUE(factored.ok()) << factored.status();
      owned_.push_back(std::move(factored->handle));
    }
    for (int i = 0; i < 12; ++i) {
      const size_t k = static_cast<size_t>(i * 5) % problems_.size();
      handles_.push_back(owned_[k]);
      num_rhs_.push_back(1 + i % 4);
      const std::vector<double> b = problems::RandomColumns(problems_[k].rows(), num_rhs_[i], i);
      rhs_.insert(rhs_.end(), b.begin(), b.end());
    }
    x_.assign(rhs_.size(), 7);
  }
  void TearDown() override {
    gate_->Open();  // a test that failed may have left it closed
    owned_.clear();
    if (client_) client_->AwaitReleases(absl::Seconds(60));
    ServerTest::TearDown();
  }
  // The bits of Solves of their own.
  void ExpectSolo(const std::vector<double>& x) {
    size_t at = 0;
    for (size_t i = 0; i < handles_.size(); ++i) {
      SCOPED_TRACE(i);
      const size_t count = static_cast<size_t>(handles_[i].rows() * num_rhs_[i]);
      std::vector<double> solo(count);
      ASSERT_TRUE(client_->Solve(handles_[i], std::span(rhs_).subspan(at, count), solo).ok());
      EXPECT_EQ(std::memcmp(solo.data(), x.data() + at, count * sizeof(double)), 0);
      at += count;
    }
  }
  absl::StatusOr<SolveResult> Frame(SolveSession& session) {
    const auto id = session.SendMany(handles_, rhs_, x_, {}, num_rhs_);
    return id.ok() ? session.Await(*id) : absl::StatusOr<SolveResult>(id.status());
  }

  const std::shared_ptr<test::Gate> gate_ = std::make_shared<test::Gate>();
  const std::vector<problems::Problem> problems_ = {problems::RandomSpd(16, 4, 1, 100),
                                                    problems::RandomSpd(16, 4, 2, 100),
                                                    problems::RandomSpd(5, 9, 3, 100)};
  std::optional<SolverClient> client_;
  std::vector<FactorHandle> owned_;
  std::vector<Factorization> handles_;
  std::vector<int64_t> num_rhs_;
  std::vector<double> rhs_, x_;
};

TEST_F(SolveManyTest, TheAnswersAreThoseOfSingleSolves) {
  const auto solved = client_->SolveMany(handles_, rhs_, x_, {}, num_rhs_);
  ASSERT_TRUE(solved.ok()) << solved.status();
  ASSERT_EQ(solved->solves.size(), handles_.size());
  EXPECT_TRUE(solved->FirstFailure().ok());
  EXPECT_GT(solved->backward_error_bound, 0);
  ExpectSolo(x_);
}

TEST_F(SolveManyTest, SoAreThoseOfFramesAndOfWhatIsBetweenThem) {
  SolveSession session = client_->OpenSession();
  std::vector<double> y(rhs_.size()), single(static_cast<size_t>(handles_[0].rows()));
  for (int round = 0; round < 3; ++round) {
    const auto first = session.SendMany(handles_, rhs_, x_, {}, num_rhs_);
    const auto between = session.Send(handles_[0], std::span(rhs_).first(single.size()), single);
    const auto second = session.SendMany(handles_, rhs_, y, {}, num_rhs_);
    ASSERT_TRUE(first.ok() && between.ok() && second.ok());
    ASSERT_TRUE(session.Await(*second).ok());
    ASSERT_TRUE(session.Await(*between)->solves.empty());
    const auto solved = session.Await(*first);
    ASSERT_TRUE(solved.ok()) << solved.status();
    EXPECT_EQ(solved->solves.size(), handles_.size());
    ExpectSolo(x_);
    EXPECT_EQ(x_, y);
  }
}

TEST_F(SolveManyTest, Float32AndOneSolveEach) {
  const float diagonal[] = {4, 5}, coupling[] = {1}, b[] = {9, 9, 4, 5};
  const auto factored = client_->Factor(MakeSystemView(2, 1, diagonal, coupling));
  ASSERT_TRUE(factored.ok()) << factored.status();
  const std::vector<Factorization> twice(2, factored->handle);
  std::vector<float> x(4);
  ASSERT_TRUE(client_->SolveMany(twice, b, x).ok());
  SolveSession session = client_->OpenSession();
  std::vector<float> y(4);
  const auto id = session.SendMany(twice, b, y);
  ASSERT_TRUE(id.ok() && session.Await(*id).ok());
  EXPECT_EQ(x, y);
  EXPECT_NEAR(4 * x[0] + x[1], 9, 1e-5);
  EXPECT_NEAR(x[2] + 5 * x[3], 5, 1e-5);
}

TEST_F(SolveManyTest, SolvesFailAloneAndTheirSolutionsAreZero) {
  const Factorization gone = owned_[1];
  ASSERT_TRUE(owned_[1].Release().ok());
  SolveSession session = client_->OpenSession();
  for (const auto& solved :
       {client_->SolveMany(handles_, rhs_, x_, {}, num_rhs_), Frame(session), Frame(session)}) {
    ASSERT_TRUE(solved.ok()) << solved.status();
    size_t at = 0;
    for (size_t i = 0; i < handles_.size(); ++i) {
      const bool lost = handles_[i].handle == gone.handle;
      const absl::Status& status = solved->solves[i].status;
      EXPECT_EQ(status.ok(), !lost) << status;
      if (lost) {
        EXPECT_EQ(GetHandleNotFound(status)->reason(), v1::HandleNotFound::RELEASED);
        EXPECT_EQ(x_[at], 0);
      }
      at += static_cast<size_t>(handles_[i].rows() * num_rhs_[i]);
    }
    EXPECT_TRUE(absl::IsNotFound(solved->FirstFailure()));
  }
}

TEST_F(SolveManyTest, WrongSizesAreRefusedBeforeTheyAreSent) {
  SolveSession session = client_->OpenSession();
  const auto field = [&](std::span<const Factorization> handles, std::span<const double> rhs,
                         std::span<double> x, std::span<const int64_t> num_rhs) {
    const absl::Status call = client_->SolveMany(handles, rhs, x, {}, num_rhs).status();
    const absl::Status frame = session.SendMany(handles, rhs, x, {}, num_rhs).status();
    EXPECT_EQ(call, frame);
    const auto detail = GetInvalidField(call);
    return detail ? detail->field() : std::string(call.ToString());
  };
  const std::span<const double> rhs(rhs_);
  const std::span<double> x(x_);
  std::vector<int64_t> wrong = num_rhs_;
  EXPECT_EQ(field({}, {}, {}, {}), "handle");
  EXPECT_EQ(field(handles_, rhs.first(rhs.size() - 1), x, num_rhs_), "rhs");
  EXPECT_EQ(field(handles_, rhs, x.first(x.size() - 1), num_rhs_), "solution");
  wrong.pop_back();
  EXPECT_EQ(field(handles_, rhs, x, wrong), "num_rhs");
  wrong.push_back(0);
  EXPECT_EQ(field(handles_, rhs, x, wrong), "num_rhs[11]");
  wrong.back() = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(field(handles_, rhs, x, wrong), "rhs");
  handles_[3].scalar = Scalar::kFloat32;
  EXPECT_EQ(field(handles_, rhs, x, num_rhs_), "rhs");
  EXPECT_EQ(
      GetInvalidField(session.SendMany(handles_, rhs, x, {.replace_last = true}).status())->field(),
      "options.replace_last");
  EXPECT_EQ(session.outstanding(), 0);
}

TEST_F(SolveManyTest, ACancelledFrameLeavesItsHandlesToTheNext) {
  SolveSession session = client_->OpenSession();
  std::vector<double> y(rhs_.size()), single(static_cast<size_t>(handles_[0].rows()));
  gate_->Close();
  ASSERT_TRUE(session.Send(handles_[0], std::span(rhs_).first(single.size()), single).ok());
  gate_->WaitForDevice();
  for (int round = 0; round < 20; ++round) {  // sent or not sent yet
    const auto cancelled = session.SendMany(handles_, rhs_, y, {}, num_rhs_);
    ASSERT_TRUE(cancelled.ok());
    EXPECT_TRUE(session.Cancel(*cancelled).ok());
    EXPECT_TRUE(absl::IsCancelled(session.Await(*cancelled).status()));
  }
  const auto id = session.SendMany(handles_, rhs_, x_, {}, num_rhs_);
  gate_->Open();
  ASSERT_TRUE(id.ok() && session.Await(*id).ok());
  ExpectSolo(x_);
}

TEST_F(SolveManyTest, AFrameThatIsLateIsAnsweredInTime) {
  SolveSession session = client_->OpenSession();
  gate_->Close();
  const auto late =
      session.SendMany(handles_, rhs_, x_, {.timeout = absl::Milliseconds(20)}, num_rhs_);
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.ok() ? session.Await(*late).status() : late.status()));
  gate_->Open();
  ASSERT_TRUE(Frame(session).ok());
  ExpectSolo(x_);
}

TEST_F(SolveManyTest, ASessionMayEndWithFramesInFlight) {
  gate_->Close();
  {
    SolveSession session = client_->OpenSession();
    for (int i = 0; i < 10; ++i) {
      ASSERT_TRUE(session.SendMany(handles_, rhs_, x_, {}, num_rhs_).ok());
    }
    gate_->WaitForDevice();
  }
  EXPECT_EQ(x_, std::vector<double>(rhs_.size(), 7));
}

// Scripted: one equation a handle, a x = b.
class ManyContractTest : public HealTest {
 protected:
  ManyContractTest() {
    fake_.on_solve_many = [this](const v1::SolveManyRequest& request, v1::SolveManyReply* reply) {
      requests_.Append(request);
      AnswerAll(request, reply);
      return grpc::Status::OK;
    };
    fake_.on_solve_stream = [this](FakeSolver::SolvePipe* pipe) {
      v1::SolveStreamRequest message;
      while (pipe->Read(&message)) {
        requests_.Append(message.many());
        v1::SolveStreamReply reply;
        reply.set_id(message.id());
        AnswerAll(message.many(), reply.mutable_many());
        if (spoil_.Get()) spoil_.Get()(&reply);
        pipe->Write(reply);
      }
      return grpc::Status::OK;
    };
  }
  void AnswerAll(const v1::SolveManyRequest& request, v1::SolveManyReply* reply) {
    for (size_t i = 0; i < request.rhs().size() / 8; ++i) {
      v1::SolveRequest one;
      one.set_handle(request.handles().substr(kHandle * i, kHandle));
      one.set_rhs(request.rhs().substr(8 * i, 8));
      v1::SolveReply answer;
      const grpc::Status status = Answer(one, &answer);
      reply->add_backward_error_bound(status.ok() ? 1e-15 : 0);
      *reply->mutable_solution() += status.ok() ? answer.solution() : std::string(8, '\0');
      if (status.ok()) continue;
      v1::SolveFailure* const failure = reply->add_failure();
      failure->set_solve(static_cast<uint32_t>(i));
      failure->mutable_status()->ParseFromString(status.error_details());
      failure->mutable_status()->set_code(status.error_code());
    }
  }
  absl::Status Frame(SolveSession& session, const std::vector<Factorization>& handles) {
    const std::vector<double> b(handles.size(), 8);
    std::vector<double> x(handles.size());
    const auto id = session.SendMany(handles, b, x);
    if (!id.ok()) return id.status();
    const auto solved = session.Await(*id);
    return solved.ok() ? solved->FirstFailure() : solved.status();
  }
  absl::Status Spoiled(const std::function<void(v1::SolveStreamReply*)>& spoil) {
    spoil_ = spoil;
    const SolverClient client = Connect();
    const FactorHandle handle = Factor(client, {});
    SolveSession session = client.OpenSession();
    return Frame(session, {handle, handle});
  }

  Shared<std::vector<v1::SolveManyRequest>> requests_;
  Shared<std::function<void(v1::SolveStreamReply*)>> spoil_;
};

TEST_F(ManyContractTest, AFrameNamesItsHandlesAndNoSizesThatAreAlike) {
  const SolverClient client = Connect();
  const FactorHandle a = Factor(client, {}), b = Factor(client, {}, kFour), c = Factor(client, {});
  SolveSession session = client.OpenSession();
  ASSERT_TRUE(Frame(session, {a, b}).ok());
  ASSERT_TRUE(Frame(session, {b, c, b}).ok());
  const std::vector<v1::SolveManyRequest> came = requests_.Get();
  ASSERT_EQ(came.size(), 2u);
  EXPECT_EQ(came[0].handles(), a.get().handle + b.get().handle);
  EXPECT_EQ(came[1].handles(), b.get().handle + c.get().handle + b.get().handle);
  for (const v1::SolveManyRequest& each : came) {
    EXPECT_EQ(each.num_rhs_size() + each.rhs_bytes_size(), 0);
  }
}

TEST_F(ManyContractTest, AnAnswerThatIsNoneToTheFrameEndsTheStream) {
  EXPECT_TRUE(Spoiled(nullptr).ok());
  const std::vector<std::function<void(v1::SolveStreamReply*)>> wrong = {
      [](v1::SolveStreamReply* r) { r->mutable_reply()->set_solution(std::string(16, 'x')); },
      [](v1::SolveStreamReply* r) { r->mutable_many()->add_backward_error_bound(1); },
      [](v1::SolveStreamReply* r) { r->mutable_many()->clear_backward_error_bound(); },
      [](v1::SolveStreamReply* r) { r->mutable_many()->add_refinements(1); },
      [](v1::SolveStreamReply* r) { r->mutable_many()->add_backward_error(1); },
      [](v1::SolveStreamReply* r) { r->mutable_many()->mutable_solution()->pop_back(); },
      [](v1::SolveStreamReply* r) { r->mutable_many()->add_failure(); },
      [](v1::SolveStreamReply* r) {
        v1::SolveFailure* const failure = r->mutable_many()->add_failure();
        failure->set_solve(2);
        failure->mutable_status()->set_code(5);
      }};
  for (size_t i = 0; i < wrong.size(); ++i) {
    SCOPED_TRACE(i);
    const absl::Status status = Spoiled(wrong[i]);
    EXPECT_TRUE(absl::IsInternal(status)) << status;
  }
}

TEST_F(ManyContractTest, ACallHealsWhatIsLostAndSendsThatAlone) {
  const SolverClient client = Connect();
  const FactorHandle a = Factor(client, {.keep_copy = true}),
                     b = Factor(client, {.keep_copy = true}, kFour);
  Lose(v1::HandleNotFound::EVICTED);
  const FactorHandle c = Factor(client, {});
  const std::vector<Factorization> handles = {a, c, b, a};
  const std::vector<double> rhs(4, 8);
  std::vector<double> x(4);
  const auto solved = client.SolveMany(handles, rhs, x);
  ASSERT_TRUE(solved.ok()) << solved.status();
  EXPECT_TRUE(solved->FirstFailure().ok()) << solved->FirstFailure();
  EXPECT_EQ(x, (std::vector<double>{4, 4, 2, 4}));
  EXPECT_EQ(client.restore_counters().restores, 2);
  const std::vector<v1::SolveManyRequest> came = requests_.Get();
  ASSERT_EQ(came.size(), 2u);
  EXPECT_EQ(came[1].handles().size(), 3 * kHandle);
}

TEST_F(ManyContractTest, RightHandSidesThatTheSolutionOverwritesAreSentAgain) {
  const SolverClient client = Connect();
  const FactorHandle a = Factor(client, {.keep_copy = true});
  Lose(v1::HandleNotFound::EVICTED);
  const FactorHandle b = Factor(client, {.keep_copy = true}, kFour);
  const std::vector<Factorization> handles = {a, b};
  std::vector<double> x(2, 8);
  const auto solved = client.SolveMany(handles, x, x);
  ASSERT_TRUE(solved.ok()) << solved.status();
  EXPECT_TRUE(solved->FirstFailure().ok()) << solved->FirstFailure();
  EXPECT_EQ(x, (std::vector<double>{4, 2}));
}

TEST_F(ManyContractTest, AHandleOfAnotherLengthIsRefusedByName) {
  const SolverClient client = Connect();
  const FactorHandle a = Factor(client, {});
  Factorization longer = a.get(), shorter = a.get();
  longer.handle += "0123";
  shorter.handle.resize(kHandle - 4);
  const std::vector<double> b(2, 8);
  std::vector<double> x(2);
  const auto solved = client.SolveMany(std::vector<Factorization>{longer, shorter}, b, x);
  ASSERT_TRUE(GetInvalidField(solved.status()).has_value()) << solved.status();
  EXPECT_EQ(GetInvalidField(solved.status())->field(), "handle[0]");
  EXPECT_TRUE(requests_.Get().empty());
}

TEST_F(ManyContractTest, AFrameDoesNotHealButTheNextUsesWhatACallHasHealed) {
  const SolverClient client = Connect();
  const FactorHandle a = Factor(client, {.keep_copy = true});
  SolveSession session = client.OpenSession();
  ASSERT_TRUE(Frame(session, {a}).ok());
  Lose(v1::HandleNotFound::EVICTED);
  EXPECT_TRUE(GetHandleNotFound(Frame(session, {a})).has_value());
  EXPECT_EQ(client.restore_counters().waited, 0);
  const std::vector<double> b = {8};
  std::vector<double> x = {0};
  ASSERT_TRUE(client.SolveMany(std::vector<Factorization>{a}, b, x)->FirstFailure().ok());
  EXPECT_EQ(x[0], 4);
  EXPECT_TRUE(Frame(session, {a}).ok());
}

TEST_F(ManyContractTest, AFactorizationThatCannotBeHealedFailsAlone) {
  const SolverClient client = Connect();
  const FactorHandle a = Factor(client, {.keep_copy = true, .max_restores = 0});
  Lose(v1::HandleNotFound::EVICTED);
  const FactorHandle b = Factor(client, {});
  const std::vector<double> rhs(2, 8);
  std::vector<double> x(2);
  const auto solved = client.SolveMany(std::vector<Factorization>{a, b}, rhs, x);
  ASSERT_TRUE(solved.ok()) << solved.status();
  EXPECT_TRUE(absl::IsNotFound(solved->solves[0].status));
  EXPECT_TRUE(solved->solves[1].status.ok());
  EXPECT_EQ(x[1], 4);
}

TEST_F(ManyContractTest, TheCallsOwnFailureIsTheAnswer) {
  fake_.on_solve_many = [](const v1::SolveManyRequest&, v1::SolveManyReply*) {
    return OverQuota("queue_slots", absl::InfiniteDuration());
  };
  const SolverClient client = Connect();
  const FactorHandle a = Factor(client, {});
  const std::vector<double> b = {8};
  std::vector<double> x = {0};
  EXPECT_TRUE(
      absl::IsResourceExhausted(client.SolveMany(std::vector<Factorization>{a}, b, x).status()));
}

TEST_F(ManyContractTest, EachRouteHasACallAndAFrameHasOne) {
  const SolverClient client = Connect();
  fake_.route = "to-one";
  const FactorHandle a = Factor(client, {});
  fake_.route = "to-two";
  const FactorHandle b = Factor(client, {}, kFour);
  const std::vector<Factorization> handles = {a, b, a};
  const std::vector<double> rhs(3, 8);
  std::vector<double> x(3);
  ASSERT_TRUE(client.SolveMany(handles, rhs, x)->FirstFailure().ok());
  EXPECT_EQ(x, (std::vector<double>{4, 2, 4}));
  EXPECT_EQ(requests_.Get().size(), 2u);
  SolveSession session = client.OpenSession();
  EXPECT_TRUE(absl::IsInvalidArgument(session.SendMany(handles, rhs, x).status()));
  EXPECT_TRUE(Frame(session, {b, b}).ok());
}

}  // namespace
}  // namespace blockd::client
