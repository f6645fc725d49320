// A warp's stream of matrices: what a solve reads of the factor is known before its vectors are, so
// a warp loads ahead, into registers or its own part of shared memory, across matrices, blocks and
// barriers. And the product of what arrives with vectors in shared memory, by the FP64 matrix
// instruction.
//
// A warp multiplies strips of a matrix M: some rows of M (forward, M v) or columns (backward, M'
// v), in pieces of 16 along the other dimension. A strip is 8 units of scalars side by side in
// memory, which a lane loads at once: 2 of them, and 16 rows, or 4 of float with large blocks, 32
// rows. Lane 4g + t has the unit g of the strip.
#ifndef BLOCKD_ENGINE_GPU_TILE_STREAM_H_
#define BLOCKD_ENGINE_GPU_TILE_STREAM_H_

#include "engine/gpu/arch/arch.h"
#include "engine/gpu/plan/level.h"

namespace blockd::gpu {

inline constexpr int kStrip = 16;   // of two scalars a unit
inline constexpr int kStep = 16;    // rows of the vectors that a piece is multiplied by
inline constexpr int kColumns = 8;  // right-hand sides of one matrix instruction

// Scalars of 16 bytes, and rows of a strip of such units.
template <typename T>
inline constexpr int kWideUnit = 16 / static_cast<int>(sizeof(T));
template <typename T>
inline constexpr int kWideStrip = 8 * kWideUnit<T>;

// Pieces of a strip at begin, begin + step, ... below end. All are multiples of 16, or end is n.
template <typename T>
struct Span {
  const T* matrix = nullptr;
  bool triangle = false;  // inv(L), stored in block columns
  bool forward = false;
  int strip = 0;  // first row or column
  int begin = 0, end = 0;
  int log_slices = 0;  // every 2^log_slices-th piece is this warp's

  __device__ int step() const { return kStep << log_slices; }
  __device__ int pieces() const {
    return begin < end ? (end - begin + step() - 1) >> (log_slices + 4) : 0;
  }
};

// Where (row, column) of a triangle is, in the block column that starts at column `first`.
__device__ inline int InTriangle(int row, int column, int first, int n) {
  return first * n - first * (first - kPanelColumns) / 2 + (column - first) * (n - first) + row -
         first;
}

// What a lane has of a piece: four units. Forward, unit 2h + j is of the column 8h + 2t + j.
// Backward, a unit of two is 2h + i, of the strip's column 2g + i and the rows from 8h + 2t on; one
// of four is i, of the column 4g + i and the rows from 4t on.
template <typename T, int kUnit>
struct Piece {
  T v[4][kUnit];

  // Of the h-th product of 16 x 8: the scalar of the unit's row (backward, column) i and the j-th
  // of the two vector rows.
  template <bool kForward>
  __device__ T At(int h, int i, int j) const {
    if (kForward) return v[2 * h + j][i];
    return kUnit == 2 ? v[2 * h + i][j] : v[i][2 * h + j];
  }
  // The first vector row that this lane has of the h-th product.
  template <bool kForward>
  __device__ static int Row(int h) {
    const int t = Lane() & 3;
    return kForward || kUnit == 2 ? 8 * h + 2 * t : 4 * t + 2 * h;
  }
};
__device__ inline void LoadUnit(double (&unit)[2], const double* from) {
  const double2 value = __ldg(reinterpret_cast<const double2*>(from));
  unit[0] = value.x, unit[1] = value.y;
}
__device__ inline void LoadUnit(float (&unit)[4], const float* from) {
  const float4 value = __ldg(reinterpret_cast<const float4*>(from));
  unit[0] = value.x, unit[1] = value.y, unit[2] = value.z, unit[3] = value.w;
}

// Where a lane's part of a span is, in units of 16 bytes. kWhole: n is a multiple of 16. Then
// what lies above a triangle's diagonal, where nothing is stored, is loaded from somewhere before
// and has to be cleared; so may rows be that a strip has below the last: they are the last ones.
// Without a branch, so that loads do not wait for one another.
template <typename T, bool kWhole>
class SpanLoader {
 public:
  static constexpr int kUnit = kWideUnit<T>;
  using WidePiece = Piece<T, kUnit>;

