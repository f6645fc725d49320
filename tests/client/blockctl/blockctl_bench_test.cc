// blockctl bench: what it calls, how it ends, what it leaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tests/client/blockctl/blockctl_program.h"
#include "tests/client/fake_solver.h"
#include "tests/client/server_fixture.h"

namespace blockd::blockctl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class BlockctlBenchTest : public client::ServerTest {
 protected:
  void SetUp() override { StartServer(); }
  Outcome Run(const std::vector<std::string>& arguments) { return Blockctl(target(), arguments); }
  std::vector<v1::FactorizationInfo> Held() { return Connect().List().value(); }
};

TEST_F(BlockctlBenchTest, StopsByItselfAndLeavesNothing) {
  const Outcome bench = Run({"bench", "--callers=4", "--handles=2", "--duration=2s", "--warmup=0",
                             "--mix=solve:8,factor:1,refactor:1", "--json"});
  EXPECT_EQ(bench.exit_status, 0) << bench.err;
  EXPECT_THAT(bench.out, AllOf(HasSubstr("\"solve\": {\"succeeded\": "), HasSubstr("\"p99.9\""),
                               HasSubstr("\"failed\": 0"), HasSubstr("\"compute_seconds\""),
                               HasSubstr("\"callers\": 4"), HasSubstr("\"handles\": 2")));
  EXPECT_TRUE(Held().empty());
}

TEST_F(BlockctlBenchTest, SharedMemoryNeedsAServerThatSharesIt) {
  const Outcome port = Run({"bench", "--shm", "--duration=100ms"});
  EXPECT_EQ(port.exit_status, 1) << port.err;
  EXPECT_THAT(port.err, HasSubstr("--server=unix:PATH"));
  const Outcome empty = Blockctl("unix:none", {"bench", "--shm", "--empty", "--duration=100ms"});
  EXPECT_EQ(empty.exit_status, 1) << empty.err;
}

TEST_F(BlockctlBenchTest, HasAnOpenLoopSessionsAndABaseline) {
  const Outcome open =
      Run({"bench", "--rate=200", "--callers=4", "--duration=1s", "--warmup=0", "--session"});
  EXPECT_EQ(open.exit_status, 0) << open.err;
  EXPECT_THAT(open.out, AllOf(HasSubstr("open (200/s)"), HasSubstr("server: compute")));
  for (const std::string poll : {"--poll=0", "--poll=1s"}) {
    EXPECT_EQ(Run({"bench", "--duration=1s", "--warmup=0", poll}).exit_status, 0) << poll;
  }
  EXPECT_EQ(Run({"bench", "--poll=2s"}).exit_status, 1);
  const Outcome empty = Run({"bench", "--empty", "--duration=1s", "--warmup=0"});
  EXPECT_EQ(empty.exit_status, 0) << empty.err;
  EXPECT_THAT(empty.out, AllOf(HasSubstr("server_info: "), HasSubstr("health: ")));
}

TEST_F(BlockctlBenchTest, CallersNeedNoThreads) {
  const Outcome bench = Run({"bench", "--async", "--callers=100", "--connections=3", "--handles=2",
                             "--duration=2s", "--warmup=0", "--json"});
  EXPECT_EQ(bench.exit_status, 0) << bench.err;
  EXPECT_THAT(bench.out, AllOf(HasSubstr("\"solve\": {\"succeeded\": "), HasSubstr("\"failed\": 0"),
                               HasSubstr("\"callers\": 100"), HasSubstr("\"compute_seconds\"")));
  EXPECT_TRUE(Held().empty());
  for (const std::string other : {"--rate=1", "--frames=2", "--session", "--empty",
                                  "--mix=refactor", "--mix=solve:1,factor:1"}) {
    const Outcome refused = Run({"bench", "--async", other, "--duration=100ms"});
    EXPECT_EQ(refused.exit_status, 1) << other;
    EXPECT_THAT(refused.err, HasSubstr("--async")) << other;
  }
}

// In a frame a caller's solves are for as many of the handles as there are.
TEST_F(BlockctlBenchTest, FramesCountAsTheirSolves) {
  for (const bool session : {false, true}) {
    std::vector<std::string> arguments = {"bench",          "--duration=1h",  "--warmup=0",
                                          "--frames=10",    "--handles=4",    "--callers=2",
                                          "--num_blocks=3", "--block_size=2", "--json"};
    if (session) arguments.push_back("--session");
    RunningProgram bench(BLOCKCTL_PROGRAM, WithServer(target(), arguments));
    std::vector<v1::FactorizationInfo> held;
    EXPECT_TRUE(Eventually([&] {
      held = Held();
      return bench.Ended() || (held.size() == 4 && std::ranges::all_of(held, [](const auto& info) {
                                 return info.times_solved() >= 5;
                               }));
    }));
    ASSERT_FALSE(bench.Ended()) << bench.Await().err;
    bench.Signal(SIGINT);
    const Outcome outcome = bench.Await();
    EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("\"frames\": 10"),
                                   ::testing::ContainsRegex("\"succeeded\": [1-9][0-9]*0, ")));
  }
  const Outcome table = Run({"bench", "--duration=50ms", "--warmup=0", "--frames=3"});
  EXPECT_THAT(table.out, HasSubstr("d=1, 3 solves a message, "));
  EXPECT_EQ(Run({"bench", "--frames=-1"}).exit_status, 1);
}

