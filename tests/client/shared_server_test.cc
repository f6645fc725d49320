// The shared server of server/README.md, as its reader types it.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/blockctl/files.h"
#include "tests/client/program.h"
#include "tests/support/temp_folder.h"

namespace blockd::blockctl {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// The first block of commands below this heading.
std::string CommandsBelow(const std::string& heading) {
  const std::string text = *ReadFile(SERVER_README), fence = "```sh\n";
  const size_t begin = text.find(fence, text.find(heading)) + fence.size();
  return text.substr(begin, text.find("```", begin) - begin);
}

// That nobody has now.
int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(fd, any, length), 0);
  EXPECT_EQ(getsockname(fd, any, &length), 0);
  close(fd);
  return ntohs(address.sin_port);
}

TEST(SharedServerTest, TheReadersCommandsWork) {
  const test::TempFolder folder;
  const int port = FreePort();
  // On ports and of a size that suit a test; each command must succeed.
  const std::string commands = absl::StrReplaceAll(
      CommandsBelow("## A shared server in one page"),
      {{"blockd --tenants_file",
        absl::StrCat(
            BLOCKD_PROGRAM " --metrics_port=-1 --backend=cpu --device_memory=256MiB --port=", port,
            " --drain_grace=0s --tenants_file")},
       {"blockd --hash_token", BLOCKD_PROGRAM " --hash_token"},
       {"blockctl ", absl::StrCat(BLOCKCTL_PROGRAM " --server=127.0.0.1:", port, " ")},
       {"wait\n", "wait $!\n"}});
  const Outcome outcome = RunProgram(
      "/bin/bash", {"-c", absl::StrCat("set -e; cd ", folder.path(),
                                       "; trap 'kill $! 2>/dev/null || true' EXIT\n", commands)});
  EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(ContainsRegex("ada: weight 2, up to interactive, [1-9][0-9]* requests"),
                    HasSubstr("boss: ")));
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("draining: "), HasSubstr("event=audit"),
                                 HasSubstr("event=stopped cancelled_work=no")));
}

}  // namespace
}  // namespace blockd::blockctl
