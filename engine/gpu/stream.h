// A warp's stream of matrices: what a solve reads of the factor is known before its vectors are, so
// a warp loads ahead, into registers, across matrices, blocks and barriers. And the product of what
// arrives with vectors in shared memory, by the FP64 matrix instruction.
//
// A warp multiplies strips of a matrix M: 16 rows of M (forward, M v) or 16 columns (backward,
// M' v), in pieces of 16 along the other dimension. Of 8 steps along the vectors a lane, 4g + t,
// takes 2t and 2t + 1, of the strip 2g and 2g + 1: two scalars side by side in memory each time.
#ifndef BLOCKD_ENGINE_GPU_STREAM_H_
#define BLOCKD_ENGINE_GPU_STREAM_H_

#include "blockd/engine/gpu/level.h"

namespace blockd::gpu {

inline constexpr int kStrip = 16;
inline constexpr int kColumns = 8;  // right-hand sides of one matrix instruction

// Pieces of a strip at begin, begin + step, ... below end. All are multiples of 16, or end is n.
template <typename T>
struct Span {
  const T* matrix = nullptr;
  bool triangle = false;  // inv(L), stored in block columns
  bool forward = false;
  int strip = 0;  // first row or column
  int begin = 0, end = 0;
  int log_slices = 0;  // every 2^log_slices-th piece is this warp's

  __device__ int step() const { return kStrip << log_slices; }
  __device__ int pieces() const {
    return begin < end ? (end - begin + step() - 1) >> (log_slices + 4) : 0;
  }
};

// What a lane has of a piece: for each 8 steps two pairs.
template <typename T>
struct Piece {
  T v[2][2][2];
};
__device__ inline void LoadPair(double (&pair)[2], const double* from) {
  const double2 value = __ldg(reinterpret_cast<const double2*>(from));
  pair[0] = value.x, pair[1] = value.y;
}
__device__ inline void LoadPair(float (&pair)[2], const float* from) {
  const float2 value = __ldg(reinterpret_cast<const float2*>(from));
  pair[0] = value.x, pair[1] = value.y;
}

// Where a lane's part of a span is. kWhole: n is a multiple of 16, so that only a triangle's
// diagonal needs care.
template <typename T, bool kWhole>
class SpanLoader {
 public:
  __device__ void Begin(const Span<T>& span, int n) {
    span_ = span;
    if constexpr (kWhole) Locate(n);
  }
  __device__ int pieces() const { return span_.pieces(); }

  __device__ void Load(Piece<T>& piece, int n) {
    if constexpr (kWhole) {
      LoadWhole(piece, n);
    } else {
      LoadWithin(piece, n);
    }
  }

 private:
  __device__ static int G() { return Lane() >> 2; }
  __device__ static int T2() { return 2 * (Lane() & 3); }
  // Scalars before the block column that starts at column `first`.
  __device__ static int Before(int first, int n) {
    return first * n - first * (first - kPanelColumns) / 2;
  }

  __device__ void Locate(int n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int k = span_.begin + 8 * h + T2(), s = span_.strip + 2 * G();
      int first = 0;
      if (span_.triangle) first = span_.forward ? span_.begin + 8 * h : s & -kPanelColumns;
      const int column = span_.forward ? k : s, row = span_.forward ? s : k;
      lead_[h] = n - first;
      at_[h] = Before(first, n) + (column - first) * lead_[h] + row - first;
      if (first == 0) at_[h] = column * n + row;
    }
    advance_ = span_.forward ? span_.step() * n : span_.step();
  }

  __device__ void LoadWhole(Piece<T>& piece, int n) {
    if (span_.triangle && span_.begin == span_.strip) {
      LoadDiagonal(piece);
    } else {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        LoadPair(piece.v[h][0], span_.matrix + at_[h]);
        LoadPair(piece.v[h][1], span_.matrix + at_[h] + lead_[h]);
      }
    }
    span_.begin += span_.step();
    if (span_.triangle && span_.forward) {
      Locate(n);
    } else {
      at_[0] += advance_, at_[1] += advance_;
    }
  }

  // Above the diagonal nothing is stored.
  __device__ void LoadDiagonal(Piece<T>& piece) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (span_.forward ? h == 0 || G() >= 4 : h == 1 || G() < 4) {
        LoadPair(piece.v[h][0], span_.matrix + at_[h]);
        LoadPair(piece.v[h][1], span_.matrix + at_[h] + lead_[h]);
      } else {
        piece.v[h][0][0] = piece.v[h][0][1] = piece.v[h][1][0] = piece.v[h][1][1] = T{0};
      }
    }
  }

  __device__ void LoadWithin(Piece<T>& piece, int n) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int h = i >> 2, outer = i >> 1 & 1, inner = i & 1;
      const int k = span_.begin + 8 * h + T2() + (span_.forward ? outer : inner);
      const int s = span_.strip + 2 * G() + (span_.forward ? inner : outer);
      const int column = span_.forward ? k : s, row = span_.forward ? s : k;
      const int first = span_.triangle ? column & -kPanelColumns : 0;
      const bool stored = column < n && row < n && row >= first;
      const int at = first == 0 ? column * n + row
                                : Before(first, n) + (column - first) * (n - first) + row - first;
      piece.v[h][outer][inner] = stored ? __ldg(span_.matrix + at) : T{0};
    }
    span_.begin += span_.step();
  }

  Span<T> span_;
  int at_[2] = {}, lead_[2] = {};
  int advance_ = 0;
};

