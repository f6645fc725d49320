#define BLOCKD_VECTOR_BYTES 16
#define BLOCKD_KERNEL_NAMESPACE generic

#include "engine/cpu/kernels/kernels_impl.h"

namespace blockd::cpu {

const Kernels<double>& Kernels64_generic() { return generic::Table<double>("generic"); }
const Kernels<float>& Kernels32_generic() { return generic::Table<float>("generic"); }

}  // namespace blockd::cpu
