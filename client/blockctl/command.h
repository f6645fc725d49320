// A subcommand of blockctl, and what all of them share.
#ifndef BLOCKD_CLIENT_BLOCKCTL_COMMAND_H_
#define BLOCKD_CLIENT_BLOCKCTL_COMMAND_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockd/client/admin_client.h"
#include "blockd/client/solver_client.h"
#include "client/blockctl/text/text.h"

namespace blockd::blockctl {

struct Command {
  std::string_view name;
  std::string_view arguments;  // that are not flags, for the usage line
  std::string_view summary;    // one line
  std::string_view description;
  std::vector<std::string_view> flags;  // beside those of every command
  absl::Status (*run)(const std::vector<std::string>& arguments);
};

Command AdminCommand();
Command FactorCommand();
Command RefactorCommand();
Command SolveCommand();
Command ReleaseCommand();
Command ListCommand();
Command InfoCommand();
Command PlanCommand();
Command BenchCommand();
Command DemoCommand();
Command SmoothCommand();

// Flags that every command takes.
const std::vector<std::string_view>& CommonFlags();
std::string ServerFlag();

// The options that the flags ask for. An error is a usage error or names a file.
absl::StatusOr<client::ClientOptions> ClientOptionsFromFlags();
// Connects, after waiting for the server as --wait says.
absl::StatusOr<client::SolverClient> ConnectFromFlags();
absl::StatusOr<client::AdminClient> ConnectAdminFromFlags();
// --priority; a usage error if it is none of the three.
absl::StatusOr<client::Priority> PriorityFromFlag();

// For commands that take flags only.
absl::Status RefuseArguments(const std::vector<std::string>& arguments);

bool JsonAsked();
// To standard error, unless --quiet or --json.
void Note(const std::string& line);
// To standard output.
void Print(std::string_view text);

}  // namespace blockd::blockctl

#endif  // BLOCKD_CLIENT_BLOCKCTL_COMMAND_H_
