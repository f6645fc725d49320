// The common parts of all calls: connections, deadlines, names, handles and their release.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "tests/client/calls_fixture.h"

namespace blockd::client {
namespace {

using ::testing::ElementsAre;

class ConnectionTest : public CallsTest {};

TEST_F(ConnectionTest, AReleaseNamesItsHandles) {
  const std::string handles[] = {"a", "b"};
  const auto released = Connect().Release(handles);
  ASSERT_TRUE(released.ok()) << released.status();
  EXPECT_EQ(*released, 77);
  EXPECT_THAT(released_.Get(), ElementsAre("a", "b"));
}

TEST_F(ConnectionTest, AReleaseThatIsTriedAgainForgivesOnlyItself) {
  std::atomic<int> calls{0};
  std::atomic<v1::HandleNotFound::Reason> reason{v1::HandleNotFound::EVICTED};
  fake_.on_release = [&](const v1::ReleaseRequest& request, v1::ReleaseReply*) {
    return ++calls % 2 == 1 ? UnavailableFor(absl::Milliseconds(1))
                            : NotFound(request.handle(0), reason);
  };
  const SolverClient client = Connect();
  const std::string handles[] = {"h"};
  for (const auto other :
       {v1::HandleNotFound::NEVER_EXISTED, v1::HandleNotFound::EVICTED, v1::HandleNotFound::EXPIRED,
        v1::HandleNotFound::RESTARTED, v1::HandleNotFound::FAILED_REFACTOR}) {
    reason = other;
    const auto detail = GetHandleNotFound(client.Release(handles).status());
    ASSERT_TRUE(detail.has_value()) << other;
    EXPECT_EQ(detail->reason(), other);
  }
  reason = v1::HandleNotFound::RELEASED;
  EXPECT_TRUE(client.Release(handles).ok());
  fake_.on_release = [&](const v1::ReleaseRequest&, v1::ReleaseReply*) {
    return ++calls % 2 == 1 ? UnavailableFor(absl::Milliseconds(1))
                            : grpc::Status(grpc::StatusCode::NOT_FOUND, "without a reason");
  };
  EXPECT_TRUE(absl::IsNotFound(client.Release(handles).status()));
}

TEST_F(ConnectionTest, WhoWaitsForReleasesWaitsForAll) {
  absl::Notification may_end;
  fake_.on_release = [&](const v1::ReleaseRequest&, v1::ReleaseReply*) {
    may_end.WaitForNotification();
    return grpc::Status::OK;
  };
  const SolverClient client = Connect();
  EXPECT_TRUE(client.AwaitReleases(absl::ZeroDuration()));
  client.Adopt(kHandle);
  client.Adopt(kHandle);
  EXPECT_FALSE(client.AwaitReleases(absl::Milliseconds(1)));
  may_end.Notify();
  EXPECT_TRUE(client.AwaitReleases(absl::Seconds(60)));
}

TEST_F(ConnectionTest, AHandleIsGivenBackOnce) {
  const SolverClient client = Connect();
  {
    FactorHandle handle = client.Adopt(kHandle);
    const FactorHandle moved = std::move(handle);
    EXPECT_TRUE(handle.empty());  // NOLINT: that is what is tested
    EXPECT_EQ(handle.get().handle, "");
    EXPECT_EQ(moved.get().handle, "handle");
    FactorHandle first = client.Adopt({"first", 1, 1, Scalar::kFloat64});
    FactorHandle second = client.Adopt({"second", 1, 1, Scalar::kFloat64});
    first = std::move(second);
    FactorHandle& same = first;
    first = std::move(same);  // nothing
    EXPECT_EQ(first.get().handle, "second");
    FactorHandle detached = client.Adopt({"detached", 5, 6, Scalar::kFloat32});
    const Factorization name = detached.Detach();
    EXPECT_EQ(name.handle, "detached");
    EXPECT_EQ(name.rows(), 30);
    EXPECT_TRUE(detached.empty());
    EXPECT_EQ(detached.get().handle, "");
  }
  EXPECT_TRUE(client.AwaitReleases(absl::Seconds(60)));
  EXPECT_THAT(released_.Get(), ::testing::UnorderedElementsAre("handle", "first", "second"));
}

TEST_F(ConnectionTest, WhoLooksForItsAnswerHearsOfItAndOfItsDeadline) {
  const SolverClient client = Connect({.poll = absl::Seconds(1)});
  const std::vector<double> b = {1, 2};
  std::vector<double> x(2);
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(client.Solve(kHandle, b, x).ok());
    EXPECT_EQ(x, b);
  }
  std::vector<std::thread> threads;
  for (int k = 0; k < 4; ++k) {
    threads.emplace_back([&client, k] {
      const std::vector<double> mine = {1.0 + k, 2.0 + k};
      for (int i = 0; i < 20; ++i) {
        std::vector<double> mine_x(2);
        EXPECT_TRUE(client.Solve(kHandle, mine, mine_x).ok());
        EXPECT_EQ(mine_x, mine);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // The server may hear of the call when this is over.
  const auto may_end = std::make_shared<absl::Notification>();
  fake_.on_solve = [may_end](grpc::ServerContext*, const v1::SolveRequest&, v1::SolveReply*) {
    may_end->WaitForNotification();
    return grpc::Status::OK;
  };
  const auto late = client.Solve(kHandle, b, x, {.timeout = absl::Milliseconds(20)});
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.status())) << late.status();
  may_end->Notify();
}

TEST_F(ConnectionTest, AListIsReadToItsLastPage) {
  Shared<std::vector<std::string>> tokens;
  fake_.on_list = [&](const v1::ListFactorizationsRequest& request,
                      v1::ListFactorizationsReply* reply) {
    const size_t page = tokens.Append(request.page_token());
    reply->add_factorization()->set_handle(absl::StrCat("h", page));
    if (page < 3) reply->set_next_page_token(absl::StrCat("page", page));
    return grpc::Status::OK;
  };
  const auto all = Connect().List();
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_THAT(tokens.Get(), ElementsAre("", "page1", "page2"));
  ASSERT_EQ(all->size(), 3);
  EXPECT_EQ((*all)[0].handle(), "h1");
  EXPECT_EQ((*all)[2].handle(), "h3");
  fake_.on_list = [](const v1::ListFactorizationsRequest&, v1::ListFactorizationsReply*) {
    return grpc::Status(grpc::StatusCode::ABORTED, "no");
  };
  EXPECT_TRUE(absl::IsAborted(Connect().List().status()));
}

TEST_F(ConnectionTest, QuestionsCarryWhatIsAskedAndAreTriedAgain) {
  std::atomic<int> calls{0};
  Shared<v1::GetPlanRequest> asked;
  Shared<std::string> handle;
  const auto busy_once = [&] {
    return ++calls % 2 == 1 ? UnavailableFor(absl::Milliseconds(1)) : grpc::Status::OK;
  };
  fake_.on_plan = [&](const v1::GetPlanRequest& request, v1::Plan* plan) {
    asked = request;
    plan->set_backend("fake");
    return busy_once();
  };
  fake_.on_get = [&](const v1::GetFactorizationRequest& request, v1::FactorizationInfo* info) {
    handle = request.handle();
    info->set_held_bytes(12);
    return busy_once();
  };
  fake_.on_server_info = [&](v1::ServerInfo* info) {
    info->set_version("1.2.3");
    return busy_once();
  };
  const SolverClient client = Connect();
  const auto plan = client.Plan(10, 4, Scalar::kFloat32, 3, 5);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->backend(), "fake");
  EXPECT_EQ(asked.Get().spec().num_blocks(), 10);
  EXPECT_EQ(asked.Get().spec().block_size(), 4);
  EXPECT_EQ(asked.Get().spec().scalar(), v1::FLOAT32);
  EXPECT_EQ(asked.Get().spec().diagonal_form(), v1::FULL);
  EXPECT_EQ(asked.Get().spec().coupling_form(), v1::SUBDIAGONAL);
  EXPECT_EQ(asked.Get().num_systems(), 3);
  EXPECT_EQ(asked.Get().num_rhs(), 5);
  ASSERT_TRUE(client.Plan(1, 1, Scalar::kFloat64).ok());
  EXPECT_EQ(asked.Get().spec().scalar(), v1::FLOAT64);
  EXPECT_EQ(asked.Get().num_systems(), 1);
  EXPECT_EQ(asked.Get().num_rhs(), 1);
  const auto info = client.Get("one");
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(handle.Get(), "one");
  EXPECT_EQ(info->held_bytes(), 12);
  const auto server = client.ServerInfo();
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(server->version(), "1.2.3");
}

TEST_F(ConnectionTest, HealthIsWhatTheServerSays) {
  const SolverClient client = Connect({.timeout = absl::Seconds(100)});
  EXPECT_TRUE(client.CheckHealth().ok());
  fake_.SetServing(false);
  EXPECT_TRUE(absl::IsUnavailable(client.CheckHealth()));
  fake_.SetServing(true);
  EXPECT_TRUE(client.CheckHealth().ok());
}

TEST_F(ConnectionTest, EveryCallSaysWhoCalls) {
  const auto call_all = [&](const std::string& caller, int64_t threshold) {
    const SolverClient client = Connect({.caller = caller, .stream_threshold_bytes = threshold});
    const std::vector<double> b = {1, 2};
    std::vector<double> x(2);
    ASSERT_TRUE(client.Factor(kSystem).ok());
    ASSERT_TRUE(client.AwaitReleases(absl::Seconds(60)));
    ASSERT_TRUE(client.Solve(kHandle, b, x).ok());
  };
  call_all("ada", 1 << 20);
  call_all("ada", 0);
  for (const auto* method : {"Factor", "FactorStream", "Solve", "SolveStream", "Release"}) {
    EXPECT_EQ(Last(method).caller, "ada") << method;
  }
  call_all("", 1 << 20);
  EXPECT_EQ(Last("Solve").caller, "(none)");
}

TEST_F(ConnectionTest, TimeoutsAreTheCallsOrTheClients) {
  const std::vector<double> b = {1, 2};
  std::vector<double> x(2);
  const SolverClient client = Connect({.timeout = absl::Seconds(1000)});
  ASSERT_TRUE(client.Solve(kHandle, b, x).ok());
  EXPECT_GT(Last("Solve").remaining, absl::Seconds(500));
  EXPECT_LT(Last("Solve").remaining, absl::Seconds(1100));
  ASSERT_TRUE(client.Solve(kHandle, b, x, {.timeout = absl::Seconds(100)}).ok());
  EXPECT_LT(Last("Solve").remaining, absl::Seconds(110));
  ASSERT_TRUE(client.Factor(kSystem, {.timeout = absl::Seconds(100)}).ok());
  EXPECT_LT(Last("Factor").remaining, absl::Seconds(110));
  ASSERT_TRUE(Connect({.timeout = absl::InfiniteDuration()}).Solve(kHandle, b, x).ok());
  EXPECT_GT(Last("Solve").remaining, absl::Hours(24 * 365));
}

TEST_F(ConnectionTest, ATimeoutBeyondWhatIsCountedIsNone) {
  const std::vector<double> b = {1, 2};
  std::atomic<int> timed{0};
  fake_.on_solve_stream = [&](FakeSolver::SolvePipe* pipe) {
    v1::SolveStreamRequest request;
    while (pipe->Read(&request)) {
      timed += request.has_timeout();
      v1::SolveStreamReply reply;
      reply.set_id(request.id());
      Answer(request.request(), reply.mutable_reply());
      pipe->Write(reply);
    }
    return grpc::Status::OK;
  };
  for (const absl::Duration timeout :
       {absl::InfiniteDuration(), absl::Seconds(INT64_MAX), absl::Hours(24 * 365 * 10000),
        absl::Hours(24 * 365 * 230), absl::Hours(24 * 365 * 31)}) {
    const SolverClient client = Connect({.timeout = timeout, .stream_threshold_bytes = 8});
    std::vector<double> x(2);
    EXPECT_TRUE(client.Solve(kHandle, b, x).ok()) << timeout;
    ASSERT_TRUE(Connect().Solve(kHandle, b, x, {.timeout = timeout}).ok()) << timeout;
    EXPECT_GT(Last("Solve").remaining, absl::Hours(24 * 365 * 100)) << timeout;
    SolveSession session = client.OpenSession();
    const auto id = session.Send(kHandle, b, x, {.timeout = timeout});
    ASSERT_TRUE(id.ok()) << id.status();
    EXPECT_TRUE(session.Await(*id).ok()) << timeout;
    EXPECT_TRUE(client.WaitUntilConnected(timeout)) << timeout;
  }
  EXPECT_EQ(timed, 0);
}

TEST_F(ConnectionTest, ATimeoutBeforeItsBeginIsOver) {
  const SolverClient client = Connect();
  const std::vector<double> b = {1, 2};
  std::vector<double> x(2);
  for (const absl::Duration timeout : {-absl::Nanoseconds(1), -absl::InfiniteDuration()}) {
    EXPECT_TRUE(
        absl::IsDeadlineExceeded(client.Solve(kHandle, b, x, {.timeout = timeout}).status()));
  }
  EXPECT_EQ(Last("Solve").peer, "");
}

// gRPC rounds a deadline up to milliseconds, in which a server may well answer.
TEST_F(ConnectionTest, ACallWhoseTimeIsOverIsNotSent) {
  const std::vector<double> b = {1, 2};
  std::vector<double> x(2);
  const absl::Duration timeout = absl::Nanoseconds(1);
  for (const int64_t threshold : {int64_t{1} << 20, int64_t{0}}) {
    const SolverClient client = Connect({.stream_threshold_bytes = threshold});
    ASSERT_TRUE(client.WaitUntilConnected(absl::Seconds(60)));
    EXPECT_TRUE(absl::IsDeadlineExceeded(client.Factor(kSystem, {.timeout = timeout}).status()));
    EXPECT_TRUE(
        absl::IsDeadlineExceeded(client.Solve(kHandle, b, x, {.timeout = timeout}).status()));
    absl::Notification done;
    client.SolveAsync(kHandle, b, x, {.timeout = timeout}, [&](const auto& result) {
      EXPECT_TRUE(absl::IsDeadlineExceeded(result.status()));
      done.Notify();
    });
    done.WaitForNotification();
  }
  for (const auto* method : {"Factor", "FactorStream", "Solve", "SolveStream"}) {
    EXPECT_EQ(Last(method).peer, "") << method;
  }
}

TEST_F(ConnectionTest, LargeTransfersHaveAConnectionOfTheirOwn) {
  const SolverClient small = Connect(), large = Connect({.stream_threshold_bytes = 0});
  ASSERT_TRUE(small.Factor(kSystem).ok());
  ASSERT_TRUE(large.Factor(kSystem).ok());
  const std::vector<double> b = {1, 2};
  std::vector<double> x(2);
  ASSERT_TRUE(large.Solve(kHandle, b, x).ok());
  EXPECT_NE(Last("Factor").peer, Last("FactorStream").peer);
  EXPECT_EQ(Last("FactorStream").peer, Last("SolveStream").peer);
}

TEST_F(ConnectionTest, ClientsShareAConnectionUnlessToldNotTo) {
  fake_.on_server_info = [](v1::ServerInfo*) { return grpc::Status::OK; };
  const auto peer_of = [&](const SolverClient& client) {
    EXPECT_TRUE(client.ServerInfo().ok());
    return Last("GetServerInfo").peer;
  };
  const SolverClient a = Connect(), b = Connect();
  EXPECT_EQ(peer_of(a), peer_of(b));
  const SolverClient c = Connect({.share_connection = false});
  const SolverClient d = Connect({.share_connection = false});
  EXPECT_NE(peer_of(c), peer_of(d));
}

TEST_F(ConnectionTest, MessagesOfAnySizeAreTakenBothWays) {
  // gRPC's own limit is 4 MiB.
  const std::vector<double> b(700000, 1.5);
  std::vector<double> x(b.size());
  const Factorization handle{"h", 700000, 1, Scalar::kFloat64};
  const auto solved = Connect({.stream_threshold_bytes = 1 << 30}).Solve(handle, b, x);
  ASSERT_TRUE(solved.ok()) << solved.status();
  EXPECT_EQ(x, b);
}

TEST_F(ConnectionTest, TheLastToLetGoMayBeACallback) {
  const std::vector<double> b = {1, 2};
  for (const int64_t threshold : {int64_t{1} << 20, int64_t{0}}) {
    for (int round = 0; round < 3; ++round) {
      std::vector<double> x(2);
      absl::Notification let_go, done;
      auto client = std::make_shared<SolverClient>(
          Connect({.stream_threshold_bytes = threshold, .share_connection = false}));
      SolverClient& used = *client;
      // A handle, too: its release begins on the callback's thread.
      auto handle = std::make_shared<FactorHandle>(used.Adopt(kHandle));
      used.SolveAsync(kHandle, b, x, {}, [&, client, handle](const auto& result) mutable {
        EXPECT_TRUE(result.ok()) << result.status();
        let_go.WaitForNotification();
        handle.reset();
        client.reset();
        done.Notify();
      });
      client.reset();
      handle.reset();
      let_go.Notify();
      done.WaitForNotification();
      EXPECT_EQ(x, b);
    }
  }
}

}  // namespace
}  // namespace blockd::client
