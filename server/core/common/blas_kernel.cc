#include "server/core/common/blas_kernel.h"

#include <cblas.h>

#include <algorithm>
#include <array>

#include "absl/strings/match.h"

namespace blockd::server {
namespace {

// They multiply without AVX2.
constexpr std::array<absl::string_view, 21> kOldKernels = {
    "Katmai", "Coppermine", "Northwood",  "Prescott", "Banias",       "Atom",        "Core2",
    "Penryn", "Dunnington", "Nehalem",    "Athlon",   "Opteron",      "Barcelona",   "Nano",
    "Bobcat", "Bulldozer",  "Piledriver", "Generic",  "Opteron_SSE3", "Steamroller", "Sandybridge"};

}  // namespace

const char* BetterBlasKernel(absl::string_view kernel, VectorUnits units) {
  const bool old = std::any_of(kOldKernels.begin(), kOldKernels.end(), [&](absl::string_view name) {
    return absl::EqualsIgnoreCase(name, kernel);
  });
  if (!old || !units.avx2) return nullptr;
  return units.avx512 ? "SkylakeX" : "Haswell";
}

const char* BlasKernel() { return openblas_get_corename(); }

VectorUnits UnitsOfProcessor() {
#ifdef __x86_64__
  return {.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"),
          .avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
                    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512vl")};
#else
  return {};
#endif
}

}  // namespace blockd::server
