#include "tests/bench/must.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace blockd::bench {

void Die(const std::string& what) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, what.c_str());
  std::exit(1);
}

}  // namespace blockd::bench
