// The times published for the cells of engine_bench: milliseconds in FP64, one right-hand side, on
// one NVIDIA H200 with CUDA 12.4; 0 where none was. From D. Jin, A. Montoison, S. Shin, "Harnessing
// Batched BLAS/LAPACK Kernels on GPUs for Parallel Solutions of Block Tridiagonal Systems".
#ifndef BLOCKD_TESTS_BENCH_REFERENCE_PUBLISHED_H_
#define BLOCKD_TESTS_BENCH_REFERENCE_PUBLISHED_H_

#include <cstdint>

namespace blockd::bench {

struct Published {
  int64_t num_blocks, block_size;
  double cudss_factor, blockdss_factor;
  double cudss_solve, blockdss_solve;
};

inline constexpr Published kPublished[] = {
    {256, 1024, 298, 273, 48.6, 41.7},  {512, 512, 259, 121, 55.4, 41.5},
    {1024, 256, 174, 61.7, 6.29, 21.7}, {2048, 128, 29.9, 41.9, 2.53, 30.9},
    {4096, 64, 10.7, 12.7, 1.13, 6.84}, {8192, 32, 4.33, 7.95, 0.68, 4.36},
    {100, 256, 27.5, 13.3, 1.8, 8.6},
};

}  // namespace blockd::bench

#endif  // BLOCKD_TESTS_BENCH_REFERENCE_PUBLISHED_H_
