// Whether BLAS, which makes Smooth's models and factors on the CPU backend, knows this processor.
#ifndef BLOCKD_SERVER_CORE_BLAS_KERNEL_H_
#define BLOCKD_SERVER_CORE_BLAS_KERNEL_H_

#include "absl/strings/string_view.h"

namespace blockd::server {

struct VectorUnits {
  bool avx2 = false;    // and FMA
  bool avx512 = false;  // all of it that Skylake's servers have
};

// What OPENBLAS_CORETYPE had better say where OpenBLAS has chosen `kernel`, one for processors
// older than this one, as it does with a processor that is newer than itself; else null. Names are
// as BlasKernel says them, in any case.
const char* BetterBlasKernel(absl::string_view kernel, VectorUnits units);

// What OpenBLAS has chosen in this process, and what this processor has.
const char* BlasKernel();
VectorUnits UnitsOfProcessor();

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_BLAS_KERNEL_H_
