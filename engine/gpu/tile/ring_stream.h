// Device code: a warp's stream of spans by way of shared memory, for small blocks.
#ifndef BLOCKD_ENGINE_GPU_TILE_RING_STREAM_H_
#define BLOCKD_ENGINE_GPU_TILE_RING_STREAM_H_

#include "engine/gpu/tile/span.h"

namespace blockd::gpu {

// Copies two scalars, or zeros if they are not stored.
__device__ inline void CopyPair(double* to, const double* from, bool stored) {
  CopyAsync16(to, from, stored ? 16 : 0);
}
__device__ inline void CopyPair(float* to, const float* from, bool stored) {
  if (stored) {
    CopyAsync(reinterpret_cast<float2*>(to), reinterpret_cast<const float2*>(from));
  } else {
    to[0] = to[1] = 0;
  }
}

// As SpanLoader, for a known direction and by asynchronous copies.
template <typename T, bool kForward, bool kWhole>
class StripLoader {
 public:
  __device__ void Begin(const Span<T>& span, int n) {
    left_ = span.pieces();
    triangle_ = span.triangle;
    at_ = span.matrix;
    if constexpr (kWhole && kCopiesAside) {
      Locate(span, n);
    } else {
      k_ = span.begin, strip_ = span.strip, advance_ = span.step();
    }
  }
  __device__ bool HasPiece() const { return left_ > 0; }

  // Loads a piece, of any span.
  __device__ void LoadHere(Piece<T, kUnitOfStrip>& piece, int n) const {
    LoadPiece<kForward, kWhole>(piece, {at_, triangle_, kForward, strip_}, k_, n);
  }
  // Copies a piece; pair(h, i) is where the pair v[h][i] of it goes to.
  template <typename Pair>
  __device__ void Load(const Pair& pair, int n) const {
    if constexpr (kWhole) {
      LoadWhole(pair);
    } else {
      LoadWithin(pair, n);
    }
  }
  // On to the next piece.
  __device__ void Advance() {
    --left_;
    if constexpr (!kWhole || !kCopiesAside) {
      k_ += advance_;
    } else if (kForward && triangle_) {
      at_ += advance_ * (lead_ - T2() - 1) - advance_ * (advance_ - kPanelColumns) / 2;
      lead_ -= advance_;
    } else {
      at_ += advance_;
    }
  }

 private:
  __device__ static int G() { return OperandRow(); }
  __device__ static int T2() { return 2 * OperandDepth(); }
  __device__ void Locate(const Span<T>& span, int n) {
    const int k = span.begin + T2(), s = span.strip + 2 * G();
    const int column = kForward ? k : s, row = kForward ? s : k;
    advance_ = span.step();
    diagonal_ = 0;
    if (triangle_) {
      const int first = kForward ? span.begin : s & -kPanelColumns;
      lead_ = n - first;
      at_ += TriangleOffset(row, column, first, n);
      const bool has_diagonal = (span.strip - span.begin) % span.step() == 0;
      if (has_diagonal) diagonal_ = kForward ? 1 : left_;
    } else {
      lead_ = n;
      at_ += column * n + row;
      if (kForward) advance_ *= n;
    }
  }

  // Above the diagonal nothing is stored.
  template <typename Pair>
  __device__ void LoadWhole(const Pair& pair) const {
    const bool whole = left_ != diagonal_;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const T* from = at_;
      int lead = lead_;
      if (h == 1 && !kForward) from += kPanelColumns;
      if (h == 1 && kForward) {
        from += kPanelColumns * (triangle_ ? lead_ - T2() - 1 : lead_);
        if (triangle_) lead -= kPanelColumns;
      }
      const bool stored = whole || (h == 1) != kForward || (G() < 4) != kForward;
      CopyPair(pair(h, 0), from, stored);
      CopyPair(pair(h, 1), from + lead, stored);
    }
  }

  template <typename Pair>
  __device__ void LoadWithin(const Pair& pair, int n) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int h = i >> 2, outer = i >> 1 & 1, inner = i & 1;
      const int k = k_ + 8 * h + T2() + (kForward ? outer : inner);
      const int s = strip_ + 2 * G() + (kForward ? inner : outer);
      const int column = kForward ? k : s, row = kForward ? s : k;
      const int first = triangle_ ? column & -kPanelColumns : 0;
      const int at = triangle_ ? TriangleOffset(row, column, first, n) : column * n + row;
      T* to = pair(h, outer) + inner;
      if (column < n && row < n && row >= first) {
        CopyAsync(to, at_ + at);
      } else {
        *to = T{0};
      }
    }
  }

  const T* at_ = nullptr;  // this lane's first scalar of the piece, or the matrix
  int left_ = 0;           // pieces
  int advance_ = 0;
  bool triangle_ = false;
  int lead_ = 0, diagonal_ = 0;  // diagonal_: pieces left when the diagonal's is next; 0: not
  int k_ = 0, strip_ = 0;
};

