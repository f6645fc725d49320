// Device code: a warp's stream of spans by way of registers, for large blocks.
#ifndef BLOCKD_ENGINE_GPU_TILE_REGISTER_STREAM_H_
#define BLOCKD_ENGINE_GPU_TILE_REGISTER_STREAM_H_

#include "engine/gpu/tile/span.h"

namespace blockd::gpu {

__device__ inline void LoadUnit(double (&unit)[2], const double* from) {
  const double2 value = __ldg(reinterpret_cast<const double2*>(from));
  unit[0] = value.x, unit[1] = value.y;
}
__device__ inline void LoadUnit(float (&unit)[4], const float* from) {
  const float4 value = __ldg(reinterpret_cast<const float4*>(from));
  unit[0] = value.x, unit[1] = value.y, unit[2] = value.z, unit[3] = value.w;
}

// Where a lane's part of a span is, in units of 16 bytes. kWhole: n is a multiple of 16. Then,
// where a lane has so much, what lies above a triangle's diagonal, where nothing is stored, is
// loaded from somewhere before and has to be cleared; so may rows be that a strip has below the
// last: they are the last ones. Without a branch, so that loads do not wait for one another.
template <typename T, bool kWhole>
class SpanLoader {
 public:
  static constexpr int kUnit = kWideUnit<T>;
  using WidePiece = Piece<T, kUnit>;
  static constexpr bool kInUnits = kWhole && kUnit * sizeof(T) == 16;

  __device__ void Begin(const Span<T>& span, int n) {
    span_ = span;
    if constexpr (kInUnits) Locate(n);
  }
  __device__ int pieces() const { return span_.pieces(); }

  __device__ void Load(WidePiece& piece, int n) {
    if constexpr (kInUnits) {
      LoadWhole(piece);
    } else if constexpr (kIsAmd) {
      span_.forward ? LoadPiece<true, kWhole>(piece, span_, span_.begin, n)
                    : LoadPiece<false, kWhole>(piece, span_, span_.begin, n);
    } else {
      LoadWithin(piece, n);
    }
    span_.begin += span_.step();
  }

  // Clears what is above the diagonal; the piece's vector rows begin `below` rows below the
  // strip's.
  template <bool kForward>
  __device__ static void ClearAbove(WidePiece& piece, int below) {
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const int strip = kUnit * G() & -kPanelColumns, row = below + VectorRow<kForward>(u);
      const bool stored = kForward ? strip >= (row & -kPanelColumns) : row >= strip;
#pragma unroll
      for (int i = 0; i < kUnit; ++i) piece.v[u][i] = stored ? piece.v[u][i] : T{0};
    }
  }

 private:
  __device__ static int G() { return OperandRow(); }
  // The vector row of unit u (backward, its first one) and its place in the strip (forward, its
  // first one).
  template <bool kForward>
  __device__ static int VectorRow(int u) {
    const int t = OperandDepth();
    if (kForward) return 8 * (u >> 1) + 2 * t + (u & 1);
    return kUnit == 2 ? 8 * (u >> 1) + 2 * t : 4 * t;
  }
  template <bool kForward>
  __device__ static int StripRow(int u) {
    if (kForward) return kUnit * G();
    return kUnit * G() + (kUnit == 2 ? u & 1 : u);
  }
  __device__ void Locate(int n) {
    const int step = span_.step();
    int strip = span_.strip + kUnit * G();
    if (strip > n - kUnit) strip = n - kUnit;
    lead_ = n;
    lead_drop_ = 0;
    if (span_.forward) {
      const int column = span_.begin + VectorRow<true>(0), first = span_.begin;
      if (span_.triangle) {
        // Block columns get shorter.
        lead_ = n - first;
        lead_drop_ = step;
        at_[0] = TriangleOffset(strip, column, first, n);
        at_[1] = TriangleOffset(strip, column + 8, first + 8, n);
        advance_ = step * (lead_ - step / 2 + kPanelColumns / 2 - 1 - (column - first));
      } else {
        at_[0] = column * n + strip;
        at_[1] = at_[0] + 8 * n;
        advance_ = step * n;
      }
    } else {
      const int row = span_.begin + VectorRow<false>(0), first = strip & -kPanelColumns;
      if (span_.triangle) lead_ = n - first;
      at_[0] = span_.triangle ? TriangleOffset(row, strip, first, n) : strip * n + row;
      at_[1] = at_[0] + (kUnit == 2 ? 8 : 2 * lead_);
      advance_ = step;
    }
  }

