#define BLOCKD_VECTOR_BYTES 32
#define BLOCKD_KERNEL_NAMESPACE avx2

#include "engine/cpu/kernels/kernels_impl.h"

namespace blockd::cpu {

const Kernels<double>& Kernels64_avx2() { return avx2::Table<double>("avx2"); }
const Kernels<float>& Kernels32_avx2() { return avx2::Table<float>("avx2"); }

}  // namespace blockd::cpu
