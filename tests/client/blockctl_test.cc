// blockctl as its users type it: commands, exit statuses, messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "client/blockctl/files.h"
#include "tests/client/program.h"
#include "tests/client/server_fixture.h"

namespace blockd::blockctl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const std::string kNobody = "127.0.0.1:1";
const std::string kUnknownHandle(48, 'a');

TEST(BlockctlUsageTest, HelpSaysWhatThereIs) {
  const Outcome help = Blockctl(kNobody, {"help"});
  EXPECT_EQ(help.exit_status, 0);
  for (const std::string command :
       {"factor", "solve", "refactor", "release", "list", "info", "demo", "bench"}) {
    EXPECT_THAT(help.out, HasSubstr("\n  " + command));
    for (const Outcome& of_command :
         {Blockctl(kNobody, {"help", command}), Blockctl(kNobody, {command, "--help"})}) {
      EXPECT_EQ(of_command.exit_status, 0);
      EXPECT_THAT(of_command.out, HasSubstr("Usage: blockctl " + command));
    }
  }
  EXPECT_THAT(Blockctl(kNobody, {"help", "solve"}).out,
              AllOf(HasSubstr("--rhs"), HasSubstr("--out"), Not(HasSubstr("--callers"))));
}

TEST(BlockctlUsageTest, MistakesExitWithOne) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {},
           {"frobnicate"},
           {"help", "frobnicate"},
           {"list", "--nonsense"},
           {"list", "--rhs=b.npy"},
           {"list", "extra"},
           {"list", "--timeout=0"},
           {"list", "--timeout=soon"},
           {"factor"},
           {"factor", "--matrix=a.mtx", "--diagonal=d.npy"},
           {"solve", "--rhs=b.npy"},
           {"solve", "--handle=zz", "--rhs=b.npy"},
           {"solve", "--handle=" + kUnknownHandle},
           {"solve", "--handle=" + kUnknownHandle, "--rhs=b.txt"},
           {"solve", "--handle=" + kUnknownHandle, "--matrix=a.mtx", "--rhs=b.npy"},
           {"refactor", "--matrix=a.mtx"},
           {"release"},
           {"release", "--all", kUnknownHandle},
           {"bench", "--mix=solve:-1"},
           {"bench", "--mix=dance"},
           {"bench", "--problem=riddle"},
           {"bench", "--callers=0"},
           {"bench", "--duration=0"},
           {"list", "--tls_cert_file=only.pem"}}) {
    const Outcome outcome = Blockctl(kNobody, arguments);
    EXPECT_EQ(outcome.exit_status, 1) << ::testing::PrintToString(arguments) << outcome.err;
    EXPECT_THAT(outcome.err, Not(IsEmpty()));
    EXPECT_THAT(outcome.out, IsEmpty());
  }
}

TEST(BlockctlUsageTest, WithoutAServerExitsWithTwoAndSaysWhatToDo) {
  const Outcome outcome = Blockctl(kNobody, {"list"});
  EXPECT_EQ(outcome.exit_status, 2);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr(kNobody), HasSubstr("--server")));
  EXPECT_EQ(Blockctl(kNobody, {"info", "--quiet"}).exit_status, 2);
  EXPECT_EQ(Blockctl(kNobody, {"list", "--wait=100ms"}).exit_status, 2);
  EXPECT_EQ(Blockctl(kNobody, {"bench", "--duration=1s"}).exit_status, 2);
  EXPECT_EQ(Blockctl(kNobody, {"demo"}).exit_status, 2);
}

TEST(BlockctlUsageTest, JsonSaysErrorsToo) {
  const Outcome outcome = Blockctl(kNobody, {"list", "--json"});
  EXPECT_EQ(outcome.exit_status, 2);
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("\"code\": \"UNAVAILABLE\""), HasSubstr("\"exit_status\": 2")));
}

class BlockctlTest : public client::ServerTest {
 protected:
  void SetUp() override { StartServer(int64_t{256} << 20, true); }
  Outcome Run(const std::vector<std::string>& arguments, int signal_after_ms = 0) {
    return Blockctl(target(), arguments, signal_after_ms);
  }
};

TEST_F(BlockctlTest, AnUnknownHandleExitsWithFive) {
  const std::string rhs = ::testing::TempDir() + "/one.mtx";
  ASSERT_TRUE(WriteFile(rhs, {"%%MatrixMarket matrix array real general\n1 1\n1\n"}).ok());
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"info", kUnknownHandle},
           {"release", kUnknownHandle},
           {"solve", "--handle=" + kUnknownHandle, "--rhs=" + rhs}}) {
    EXPECT_EQ(Run(arguments).exit_status, 5) << ::testing::PrintToString(arguments);
  }
  EXPECT_THAT(Run({"info", kUnknownHandle, "--json"}).out, HasSubstr("\"reason\": "));
}

TEST_F(BlockctlTest, ATimeoutExitsWithSeven) {
  EXPECT_EQ(Run({"list", "--timeout=1ns"}).exit_status, 7);
}

