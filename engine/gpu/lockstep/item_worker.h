// Device code: what a thread block does with an item of a solve.
#ifndef BLOCKD_ENGINE_GPU_LOCKSTEP_ITEM_WORKER_H_
#define BLOCKD_ENGINE_GPU_LOCKSTEP_ITEM_WORKER_H_

#include "engine/gpu/lockstep/solve_items.h"
#include "engine/gpu/tile/register_stream.h"

namespace blockd::gpu::lockstep {

inline constexpr int kThreads = kSlots * kWarp;
inline constexpr int kMadeTogether = 16;          // items
inline constexpr int kItems = 2 * kMadeTogether;  // that are known at once
// Scalars from a column of sums to the next, and those of an item.
template <typename T>
inline constexpr int kSumLead = kWideStrip<T> + (sizeof(T) == 8 ? 2 : 1);
template <typename T, int kSets>
inline constexpr int kItemSums = kSlots* kSets* kColumns* kSumLead<T>;
// Scalars of a part of what an item's sums begin with, and bytes for both, or for the sums.
template <typename T, int kSets>
inline constexpr int kStartScalars = kSlots* kSets* kColumns* kWideStrip<T>;
template <typename T, int kSets>
inline constexpr int kSumBytes = kItemSums<T, kSets> * 8 >
                                         2 * kStartScalars<T, kSets>* static_cast<int>(sizeof(T))
                                     ? kItemSums<T, kSets> * 8
                                     : 2 * kStartScalars<T, kSets>* static_cast<int>(sizeof(T));

// A warp's strip and slice of the items that are known.
template <typename T>
class ItemSource {
 public:
  __device__ ItemSource(const Item<T>* items, int n, int vector_rows)
      : items_(items), n_(n), vector_rows_(vector_rows) {}
  // Items before `end` may be read.
  __device__ void Publish(int end) { end_ = end; }

  __device__ bool Next(Span<T>* span) {
    if (at_ >= end_) return false;
    const Item<T>& item = items_[at_ % kItems];
    *span = {};
    if (item.kind != Item<T>::kWork || matrix_ >= item.matrices) {
      ++at_;
      matrix_ = row_ = 0;
      return true;
    }
    const int row = item.Begin() + row_;
    *span = Of(item, matrix_, row, n_, vector_rows_);
    row_ += vector_rows_;
    if (row + vector_rows_ >= item.End(n_)) ++matrix_, row_ = 0;
    return true;
  }

  // The span that is multiplied by the vectors' rows from `row` on.
  __device__ static Span<T> Of(const Item<T>& item, int matrix, int row, int n, int vector_rows) {
    Span<T> span;
    const int log_strips = item.log_strips, slice = WarpIndex() >> log_strips;
    span.strip = item.row0 + (WarpIndex() & (item.strips() - 1)) * item.kStrip;
    if (span.strip >= n) return span;
    span.matrix = item.matrix[matrix];
    span.triangle = item.triangle;
    span.forward = item.forward;
    span.log_slices = kLogSlots - log_strips;
    span.begin = row + slice * kStep;
    span.end = row + vector_rows < n ? row + vector_rows : n;
    if (!item.triangle) return span;
    if (item.forward) {
      if (span.strip + item.kStrip < span.end) span.end = span.strip + item.kStrip;
    } else {
      while (span.begin < span.strip) span.begin += span.step();
    }
    return span;
  }

 private:
  const Item<T>* const items_;
  const int n_, vector_rows_;
  int at_ = 0, end_ = 0;
  int matrix_ = 0, row_ = 0;
};

// Pieces that are loaded ahead, as registers allow.
inline constexpr int kDepth = 2;

template <typename T, int kSets, bool kWhole>
class ItemWorker {
 public:
  __device__ ItemWorker(const SolveArgs& args, const Item<T>* items, unsigned char* memory)
      : n_(static_cast<int>(args.n)),
        vector_rows_(static_cast<int>(args.vector_rows)),
        lead_(vector_rows_ + 8),
        sums_(reinterpret_cast<double*>(memory)),
        vectors_(reinterpret_cast<T*>(memory + kSumBytes<T, kSets>)),
        stream_(n_, ItemSource<T>(items, n_, vector_rows_)) {}