// While it runs, what the server holds shows what it does; Ctrl-C ends it, with its results.
TEST_F(BlockctlBenchTest, AnInterruptEndsItEarlyWithItsResults) {
  RunningProgram bench(
      BLOCKCTL_PROGRAM,
      WithServer(target(), {"bench", "--duration=1h", "--warmup=0", "--callers=3", "--handles=2",
                            "--num_rhs=3", "--num_blocks=5", "--block_size=2"}));
  std::vector<v1::FactorizationInfo> held;
  EXPECT_TRUE(Eventually([&] {
    held = Held();
    return bench.Ended() ||
           (held.size() == 2 && held[0].times_solved() > 0 && held[1].times_solved() > 0);
  }));
  ASSERT_FALSE(bench.Ended()) << bench.Await().err;
  bench.Signal(SIGINT);
  const Outcome outcome = bench.Await();
  EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("closed loop, 3 callers on 1 connection, 2 handles of "
                                           "random N=5 n=2 d=3"),
                                 HasSubstr("latency"), HasSubstr("(")));
  EXPECT_THAT(outcome.err, HasSubstr("interrupted"));
  ASSERT_EQ(held.size(), 2);
  for (const v1::FactorizationInfo& info : held) {
    EXPECT_TRUE(info.pinned());
    EXPECT_EQ(info.num_blocks(), 5);
    EXPECT_EQ(info.block_size(), 2);
    EXPECT_EQ(info.rhs_solved(), 3 * info.times_solved());
  }
  EXPECT_TRUE(Held().empty());
}

TEST_F(BlockctlBenchTest, RefactorsKeepTheHandlesPinned) {
  RunningProgram bench(BLOCKCTL_PROGRAM,
                       WithServer(target(), {"bench", "--duration=1h", "--warmup=0",
                                             "--mix=refactor", "--problem=mpc", "--num_blocks=4"}));
  std::vector<v1::FactorizationInfo> held;
  EXPECT_TRUE(Eventually([&] {
    held = Held();
    return bench.Ended() || (held.size() == 1 && held[0].times_refactored() > 0);
  }));
  bench.Signal(SIGINT);
  const Outcome outcome = bench.Await();
  EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  ASSERT_EQ(held.size(), 1);
  EXPECT_TRUE(held[0].pinned());
  EXPECT_EQ(held[0].times_solved(), 0);
  EXPECT_EQ(held[0].block_size(), 8);  // without --block_size
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("refactor: "), Not(HasSubstr("solve: "))));
}

// Each in one call, many in a message, full or as palettes.
TEST_F(BlockctlBenchTest, RefactorsAndSolvesInOneCall) {
  for (const bool palette : {false, true}) {
    for (const std::vector<std::string>& message :
         std::vector<std::vector<std::string>>{{}, {"--frames=3"}, {"--frames=3", "--session"}}) {
      const bool frames = !message.empty();
      std::vector<std::string> arguments = {"bench",
                                            "--duration=1h",
                                            "--warmup=0",
                                            "--mix=refactor_solve",
                                            "--problem=poisson",
                                            "--num_blocks=4",
                                            "--block_size=2",
                                            "--callers=2",
                                            "--handles=6",
                                            "--json"};
      if (palette) arguments.push_back("--palette");
      arguments.insert(arguments.end(), message.begin(), message.end());
      RunningProgram bench(BLOCKCTL_PROGRAM, WithServer(target(), arguments));
      std::vector<v1::FactorizationInfo> held;
      const auto refactored = [](const auto& info) { return info.times_refactored() >= 2; };
      EXPECT_TRUE(Eventually([&] {
        held = Held();
        return bench.Ended() ||
               (held.size() == 6 && std::ranges::count_if(held, refactored) >= (frames ? 6 : 2));
      }));
      ASSERT_FALSE(bench.Ended()) << bench.Await().err;
      bench.Signal(SIGINT);
      const Outcome outcome = bench.Await();
      EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
      EXPECT_THAT(outcome.out, HasSubstr("\"refactor_solve\": {\"succeeded\": "));
      for (const v1::FactorizationInfo& info : held) EXPECT_TRUE(info.pinned());
    }
  }
  const Outcome few = Run({"bench", "--mix=refactor_solve", "--frames=3", "--handles=2"});
  EXPECT_EQ(few.exit_status, 1);
  EXPECT_THAT(few.err, HasSubstr("--handles"));
}

