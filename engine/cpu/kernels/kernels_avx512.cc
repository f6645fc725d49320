#define BLOCKD_VECTOR_BYTES 64
#define BLOCKD_KERNEL_NAMESPACE avx512

#include "engine/cpu/kernels/kernels_impl.h"

namespace blockd::cpu {

const Kernels<double>& Kernels64_avx512() { return avx512::Table<double>("avx512"); }
const Kernels<float>& Kernels32_avx512() { return avx512::Table<float>("avx512"); }

}  // namespace blockd::cpu
