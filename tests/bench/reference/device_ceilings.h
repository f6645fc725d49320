// The limits of the GPU: the ceilings that engine_bench compares with, measured in its run.
#ifndef BLOCKD_TESTS_BENCH_REFERENCE_DEVICE_CEILINGS_H_
#define BLOCKD_TESTS_BENCH_REFERENCE_DEVICE_CEILINGS_H_

#include "blockd/engine/backend.h"

namespace blockd::bench {

struct Ceilings {
  double flops = 0;  // a second: cuBLAS's dgemm, 8192 square; 0 where no cuBLAS is found
  double bytes = 0;  // a second: a large copy on the device, read and written
};

// Takes memory of the backend's pool for as long as it runs. Aborts with the reason on an error.
Ceilings MeasureCeilings(Backend& backend, bool quick);

}  // namespace blockd::bench

#endif  // BLOCKD_TESTS_BENCH_REFERENCE_DEVICE_CEILINGS_H_
