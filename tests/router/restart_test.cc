// Servers that come and go under load, behind the real Envoy.
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "tests/router/load.h"
#include "tests/router/router_fixture.h"
#include "tests/support/eventually.h"

namespace blockd::test {
namespace {

constexpr int kCallers = 32;
constexpr double kRate = 1000;  // solves a second

class RestartTest : public RouterTest {
 protected:
  // So many more are solved from now on.
  static bool SolvesOn(const Load& load, int64_t more) {
    const int64_t before = load.solved();
    return Eventually([&] { return load.solved() >= before + more; });
  }
};

TEST_F(RestartTest, ARollingRestartUnderLoadFailsNoCall) {
  StartServers(3);
  StartEnvoy();
  Load load(Connect(), kCallers, kRate);
  ASSERT_TRUE(SolvesOn(load, 500));
  for (const auto& server : servers_) {
    server->Stop();
    server->Start();
    ASSERT_TRUE(Eventually([&] { return FindsHealthy(*server); }));
    EXPECT_TRUE(SolvesOn(load, 1000));
  }
  load.Stop();
  const std::vector<Load::Failure> failures = load.failures();
  EXPECT_EQ(failures.size(), 0) << failures[0].what;
  const client::RestoreCounters restores = load.restores();
  EXPECT_GE(restores.restores, kCallers / 3);
  EXPECT_EQ(restores.failures, 0);
  EXPECT_EQ(restores.refused, 0);
  RecordProperty("solves", std::to_string(load.solved()));
  RecordProperty("restores", std::to_string(restores.restores));
}

TEST_F(RestartTest, AServerThatIsKilledFailsNoCallOnceThatIsKnown) {
  StartServers(3);
  StartEnvoy();
  Load load(Connect(), kCallers, kRate);
  ASSERT_TRUE(SolvesOn(load, 500));
  servers_[1]->Kill();
  ASSERT_TRUE(Eventually([&] { return !FindsHealthy(*servers_[1]); }));
  const absl::Time known = absl::Now();
  EXPECT_TRUE(SolvesOn(load, 2000));
  // Calls that heal nothing and hold nothing go to the other servers too.
  const client::SolverClient client = Connect();
  const problems::Problem problem = problems::RandomSpd(8, 4, 1, 10);
  std::vector<double> x(problem.rows());
  for (int k = 0; k < 20; ++k) {
    const auto factored = client.Factor(View(problem));
    EXPECT_TRUE(factored.ok()) << factored.status();
    const auto solved = client.FactorSolve(View(problem), problem.rhs, x);
    EXPECT_TRUE(solved.ok()) << solved.status();
  }
  load.Stop();
  int64_t before = 0;
  for (const Load::Failure& failure : load.failures()) {
    EXPECT_LT(failure.began, known) << failure.what;
    ++before;
  }
  RecordProperty("failures_until_known", std::to_string(before));
  // It comes back.
  servers_[1]->Start();
  EXPECT_TRUE(Eventually([&] { return FindsAllHealthy(); }));
}

TEST_F(RestartTest, WithoutAServerTheRouterIsNotReady) {
  StartServers(1);
  StartEnvoy();
  EXPECT_NE(EnvoyReady().find(" 200 "), std::string::npos);
  servers_[0]->Kill();
  EXPECT_TRUE(Eventually([&] { return EnvoyReady().find(" 503 ") != std::string::npos; }));
  servers_[0]->Start();
  EXPECT_TRUE(Eventually([&] { return EnvoyReady().find(" 200 ") != std::string::npos; }));
}

}  // namespace
}  // namespace blockd::test