// 16 rows of a product and kSets times 8 columns. Two sums can take turns: each waits for its own
// last product only.
template <int kSets, int kTurns = 2>
struct Sums {
  double c[kTurns][kSets][4] = {};

  __device__ double At(int s, int e) const {
    return kTurns == 1 ? c[0][s][e] : c[0][s][e] + c[kTurns - 1][s][e];
  }
  __device__ void MoveTo(double (&values)[kSets][4]) const {
#pragma unroll
    for (int i = 0; i < 4 * kSets; ++i) values[i / 4][i % 4] = At(i / 4, i % 4);
  }
  __device__ void SubtractFrom(double (&values)[kSets][4]) const {
#pragma unroll
    for (int i = 0; i < 4 * kSets; ++i) {
      values[i / 4][i % 4] -= At(i / 4, i % 4);
    }
  }
  // body(row, column, value), row 0 to 15.
  template <typename Body>
  __device__ void ForEach(const Body& body) const {
    const int row = 2 * (Lane() >> 2), column = 2 * (Lane() & 3);
#pragma unroll
    for (int s = 0; s < kSets; ++s) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        body(row + (e >> 1), s * kColumns + column + (e & 1), At(s, e));
      }
    }
  }
};

__device__ inline void StorePair(double* to, double a, double b) {
  *reinterpret_cast<double2*>(to) = {a, b};
}
__device__ inline void StorePair(float* to, double a, double b) {
  *reinterpret_cast<float2*>(to) = {static_cast<float>(a), static_cast<float>(b)};
}
__device__ inline void ReadPair(double (&pair)[2], const double* from) {
  const double2 value = *reinterpret_cast<const double2*>(from);
  pair[0] = value.x, pair[1] = value.y;
}
__device__ inline void ReadPair(double (&pair)[2], const float* from) {
  const float2 value = *reinterpret_cast<const float2*>(from);
  pair[0] = static_cast<double>(value.x), pair[1] = static_cast<double>(value.y);
}

// sums += piece * v; v is where this lane's column and rows 2t of the piece's vectors are, `set`
// from one set of columns to the next; column of `there` sets are there.
template <bool kForward, typename T, int kSets, int kTurns>
__device__ inline void MultiplyPiece(Sums<kSets, kTurns>& sums, const Piece<T>& piece, const T* v,
                                     int set, int there) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const double a[4] = {static_cast<double>(piece.v[h][0][0]),
                         static_cast<double>(piece.v[h][!kForward][kForward]),
                         static_cast<double>(piece.v[h][kForward][!kForward]),
                         static_cast<double>(piece.v[h][1][1])};
#pragma unroll
    for (int s = 0; s < kSets; ++s) {
      double b[2] = {0, 0};
      if (s < there) ReadPair(b, v + s * set + 8 * h);
      Mma16x8x8(sums.c[h % kTurns][s], a, b);
    }
  }
}

// Rows between columns of vectors in shared memory: no two columns' reads meet in a bank.
BLOCKD_HOST_DEVICE inline int64_t VectorLead(int64_t rows) { return (rows + 31) / 32 * 32 + 8; }

// Pieces come in groups of up to kDepth of one span. While a group is multiplied the next one is
// loaded into the same registers.
// Source: bool Next(Span<T>*), the spans in the order in which they are multiplied; false while no
// more is known.
template <typename T, bool kWhole, int kDepth, typename Source>
class MatrixStream {
 public:
  __device__ MatrixStream(int n, Source source) : source_(source), n_(n) {
    loader_.Begin(Span<T>(), n);
  }

  __device__ Source& source() { return source_; }

  // Loads the next group, if none is loaded and one is known.
  __device__ void Fill() {
    if (group_ > 0) return;
    NextGroup();
#pragma unroll
    for (int d = 0; d < kDepth; ++d) LoadSlot(d);
  }
  // sums += a span of `pieces` pieces times vectors, v moving by `step` from one to the next.
  template <bool kForward, int kSets, int kTurns>
  __device__ void Multiply(Sums<kSets, kTurns>& sums, int pieces, const T* v, int step, int lead,
                           int columns) {
    const int g = Lane() >> 2;
    // Sets of which there is column g.
    const int there = g < columns ? 1 + (kColumns + g < columns) : 0;
    v += g * lead + 2 * (Lane() & 3);
#pragma unroll 1
    for (; pieces > 0; pieces -= kDepth) {
      NextGroup();
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        if (d < pieces) MultiplyPiece<kForward>(sums, slots_[d], v, kColumns * lead, there);
        v += step;
        LoadSlot(d);
      }
    }
  }

 private:
  __device__ void NextGroup() {
    group_ = loader_.pieces();
    while (group_ == 0) {
      Span<T> span;
      if (!source_.Next(&span)) return;
      loader_.Begin(span, n_);
      group_ = span.pieces();
    }
    if (group_ > kDepth) group_ = kDepth;
  }
  __device__ void LoadSlot(int d) {
    if (d < group_) loader_.Load(slots_[d], n_);
  }

  Source source_;
  SpanLoader<T, kWhole> loader_;
  Piece<T> slots_[kDepth];
  const int n_;
  int group_ = 0;  // pieces that are loaded
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_STREAM_H_
