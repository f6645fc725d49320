// Where calls go: handles stay where they are, new work goes where there is room.
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/router/router_fixture.h"
#include "tests/support/eventually.h"

namespace blockd::test {
namespace {

using client::FactorHandle;
using client::SolverClient;

class RoutingTest : public RouterTest {
 protected:
  const problems::Problem problem_ = problems::RandomSpd(8, 4, 1, 10);

  void ExpectSolution(const std::vector<double>& x) {
    EXPECT_LE(problems::BackwardError(problem_, x, problem_.rhs, 1), 1e-14);
  }

  // Every kind of call, often, on many handles: each is answered by the server that made it.
  void ExpectHandlesStay() {
    constexpr int kHandles = 48, kRounds = 4;
    const SolverClient unary = Connect();
    const SolverClient streaming = Connect({.stream_threshold_bytes = 0});
    std::vector<FactorHandle> handles;
    std::vector<int64_t> made(servers_.size(), 0);
    for (int k = 0; k < kHandles; ++k) {
      const SolverClient& client = k % 2 == 0 ? unary : streaming;
      auto factored = client.Factor(View(problem_));
      ASSERT_TRUE(factored.ok()) << factored.status();
      EXPECT_NE(factored->handle.get().route, "");
      const int maker = MakerOf(factored->handle);
      ASSERT_GE(maker, 0);
      ++made[maker];
      handles.push_back(std::move(factored->handle));
    }
    client::SolveSession session = unary.OpenSession();
    std::vector<double> x(problem_.rows());
    for (int round = 0; round < kRounds; ++round) {
      for (const FactorHandle& handle : handles) {
        for (const SolverClient* client : {&unary, &streaming}) {
          const auto solved = client->Solve(handle, problem_.rhs, x);
          ASSERT_TRUE(solved.ok()) << solved.status();
          ExpectSolution(x);
        }
        const auto id = session.Send(handle, problem_.rhs, x);
        ASSERT_TRUE(id.ok()) << id.status();
        const auto answer = session.Await(*id);
        ASSERT_TRUE(answer.ok()) << answer.status();
        std::string route = handle.get().route;
        const auto info = unary.Get(handle.get().handle, &route);
        ASSERT_TRUE(info.ok()) << info.status();
        const auto refactored =
            (round % 2 == 0 ? unary : streaming).Refactor(handle, View(problem_));
        ASSERT_TRUE(refactored.ok()) << refactored.status();
      }
    }
    for (size_t i = 0; i < servers_.size(); ++i) {
      EXPECT_GT(made[i], 0) << "server " << i << " was never asked";
      const SolverProgram& server = *servers_[i];
      EXPECT_EQ(server.Metric("blockd_factorizations"), made[i]);
      EXPECT_EQ(server.Metric("blockd_requests_total", "method=\"Solve\",status=\"OK\""),
                made[i] * kRounds);
      EXPECT_EQ(server.Metric("blockd_requests_total", "method=\"SolveStream\",status=\"OK\""),
                made[i] * kRounds * 2);
      EXPECT_EQ(server.Metric("blockd_cache_misses_total"), 0);
    }
    handles.clear();
    EXPECT_TRUE(unary.AwaitReleases(kGenerous));
    EXPECT_TRUE(streaming.AwaitReleases(kGenerous));
    for (const auto& server : servers_) EXPECT_EQ(server->Metric("blockd_factorizations"), 0);
  }
};

TEST_F(RoutingTest, HandlesStayWhereTheyAreBehindEnvoy) {
  StartServers(3);
  StartEnvoy();
  EXPECT_TRUE(absl::StrContains(EnvoyReady(), " 200 "));
  ExpectHandlesStay();
}

TEST_F(RoutingTest, HandlesStayWhereTheyAreBehindHaproxy) {
  StartServers(3);
  StartHaproxy();
  ExpectHandlesStay();
}

TEST_F(RoutingTest, WhatAFullServerRefusesGoesToAnother) {
  AddServer({"--device_memory=4MiB"});
  AddServer();
  StartEnvoy();
  const problems::Problem large = problems::RandomSpd(64, 32, 1, 10);  // 1 MiB and some
  const SolverClient client = Connect();
  std::vector<FactorHandle> handles;
  for (int k = 0; k < 40; ++k) {
    auto factored = client.Factor(View(large), {.pin = true});
    ASSERT_TRUE(factored.ok()) << factored.status();
    handles.push_back(std::move(factored->handle));
  }
  EXPECT_GT(servers_[0]->Metric("blockd_factorizations"), 0);
  EXPECT_GT(servers_[0]->Metric("blockd_requests_total",
                                "method=\"Factor\",status=\"RESOURCE_EXHAUSTED\""),
            0);
  std::vector<double> x(large.rows());
  for (const FactorHandle& handle : handles) {
    const auto solved = client.Solve(handle, large.rhs, x);
    ASSERT_TRUE(solved.ok()) << solved.status();
  }
}

TEST_F(RoutingTest, ARouteThatNobodyKnowsEndsInAClearAnswer) {
  StartServers(2);
  StartEnvoy();
  const SolverClient client = Connect();
  auto factored = client.Factor(View(problem_));
  ASSERT_TRUE(factored.ok()) << factored.status();
  const int maker = MakerOf(factored->handle);
  client::Factorization lost = factored->handle.get();
  // To a port that no server of this router has, and to none at all.
  for (const std::string& route : {std::string("MTI3LjAuMC4xOjE="), std::string("nowhere")}) {
    lost.route = route;
    std::set<std::string> answered;
    std::vector<double> x(problem_.rows());
    for (int k = 0; k < 30; ++k) {
      const auto solved = client.Solve(lost, problem_.rhs, x);
      if (solved.ok()) continue;  // came to the right one by chance
      const auto detail = client::GetHandleNotFound(solved.status());
      ASSERT_TRUE(detail) << solved.status();
      EXPECT_EQ(detail->reason(), v1::HandleNotFound::OTHER_SERVER);
      EXPECT_EQ(detail->owner_epoch(), servers_[maker]->epoch());
      EXPECT_EQ(detail->server_name(), absl::StrCat("solver-", 1 - maker));
    }
  }
  const client::Factorization several[] = {factored->handle.get(), lost};
  const client::SystemView systems[] = {View(problem_), View(problem_)};
  EXPECT_TRUE(absl::IsInvalidArgument(client.RefactorBatch(several, systems).status()));
}

TEST_F(RoutingTest, BlockctlCarriesTheRouteInTheHandle) {
  StartServers(3);
  StartEnvoy();
  const std::string matrix = folder_ / "a.mtx", rhs = folder_ / "b.mtx";
  std::ofstream(matrix) << "%%MatrixMarket matrix coordinate real symmetric\n"
                           "4 4 7\n1 1 2\n2 2 2\n3 3 2\n4 4 2\n2 1 -1\n3 2 -1\n4 3 -1\n";
  std::ofstream(rhs) << "%%MatrixMarket matrix array real general\n4 1\n1\n0\n0\n1\n";
  const auto blockctl = [&](std::vector<std::string> arguments) {
    arguments.push_back(absl::StrCat("--server=", target()));
    blockctl::Outcome outcome = blockctl::RunProgram(BLOCKCTL_PROGRAM, arguments);
    EXPECT_EQ(outcome.exit_status, 0) << arguments[0] << ": " << outcome.err;
    absl::StripTrailingAsciiWhitespace(&outcome.out);
    return outcome.out;
  };
  std::vector<std::string> release = {"release"};
  for (int k = 0; k < 6; ++k) {
    const std::string handle = blockctl({"factor", "--matrix=" + matrix});
    EXPECT_TRUE(absl::StrContains(handle, "@")) << handle;
    release.push_back(handle);
    const std::string solution = blockctl({"solve", "--handle=" + handle, "--rhs=" + rhs});
    for (const absl::string_view line : absl::StrSplit(solution, '\n')) {
      double value = 0;
      EXPECT_TRUE(absl::SimpleAtod(line, &value));
      EXPECT_NEAR(value, 1, 1e-14);
    }
    blockctl({"info", handle});
    EXPECT_EQ(blockctl({"refactor", "--handle=" + handle, "--matrix=" + matrix}), handle);
  }
  blockctl(release);
  for (const auto& server : servers_) EXPECT_EQ(server->Metric("blockd_factorizations"), 0);
}

// The limit is the promise: ten seconds from the file to the first factorization.
TEST_F(RoutingTest, AServerThatIsAddedTakesNewWork) {
  StartServers(2);
  StartEnvoy();
  const SolverClient client = Connect();
  auto held = client.Factor(View(problem_));
  ASSERT_TRUE(held.ok()) << held.status();
  const SolverProgram& added = AddServer();
  WriteClusters();
  const absl::Time limit = absl::Now() + absl::Seconds(10);
  std::vector<FactorHandle> handles;
  while (added.Metric("blockd_factorizations") == 0) {
    ASSERT_LT(absl::Now(), limit);
    auto factored = client.Factor(View(problem_));
    ASSERT_TRUE(factored.ok()) << factored.status();
    handles.push_back(std::move(factored->handle));
    absl::SleepFor(absl::Milliseconds(5));
  }
  std::vector<double> x(problem_.rows());
  const auto solved = client.Solve(held->handle, problem_.rhs, x);
  EXPECT_TRUE(solved.ok()) << solved.status();
  ExpectSolution(x);
}

}  // namespace
}  // namespace blockd::test
