// blockctl as its users type it.
#ifndef BLOCKD_TESTS_CLIENT_BLOCKCTL_BLOCKCTL_PROGRAM_H_
#define BLOCKD_TESTS_CLIENT_BLOCKCTL_BLOCKCTL_PROGRAM_H_

#include <string>
#include <vector>

#include "tests/client/program.h"

namespace blockd::blockctl {

inline std::vector<std::string> WithServer(const std::string& server,
                                           std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "--server=" + server);
  return arguments;
}

// Talks to `server`.
inline Outcome Blockctl(const std::string& server, const std::vector<std::string>& arguments) {
  return RunProgram(BLOCKCTL_PROGRAM, WithServer(server, arguments));
}

}  // namespace blockd::blockctl

#endif  // BLOCKD_TESTS_CLIENT_BLOCKCTL_BLOCKCTL_PROGRAM_H_