  __device__ void Begin(const Span<T>& span, int n) {
    span_ = span;
    if constexpr (kWhole) Locate(n);
  }
  __device__ int pieces() const { return span_.pieces(); }

  __device__ void Load(WidePiece& piece, int n) {
    if constexpr (kWhole) {
      LoadWhole(piece);
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
  __device__ static int G() { return Lane() >> 2; }
  // Of the unit u: its vector row (backward, the first) and its place in the strip (forward, the
  // first).
  template <bool kForward>
  __device__ static int VectorRow(int u) {
    const int t = Lane() & 3;
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
        at_[0] = InTriangle(strip, column, first, n);
        at_[1] = InTriangle(strip, column + 8, first + 8, n);
        advance_ = step * (lead_ - step / 2 + kPanelColumns / 2 - 1 - (column - first));
      } else {
        at_[0] = column * n + strip;
        at_[1] = at_[0] + 8 * n;
        advance_ = step * n;
      }
    } else {
      const int row = span_.begin + VectorRow<false>(0), first = strip & -kPanelColumns;
      if (span_.triangle) lead_ = n - first;
      at_[0] = span_.triangle ? InTriangle(row, strip, first, n) : strip * n + row;
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
      const int at = first == 0 ? column * n + row : InTriangle(row, column, first, n);
      piece.v[u][e] = stored ? __ldg(span_.matrix + at) : T{0};
    }
  }

