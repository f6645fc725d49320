// Device code: products A B' of 64 rows of float in shared memory, whose operands, where several
// warps read them, are kept as the matrix instruction takes them.
#ifndef BLOCKD_ENGINE_GPU_SPLIT_PRODUCT_H_
#define BLOCKD_ENGINE_GPU_SPLIT_PRODUCT_H_

#include "blockd/engine/gpu/fragments.h"

namespace blockd::gpu {

// Operands that are kept in parts: row-major tiles of which kKeptPart scalars on the next part is.
// Eight rows' 16 bytes are in different banks.
inline constexpr int kKeptTile = 64, kKeptLead = kKeptTile + 4, kKeptPart = kKeptTile * kKeptLead;

// A warp's product of 16 kLeft rows of A and 32 of B, both kept in parts.
template <int kLeft>
class KeptProduct {
 public:
  // Entry e, 0 or 1, of the i-th pair is row LeftRow(i) of A by row RightRow(i) + e of B.
  static constexpr int kPairs = 8 * kLeft;
  __device__ static int LeftRow(int i) { return i / 8 * 16 + i % 2 * 8 + Lane() / 4; }
  __device__ static int RightRow(int i) { return i / 2 % 4 * 8 + Lane() % 4 * 2; }
  __device__ float Get(int i, int e) const { return sums_[i / 8][i / 2 % 4][i % 2 * 2 + e]; }

  __device__ KeptProduct() = default;
  __device__ void Form(const float* a, const float* b) {
    const int lane = Lane();
    a += lane % 16 * kKeptLead + lane / 16 * 4;
    b += (lane / 16 * 8 + lane % 8) * kKeptLead + lane / 8 % 2 * 4;
#pragma unroll 4
    for (int k = 0; k < kKeptTile; k += 8) {
      float left[kFloatParts][kLeft][4], right[kFloatParts][4][2];
#pragma unroll
      for (int part = 0; part < kFloatParts; ++part) {
        const int at = part * kKeptPart + k;
#pragma unroll
        for (int i = 0; i < kLeft; ++i) LoadMatrices(left[part][i], a + at + 16 * i * kKeptLead);
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
          float two[4];
          LoadMatrices(two, b + at + 8 * j * kKeptLead);
          right[part][j][0] = two[0], right[part][j][1] = two[1];
          right[part][j + 1][0] = two[2], right[part][j + 1][1] = two[3];
        }
      }
      MultiplyParts(sums_, left, right);
    }
  }

 private:
  float sums_[kLeft][4][4] = {};
};

// A warp's product of 32 rows of a lower triangle and 32 of B, whole and column-major with a
// leading dimension that is 8 modulo 32. A lane has neighbouring rows of both, for in which order
// they are the instruction's is open: the banks of memory are all busy when they are read, and what
// a column's stores to global memory write is whole sectors.
template <int kLead>
class TriangleProduct {
 public:
  // Of row LeftRow(i), i < 4, of the triangle by rows RightRow(h) to RightRow(h) + 3, h < 2, of B.
  __device__ static int LeftRow(int i) { return 4 * Group() + i; }
  __device__ static int RightRow(int h) { return RightRows(2 * (Lane() % 4) + h); }
  __device__ float Get(int i, int h, int e) const { return sums_[i / 2][e][i % 2 * 2 + h]; }

  // `triangle` is `first` rows down and begins with the first column. Above the diagonal's 8 x 8
  // tiles anything may stand.
  __device__ void Form(const float* triangle, const float* b, int first) {
    const float* a = triangle + Lane() % 4 * kLead + LeftRow(0);
    b += Lane() % 4 * kLead + RightRows(Group());
    const int diagonal = first + LeftRow(0) / 8 * 8;
#pragma unroll 2
    for (int k = 0; k < first + 32; k += 8, a += 8 * kLead, b += 8 * kLead) {
      float left[kFloatParts][2][4], right[kFloatParts][4][2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float rows[4] = {}, columns[4];
        if (k <= diagonal) LoadVector(rows, a + 4 * half * kLead);
        LoadVector(columns, b + 4 * half * kLead);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          SplitInto(left, i / 2, 2 * half + i % 2, rows[i]);
          SplitInto(right, i, half, columns[i]);
        }
      }
      MultiplyParts(sums_, left, right);
    }
  }

 private:
  __device__ static int Group() { return Lane() / 4; }
  // Of 32 rows of B those four that are the instruction's row g.
  __device__ static int RightRows(int g) { return g % 2 == 0 ? 2 * g : 16 + 4 * (g / 2 ^ 1); }

  float sums_[2][4][4] = {};
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_SPLIT_PRODUCT_H_