inline constexpr int kPieceScalars = kStrip * kStrip;
inline constexpr int kMostAhead = 6;

// Pieces are copied to shared memory ahead, of whatever spans: each has a place of `depth`, and
// when it has been multiplied the next one that is not under way takes its place. A lane copies
// what it multiplies itself, so nothing is to be waited for but its own copies, in their order. (As
// loads into registers they would wait for one another: the hardware tells apart six kinds of loads
// that are under way, and the compiler takes one for all that a loop has.) Source: bool
// Next(Span<T>*), the spans in the order in which they are multiplied; int n().
template <typename T, bool kForward, bool kWhole, typename Source>
class RingStream {
 public:
  // places: in shared memory, this warp's, depth * kPieceScalars.
  __device__ RingStream(Source source, T* places, int depth)
      : source_(source), place_(places + 2 * Lane()), depth_(depth) {
    FindPiece();
    if constexpr (kCopiesAside) {
#pragma unroll 1
      for (int i = 0; i < depth; ++i) CopyTo(place_ + i * kPieceScalars);
    }
  }

  // sums += the next `pieces` pieces times vectors, v moving by `step` from one to the next.
  // second, halves: as MultiplyPiece has them.
  template <int kSets>
  __device__ void Multiply(Sums<kSets>& sums, int pieces, const T* v, int step, int lead,
                           int columns, int second, bool halves) {
    const int g = OperandRow();
    // Products of which there is column g.
    const int there = g < columns ? 1 + (kProductColumns + g < columns) : 0;
    v += g * lead;
#pragma unroll 1
    for (; pieces > 0 && loader_.HasPiece(); --pieces) {
      Piece<T, kUnitOfStrip> piece;
      T* const at = place_ + at_ * kPieceScalars;
      if constexpr (kCopiesAside) {
        CopyWaitButLast(depth_ - 1);
        ReadPiece(piece, at);
      } else {
        loader_.LoadHere(piece, source_.n());
        Advance();
      }
      MultiplyPiece<kForward>(sums, piece, v, kProductColumns * lead, there, second, halves);
      if constexpr (kCopiesAside) {
        CopyTo(at);
        NextPlace();
      }
      v += step;
    }
    if constexpr (kCopiesAside) {
      if (pieces == 0) return;
      // All that is left is under way, mostly since long ago.
      CopyWait();
      constexpr int kTogether = sizeof(T) == 8 ? 1 : 2;  // as registers allow
#pragma unroll kTogether
      for (; pieces > 0; --pieces) {
        Piece<T, kUnitOfStrip> piece;
        ReadPiece(piece, place_ + at_ * kPieceScalars);
        NextPlace();
        MultiplyPiece<kForward>(sums, piece, v, kProductColumns * lead, there, second, halves);
        v += step;
      }
    }
  }

 private:
  __device__ static void ReadPiece(Piece<T, 2>& piece, const T* at) {
#pragma unroll
    for (int i = 0; i < 4; ++i) ReadSame(piece.v[i], at + i * 2 * kWarp);
  }
  __device__ void NextPlace() { at_ = at_ + 1 == depth_ ? 0 : at_ + 1; }
  __device__ static void ReadSame(double (&pair)[2], const double* from) { ReadPair(pair, from); }
  __device__ static void ReadSame(float (&pair)[2], const float* from) {
    const float2 value = *reinterpret_cast<const float2*>(from);
    pair[0] = value.x, pair[1] = value.y;
  }
  __device__ static void CopyWaitButLast(int groups) {
    if (groups >= 5) {
      CopyWaitBut<5>();
    } else if (groups >= 3) {
      groups == 4 ? CopyWaitBut<4>() : CopyWaitBut<3>();
    } else if (groups >= 1) {
      groups == 2 ? CopyWaitBut<2>() : CopyWaitBut<1>();
    } else {
      CopyWaitBut<0>();
    }
  }

  // A group of copies, of nothing if there is no piece left.
  __device__ void CopyTo(T* place) {
    if (loader_.HasPiece()) {
      loader_.Load([&](int h, int i) { return place + (2 * h + i) * 2 * kWarp; }, source_.n());
      Advance();
    }
    CopyCommit();
  }
  __device__ void Advance() {
    loader_.Advance();
    FindPiece();
  }
  __device__ void FindPiece() {
    Span<T> span;
    while (!loader_.HasPiece() && source_.Next(&span)) loader_.Begin(span, source_.n());
  }

  Source source_;
  StripLoader<T, kForward, kWhole> loader_;
  T* const place_;  // this lane's of the first
  const int depth_;
  int at_ = 0;  // the place of the piece that is multiplied next
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_TILE_RING_STREAM_H_