  __device__ void LoadWhole(WidePiece& piece) {
    const int second = lead_drop_ == 0 ? 0 : 8;
    const T* const from[2] = {span_.matrix + at_[0], span_.matrix + at_[1]};
    LoadUnit(piece.v[0], from[0]);
    LoadUnit(piece.v[1], from[0] + lead_);
    LoadUnit(piece.v[2], from[1]);
    LoadUnit(piece.v[3], from[1] + (lead_ - second));
    at_[0] += advance_;
    at_[1] += advance_ - second * lead_drop_;
    advance_ -= lead_drop_ * lead_drop_;
    lead_ -= lead_drop_;
  }

  __device__ void LoadWithin(WidePiece& piece, int n) {
    span_.forward ? LoadWithin<true>(piece, n) : LoadWithin<false>(piece, n);
  }
  template <bool kForward>
  __device__ void LoadWithin(WidePiece& piece, int n) {
#pragma unroll
    for (int i = 0; i < 4 * kUnit; ++i) {
      const int u = i / kUnit, e = i % kUnit;
      const int k = span_.begin + VectorRow<kForward>(u) + (kForward ? 0 : e);
      const int s = span_.strip + StripRow<kForward>(u) + (kForward ? e : 0);
      const int column = kForward ? k : s, row = kForward ? s : k;
      const int first = span_.triangle ? column & -kPanelColumns : 0;
      const bool stored = column < n && row < n && row >= first;
      const int at = first == 0 ? column * n + row : TriangleOffset(row, column, first, n);
      piece.v[u][e] = stored ? __ldg(span_.matrix + at) : T{0};
    }
  }

  Span<T> span_;
  int at_[2] = {}, lead_ = 0;
  int advance_ = 0, lead_drop_ = 0;
};

// Pieces come in groups of up to kDepth of one span. When a group has been multiplied the next one
// is loaded into the same registers, all at once: the compiler has a warp wait for everything that
// it loads at the first use of any.
// Source: bool Next(Span<T>*), the spans in the order in which they are multiplied; false while no
// more is known.
template <typename T, bool kWhole, int kDepth, typename Source>
class MatrixStream {
 public:
  static constexpr int kUnit = kWideUnit<T>;

  __device__ MatrixStream(int n, Source source) : source_(source), n_(n) {
    loader_.Begin(Span<T>(), n);
  }

  __device__ Source& source() { return source_; }

  // Loads the next group, if none is loaded and one is known.
  __device__ void Fill() {
    if (group_ == 0) LoadGroup();
  }
  // sums += a span times vectors; v is where those of its first piece are. ahead: what comes after
  // the span is loaded at once; otherwise by Fill, when nothing waits for the sums any more.
  template <int kSets>
  __device__ void Multiply(Sums<kSets, kUnit>& sums, const Span<T>& span, const T* v, int lead,
                           int columns, bool ahead) {
    const int g = OperandRow(), step = span.step();
    // Products of which there is column g.
    const int there = g < columns ? 1 + (kProductColumns + g < columns) : 0;
    // Vector rows before the piece and below the strip's first.
    int below = span.triangle ? span.begin - span.strip : kWideStrip<T>;
    v += g * lead;
#pragma unroll 1
    for (int pieces = span.pieces(); pieces > 0; pieces -= kDepth) {
      if (span.forward) {
        MultiplyGroup<true>(sums, span, v, kProductColumns * lead, there, pieces, below);
      } else {
        MultiplyGroup<false>(sums, span, v, kProductColumns * lead, there, pieces, below);
      }
      v += kDepth * step;
      if (span.triangle) below += kDepth * step;
      group_ = 0;
      if (ahead || pieces > kDepth) LoadGroup();
    }
  }

 private:
  template <bool kForward, int kSets>
  __device__ void MultiplyGroup(Sums<kSets, kUnit>& sums, const Span<T>& span, const T* v, int set,
                                int there, int pieces, int below) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      if (d < pieces) {
        if constexpr (SpanLoader<T, kWhole>::kInUnits) {
          if (static_cast<unsigned>(below) < kWideStrip<T>) {
            SpanLoader<T, kWhole>::template ClearAbove<kForward>(slots_[d], below);
          }
        }
        MultiplyPiece<kForward>(sums, slots_[d], v, set, there);
      }
      v += span.step();
      if (span.triangle) below += span.step();
    }
  }
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
  __device__ void LoadGroup() {
    NextGroup();
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      if (d < group_) loader_.Load(slots_[d], n_);
    }
  }

  Source source_;
  SpanLoader<T, kWhole> loader_;
  Piece<T, kUnit> slots_[kDepth];
  const int n_;
  int group_ = 0;  // pieces that are loaded
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_TILE_REGISTER_STREAM_H_