  // Items before `end` are known.
  __device__ void Publish(int end) { stream_.source().Publish(end); }

  // Work for the next item that need not wait for other items: its matrices are loaded, and its
  // vectors' places found.
  __device__ void Fill() { stream_.Fill(); }
  __device__ void Prepare(const Item<T>& item) {
    start_ = vector_ = {};
    all_prepared_ = false;
    if (item.kind != Item<T>::kWork || !InUnits()) return;
    if (item.matrices > 1 && item.log_strips < 2) PrefetchRest(item);
    constexpr int kAll = kThreads * kUnit;
    const Rows rows = VectorRows(item, 0, item.Begin()), start = StartRows(item, 0);
    all_prepared_ = rows.rows * item.columns <= kAll && start.rows * item.columns <= kAll;
    if (item.matrices > 0 && (item.vector_added == 0 || all_prepared_)) {
      vector_ = First(rows, item.columns);
    }
    if (item.start != nullptr) start_ = First(start, item.columns);
  }

  // beside() is called once, while loads are under way. It finds out whether the next item is
  // ready; unless it is, others may be waiting for this one, and nothing is done before it ends.
  template <typename Beside>
  __device__ void Work(const Item<T>& item, const Beside& beside, const bool& ready) {
    // The prepared units go first, and mostly are all.
    const bool adds = all_prepared_ && vector_.to != nullptr && item.vector_added != 0;
    if (vector_.to != nullptr) Copy(vector_, 0);
    if (adds) Copy({Aside(0), vector_.from, vector_.stored}, item.vector_added);
    if (start_.to != nullptr) Copy(start_, 0);
    if (!all_prepared_) {
      LoadStart(item);
    } else if (start_.to != nullptr && item.start_added != 0) {
      Copy({start_.to + kStartScalars<T, kSets>, start_.from, start_.stored}, item.start_added);
    }
    ItemSums sums;
    bool first = true;
    for (int m = 0; first || m < item.matrices; ++m) {
      for (int row = item.Begin(); row < item.End(n_); row += vector_rows_) {
        if (!first) __syncthreads();
        if (m < item.matrices && !(first && all_prepared_)) {
          LoadRows(VectorRows(item, m, row), item.columns, first ? vector_.to : nullptr);
        }
        if (first) beside();
        Span<T> span;
        if (m < item.matrices) span = ItemSource<T>::Of(item, m, row, n_, vector_rows_);
        const T* v = vectors_ + span.begin - row;
        CopyWait();
        if (first && adds) {
          for (int i = 0; i < kUnit; ++i) vector_.to[i] += Aside(0)[i];
        }
        __syncthreads();
        if (first) Begin(item, sums);
        first = false;
        if (m == item.matrices) break;
        const bool last = m + 1 == item.matrices && row + vector_rows_ >= item.End(n_);
        stream_.Multiply(sums, span, v, lead_, item.columns, ready || !last);
        if (m == 0 && item.copy_to != nullptr) Copy(item, row);
      }
    }
    Finish(item, sums);
  }

 private:
  static constexpr int kUnit = 16 / static_cast<int>(sizeof(T)), kStrip = kWideStrip<T>;
  using ItemSums = Sums<kSets, kWideUnit<T>>;

