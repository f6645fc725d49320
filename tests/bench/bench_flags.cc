#include "tests/bench/bench_flags.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

ABSL_FLAG(std::string, json, "", "Write the result to this file too, see result_file.h.");
ABSL_FLAG(std::string, commit, "", "For that file: what was measured, as git names it.");
ABSL_FLAG(std::string, command, "", "For that file: how to measure it again; empty: this command.");
ABSL_FLAG(std::string, hardware, "", "For that file: on what; empty: as this program sees it.");
ABSL_FLAG(bool, header, true, "The table's header first.");
ABSL_FLAG(bool, quick, false, "Small and once: the times mean nothing, the residuals do.");

namespace blockd::bench {
namespace {

// The command line but for what only says where its result goes.
std::string Command(int argc, char** argv) {
  std::string command = std::filesystem::path(argv[0]).filename();
  for (int i = 1; i < argc; ++i) {
    const bool about_the_file = absl::StartsWith(argv[i], "--json=") ||
                                absl::StartsWith(argv[i], "--commit=") ||
                                absl::StartsWith(argv[i], "--hardware=");
    if (!about_the_file) absl::StrAppend(&command, " ", argv[i]);
  }
  return command;
}

}  // namespace

Flags ParseFlags(int argc, char** argv) {
  absl::SetProgramUsageMessage("measures blockd; prints a table");
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() > 1) {
    std::fprintf(stderr, "%s: %s: expected flags only, see --help\n", argv[0], rest[1]);
    std::exit(2);
  }
  Flags flags;
  flags.header = absl::GetFlag(FLAGS_header);
  flags.quick = absl::GetFlag(FLAGS_quick);
  flags.json = absl::GetFlag(FLAGS_json);
  flags.commit = absl::GetFlag(FLAGS_commit);
  flags.command = absl::GetFlag(FLAGS_command);
  if (flags.command.empty()) flags.command = Command(argc, argv);
  flags.hardware = absl::GetFlag(FLAGS_hardware);
  if (!flags.json.empty() && flags.commit.empty()) {
    std::fprintf(stderr, "%s: --json needs --commit\n", argv[0]);
    std::exit(2);
  }
  return flags;
}

}  // namespace blockd::bench
