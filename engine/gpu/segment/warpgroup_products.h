// Device code: products of blocks of up to 64 rows of float by a warpgroup (sm_90a).
//
// A product's left operand is what another product left in registers, a lane's columns 2t and 2t +
// 1 of each eight, which it takes for the instruction's k = t and t + 4. So right operands, which
// stand in shared memory in parts, have their columns in the order 0, 2, 4, 6, 1, 3, 5, 7.
#ifndef BLOCKD_ENGINE_GPU_SEGMENT_WARPGROUP_PRODUCTS_H_
#define BLOCKD_ENGINE_GPU_SEGMENT_WARPGROUP_PRODUCTS_H_

#include <cstdint>
#include <type_traits>

#include "engine/gpu/tile/fragments.h"

namespace blockd::gpu {

template <typename T, int kTile>
class WarpgroupProducts {
 protected:
  static_assert(std::is_same_v<T, float> && kTile == 64);
  static constexpr int kLead = kLd<T, kTile>;
  static constexpr int kGroupWarps = 4, kGroup = kGroupWarps * kWarp;
  static constexpr int kSpan = kTile / 2;
  static constexpr int kPart = kTile * kTile;  // words of an operand's big parts, or small
  static constexpr int kHalfPart = kPart / 2;  // of half of its columns
  static constexpr int kTiles = kTile / 8;     // of a product, along and across
  static constexpr int kSteps = kTiles / 2;    // of a product, half of the columns deep
  // A lane's part of a product of 64 or 32 columns: entry e of tile j is at row row() + e / 2 * 8,
  // column 8 j + column() + e % 2.
  using Sums = T[kTiles][4];
  using Half = T[kSteps][4];
  // The parts of a half, as products take it from the left.
  struct Parts {
    uint32_t big[kSteps][4], small[kSteps][4];
  };
  struct Lanes {
    int warp, lane;  // of the warpgroup, of the warp

    // Found anew each time, or registers would keep all places.
    __device__ explicit Lanes(int thread) {
      Renew(thread);
      warp = thread / kWarp % kGroupWarps, lane = thread % kWarp;
    }
    __device__ int row() const { return warp * 16 + lane / 4; }
    __device__ int column() const { return lane % 4 * 2; }
  };

  // Halves of A, first and rest: rest += first R', first = first X(0,0)'.
  __device__ static void DivideFirst(Half& first, Half& rest, const uint32_t* x) {
    Sums sums;
#pragma unroll
    for (int i = 0; i < kSteps * 4; ++i) {
      sums[i / 4][i % 4] = 0;
      sums[kSteps + i / 4][i % 4] = rest[i / 4][i % 4];
    }
    Multiply(sums, first, x);
#pragma unroll
    for (int i = 0; i < kSteps * 4; ++i) {
      first[i / 4][i % 4] = sums[i / 4][i % 4];
      rest[i / 4][i % 4] = sums[kSteps + i / 4][i % 4];
    }
  }

