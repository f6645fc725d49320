// blockd under a limit of address space: it serves, or ends with a line that says why not.
#include <sys/resource.h>
#include <sys/wait.h>

#include "absl/strings/match.h"
#include "tests/integration/process/program_fixture.h"

namespace blockd::test {
namespace {

class MemoryLimitTest : public ProgramTest, public testing::WithParamInterface<int64_t> {};

TEST_P(MemoryLimitTest, ItStartsOrSaysWhyNot) {
  in_child_ = [] {
    setenv("OPENBLAS_NUM_THREADS", "2", 1);  // threads that it starts before main
    const auto limit = static_cast<rlim_t>(GetParam() << 20);
    const rlimit both = {.rlim_cur = limit, .rlim_max = limit};
    setrlimit(RLIMIT_AS, &both);
  };
  Spawn({"--port=0", "--metrics_port=-1", "--backend=cpu", "--drain_grace=0s",
         "--port_file=" + (folder_ / "ports").string()});
  const auto ended = [this] {
    siginfo_t info = {};
    waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
    return info.si_pid == pid_;
  };
  ASSERT_TRUE(Eventually([&] { return fs::exists(folder_ / "ports") || ended(); })) << Output();
  if (!ended()) kill(pid_, SIGTERM);
  const int code = Wait();
  EXPECT_TRUE(code == 0 || absl::StrContains(Output(), "blockd: ")) << code << Output();
}

TEST_F(ProgramTest, WhereItsMemoryCannotBeMappedItSaysSoAndEnds) {
  in_child_ = [] {
    setenv("OPENBLAS_NUM_THREADS", "2", 1);  // threads that it starts before main
    const rlimit limit = {.rlim_cur = 200 << 20, .rlim_max = 200 << 20};
    setrlimit(RLIMIT_AS, &limit);
  };
  Spawn({"--port=0", "--metrics_port=-1", "--backend=cpu", "--device_memory=1GiB",
         "--cpu_threads=2", "--cpu_lanes=2", "--serving_threads=2"});
  EXPECT_EQ(Wait(), 1);
  EXPECT_TRUE(absl::StrContains(Output(), "cannot map 1073741824 bytes")) << Output();
}

INSTANTIATE_TEST_SUITE_P(MiB, MemoryLimitTest, testing::Values(128, 256, 512, 1024, 2048),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace blockd::test
