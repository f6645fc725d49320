// FUZZ_CHECK(condition), the assertion of fuzz targets: ends the process if it fails, which the
// fuzzer reports with the input. An assertion of the C library would be off in an optimised build.
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
