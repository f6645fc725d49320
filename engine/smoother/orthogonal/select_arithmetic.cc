#include <cstdlib>
#include <string_view>

#include "engine/smoother/orthogonal/system.h"

namespace blockd::orthogonal {

// Which of these there are, CMakeLists.txt says.
Arithmetic ArithmeticAvx2();
Arithmetic ArithmeticGeneric();

namespace {

// BLOCKD_CPU_INSTRUCTIONS=generic, which is read once, has the tests run what other processors
// would.
Arithmetic Choose() {
#if defined(BLOCKD_ORTHOGONAL_AVX2)
  const char* const limit = std::getenv("BLOCKD_CPU_INSTRUCTIONS");
  const bool generic = limit != nullptr && std::string_view(limit) == "generic";
  if (!generic && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return ArithmeticAvx2();
  }
#endif
  return ArithmeticGeneric();
}

}  // namespace

const Arithmetic& SelectArithmetic() {
  static const Arithmetic chosen = Choose();
  return chosen;
}

}  // namespace blockd::orthogonal
