// Device code: which entries of the matrices of a product the lanes of a warp have, C += A B, where
// C has 16 rows and kProductColumns columns. What follows from it holds for NVIDIA's instructions
// (m16n8k8, m16n8k4, m8n8k4: PTX ISA, "Matrix fragments") and AMD's (16x16x4 and 4x4x4 with four
// blocks: CDNA3 ISA, "Dense matrix register layouts", and AMD's matrix instruction calculator).
//
// Four columns of A deep, a lane has row OperandRow(), and 8 below where there are 8 of these, of
// column OperandDepth() of A, and column OperandRow() of row OperandDepth() of B. So all that
// differs is how many such rows there are, and which entries of C a lane has.
#ifndef BLOCKD_ENGINE_GPU_ARCH_FRAGMENT_LAYOUT_H_
#define BLOCKD_ENGINE_GPU_ARCH_FRAGMENT_LAYOUT_H_

#if defined(BLOCKD_GPU_ON_HOST)
#include "engine/gpu/arch/host/host_arch.h"
#else
#include "engine/gpu/arch/warp.h"
#endif

namespace blockd::gpu {

inline constexpr int kOperandRows = kWarp / 4;
inline constexpr int kProductColumns = kOperandRows;
// Rows of A that a lane has.
inline constexpr int kLeftRows = 16 / kOperandRows;

__device__ inline int OperandRow() { return kIsAmd ? Lane() & 15 : Lane() >> 2; }
__device__ inline int OperandDepth() { return kIsAmd ? Lane() >> 4 : Lane() & 3; }

// True if the i-th row of A that a lane has is one of the upper eight.
__device__ inline bool IsUpperRow(int i) { return kIsAmd ? (OperandRow() & 8) == 0 : i == 0; }

// The four entries of C that a lane has: kRows of each of kColumns columns side by side, from
// (Row(), Column()) on, kStep rows apart. `Real` is what the instruction adds up.
template <typename Real>
struct ResultLayout {
  static constexpr int kColumns = kIsAmd ? 1 : 2, kRows = 4 / kColumns;
  static constexpr int kStep = !kIsAmd ? 8 : sizeof(Real) == 8 ? 4 : 1;
  __device__ static int Row() {
    return !kIsAmd ? OperandRow() : kStep == 4 ? OperandDepth() : 4 * OperandDepth();
  }
  __device__ static int Column() { return kIsAmd ? OperandRow() : 2 * OperandDepth(); }
  // Where entry e is from there.
  __device__ static constexpr int Down(int e) { return e / kColumns * kStep; }
  __device__ static constexpr int Across(int e) { return e % kColumns; }
};

// The same of a product of matrices of 8 rows and columns, in double: AMD's instruction has four
// blocks of 4 x 4, which are those of C.
struct SmallLayout {
  static constexpr int kEntries = 64 / kWarp;  // of C, side by side in a row
  __device__ static int LeftRow() {
    return kIsAmd ? (Lane() >> 1 & 4) + (Lane() & 3) : OperandRow();
  }
  __device__ static int RightColumn() { return kIsAmd ? (Lane() & 7) : OperandRow(); }
  __device__ static int Row() { return kIsAmd ? (Lane() >> 1 & 4) + OperandDepth() : OperandRow(); }
  __device__ static int Column() { return kIsAmd ? (Lane() & 7) : 2 * OperandDepth(); }
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_ARCH_FRAGMENT_LAYOUT_H_
