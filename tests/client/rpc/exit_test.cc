// Processes that end while the client is at work: nothing that it needs is gone before they are.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/client/fake_solver.h"
#include "tests/client/program.h"
#include "tests/client/server_fixture.h"

namespace blockd::client {
namespace {

using blockctl::Outcome;
using blockctl::RunProgram;

void ExpectACleanEnd(const std::vector<std::string>& arguments) {
  const Outcome outcome = RunProgram(EXIT_PROGRAM, arguments);
  EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
}

TEST(ExitTest, ACallbackMayEndAfterTheStatics) { ExpectACleanEnd({"late"}); }

TEST(ExitTest, AStreamMayEndAfterTheStatics) { ExpectACleanEnd({"late_stream"}); }

TEST(ExitTest, AFactorizationMayBeMadeAnew) {
  FakeSolver fake;
  fake.on_factor = [](const v1::FactorRequest&, v1::FactorReply* reply) {
    return AnswerWith("h", reply);
  };
  fake.on_solve = [](grpc::ServerContext*, const v1::SolveRequest&, v1::SolveReply*) {
    return NotFound("h", v1::HandleNotFound::EVICTED);
  };
  for (int run = 0; run < 5; ++run) ExpectACleanEnd({"heal", fake.target()});
}

class ExitAfterTest : public ServerTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override { StartServer(); }
};

TEST_P(ExitAfterTest, EndsAtOnce) {
  for (int run = 0; run < 5; ++run) ExpectACleanEnd({GetParam(), target()});
}

INSTANTIATE_TEST_SUITE_P(Ways, ExitAfterTest, ::testing::Values("solve", "async", "session"),
                         [](const auto& way) { return std::string(way.param); });

}  // namespace
}  // namespace blockd::client
