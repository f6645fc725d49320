// The orthogonal form with the instructions of AVX2 and FMA.
#define BLOCKD_KERNEL_NAMESPACE avx2

#include "engine/smoother/orthogonal/compute.h"

namespace blockd::orthogonal {

Arithmetic ArithmeticAvx2() {
  return {avx2::Compute<avx2::InDouble>, avx2::Compute<avx2::InDoubleDouble>};
}

}  // namespace blockd::orthogonal
