// The functions of matrix_instructions.h and warpgroups.h, on the host: each instruction finds the
// entries of its operands in the lanes where its vendor's manual has them. This file knows nothing
// of fragment_layout.h and so serves to test it. Sums are in double; operands of float are read as
// tf32 where warpgroups read them.
#ifndef BLOCKD_ENGINE_GPU_ARCH_HOST_HOST_PRODUCTS_H_
#define BLOCKD_ENGINE_GPU_ARCH_HOST_HOST_PRODUCTS_H_

#include <algorithm>

#include "engine/gpu/arch/host/host_arch.h"

namespace blockd::gpu {

inline constexpr uint32_t kIgnored = 0x1fff;  // what tf32 does not read of a float

struct SplitFloat {
  uint32_t big, small;
  explicit SplitFloat(float x)
      : big((__float_as_uint(x) + (kIgnored + 1) / 2) & ~kIgnored),
        small(__float_as_uint(x - __uint_as_float(big))) {}
};

using HostLanes = HostThreadBlock::Lane[kWarp];

// Where there are no warpgroups nobody calls them.
inline void ShareWithWarpgroups() {}
inline void BeginProducts() {}
inline void EndProducts() {}
inline void WaitForProducts() {}

#if defined(BLOCKD_GPU_LIKE_AMD)

// v_mfma_f64_16x16x4f64 and v_mfma_f32_16x16x4f32: A(i,k) is in lane i + 16 k, B(k,j) in lane
// j + 16 k. C(i,j) is in lane j + 16 (i % 4), register i / 4; of float in lane j + 16 (i / 4),
// register i % 4.
template <typename Real, int kDepths>
void Mma16x16x4(Real (&c)[4], const Real (&a)[kDepths], const Real (&b)[kDepths]) {
  AmongLanes(
      [&](auto& lane) {
        for (int q = 0; q < kDepths; ++q) lane.a[q] = a[q], lane.b[q] = b[q];
      },
      [&](const HostLanes& lanes) {
        for (int r = 0; r < 4; ++r) {
          const int high = Lane() / 16, j = Lane() % 16;
          const int i = sizeof(Real) == 8 ? 4 * r + high : 4 * high + r;
          double sum = c[r];
          for (int q = 0; q < kDepths; ++q) {
            for (int k = 0; k < 4; ++k) sum += lanes[i + 16 * k].a[q] * lanes[j + 16 * k].b[q];
          }
          c[r] = static_cast<Real>(sum);
        }
      });
}
template <typename Real>
void MmaDepth8(Real (&c)[4], const Real (&a)[2], const Real (&b)[2]) {
  Mma16x16x4(c, a, b);
}
inline void MmaDepth4(double (&c)[4], const double (&a)[1], double b) {
  const double right[1] = {b};
  Mma16x16x4(c, a, right);
}
// v_mfma_f64_4x4x4f64 twice: of block n, 0 to 3, A(i,k) is in lane i + 4 n + 16 k, B(k,j) in lane
// j + 4 n + 16 k, C(i,j) in lane j + 4 n + 16 i.
inline void MmaSmall(double (&c)[1], const double (&a)[2], const double (&b)[2]) {
  AmongLanes(
      [&](auto& lane) {
        for (int q = 0; q < 2; ++q) lane.a[q] = a[q], lane.b[q] = b[q];
      },
      [&](const HostLanes& lanes) {
        const int i = Lane() / 16, of_block = Lane() % 16 / 4 * 4, j = Lane() % 4;
        for (int q = 0; q < 2; ++q) {
          for (int k = 0; k < 4; ++k) {
            c[0] += lanes[i + of_block + 16 * k].a[q] * lanes[j + of_block + 16 * k].b[q];
          }
        }
      });
}

#else

// mma.m16n8k8, kTiles of them: with g = lane / 4 and t = lane % 4, A(g,t), A(g+8,t), A(g,t+4),
// A(g+8,t+4), of B (t,g), (t+4,g), of C (g,2t), (g,2t+1), (g+8,2t), (g+8,2t+1). b(k, j): entry of
// B.
template <int kTiles, typename Real, typename Entry>
void MultiplyLanes(Real (&sums)[kTiles][4], const HostLanes& lanes, const Entry& b) {
  const int group = Lane() / 4, t = Lane() % 4;
  double all[kTiles][4];
  for (int j = 0; j < kTiles; ++j) std::copy_n(sums[j], 4, all[j]);
  for (int k = 0; k < 8; ++k) {
    const double* const left = &lanes[group * 4 + k % 4].a[k / 4 * 2];
    for (int j = 0; j < kTiles; ++j) {
      const double right[2] = {b(k, 8 * j + 2 * t), b(k, 8 * j + 2 * t + 1)};
      for (int e = 0; e < 4; ++e) all[j][e] += left[e / 2] * right[e % 2];
    }
  }
  for (int j = 0; j < kTiles; ++j) {
    for (int e = 0; e < 4; ++e) sums[j][e] = static_cast<Real>(all[j][e]);
  }
}
template <typename Real>
void MmaDepth8(Real (&c)[4], const Real (&a)[4], const Real (&b)[2]) {
  AmongLanes(
      [&](auto& lane) {
        for (int i = 0; i < 4; ++i) lane.a[i] = a[i];
        for (int i = 0; i < 2; ++i) lane.b[i] = b[i];
      },
      [&](const HostLanes& lanes) {
        MultiplyLanes(reinterpret_cast<Real(&)[1][4]>(c), lanes,
                      [&](int k, int j) { return lanes[j * 4 + k % 4].b[k / 4]; });
      });
}
// mma.m8n8k4 twice: the upper half of the same.
template <typename Real>
void MmaSmall(Real (&c)[2], const Real (&a)[2], const Real (&b)[2]) {
  Real both[4] = {c[0], c[1], 0, 0};
  const Real left[4] = {a[0], 0, a[1], 0};
  MmaDepth8(both, left, b);
  c[0] = both[0], c[1] = both[1];
}
// mma.m16n8k4: the first half of the columns of A.
inline void MmaDepth4(double (&c)[4], const double (&a)[2], double b) {
  const double left[4] = {a[0], a[1], 0, 0}, right[2] = {b, 0};
  MmaDepth8(c, left, right);
}

// Describes B in shared memory, in units of 16 bytes: where it begins, and the distances to the
// next four k and to the next eight j.
template <int kColumns>
uint64_t DescribeMatrix(const uint32_t* b) {
  const auto bytes = reinterpret_cast<const std::byte*>(b) - HostThreadBlock::Current().shared();
  Require(bytes % 16 == 0 && bytes / 16 < 1 << 14, "a matrix that cannot be described");
  return uint64_t{8} << 32 | uint64_t{kColumns} << 16 | static_cast<uint64_t>(bytes / 16);
}
template <int kTiles>
void StartProduct(float (&c)[kTiles][4], const uint32_t (&a)[4], uint64_t described) {
  const int along = described >> 16 & 0x3fff, across = described >> 32 & 0x3fff;
  Require(along == 8 * kTiles && across == 8, "a matrix of other columns than the sums");
  const auto* const b = reinterpret_cast<const uint32_t*>(HostThreadBlock::Current().shared() +
                                                          (described & 0x3fff) * 16);
  const auto read = [](uint32_t bits) {
    return static_cast<double>(__uint_as_float(bits & ~kIgnored));
  };
  AmongLanes(
      [&](auto& lane) {
        for (int i = 0; i < 4; ++i) lane.a[i] = read(a[i]);
      },
      [&](const HostLanes& lanes) {
        MultiplyLanes(c, lanes,
                      [&](int k, int j) { return read(b[(k / 4 * along + j) * 4 + k % 4]); });
      });
}
template <int kTiles>
void StartFreshProduct(float (&c)[kTiles][4], const uint32_t (&a)[4], uint64_t described) {
  for (int i = 0; i < 4 * kTiles; ++i) c[i / 4][i % 4] = 0;
  StartProduct(c, a, described);
}

#endif

// Operands are not split.
inline constexpr int kFloatParts = 1;
template <int kRows, int kColumns>
void SplitInto(float (&parts)[kFloatParts][kRows][kColumns], int i, int j, float x) {
  parts[0][i][j] = x;
}
template <int kRows, int kColumns, int kLeft>
void MultiplyParts(float (&c)[kRows][kColumns][4], const float (&a)[kFloatParts][kRows][kLeft],
                   const float (&b)[kFloatParts][kColumns][2], int first) {
  for (int i = 0; i < kRows; ++i) {
    for (int j = first; j < kColumns; ++j) MmaDepth8(c[i][j], a[0][i], b[0][j]);
  }
}

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_ARCH_HOST_HOST_PRODUCTS_H_