TEST_F(BlockctlBenchTest, EveryProblemCanBeFactored) {
  for (const std::string problem : {"random", "mpc", "poisson", "kalman"}) {
    const Outcome bench = Run({"bench", "--problem=" + problem, "--num_blocks=3", "--block_size=2",
                               "--duration=10ms", "--warmup=0", "--mix=factor,solve"});
    EXPECT_EQ(bench.exit_status, 0) << bench.err;
    EXPECT_THAT(bench.out, HasSubstr("of " + problem + " N=3 n=2 d=1"));
  }
}

// A server whose Solve fails, or never answers.
class BlockctlBenchFakeTest : public ::testing::Test {
 protected:
  BlockctlBenchFakeTest() {
    fake_.on_server_info = [](v1::ServerInfo*) { return grpc::Status::OK; };
    fake_.on_factor = [](const v1::FactorRequest&, v1::FactorReply* reply) {
      return client::AnswerWith("h", reply);
    };
    fake_.on_release = [](const v1::ReleaseRequest&, v1::ReleaseReply*) {
      return grpc::Status::OK;
    };
  }

  absl::Mutex mutex_;
  std::set<std::string> peers_;  // of Solves
  int solves_ = 0;
  client::FakeSolver fake_;
};

TEST_F(BlockctlBenchFakeTest, FailuresAreCountedAndNotTriedAgain) {
  fake_.on_solve = [&](grpc::ServerContext*, const v1::SolveRequest&, v1::SolveReply*) {
    absl::MutexLock lock(&mutex_);
    ++solves_;
    return client::UnavailableFor(absl::Hours(1));
  };
  const Outcome bench = Blockctl(
      fake_.target(), {"bench", "--duration=100ms", "--warmup=0", "--callers=2", "--json"});
  EXPECT_EQ(bench.exit_status, 2) << bench.err;  // nothing succeeded
  absl::MutexLock lock(&mutex_);
  EXPECT_THAT(bench.out, HasSubstr(absl::StrCat("\"succeeded\": 0, \"failed\": ", solves_)));
  EXPECT_THAT(bench.out, HasSubstr(absl::StrCat("\"errors\": {\"UNAVAILABLE\": ", solves_, "}")));
}

TEST_F(BlockctlBenchFakeTest, CallersShareTheConnectionsEvenly) {
  fake_.on_solve = [&](grpc::ServerContext* context, const v1::SolveRequest& request,
                       v1::SolveReply* reply) {
    absl::MutexLock lock(&mutex_);
    peers_.insert(context->peer());
    reply->set_solution(request.rhs());
    // Nobody is answered before all three connections have been seen, or seem not to come.
    const auto all = [&] { return peers_.size() >= 3; };
    mutex_.AwaitWithTimeout(absl::Condition(&all), absl::Seconds(60));
    return grpc::Status::OK;
  };
  const Outcome bench = Blockctl(
      fake_.target(),
      {"bench", "--duration=1s", "--warmup=0", "--callers=3", "--connections=3", "--timeout=2m"});
  EXPECT_EQ(bench.exit_status, 0) << bench.err;
  absl::MutexLock lock(&mutex_);
  EXPECT_EQ(peers_.size(), 3);
}

TEST_F(BlockctlBenchFakeTest, ASecondInterruptDoesNotWaitForCallsThatHang) {
  fake_.on_solve = [&](grpc::ServerContext* context, const v1::SolveRequest&, v1::SolveReply*) {
    {
      absl::MutexLock lock(&mutex_);
      ++solves_;
    }
    Eventually([&] { return context->IsCancelled(); });
    return grpc::Status::CANCELLED;
  };
  RunningProgram bench(BLOCKCTL_PROGRAM,
                       WithServer(fake_.target(), {"bench", "--duration=1h", "--warmup=0"}));
  EXPECT_TRUE(Eventually([&] {
    absl::MutexLock lock(&mutex_);
    return bench.Ended() || solves_ > 0;
  }));
  EXPECT_TRUE(bench.Catches(SIGINT));
  bench.Signal(SIGINT);
  // Once it was heard, the signal has its default back.
  EXPECT_TRUE(Eventually([&] { return !bench.Catches(SIGINT); }));
  EXPECT_FALSE(bench.Ended());
  bench.Signal(SIGINT);
  EXPECT_EQ(bench.Await().exit_status, 128 + SIGINT);
}

}  // namespace
}  // namespace blockd::blockctl
