// Runs a program as a shell would and keeps what it wrote.
#ifndef BLOCKD_TESTS_CLIENT_PROGRAM_H_
#define BLOCKD_TESTS_CLIENT_PROGRAM_H_

#include <string>
#include <vector>

namespace blockd::blockctl {

struct Outcome {
  int exit_status = -1;  // 128 + the signal, if one ended it
  std::string out;
  std::string err;
};

// Waits for it, `signal_after_ms` after its start with a SIGINT on the way if that is positive.
Outcome RunProgram(const std::string& program, const std::vector<std::string>& arguments,
                   int signal_after_ms = 0);
// blockctl, talking to `server`.
Outcome Blockctl(const std::string& server, std::vector<std::string> arguments,
                 int signal_after_ms = 0);

}  // namespace blockd::blockctl

#endif  // BLOCKD_TESTS_CLIENT_PROGRAM_H_
