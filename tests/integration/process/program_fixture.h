// The fixture of the tests of the program itself: blockd as a process of its own.
#ifndef BLOCKD_TESTS_INTEGRATION_PROCESS_PROGRAM_FIXTURE_H_
#define BLOCKD_TESTS_INTEGRATION_PROCESS_PROGRAM_FIXTURE_H_

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/integration/fixture.h"
#include "tests/support/temp_folder.h"

namespace blockd::test {

namespace fs = std::filesystem;

class ProgramTest : public ::testing::Test {
 protected:
  void TearDown() override {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }

  // Starts blockd; its standard output and error go to a file.
  void Spawn(std::vector<std::string> flags) {
    // Tests that were built elsewhere say where blockd is.
    const char* elsewhere = std::getenv("BLOCKD_TEST_PROGRAM");
    flags.insert(flags.begin(), elsewhere != nullptr ? elsewhere : BLOCKD_PROGRAM);
    std::vector<char*> argv;
    for (std::string& flag : flags) argv.push_back(flag.data());
    argv.push_back(nullptr);
    const std::string output = folder_ / "output";
    pid_ = fork();
    if (pid_ == 0) {
      const int fd = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      dup2(fd, 1);
      dup2(fd, 2);
      if (in_child_) in_child_();
      execv(argv[0], argv.data());
      _exit(127);
    }
  }
  std::string Output() const { return ReadFile(folder_ / "output"); }
  static std::string ReadFile(const fs::path& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  // Exit code, or minus the signal.
  int Wait() {
    int status = 0;
    const bool ended = Eventually([&] { return waitpid(pid_, &status, WNOHANG) == pid_; });
    EXPECT_TRUE(ended) << Output();
    if (!ended) return -1000;
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  // Serves on free ports; returns a channel to it.
  std::shared_ptr<grpc::Channel> Serve(const std::vector<std::string>& flags) {
    const fs::path ports = folder_ / "ports";
    std::vector<std::string> all = {"--port=0", "--metrics_port=-1", "--device_memory=64MiB",
                                    absl::StrCat("--port_file=", ports.string())};
    all.insert(all.end(), flags.begin(), flags.end());
    Spawn(all);
    EXPECT_TRUE(Eventually([&] { return fs::exists(ports); })) << Output();
    for (absl::string_view line : absl::StrSplit(ReadFile(ports), '\n')) {
      const std::pair<std::string, std::string> entry = absl::StrSplit(line, '=');
      if (entry.first == "grpc") port_ = entry.second;
      if (entry.first == "metrics") metrics_port_ = std::stoi(entry.second);
    }
    return grpc::CreateChannel("127.0.0.1:" + port_, grpc::InsecureChannelCredentials());
  }

  const TempFolder temp_;
  const fs::path folder_ = temp_.path();
  pid_t pid_ = -1;
  std::string port_;
  int metrics_port_ = -1;
  std::function<void()> in_child_;  // in the new process, before it becomes blockd
};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_INTEGRATION_PROCESS_PROGRAM_FIXTURE_H_