  // Asks for what the stream will load of a short item with two matrices after its first group.
  __device__ void PrefetchRest(const Item<T>& item) const {
#pragma unroll 1
    for (int m = 0; m < item.matrices; ++m) {
      const Span<T> span = ItemSource<T>::Of(item, m, 0, n_, vector_rows_);
      const int pieces = span.pieces(), first = m == 0 ? kDepth : 0;
      if (pieces > 2 * kDepth) return;
      const int lines = span.forward ? kStep : kStrip;
#pragma unroll 1
      for (int i = first * lines + Lane(); i < pieces * lines; i += kWarp) {
        const int piece = i / lines, line = i - piece * lines;
        const int at = span.begin + piece * span.step();
        const int column = span.forward ? at + line : span.strip + line;
        const int row = span.forward ? span.strip : at;
        if (column < n_) Prefetch(span.matrix + column * n_ + row);
      }
    }
  }

  // Rows of a vector that are to be copied to shared memory, zeros from the row `below` on.
  // `added`: unless zero, what is so far behind is added.
  struct Rows {
    T* to;
    int lead;
    const T* from;
    int64_t added;
    int rows, below;
  };
  __device__ Rows VectorRows(const Item<T>& item, int m, int row) const {
    int rows = item.End(n_) - row;
    rows = rows > vector_rows_ ? vector_rows_ : (rows + 31) / 32 * 32;
    return {vectors_, lead_, item.vector[m] + row, m == 0 ? item.vector_added : 0, rows, n_ - row};
  }
  // The rows that all sums are subtracted from, which have two parts.
  __device__ Rows StartRows(const Item<T>& item, int part) const {
    const int rows = item.strips() * kStrip;
    return {StartPart(part), rows, item.start + part * item.start_added, 0, rows, n_ - item.row0};
  }
  __device__ void LoadStart(const Item<T>& item) {
    if (item.start == nullptr) return;
#pragma unroll 1
    for (int part = 0; part < (item.start_added == 0 ? 1 : 2); ++part) {
      LoadRows(StartRows(item, part), item.columns, part == 0 ? start_.to : nullptr);
    }
  }
  __device__ T* StartPart(int part) const {
    return reinterpret_cast<T*>(sums_) + part * kStartScalars<T, kSets>;
  }
  // The first slice's sums begin with it.
  __device__ void Begin(const Item<T>& item, ItemSums& sums) const {
    if (item.start == nullptr || WarpIndex() >= item.strips()) return;
    const int row0 = WarpIndex() * kStrip, lead = item.strips() * kStrip;
    sums.ForEach([&](int row, int column, double& sum) {
      if (column >= item.columns) return;
      const int at = column * lead + row0 + row;
      const T more = item.start_added != 0 ? StartPart(1)[at] : T{0};
      sum = -static_cast<double>(StartPart(0)[at] + more);
    });
  }

  // A thread copies units of 16 bytes, if columns begin at such.
  __device__ bool InUnits() const { return kWhole || n_ % kUnit == 0; }
  // The thread's next unit, r and c.
  __device__ static void Advance(const Rows& rows, int step, int columns, int& r, int& c) {
    for (r += kThreads * step; r >= rows.rows && c < columns; r -= rows.rows) ++c;
  }
  struct Unit {
    T* to = nullptr;
    const T* from = nullptr;
    bool stored = false;
  };
  __device__ Unit UnitAt(const Rows& rows, int r, int c) const {
    const bool stored = r < rows.below;
    return {rows.to + c * rows.lead + r, stored ? rows.from + c * n_ + r : rows.from, stored};
  }
  __device__ Unit First(const Rows& rows, int columns) const {
    int r = (static_cast<int>(threadIdx.x) - kThreads) * kUnit, c = 0;
    Advance(rows, kUnit, columns, r, c);
    return c < columns ? UnitAt(rows, r, c) : Unit();
  }
  __device__ static void Copy(const Unit& unit, int64_t behind) {
    CopyAsync16(unit.to, unit.from + behind, unit.stored ? 16 : 0);
  }

