// The flags that the benchmarks share.
#ifndef BLOCKD_TESTS_BENCH_BENCH_FLAGS_H_
#define BLOCKD_TESTS_BENCH_BENCH_FLAGS_H_

#include <string>

namespace blockd::bench {

struct Flags {
  bool header = true;
  bool quick = false;
  std::string json;      // the file for the result; empty: none
  std::string commit;    // what that file says of where the result comes from
  std::string command;   //
  std::string hardware;  // empty: what the benchmark knows itself
};

// Reads these and all other flags of the program; says what is wrong and exits where an argument is
// none.
Flags ParseFlags(int argc, char** argv);

}  // namespace blockd::bench

#endif  // BLOCKD_TESTS_BENCH_BENCH_FLAGS_H_
