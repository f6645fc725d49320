// blockctl as its users type it: commands, exit statuses, messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/blockctl/formats/files.h"
#include "client/blockctl/text/handle_table.h"
#include "client/blockctl/text/metrics_page.h"
#include "tests/client/blockctl/blockctl_program.h"
#include "tests/client/server_fixture.h"
#include "tests/support/temp_folder.h"

namespace blockd::blockctl {
namespace {

using test::TempFolder;

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
       {"factor", "solve", "refactor", "release", "list", "info", "demo", "bench", "admin"}) {
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
           {"list", "--tls_cert_file=only.pem"},
           {"list", "--tls_key_file=only.pem"},
           {"list", "--server="},
           {"list", "--caller=a\nb"},
           {"list", "--norhs"},
           {"list", "-nonsense"},
           {"info", "0g"},
           {"plan", "extra", "--num_blocks=1", "--block_size=1"},
           {"plan", "--num_blocks=0", "--block_size=1"},
           {"plan", "--num_blocks=1", "--block_size=0"},
           {"plan", "--num_blocks=1", "--block_size=1", "--systems=0"},
           {"plan", "--num_blocks=1", "--block_size=1", "--num_rhs=0"},
           {"plan", "--num_blocks=1", "--block_size=1", "--scalar=int8"},
           {"factor", "extra", "--matrix=a.mtx"},
           {"factor", "--matrix=a.mtx", "--coupling=e.npy"},
           {"factor", "--matrix=a.mtx", "--block_size=-1"},
           {"factor", "--matrix=a.mtx", "--lease=-1s"},
           {"factor", "--matrix=a.mtx", "--idempotency_key=" + std::string(257, 'k')},
           {"factor", "--diagonal=d.npy", "--coupling_form=beside"},
           {"factor", "--matrix=a.mtx", "--overwrite"},
           {"factor", "--matrix=a.mtx", "--accuracy=high"},
           {"refactor", "--matrix=a.mtx", "--handle=zz"},
           {"refactor", "extra", "--matrix=a.mtx", "--handle=" + kUnknownHandle},
           {"refactor", "--handle=" + kUnknownHandle, "--matrix=a.mtx", "--lease=-1s"},
           {"refactor", "--handle=" + kUnknownHandle},
           {"solve", "extra", "--matrix=a.mtx", "--rhs=b.npy"},
           {"solve", "--matrix=a.mtx", "--rhs=b.npy", "--out=x.txt"},
           {"solve", "--matrix=a.mtx", "--rhs=b.npy", "--refinements=11"},
           {"solve", "--matrix=a.mtx", "--rhs=b.npy", "--refinements=-1"},
           {"solve", "--handle=" + kUnknownHandle, "--rhs=b.npy", "--log_determinant"},
           {"solve", "--coupling=e.npy", "--rhs=b.npy", "--handle=" + kUnknownHandle},
           {"demo", "extra"},
           {"bench", "extra"},
           {"bench", "--mix="},
           {"bench", "--mix=solve:0"},
           {"bench", "--mix=solve:many"},
           {"bench", "--callers=10001"},
           {"bench", "--rate=-1"},
           {"bench", "--warmup=-1s"},
           {"bench", "--duration=24h", "--warmup=1s"},
           {"bench", "--num_rhs=0"},
           {"bench", "--handles=0"},
           {"bench", "--connections=0"},
           {"bench", "--num_blocks=0"},
           {"bench", "--block_size=32769"},
           {"bench", "--num_blocks=1000000", "--block_size=1000"}}) {
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

TEST(BlockctlUsageTest, HelpIsCompleteAndTheVersionIsOneLine) {
  const std::string help = Blockctl(kNobody, {"help"}).out;
  for (const char* text : {"\n  plan", "\n  help ", "--server", "--tls_server_name", "--wait",
                           "Exit status:", "5 handle not found"}) {
    EXPECT_THAT(help, HasSubstr(text));
  }
  const std::string bench = Blockctl(kNobody, {"help", "bench"}).out;
  for (const char* flag : {"--callers [1]", "--mix [solve:1]", "--empty", "--session", "--json"}) {
    EXPECT_THAT(bench, HasSubstr(flag));
  }
  EXPECT_THAT(Blockctl(kNobody, {"release", "-h"}).out,
              HasSubstr("Usage: blockctl release [FLAGS] [HANDLE...]\n"));
  // No line is longer than a terminal.
  std::istringstream lines(bench);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100) << line;
  const Outcome version = Blockctl(kNobody, {"--version"});
  EXPECT_EQ(version.exit_status, 0);
  EXPECT_THAT(version.out, ::testing::MatchesRegex("blockctl [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST(BlockctlUsageTest, MessagesSayWhereToLook) {
  EXPECT_THAT(
      Blockctl(kNobody, {"list", "--nonsense"}).err,
      AllOf(HasSubstr("--nonsense: no command has such a flag"), HasSubstr("see `blockctl help`")));
  EXPECT_THAT(Blockctl(kNobody, {"list", "--rhs=b.npy"}).err,
              HasSubstr("--rhs is no flag of `blockctl list`"));
  EXPECT_THAT(Blockctl(kNobody, {"frobnicate"}).err, HasSubstr("no command \"frobnicate\""));
  EXPECT_THAT(Blockctl(kNobody, {"list", "extra"}).err, HasSubstr("unexpected \"extra\""));
  // An argument behind -- is no flag even if it looks like one, and a flag's negation is the flag.
  EXPECT_THAT(Blockctl(kNobody, {"list", "--", "--rhs"}).err, HasSubstr("unexpected \"--rhs\""));
  EXPECT_EQ(Blockctl(kNobody, {"list", "--noquiet", "--nojson"}).exit_status, 2);
}

TEST(BlockctlUsageTest, AResultThatCannotBeWrittenIsAnError) {
  const Outcome full =
      RunProgram("/bin/sh", {"-c", std::string(BLOCKCTL_PROGRAM) + " help > /dev/full"});
  EXPECT_EQ(full.exit_status, 3);
  EXPECT_THAT(full.err, HasSubstr("standard output"));
  // And a reader that has seen enough is none.
  const Outcome closed = RunProgram(
      "/bin/sh", {"-c", absl::StrCat("(", BLOCKCTL_PROGRAM, " help; echo $? >&2) | true; true")});
  EXPECT_THAT(closed.err, Not(HasSubstr("standard output")));
}

class BlockctlTest : public client::ServerTest {
 protected:
  void SetUp() override { StartServer(int64_t{256} << 20, true); }
  Outcome Run(const std::vector<std::string>& arguments) { return Blockctl(target(), arguments); }

  const TempFolder folder_;
};

TEST_F(BlockctlTest, AnUnknownHandleExitsWithFive) {
  const std::string rhs = folder_ / "one.mtx";
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

TEST_F(BlockctlTest, PlanAsJsonIsWhatTheServerSays) {
  const auto plan = Connect().Plan(2000, 32, client::Scalar::kFloat32, 3, 16);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::string json = Run({"plan", "--num_blocks=2000", "--block_size=32", "--systems=3",
                                "--num_rhs=16", "--scalar=float32", "--json"})
                               .out;
  const v1::PlanLevel& level = plan->level(0);
  for (const std::string& field :
       {absl::StrCat("\"chain_blocks\": ", level.chain_blocks()),
        absl::StrCat("\"segments\": ", level.segments()),
        absl::StrCat("\"longest_segment_blocks\": ", level.longest_segment_blocks()),
        absl::StrCat("\"interior_blocks\": ", level.interior_blocks()),
        absl::StrCat("\"fill_blocks\": ", level.fill_blocks()),
        absl::StrCat("\"separator_blocks\": ", level.separator_blocks()),
        absl::StrCat("\"factor_bytes\": ", plan->factor_bytes()),
        absl::StrCat("\"factor_workspace_bytes\": ", plan->factor_workspace_bytes()),
        absl::StrCat("\"solve_workspace_bytes\": ", plan->solve_workspace_bytes()),
        std::string("\"num_blocks\": 2000, \"block_size\": 32, \"arrow_size\": 0"),
        std::string("\"scalar\": \"float32\""), std::string("\"backend\": \"cpu\"")}) {
    EXPECT_THAT(json, HasSubstr(field));
  }
  const auto number = [&](const std::string& name) {
    return std::stod(json.substr(json.find("\"" + name + "\": ") + name.size() + 4));
  };
  EXPECT_EQ(number("factor_flops"), plan->factor_flops());
  EXPECT_EQ(number("solve_flops"), plan->solve_flops());
  EXPECT_EQ(number("predicted_factor_seconds"), plan->predicted_factor_seconds());
  EXPECT_EQ(number("predicted_solve_seconds"), plan->predicted_solve_seconds());
}

TEST_F(BlockctlTest, TheEnvironmentNamesServerAndCaller) {
  const client::SolverClient ada = Connect({.caller = "ada"});
  const double one[] = {1};
  auto factored = ada.Factor(client::MakeSystemView(1, 1, one, one));
  ASSERT_TRUE(factored.ok());
  const std::string handle = HandleText(factored->handle.get().handle);
  setenv("BLOCKD_SERVER", target().c_str(), 1);
  setenv("BLOCKD_CALLER", "ada", 1);
  const Outcome mine = RunProgram(BLOCKCTL_PROGRAM, {"list"});
  const Outcome others = RunProgram(BLOCKCTL_PROGRAM, {"list", "--caller=grace"});
  setenv("BLOCKD_CALLER", "", 1);  // as if it were not there
  const Outcome nobodys = RunProgram(BLOCKCTL_PROGRAM, {"list"});
  unsetenv("BLOCKD_SERVER");
  unsetenv("BLOCKD_CALLER");
  EXPECT_THAT(mine.out, HasSubstr(handle));
  EXPECT_EQ(others.exit_status, 0);
  EXPECT_EQ(others.out, "");
  EXPECT_EQ(nobodys.exit_status, 0);
  EXPECT_EQ(nobodys.out, "");
  EXPECT_EQ(Run({"list", "--wait=1h"}).exit_status, 0);
}

TEST_F(BlockctlTest, AnEmptyListIsNoError) {
  const Outcome list = Run({"list"});
  EXPECT_EQ(list.exit_status, 0);
  EXPECT_THAT(list.out, IsEmpty());
  EXPECT_EQ(Run({"list", "--json"}).out, "{\"factorizations\": []}\n");
  EXPECT_EQ(Run({"release", "--all"}).exit_status, 0);
}

TEST_F(BlockctlTest, TheDemoRuns) {
  const Outcome demo = Run({"demo", "--metrics=" + metrics_address(), "--out=" + folder_.path()});
  EXPECT_EQ(demo.exit_status, 0) << demo.err;
  EXPECT_THAT(demo.out, AllOf(HasSubstr("1871"), HasSubstr("backward error"), HasSubstr("palette"),
                              HasSubstr("HANDLE"), HasSubstr("blockd_factorizations 3")));
  EXPECT_THAT(ReadFile(folder_ / "nile.svg").value_or(""), HasSubstr("</svg>"));
  EXPECT_EQ(Run({"list", "--json"}).out, "{\"factorizations\": []}\n");
  // The smoothed level and its deviation as statsmodels has them.
  const std::string csv = ReadFile(folder_ / "nile.csv").value_or("");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 1 + 100);
  const auto row = [&](const std::string& year) {
    const size_t at = csv.find("\n" + year + ",") + 1;
    return csv.substr(at, csv.find('\n', at) - at);
  };
  EXPECT_THAT(row("1871"), HasSubstr("1871,1120,"));
  EXPECT_THAT(row("1970"), HasSubstr("1970,740,798.37"));
}

TEST_F(BlockctlTest, TheDemoWritesNoFileUnaskedAndShowsItsOwnHandlesAlone) {
  const client::SolverClient client = Connect();
  const double one[] = {1};
  const auto factored = client.Factor(client::MakeSystemView(1, 1, one, one));
  ASSERT_TRUE(factored.ok());
  const std::string other = HandleText(factored->handle.get().handle);
  ASSERT_THAT(Run({"list"}).out, HasSubstr(other));  // of the same tenant
  const Outcome demo = RunProgram(
      "/bin/bash", {"-c", absl::StrCat("cd ", folder_.path(), " && exec " BLOCKCTL_PROGRAM,
                                       " --server=", target(), " demo --metrics=")});
  EXPECT_EQ(demo.exit_status, 0) << demo.err;
  EXPECT_THAT(demo.out, HasSubstr("--out=FOLDER"));
  EXPECT_THAT(demo.out, Not(HasSubstr(other)));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  EXPECT_EQ(client.List()->size(), 1);  // the demo released what was its own, and nothing else
}

TEST_F(BlockctlTest, TheDemoAsJsonIsOneObject) {
  const Outcome demo = Run({"demo", "--metrics=", "--out=" + folder_.path(), "--json"});
  EXPECT_EQ(demo.exit_status, 0) << demo.err;
  EXPECT_EQ(std::count(demo.out.begin(), demo.out.end(), '\n'), 1);
  EXPECT_THAT(demo.out,
              AllOf(HasSubstr("{\"nile\": {\"smooth_seconds\": "), HasSubstr("\"level\": [1111."),
                    HasSubstr("\"co2\": {\"smooth_seconds\": "),
                    HasSubstr("\"kalman\": {\"factor_full\": {\"wire_bytes\": "),
                    HasSubstr("\"factor_palette\": "), HasSubstr("\"solve_each_seconds\": "),
                    HasSubstr("\"factorizations\": 3}")));
  EXPECT_EQ(Run({"demo", "--out=/nowhere"}).exit_status, 3);
  EXPECT_EQ(Run({"list", "--json"}).out, "{\"factorizations\": []}\n");
}

TEST_F(BlockctlTest, MetricsAreFetchedAndWhoAnswersOtherwiseIsSaid) {
  const absl::StatusOr<std::string> page = FetchMetrics(metrics_address());
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_THAT(*page, HasSubstr("\nblockd_"));
  EXPECT_THAT(*page, Not(HasSubstr("HTTP/1")));  // the body alone
  // gRPC's port speaks another protocol.
  EXPECT_EQ(FetchMetrics(target()).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(BlockctlTest, TheExampleOfTheClientRuns) {
  const Outcome outcome = RunProgram(MPC_LOOP_PROGRAM, {target()});
  EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("state after 100 ticks"));
}

}  // namespace
}  // namespace blockd::blockctl