  // Starts to copy. done: not null if the first unit is under way. What is added comes by way of
  // the memory of sums.
  __device__ void LoadRows(const Rows& rows, int columns, const T* done) const {
    // Units that this thread copies aside at a time.
    constexpr int kAside = kSumBytes<T, kSets> / (kThreads * 16);
    const bool in_units = InUnits();
    const int step = in_units ? kUnit : 1;
    int r = (static_cast<int>(threadIdx.x) - kThreads) * step, c = 0;
    Advance(rows, step, columns, r, c);
    if (done != nullptr) Advance(rows, step, columns, r, c);
    while (c < columns) {
      int first_r = r, first_c = c;
#pragma unroll 1
      for (int u = 0; u < kAside && c < columns; ++u, Advance(rows, step, columns, r, c)) {
        const Unit unit = UnitAt(rows, r, c);
        if (in_units) {
          Copy(unit, 0);
          if (rows.added != 0) Copy({Aside(u), unit.from, unit.stored}, rows.added);
        } else {
          *unit.to = unit.stored ? static_cast<T>(Fresh(unit.from, rows.added)) : T{0};
        }
      }
      if (rows.added == 0 || !in_units) continue;
      CopyWait();
#pragma unroll 1
      for (int u = 0; u < kAside && first_c < columns;
           ++u, Advance(rows, step, columns, first_r, first_c)) {
        T* const place = rows.to + first_c * rows.lead + first_r;
        for (int i = 0; i < kUnit; ++i) place[i] += Aside(u)[i];
      }
    }
  }
  __device__ T* Aside(int u) const {
    return reinterpret_cast<T*>(sums_) + (u * kThreads + static_cast<int>(threadIdx.x)) * kUnit;
  }

  // body(row, column, place), for the entries t, t + 256, ... of the item that thread t has.
  template <typename Body>
  __device__ void ForEachEntry(const Item<T>& item, const Body& body) const {
    const int rows = item.strips() * kStrip, columns = item.columns;
    const int row = static_cast<int>(threadIdx.x) & (rows - 1);
    if (item.row0 + row >= n_) return;
    int column = static_cast<int>(threadIdx.x) / kStrip >> item.log_strips;
    const int step = kThreads / kStrip >> item.log_strips;
#pragma unroll 1
    for (; column < columns; column += step) body(row, column, column * n_ + row);
  }
  // The item's own rows of its first vector, of which those from `first` on are here.
  __device__ void Copy(const Item<T>& item, int first) const {
    ForEachEntry(item, [&](int row, int column, int at) {
      const int r = item.row0 + row - first;
      if (r >= 0 && r < vector_rows_) item.copy_to[at] = vectors_[column * lead_ + r];
    });
  }

  // Adds up the slices, in order, and stores.
  __device__ void Finish(const Item<T>& item, const ItemSums& sums) {
    if (item.start != nullptr) __syncthreads();  // it is in the same memory
    double* mine = sums_ + WarpIndex() * kSets * kColumns * kSumLead<T>;
    sums.ForEach(item.columns, [&](int row, int column, double value) {
      mine[column * kSumLead<T> + row] = value;
    });
    T* const out = item.out;
    const int strips = item.strips();
    const double sign = item.start != nullptr || item.negative ? -1 : 1;
    __syncthreads();
    ForEachEntry(item, [&](int row, int column, int at) {
      const double* from =
          sums_ + (row / kStrip * kSets * kColumns + column) * kSumLead<T> + row % kStrip;
      double sum = 0;
#pragma unroll
      for (int slice = 0; slice < kSlots; ++slice) {
        if (slice * strips < kSlots) {
          sum += from[slice * strips * kSets * kColumns * kSumLead<T>];
        }
      }
      out[at] = static_cast<T>(sign * sum);
    });
  }

  const int n_;
  const int vector_rows_;
  const int lead_;
  double* const sums_;
  T* const vectors_;
  Unit vector_, start_;        // this thread's first of the next item
  bool all_prepared_ = false;  // no thread has more than these
  MatrixStream<T, kWhole, kDepth, ItemSource<T>> stream_;
};

}  // namespace blockd::gpu::lockstep

#endif  // BLOCKD_ENGINE_GPU_LOCKSTEP_ITEM_WORKER_H_
