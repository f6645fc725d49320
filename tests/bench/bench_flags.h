// The flags that the benchmarks share.
#ifndef BLOCKD_TESTS_BENCH_BENCH_FLAGS_H_
#define BLOCKD_TESTS_BENCH_BENCH_FLAGS_H_

namespace blockd::bench {

struct Flags {
  bool json = false;
  bool header = true;
  bool quick = false;
};

// Reads these and all other flags of the program; says what is wrong and exits where an argument is
// none.
Flags ParseFlags(int argc, char** argv);

}  // namespace blockd::bench

#endif  // BLOCKD_TESTS_BENCH_BENCH_FLAGS_H_
