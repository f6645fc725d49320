// What a fuzz target asserts: FUZZ_CHECK(condition) ends the process, which the fuzzer reports with
// the input. An assertion of the C library would be off in an optimised build.
#ifndef BLOCKD_TESTS_FUZZ_CHECK_H_
#define BLOCKD_TESTS_FUZZ_CHECK_H_

#include <cstdio>
#include <cstdlib>

#define FUZZ_CHECK(condition)                                                      \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (false)

#endif  // BLOCKD_TESTS_FUZZ_CHECK_H_
