// Device code: reciprocals and roots of pivots, without branches.
#ifndef BLOCKD_ENGINE_GPU_ARCH_SCALARS_H_
#define BLOCKD_ENGINE_GPU_ARCH_SCALARS_H_

#include <cstdint>

#include "engine/gpu/arch/vendor.h"

namespace blockd::gpu {

// 1 / sqrt(x) to about an ulp for normal x > 0, without a branch, so that what does not wait for it
// goes on.
__device__ inline double ReciprocalRoot(double x) {
#if defined(BLOCKD_GPU_HIP)
  return rsqrt(x);
#else
  double y;
  asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
  const double error = fma(-x, y * y, 1.0);  // about 2^-20
  return fma(y * error, fma(error, 0.375, 0.5), y);
#endif
}
__device__ inline float ReciprocalRoot(float x) {
#if defined(BLOCKD_GPU_HIP)
  return rsqrtf(x);
#else
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}
// 1 / x to about an ulp for normal x > 0.
__device__ inline float Reciprocal(float x) {
#if defined(BLOCKD_GPU_HIP)
  return 1.0f / x;
#else
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// 1 / x = guess (1 + correction) to an ulp for normal x > 0. What waits for 1 / x can start with
// the guess.
__device__ inline void GuessReciprocal(double x, double& guess, double& correction) {
#if defined(BLOCKD_GPU_HIP)
  guess = 1.0 / x;
  correction = fma(-x, guess, 1.0);
#else
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(guess) : "d"(x));
  const double error = fma(-x, guess, 1.0);  // about 2^-20
  correction = fma(error, error, error);
#endif
}

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_ARCH_SCALARS_H_