TEST_F(BlockctlTest, InfoShowsTheServer) {
  const Outcome info = Run({"info"});
  EXPECT_EQ(info.exit_status, 0) << info.err;
  EXPECT_THAT(info.out, AllOf(HasSubstr("cpu"), HasSubstr("256.0 MiB")));
  EXPECT_THAT(Run({"info", "--json"}).out, HasSubstr("\"memory_bytes\": 268435456"));
  const Outcome quiet = Run({"info", "--quiet"});
  EXPECT_EQ(quiet.exit_status, 0);
  EXPECT_THAT(quiet.out + quiet.err, IsEmpty());
}

TEST_F(BlockctlTest, PlanShowsTheLevelsAndWhatTheyCost) {
  const std::vector<std::string> shape = {"plan", "--num_blocks=2000", "--block_size=32"};
  const Outcome plan = Run(shape);
  EXPECT_EQ(plan.exit_status, 0) << plan.err;
  EXPECT_THAT(plan.out, AllOf(HasSubstr("SEPARATORS"), HasSubstr("N=2000 n=32 float64 on cpu"),
                              HasSubstr("factor 1 system "), HasSubstr("held for each")));
  std::vector<std::string> more = shape;
  more.insert(more.end(), {"--systems=3", "--num_rhs=16", "--scalar=float32", "--json"});
  EXPECT_THAT(Run(more).out, AllOf(HasSubstr("\"systems\": 3"), HasSubstr("\"num_rhs\": 16"),
                                   HasSubstr("\"predicted_solve_seconds\": ")));
  EXPECT_EQ(Run({"plan", "--num_blocks=2000"}).exit_status, 1);
  EXPECT_EQ(Run({"plan", "--block_size=4", "--scalar=int8"}).exit_status, 1);
  EXPECT_EQ(Run({"plan", "--num_blocks=4", "--block_size=40000"}).exit_status, 3);
}

TEST_F(BlockctlTest, AnEmptyListIsNoError) {
  const Outcome list = Run({"list"});
  EXPECT_EQ(list.exit_status, 0);
  EXPECT_THAT(list.out, IsEmpty());
  EXPECT_EQ(Run({"list", "--json"}).out, "{\"factorizations\": []}\n");
  EXPECT_EQ(Run({"release", "--all"}).exit_status, 0);
}

TEST_F(BlockctlTest, BenchStopsByItselfAndLeavesNothing) {
  const Outcome bench = Run({"bench", "--callers=4", "--handles=2", "--duration=200ms",
                             "--warmup=0", "--mix=solve:8,factor:1,refactor:1", "--json"});
  EXPECT_EQ(bench.exit_status, 0) << bench.err;
  EXPECT_THAT(bench.out, AllOf(HasSubstr("\"solve\": {\"succeeded\": "), HasSubstr("\"p99.9\""),
                               HasSubstr("\"failed\": 0"), HasSubstr("\"compute_seconds\"")));
  EXPECT_EQ(Run({"list", "--json"}).out, "{\"factorizations\": []}\n");
}

TEST_F(BlockctlTest, BenchHasAnOpenLoopSessionsAndABaseline) {
  const Outcome open =
      Run({"bench", "--rate=200", "--callers=4", "--duration=200ms", "--warmup=0", "--session"});
  EXPECT_EQ(open.exit_status, 0) << open.err;
  EXPECT_THAT(open.out, AllOf(HasSubstr("open (200/s)"), HasSubstr("server: compute")));
  const Outcome empty = Run({"bench", "--empty", "--duration=100ms", "--warmup=0"});
  EXPECT_EQ(empty.exit_status, 0) << empty.err;
  EXPECT_THAT(empty.out, AllOf(HasSubstr("server_info: "), HasSubstr("health: ")));
}

TEST_F(BlockctlTest, AnInterruptEndsBenchEarlyWithItsResults) {
  // The signal may also come before bench listens to it, which just ends it.
  const Outcome bench = Run({"bench", "--duration=1h", "--warmup=0"}, 1500);
  EXPECT_TRUE(bench.exit_status == 0 || bench.exit_status == 130) << bench.exit_status;
  if (bench.exit_status == 0) {
    EXPECT_THAT(bench.out, HasSubstr("latency"));
  }
}

TEST_F(BlockctlTest, TheDemoRuns) {
  const std::string folder = ::testing::TempDir();
  const Outcome demo = Run({"demo", "--metrics=" + metrics_address(), "--out=" + folder});
  EXPECT_EQ(demo.exit_status, 0) << demo.err;
  EXPECT_THAT(demo.out, AllOf(HasSubstr("1871"), HasSubstr("backward error"), HasSubstr("palette"),
                              HasSubstr("HANDLE"), HasSubstr("blockd_factorizations 2")));
  EXPECT_THAT(ReadFile(folder + "/nile.svg").value_or(""), HasSubstr("</svg>"));
  EXPECT_THAT(ReadFile(folder + "/nile.csv").value_or(""), HasSubstr("1970,740,"));
  EXPECT_EQ(Run({"list", "--json"}).out, "{\"factorizations\": []}\n");
}

TEST_F(BlockctlTest, TheExampleOfTheReadmeRuns) {
  const Outcome outcome = RunProgram(MPC_LOOP_PROGRAM, {target()});
  EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("state after 100 ticks"));
}

}  // namespace
}  // namespace blockd::blockctl