  Span<T> span_;
  int at_[2] = {}, lead_ = 0;
  int advance_ = 0, lead_drop_ = 0;
};

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
    if constexpr (kWhole) {
      Locate(span, n);
    } else {
      k_ = span.begin, strip_ = span.strip, advance_ = span.step();
    }
  }
  __device__ bool HasPiece() const { return left_ > 0; }

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
    if constexpr (!kWhole) {
      k_ += advance_;
    } else if (kForward && triangle_) {
      at_ += advance_ * (lead_ - T2() - 1) - advance_ * (advance_ - kPanelColumns) / 2;
      lead_ -= advance_;
    } else {
      at_ += advance_;
    }
  }

 private:
  __device__ static int G() { return Lane() >> 2; }
  __device__ static int T2() { return 2 * (Lane() & 3); }
  __device__ void Locate(const Span<T>& span, int n) {
    const int k = span.begin + T2(), s = span.strip + 2 * G();
    const int column = kForward ? k : s, row = kForward ? s : k;
    advance_ = span.step();
    diagonal_ = 0;
    if (triangle_) {
      const int first = kForward ? span.begin : s & -kPanelColumns;
      lead_ = n - first;
      at_ += InTriangle(row, column, first, n);
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
      const int at = triangle_ ? InTriangle(row, column, first, n) : column * n + row;
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

// A strip of a product and kSets times 8 columns.
template <int kSets, int kUnit = 2>
struct Sums {
  static constexpr int kTiles = kUnit / 2;  // of 16 rows
  double c[kSets][kTiles][4] = {};

  // Row e / 2 of this lane's unit and column e % 2 of its two.
  __device__ double& At(int s, int e) { return c[s][e / 4][e % 4]; }
  __device__ double At(int s, int e) const { return c[s][e / 4][e % 4]; }
  // body(row, column, value), row 0 to 8 kUnit - 1, pairs of columns of which there are some.
  template <typename Body>
  __device__ void ForEach(int columns, const Body& body) const {
    const int row = kUnit * (Lane() >> 2), column = 2 * (Lane() & 3);
#pragma unroll
    for (int s = 0; s < kSets; ++s) {
      if (s * kColumns + column >= columns) continue;
#pragma unroll
      for (int e = 0; e < 2 * kUnit; ++e) {
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

// sums += piece * v; v is where this lane's column of the piece's vectors begins, `set` from one
// set of columns to the next; column of `there` sets are there. What is `second` further on is
// added to v, if halves.
template <bool kForward, typename T, int kSets, int kUnit>
__device__ inline void MultiplyPiece(Sums<kSets, kUnit>& sums, const Piece<T, kUnit>& piece,
                                     const T* v, int set, int there, int second = 0,
                                     bool halves = false) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const T* const rows = v + Piece<T, kUnit>::template Row<kForward>(h);
    double a[kUnit / 2][4];
#pragma unroll
    for (int i = 0; i < 2 * kUnit; ++i) {
      a[i / 4][i % 4] =
          static_cast<double>(piece.template At<kForward>(h, i / 4 * 2 + i % 2, i / 2 % 2));
    }
#pragma unroll
    for (int s = 0; s < kSets; ++s) {
      double b[2] = {0, 0};
      if (s < there) ReadPair(b, rows + s * set);
      if (s < there && halves) {
        double added[2];
        ReadPair(added, rows + second + s * set);
        b[0] += added[0], b[1] += added[1];
      }
#pragma unroll
      for (int m = 0; m < kUnit / 2; ++m) Mma16x8x8(sums.c[s][m], a[m], b);
    }
  }
}

// Rows between columns of vectors in shared memory: no two columns' reads meet in a bank.
BLOCKD_HOST_DEVICE constexpr int64_t VectorLead(int64_t rows) { return (rows + 31) / 32 * 32 + 8; }

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
    const int g = Lane() >> 2, step = span.step();
    // Sets of which there is column g.
    const int there = g < columns ? 1 + (kColumns + g < columns) : 0;
    // Vector rows before the piece and below the strip's first.
    int below = span.triangle ? span.begin - span.strip : kWideStrip<T>;
    v += g * lead;
#pragma unroll 1
    for (int pieces = span.pieces(); pieces > 0; pieces -= kDepth) {
      if (span.forward) {
        MultiplyGroup<true>(sums, span, v, kColumns * lead, there, pieces, below);
      } else {
        MultiplyGroup<false>(sums, span, v, kColumns * lead, there, pieces, below);
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
        if (kWhole && static_cast<unsigned>(below) < kWideStrip<T>) {
          SpanLoader<T, kWhole>::template ClearAbove<kForward>(slots_[d], below);
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
    const int g = Lane() >> 2;
    // Sets of which there is column g.
    const int there = g < columns ? 1 + (kColumns + g < columns) : 0;
    v += g * lead;
#pragma unroll 1
    for (; pieces > 0 && loader_.HasPiece(); --pieces) {
      Piece<T, 2> piece;
      T* const at = place_ + at_ * kPieceScalars;
      if constexpr (kCopiesAside) {
        CopyWaitButLast(depth_ - 1);
        ReadPiece(piece, at);
      } else {
        loader_.Load([&](int h, int i) { return piece.v[2 * h + i]; }, source_.n());
        Advance();
      }
      MultiplyPiece<kForward>(sums, piece, v, kColumns * lead, there, second, halves);
      if constexpr (kCopiesAside) {
        CopyTo(at);
        NextPlace();
      }
      v += step;
    }
    if (!kCopiesAside || pieces == 0) return;
    // All that is left is under way, mostly since long ago.
    CopyWait();
    constexpr int kTogether = kWideUnit<T> / 2;  // as registers allow
#pragma unroll kTogether
    for (; pieces > 0; --pieces) {
      Piece<T, 2> piece;
      ReadPiece(piece, place_ + at_ * kPieceScalars);
      NextPlace();
      MultiplyPiece<kForward>(sums, piece, v, kColumns * lead, there, second, halves);
      v += step;
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

#endif  // BLOCKD_ENGINE_GPU_TILE_STREAM_H_
