// Device code: products of small matrices by one warp, C += A B, whose lanes have what
// fragment_layout.h says. MmaDepth8 and MmaDepth4: C has 16 rows and kProductColumns columns; with
// g = OperandRow() and t = OperandDepth(), a[kLeftRows q + i] = A(g + 8 i, t + 4 q) and b[q] = B(t
// + 4 q, g). MmaSmall: all are 8 x 8.
#ifndef BLOCKD_ENGINE_GPU_ARCH_MATRIX_INSTRUCTIONS_H_
#define BLOCKD_ENGINE_GPU_ARCH_MATRIX_INSTRUCTIONS_H_

#include <cstdint>

#include "engine/gpu/arch/fragment_layout.h"

namespace blockd::gpu {

// CUDA takes float through the tf32 instruction, which reads the first 11 bits of each operand: x
// is the sum of two such numbers, but for 2^-22 of it, and the product of two small parts is left
// out. A small part has either sign, so that what is left out has no bias.
struct SplitFloat {
  uint32_t big, small;

  __device__ explicit SplitFloat(float x) {
    constexpr uint32_t kHalf = 0x1000;  // of the last bit that is read
    big = (__float_as_uint(x) + kHalf) & ~(2 * kHalf - 1);
    small = __float_as_uint(x - __uint_as_float(big));
  }
};

// parts[.][i][j] = the parts that products take of a number: AMD's take it whole.
inline constexpr int kFloatParts = kIsAmd ? 1 : 2;
template <int kRows, int kColumns>
__device__ inline void SplitInto(float (&parts)[kFloatParts][kRows][kColumns], int i, int j,
                                 float x) {
#if defined(BLOCKD_GPU_HIP)
  parts[0][i][j] = x;
#else
  const SplitFloat split(x);
  parts[0][i][j] = __uint_as_float(split.big);
  parts[1][i][j] = __uint_as_float(split.small);
#endif
}

#if defined(BLOCKD_GPU_HIP)

template <typename T>
using FourOf = T __attribute__((__vector_size__(4 * sizeof(T))));

// The compiler's host pass has no builtins of the device.
__device__ inline void Mma16x16x4(double (&c)[4], double a, double b) {
#if defined(__HIP_DEVICE_COMPILE__)
  FourOf<double> sums = {c[0], c[1], c[2], c[3]};
  sums = __builtin_amdgcn_mfma_f64_16x16x4f64(a, b, sums, 0, 0, 0);
  c[0] = sums[0], c[1] = sums[1], c[2] = sums[2], c[3] = sums[3];
#endif
}
__device__ inline void Mma16x16x4(float (&c)[4], float a, float b) {
#if defined(__HIP_DEVICE_COMPILE__)
  FourOf<float> sums = {c[0], c[1], c[2], c[3]};
  sums = __builtin_amdgcn_mfma_f32_16x16x4f32(a, b, sums, 0, 0, 0);
  c[0] = sums[0], c[1] = sums[1], c[2] = sums[2], c[3] = sums[3];
#endif
}
__device__ inline void MmaSmall(double (&c)[1], const double (&a)[2], const double (&b)[2]) {
#if defined(__HIP_DEVICE_COMPILE__)
  c[0] = __builtin_amdgcn_mfma_f64_4x4x4f64(a[0], b[0], c[0], 0, 0, 0);
  c[0] = __builtin_amdgcn_mfma_f64_4x4x4f64(a[1], b[1], c[0], 0, 0, 0);
#endif
}
__device__ inline void MmaDepth4(double (&c)[4], const double (&a)[1], double b) {
  Mma16x16x4(c, a[0], b);
}
template <typename T>
__device__ inline void MmaDepth8(T (&c)[4], const T (&a)[2], const T (&b)[2]) {
  Mma16x16x4(c, a[0], b[0]);
  Mma16x16x4(c, a[1], b[1]);
}

#else

__device__ inline void Mma8x8x4(double (&c)[2], double a, double b) {
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
               : "+d"(c[0]), "+d"(c[1])
               : "d"(a), "d"(b));
}

