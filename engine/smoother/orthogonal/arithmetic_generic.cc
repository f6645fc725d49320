// The orthogonal form with the instructions of every processor of its kind.
#define BLOCKD_KERNEL_NAMESPACE generic

#include "engine/smoother/orthogonal/compute.h"

namespace blockd::orthogonal {

Arithmetic ArithmeticGeneric() {
  return {generic::Compute<generic::InDouble>, generic::Compute<generic::InDoubleDouble>};
}

}  // namespace blockd::orthogonal