  // parts = those of the first 32 columns of kRows rows of X, R among them, in a product's order. X
  // is taken as zero above the 8 x 8 tiles on its diagonal, where other values stand.
  template <int kRows>
  __device__ static void SplitColumns(const T* x, uint32_t* parts, int thread) {
    constexpr int kBy = kGroup / kRows;
    const int row = static_cast<int>(static_cast<unsigned>(thread) % kRows);
    const int chunk = static_cast<int>(static_cast<unsigned>(thread) / kRows);
    x += row;
    uint4* const to = reinterpret_cast<uint4*>(parts) + row;
    T values[2 * kSteps / kBy][4];  // all before any is stored
#pragma unroll
    for (int i = 0; i < 2 * kSteps; i += kBy) {
      const int column = (i + chunk) / 2 * 8, odd = (i + chunk) % 2;
#pragma unroll
      for (int e = 0; e < 4; ++e) values[i / kBy][e] = x[(column + 2 * e + odd) * kLead];
    }
#pragma unroll
    for (int i = 0; i < 2 * kSteps; i += kBy) {
      const int column = (i + chunk) / 2 * 8;
      uint32_t big[4], small[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const SplitFloat part(column <= row ? values[i / kBy][e] : T{0});
        big[e] = part.big, small[e] = part.small;
      }
      to[(i + chunk) * kRows] = {big[0], big[1], big[2], big[3]};
      to[(i + chunk) * kRows + kPart / 4] = {small[0], small[1], small[2], small[3]};
    }
  }
  // parts = those of half of a block's columns.
  __device__ static void KeepParts(const Half& values, uint32_t* parts, int thread) {
    const Lanes mine(thread);
    parts += mine.warp * 64 + mine.lane;
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const SplitFloat part(values[j][e]);
        uint32_t* const to = parts + ((2 * j + e % 2) * kTile + e / 2 * 8) * 4;
        to[0] = part.big, to[kPart] = part.small;
      }
    }
  }

  // sums += A B', half of the columns deep; A as a product leaves it, B in parts.
  template <int kAcross>
  __device__ static void Multiply(T (&sums)[kAcross][4], const Half& a, const uint32_t* b) {
    Parts parts;
    Split(parts, a);
    MultiplyFrom(reinterpret_cast<T(&)[1][kAcross][4]>(sums), parts, {b});
  }
  __device__ static void Split(Parts& parts, const Half& a) {
#pragma unroll
    for (int i = 0; i < kSteps * 4; ++i) {
      const SplitFloat part(a[i / 4][i % 2 * 2 + i % 4 / 2]);
      parts.big[i / 4][i % 4] = part.big, parts.small[i / 4][i % 4] = part.small;
    }
  }
  // The same with several B. kFresh: sums = A B', whatever they were.
  struct Nothing {
    __device__ void operator()() const {}
  };
  template <bool kFresh = false, int kProducts, int kAcross, typename Work = Nothing>
  __device__ static void MultiplyFrom(T (&sums)[kProducts][kAcross][4], Parts& a,
                                      const uint32_t* const (&b)[kProducts],
                                      const Work& beside = {}) {
    constexpr int kRows = 8 * kAcross;
    uint64_t right[kProducts];
#pragma unroll
    for (int p = 0; p < kProducts; ++p) {
      right[p] = DescribeMatrix<kRows>(b[p]);
      auto low = static_cast<uint32_t>(right[p]);
      Renew(low);  // or registers would keep every step's
      right[p] = right[p] >> 32 << 32 | low;
      if (!kFresh) RenewAll(sums[p]);
    }
    RenewAll(a.big);
    RenewAll(a.small);
    BeginProducts();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int kind = 0; kind < 3; ++kind) {
#pragma unroll
        for (int p = 0; p < kProducts; ++p) {
          const auto& left = kind == 0 ? a.small[step] : a.big[step];
          const uint64_t from = right[p] + step * 2 * kRows + (kind == 1 ? kPart / 4 : 0);
          if (kFresh && step == 0 && kind == 0) {
            StartFreshProduct(sums[p], left, from);
          } else {
            StartProduct(sums[p], left, from);
          }
        }
      }
    }
    EndProducts();
    beside();
    WaitForProducts();
    RenewAll(a.big);
    RenewAll(a.small);
#pragma unroll
    for (int p = 0; p < kProducts; ++p) RenewAll(sums[p]);
  }
  template <typename Word, int kCount>
  __device__ static void RenewAll(Word (&words)[kCount][4]) {
#pragma unroll
    for (int i = 0; i < kCount * 4; ++i) Renew(words[i / 4][i % 4]);
  }
  // A half in parts in shared memory.
  __device__ static void LoadParts(Parts& parts, const uint32_t* a, int thread) {
    const Lanes mine(thread);
    const int row = mine.warp * 16 + mine.lane % 16;
    const uint32_t* const from = a + (mine.lane / 16 * kTile + row) * 4;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      LoadMatrices(parts.big[step], from + step * 8 * kTile);
      LoadMatrices(parts.small[step], from + step * 8 * kTile + kPart);
    }
  }

  // Scalars of the sums of a lower triangle of a square, in shared memory.
  static constexpr int kTriangle = kTiles * (kTiles + 1) / 2 * 64;
  __device__ static void AddTriangle(Sums& sums, const T* from, int thread) {
    ForTriangle(from, thread, [&](int j, int h, const T* at) {
      T two[2];
      LoadVector(two, at);
      sums[j][2 * h] += two[0], sums[j][2 * h + 1] += two[1];
    });
  }
  __device__ static void KeepTriangle(const Sums& sums, T* to, int thread) {
    ForTriangle(to, thread, [&](int j, int h, T* at) {
      const T two[2] = {sums[j][2 * h], sums[j][2 * h + 1]};
      StoreVector(at, two);
    });
  }

 private:
  // body(j, h, at) for the pairs of entries of a lower triangle that a lane has; at: where their
  // sums stand.
  template <typename Scalar, typename Body>
  __device__ static void ForTriangle(Scalar* triangle, int thread, const Body& body) {
    const Lanes mine(thread);
    const int warp = mine.warp, before = 15 * warp - 2 * warp * (warp - 1);
    Scalar* const all = triangle + 2 * mine.lane;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int pairs = before + (h == 0 ? -2 * warp : 7 - 4 * warp);
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        if (j >= 2 * warp + h) body(j, h, all + (pairs + j) * 64);
      }
    }
  }
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_SEGMENT_WARPGROUP_PRODUCTS_H_
