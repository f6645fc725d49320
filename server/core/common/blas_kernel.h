// Finds out whether the BLAS knows this processor. Smooth's models and the CPU backend use the
// BLAS.
#ifndef BLOCKD_SERVER_CORE_COMMON_BLAS_KERNEL_H_
#define BLOCKD_SERVER_CORE_COMMON_BLAS_KERNEL_H_

#include "absl/strings/string_view.h"

namespace blockd::server {

struct VectorUnits {
  bool avx2 = false;    // and FMA
  bool avx512 = false;  // all of it that Skylake's servers have
};

// A better value of OPENBLAS_CORETYPE if OpenBLAS has chosen `kernel`, which is for older
// processors than this one, as it does on a processor newer than itself; else null. Names are those
// of BlasKernel, in upper or lower case.
const char* BetterBlasKernel(absl::string_view kernel, VectorUnits units);

// The kernel that OpenBLAS has chosen in this process, and the vector units of this processor.
const char* BlasKernel();
VectorUnits UnitsOfProcessor();

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_COMMON_BLAS_KERNEL_H_
