// CUDA's own errors in a benchmark: said, and the end.
#ifndef BLOCKD_TESTS_BENCH_REFERENCE_CUDA_CHECK_H_
#define BLOCKD_TESTS_BENCH_REFERENCE_CUDA_CHECK_H_

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

namespace blockd::bench {

inline void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "engine_bench: %s\n", cudaGetErrorString(error));
  std::abort();
}

}  // namespace blockd::bench

#endif  // BLOCKD_TESTS_BENCH_REFERENCE_CUDA_CHECK_H_
