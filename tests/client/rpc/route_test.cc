// Which route each call takes, and from which answers a route is learnt.
#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/status/status.h"
#include "tests/client/heal_fixture.h"

namespace blockd::client {
namespace {

// Keeps the route of each call.
class RouteTest : public HealTest {
 protected:
  RouteTest() {
    fake_.on_call = [this](const std::string& method, const grpc::ServerContext& context) {
      const auto route = context.client_metadata().find("blockd-route");
      const bool none = route == context.client_metadata().end();
      calls_.Append(
          std::pair(method, none ? "" : std::string(route->second.data(), route->second.size())));
    };
    fake_.on_get = [](const v1::GetFactorizationRequest&, v1::FactorizationInfo*) {
      return grpc::Status::OK;
    };
    fake_.on_list = [](const v1::ListFactorizationsRequest& request,
                       v1::ListFactorizationsReply* reply) {
      if (request.page_token() != "2") {
        reply->set_next_page_token(request.page_token().empty() ? "1" : "2");
      }
      return grpc::Status::OK;
    };
  }
  // The routes of this method's calls since the last time it was asked.
  std::vector<std::string> Routes(const std::string& method) {
    std::vector<std::string> routes;
    for (const auto& [called, route] : calls_.Get()) {
      if (called == method) routes.push_back(route);
    }
    calls_ = std::vector<std::pair<std::string, std::string>>();
    return routes;
  }
  using Strings = std::vector<std::string>;
};

TEST_F(RouteTest, EveryCallOnAHandleTakesTheRouteOfItsFactor) {
  fake_.route = "to-one";
  const SolverClient client = Connect();
  {
    const FactorHandle handle = Factor(client, {});
    EXPECT_EQ(handle.get().route, "to-one");
    EXPECT_EQ(Routes("Factor"), Strings{""});
    fake_.route = "";  // as a router that has nothing new to say
    ASSERT_TRUE(Solve(client, handle).ok());
    EXPECT_EQ(Routes("Solve"), Strings{"to-one"});
    ASSERT_TRUE(client.Refactor(handle, System(kFour)).ok());
    EXPECT_EQ(Routes("Factor"), Strings{"to-one"});
    SolveSession session = client.OpenSession();
    const std::vector<double> b = {8};
    std::vector<double> x = {0};
    const auto id = session.Send(handle, b, x);
    ASSERT_TRUE(id.ok() && session.Await(*id).ok());
    EXPECT_EQ(Routes("SolveStream"), Strings{"to-one"});
    std::string route = handle.get().route;
    ASSERT_TRUE(client.Get("h1", &route).ok());
    EXPECT_EQ(route, "to-one");
    EXPECT_EQ(Routes("GetFactorization"), Strings{"to-one"});
  }
  ASSERT_TRUE(client.AwaitReleases(absl::Minutes(1)));
  EXPECT_EQ(Routes("Release"), Strings{"to-one"});
}

TEST_F(RouteTest, ReleasesTakeTheRouteToo) {
  fake_.route = "to-one";
  const SolverClient client = Connect();
  FactorHandle handle = Factor(client, {});
  EXPECT_TRUE(handle.Release().ok());
  const std::string names[] = {"a"};
  EXPECT_TRUE(client.Release(names, "to-two").ok());
  EXPECT_EQ(Routes("Release"), (Strings{"to-one", "to-two"}));
}

TEST_F(RouteTest, AListStaysWithTheServerOfItsFirstPage) {
  fake_.route = "to-one";
  std::string route;
  ASSERT_TRUE(Connect().List(&route).ok());
  EXPECT_EQ(route, "to-one");
  EXPECT_EQ(Routes("ListFactorizations"), (Strings{"", "to-one", "to-one"}));
  std::string found;
  ASSERT_TRUE(Connect().Get("h", &found).ok());
  EXPECT_EQ(found, "to-one");
}

TEST_F(RouteTest, WhatIsFactoredAgainHasItsNewRoute) {
  fake_.route = "to-one";
  const SolverClient client = Connect();
  const FactorHandle handle = Factor(client, {.keep_copy = true});
  fake_.route = "to-two";
  Lose(Draining());
  Routes("");
  ASSERT_TRUE(Solve(client, handle).ok());
  EXPECT_EQ(handle.get().route, "to-two");
  EXPECT_EQ(Routes("Solve"), (Strings{"to-one", "to-two"}));
}

TEST_F(RouteTest, ASessionHasAStreamToEachServer) {
  const SolverClient client = Connect();
  fake_.route = "to-one";
  const FactorHandle one = Factor(client, {});
  fake_.route = "to-two";
  const FactorHandle two = Factor(client, {}, kFour);
  SolveSession session = client.OpenSession();
  const std::vector<double> b = {8};
  std::vector<double> x = {0, 0};
  for (int round = 0; round < 3; ++round) {
    const auto first = session.Send(one, b, std::span<double>(x).subspan(0, 1));
    const auto second = session.Send(two, b, std::span<double>(x).subspan(1, 1));
    ASSERT_TRUE(session.Await(*first).ok());
    ASSERT_TRUE(session.Await(*second).ok());
    EXPECT_EQ(x, (std::vector<double>{4, 2}));
  }
  std::vector<std::string> routes = Routes("SolveStream");
  std::sort(routes.begin(), routes.end());
  EXPECT_EQ(routes, (Strings{"to-one", "to-two"}));
}

// Its server was away when it was opened, so that the router led it elsewhere.
TEST_F(RouteTest, AStreamThatLeadsElsewhereIsNotUsedAgain) {
  const SolverClient client = Connect();
  fake_.route = "to-one";
  const FactorHandle handle = Factor(client, {.keep_copy = true});
  const auto streams = fake_.on_solve_stream.Get();
  std::atomic<int> opened{0};
  fake_.on_solve_stream = [&](FakeSolver::SolvePipe* pipe) {
    if (++opened > 1) return streams(pipe);
    v1::SolveStreamRequest request;
    while (pipe->Read(&request)) {
      v1::SolveStreamReply reply;
      reply.set_id(request.id());
      reply.mutable_status()->ParseFromString(
          NotFound(request.request().handle(), v1::HandleNotFound::OTHER_SERVER).error_details());
      pipe->Write(reply);
    }
    return grpc::Status::OK;
  };
  SolveSession session = client.OpenSession();
  const std::vector<double> b = {8};
  std::vector<double> x(10, 0);
  std::vector<uint64_t> ids;
  for (size_t i = 0; i < x.size(); ++i) {
    ids.push_back(*session.Send(handle, b, std::span<double>(x).subspan(i, 1)));
  }
  for (const uint64_t id : ids) EXPECT_TRUE(session.Await(id, absl::Minutes(1)).ok());
  EXPECT_EQ(x, std::vector<double>(10, 4));
  EXPECT_EQ(opened, 2);
  EXPECT_EQ(handle.restore_counters().restores, 1);
}

TEST_F(RouteTest, HandlesOfSeveralServersAreRefusedInOneCall) {
  const SolverClient client = Connect();
  const Factorization handles[] = {{"a", 1, 1, Scalar::kFloat64, "to-one"},
                                   {"b", 1, 1, Scalar::kFloat64, "to-two"}};
  const SystemView systems[] = {System(kTwo), System(kFour)};
  const absl::Status status = client.RefactorBatch(handles, systems).status();
  ASSERT_TRUE(GetInvalidField(status)) << status;
  EXPECT_EQ(GetInvalidField(status)->came(), "handles of several servers");
  EXPECT_EQ(Routes("Factor"), Strings{});
}

}  // namespace
}  // namespace blockd::client
