#include "tests/bench/bench_flags.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"

ABSL_FLAG(bool, json, false, "One JSON object a row.");
ABSL_FLAG(bool, header, true, "The table's header first.");
ABSL_FLAG(bool, quick, false, "Small and once: the times mean nothing, the residuals do.");

namespace blockd::bench {

Flags ParseFlags(int argc, char** argv) {
  absl::SetProgramUsageMessage("measures blockd; prints a table");
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() > 1) {
    std::fprintf(stderr, "%s: %s: expected flags only, see --help\n", argv[0], rest[1]);
    std::exit(2);
  }
  return {absl::GetFlag(FLAGS_json), absl::GetFlag(FLAGS_header), absl::GetFlag(FLAGS_quick)};
}

}  // namespace blockd::bench
