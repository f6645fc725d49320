// Device code: products A B' of 64 rows of float in shared memory, of which a lane reads more than
// one scalar at a time.
#ifndef BLOCKD_ENGINE_GPU_ROW_PRODUCT_H_
#define BLOCKD_ENGINE_GPU_ROW_PRODUCT_H_

#include "blockd/engine/gpu/fragments.h"

namespace blockd::gpu {

// Operands that several warps read are kept by rows. Eight rows' 16 bytes are in different banks,
// and so is what lanes of a TriangleProduct have.
inline constexpr int kKeptTile = 64, kKeptLead = kKeptTile + 4;
__device__ inline int KeptAt(int row, int column) { return row * kKeptLead + (column ^ (row & 8)); }

// A warp's product of 16 kLeft rows of A and 32 of B, both kept by rows.
template <int kLeft>
class RowProduct {
 public:
  // Entry e, 0 or 1, of the i-th pair is row LeftRow(i) of A by row RightRow(i) + e of B.
  static constexpr int kPairs = 8 * kLeft;
  __device__ static int LeftRow(int i) { return i / 8 * 16 + i % 2 * 8 + Lane() / 4; }
  __device__ static int RightRow(int i) { return i / 2 % 4 * 8 + Lane() % 4 * 2; }
  __device__ float Get(int i, int e) const { return sums_[i / 8][i / 2 % 4][i % 2 * 2 + e]; }

  // a and b: first rows, of each 16.
  __device__ void Form(const float* a, const float* b) {
    const int lane = Lane(), left_row = lane % 16, right_row = lane / 16 * 8 + lane % 8;
    a += left_row * kKeptLead + lane / 16 * 4;
    b += right_row * kKeptLead + lane / 8 % 2 * 4;
#pragma unroll 4
    for (int k = 0; k < kKeptTile; k += 8) {
      const int side = k % 16 == 0 ? 1 : -1;
      const float* const at_a = a + side * (left_row & 8) + k;
      const float* const at_b = b + side * (right_row & 8) + k;
      float left[kLeft][4], right[4][2];
#pragma unroll
      for (int i = 0; i < kLeft; ++i) LoadMatrices(left[i], at_a + 16 * i * kKeptLead);
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        float two[4];
        LoadMatrices(two, at_b + 8 * j * kKeptLead);
        right[j][0] = two[0], right[j][1] = two[1];
        right[j + 1][0] = two[2], right[j + 1][1] = two[3];
      }
      MultiplyTiles(sums_, left, right);
    }
  }

 private:
  float sums_[kLeft][4][4] = {};
};

// A warp's product of twice 16 rows of a lower triangle and 32 of B, whole and column-major with a
// leading dimension that is 8 modulo 32. A lane has neighbouring rows of both, for in which order
// they are the instruction's is open: the banks of memory are all busy when they are read, and what
// a column's stores to global memory write is whole sectors.
template <int kLead>
class TriangleProduct {
 public:
  // Row LeftRow(i), i < 4, of the triangle by rows RightRow(h) to RightRow(h) + 3, h < 2, of B.
  __device__ int LeftRow(int i) const {
    return 16 * (i < 2 ? low_ : high_) + 2 * (Lane() / 4) + i % 2;
  }
  __device__ static int RightRow(int h) { return RightRows(2 * (Lane() % 4) + h); }
  __device__ float Get(int i, int h, int e) const { return sums_[i / 2][e][i % 2 * 2 + h]; }

  // Has the low-th and the high-th 16 rows, low < high.
  __device__ TriangleProduct(int low, int high) : low_(low), high_(high) {}

  // Above the diagonal's 8 x 8 tiles anything may stand.
  __device__ void Form(const float* triangle, const float* b) {
    const int group = Lane() / 4;
    triangle += Lane() % 4 * kLead + 2 * group;
    b += Lane() % 4 * kLead + RightRows(group);
    const float* const rows[2] = {triangle + 16 * low_, triangle + 16 * high_};
    const int diagonal[2] = {16 * low_ + group / 4 * 8, 16 * high_ + group / 4 * 8};
    // The low rows have fewer columns.
    int k = 0;
#pragma unroll 2
    for (; k < 16 * low_ + 16; k += 8) Step(sums_, rows, diagonal, b, k);
#pragma unroll 2
    for (; k < 16 * high_ + 16; k += 8) {
      Step(reinterpret_cast<float(&)[1][4][4]>(sums_[1]), rows + 1, diagonal + 1, b, k);
    }
  }

 private:
  template <int kLeft>
  __device__ static void Step(float (&sums)[kLeft][4][4], const float* const* rows,
                              const int* diagonal, const float* b, int k) {
    float left[kFloatParts][kLeft][4], right[kFloatParts][4][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = (k + 4 * half) * kLead;
#pragma unroll
      for (int i = 0; i < kLeft; ++i) {
        float two[2] = {};
        if (k <= diagonal[i]) LoadVector(two, rows[i] + at);
        SplitInto(left, i, 2 * half, two[0]);
        SplitInto(left, i, 2 * half + 1, two[1]);
      }
      float columns[4];
      LoadVector(columns, b + at);
#pragma unroll
      for (int j = 0; j < 4; ++j) SplitInto(right, j, half, columns[j]);
    }
    MultiplyParts(sums, left, right);
  }
  // Of 32 rows of B those four that are the instruction's row g.
  __device__ static int RightRows(int g) { return g % 2 == 0 ? 2 * g : 16 + 4 * (g / 2 ^ 1); }

  const int low_, high_;
  float sums_[2][4][4] = {};
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_ROW_PRODUCT_H_
