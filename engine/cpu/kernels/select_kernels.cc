#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "engine/cpu/kernels/kernels.h"

namespace blockd::cpu {

// Which of these there are, CMakeLists.txt says.
const Kernels<double>& Kernels64_avx512();
const Kernels<float>& Kernels32_avx512();
const Kernels<double>& Kernels64_avx2();
const Kernels<float>& Kernels32_avx2();
const Kernels<double>& Kernels64_generic();
const Kernels<float>& Kernels32_generic();

namespace {

enum class InstructionSet { kGeneric, kAvx2, kAvx512 };

InstructionSet Widest() {
#if defined(BLOCKD_KERNELS_AVX512)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw")) {
    return InstructionSet::kAvx512;
  }
#endif
#if defined(BLOCKD_KERNELS_AVX2)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return InstructionSet::kAvx2;
#endif
  return InstructionSet::kGeneric;
}

// The tests run the narrower kernels too: the environment variable BLOCKD_CPU_INSTRUCTIONS, "avx2"
// or "generic", lowers the choice and never raises it. It is read once.
InstructionSet Detect() {
  const char* const limit = std::getenv("BLOCKD_CPU_INSTRUCTIONS");
  const InstructionSet widest = Widest();
  if (limit == nullptr) return widest;
  if (std::string_view(limit) == "generic") return InstructionSet::kGeneric;
  if (std::string_view(limit) == "avx2") return std::min(widest, InstructionSet::kAvx2);
  return widest;
}

InstructionSet Chosen() {
  static const InstructionSet chosen = Detect();
  return chosen;
}

}  // namespace

template <>
const Kernels<double>& SelectKernels() {
  switch (Chosen()) {
#if defined(BLOCKD_KERNELS_AVX512)
    case InstructionSet::kAvx512:
      return Kernels64_avx512();
#endif
#if defined(BLOCKD_KERNELS_AVX2)
    case InstructionSet::kAvx2:
      return Kernels64_avx2();
#endif
    default:
      return Kernels64_generic();
  }
}

template <>
const Kernels<float>& SelectKernels() {
  switch (Chosen()) {
#if defined(BLOCKD_KERNELS_AVX512)
    case InstructionSet::kAvx512:
      return Kernels32_avx512();
#endif
#if defined(BLOCKD_KERNELS_AVX2)
    case InstructionSet::kAvx2:
      return Kernels32_avx2();
#endif
    default:
      return Kernels32_generic();
  }
}

}  // namespace blockd::cpu