__device__ inline void MmaTf32(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                               uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ inline void MmaSmall(double (&c)[2], const double (&a)[2], const double (&b)[2]) {
  Mma8x8x4(c, a[0], b[0]);
  Mma8x8x4(c, a[1], b[1]);
}
__device__ inline void MmaSmall(float (&c)[2], const float (&a)[2], const float (&b)[2]) {
  const SplitFloat x[2] = {SplitFloat(a[0]), SplitFloat(a[1])};
  const SplitFloat y[2] = {SplitFloat(b[0]), SplitFloat(b[1])};
  // A's big parts above its small ones; no product waits for another.
  float all[4] = {c[0], c[1], 0, 0}, rest[4] = {};
  MmaTf32(all, x[0].big, x[0].small, x[1].big, x[1].small, y[0].big, y[1].big);
  MmaTf32(rest, x[0].big, 0, x[1].big, 0, y[0].small, y[1].small);
  c[0] = all[0] + (all[2] + rest[0]), c[1] = all[1] + (all[3] + rest[1]);
}

__device__ inline void MmaDepth8(double (&c)[4], const double (&a)[4], const double (&b)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#else
  double top[2] = {c[0], c[1]}, bottom[2] = {c[2], c[3]};
  Mma8x8x4(top, a[0], b[0]);
  Mma8x8x4(top, a[2], b[1]);
  Mma8x8x4(bottom, a[1], b[0]);
  Mma8x8x4(bottom, a[3], b[1]);
  c[0] = top[0], c[1] = top[1], c[2] = bottom[0], c[3] = bottom[1];
#endif
}
// Operands that serve several products are split once: the compiler sees that.
__device__ inline void MmaDepth8(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
  const SplitFloat x[4] = {SplitFloat(a[0]), SplitFloat(a[1]), SplitFloat(a[2]), SplitFloat(a[3])};
  const SplitFloat y[2] = {SplitFloat(b[0]), SplitFloat(b[1])};
  MmaTf32(c, x[0].small, x[1].small, x[2].small, x[3].small, y[0].big, y[1].big);
  MmaTf32(c, x[0].big, x[1].big, x[2].big, x[3].big, y[0].small, y[1].small);
  MmaTf32(c, x[0].big, x[1].big, x[2].big, x[3].big, y[0].big, y[1].big);
}

__device__ inline void MmaDepth4(double (&c)[4], const double (&a)[2], double b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%0,%1,%2,%3};"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
      : "d"(a[0]), "d"(a[1]), "d"(b));
#else
  double top[2] = {c[0], c[1]}, bottom[2] = {c[2], c[3]};
  Mma8x8x4(top, a[0], b);
  Mma8x8x4(bottom, a[1], b);
  c[0] = top[0], c[1] = top[1], c[2] = bottom[0], c[3] = bottom[1];
#endif
}

#endif

// c[i][j] += a[i] b[j], of operands in parts, columns from `first` on. One kind of product after
// the other: the three of a tile wait for one another.
template <int kRows, int kColumns>
__device__ inline void MultiplyParts(float (&c)[kRows][kColumns][4],
                                     const float (&a)[kFloatParts][kRows][2 * kLeftRows],
                                     const float (&b)[kFloatParts][kColumns][2], int first = 0) {
#if defined(BLOCKD_GPU_HIP)
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      if (j >= first) MmaDepth8(c[i][j], a[0][i], b[0][j]);
    }
  }
#else
#pragma unroll
  for (int kind = 0; kind < 3; ++kind) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const auto& x = a[kind == 0][i];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        if (j < first) continue;
        const auto& y = b[kind == 1][j];
        MmaTf32(c[i][j], __float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
                __float_as_uint(x[3]), __float_as_uint(y[0]), __float_as_uint(y[1]));
      }
    }
  }
#endif
}

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_ARCH_MATRIX_INSTRUCTIONS_H_
