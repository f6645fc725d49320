// Solves for more than 128 rows: thread blocks take items, some rows of one product, in an order in
// which nothing waits for long. The next items are known while one is in work, so that the next
// one's matrices are under way, and it starts, without a pause.
#include "engine/gpu/lockstep/launch.h"
#include "engine/gpu/lockstep/solve_items.h"

namespace blockd::gpu::lockstep {
namespace {

constexpr int kThreads = kSlots * kWarp;
constexpr int kMadeTogether = 16;          // items
constexpr int kItems = 2 * kMadeTogether;  // that are known at once
// Scalars from a column of sums to the next, and those of an item.
template <typename T>
inline constexpr int kSumLead = kWideStrip<T> + (kWideUnit<T> == 2 ? 2 : 1);
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

  // What is multiplied by the vectors' rows from `row` on.
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
class Worker {
 public:
  __device__ Worker(const SolveArgs& args, const Item<T>* items, unsigned char* memory)
      : n_(static_cast<int>(args.n)),
        vector_rows_(static_cast<int>(args.vector_rows)),
        lead_(vector_rows_ + 8),
        sums_(reinterpret_cast<double*>(memory)),
        vectors_(reinterpret_cast<T*>(memory + kSumBytes<T, kSets>)),
        stream_(n_, ItemSource<T>(items, n_, vector_rows_)) {}

  // Items before `end` are known.
  __device__ void Publish(int end) { stream_.source().Publish(end); }

  // What can be done for the next item before what it waits for is there: its matrices come, and
  // where its vectors are is known.
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
    // What has been prepared goes first, and mostly is all.
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
  static constexpr int kUnit = kWideUnit<T>, kStrip = kWideStrip<T>;
  using ItemSums = Sums<kSets, kUnit>;

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
  // What all sums are subtracted from, in two parts.
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
    const int row = WarpIndex() * kStrip + kUnit * (Lane() >> 2), column = 2 * (Lane() & 3);
    const int lead = item.strips() * kStrip;
#pragma unroll
    for (int i = 0; i < 2 * kUnit * kSets; ++i) {
      const int s = i / (2 * kUnit), e = i % (2 * kUnit), c = column + s * kColumns + e % 2;
      if (c >= item.columns) continue;
      const int at = c * lead + row + e / 2;
      const T more = item.start_added != 0 ? StartPart(1)[at] : T{0};
      sums.At(s, e) = -static_cast<double>(StartPart(0)[at] + more);
    }
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

template <typename T>
__device__ void CountItem(const Item<T>& item) {
  if (item.kind == Item<T>::kWork) Signal(item.count, item.weight);
}

// The next kMadeTogether items of this thread block, made by as many lanes: it takes a while. Not
// inlined, or what it needs takes registers from all the others.
template <typename T>
__device__ __noinline__ void MakeItems(const ItemTable<T>* table, int first, int panel_columns,
                                       Item<T>* items) {
  const int i = first + Lane();
  items[i % kItems] = table->At(blockIdx.x + i * gridDim.x, panel_columns);
}

// All thread blocks run at the same time. Each has every gridDim.x-th item, in order. While the
// vectors of the one in work come, a warp watches what the next item waits for, and a thread of
// another says that the item before is done; or says so at once, if the next one has to wait.
template <typename T, int kSets, bool kWhole>
__global__ void __launch_bounds__(kThreads, 2)
    SubstituteLockstepKernel(const BLOCKD_KERNEL_ARGUMENT SolveArgs args) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ __align__(16) unsigned char item_memory[kItems * sizeof(Item<T>)];
  Item<T>* const items = reinterpret_cast<Item<T>*>(item_memory);
  constexpr int kPanel = kSets * kColumns;
  __shared__ bool ready;
  const bool maker = threadIdx.x < kMadeTogether;
  const bool counter = threadIdx.x == kThreads - 1, watcher = WarpIndex() == kSlots - 2;
  bool counted = true;
  ClearStale(args.stale, args.stale_words);
  ItemTable<T> table(args, reinterpret_cast<Zone*>(memory));
  table.Make();
  if (maker) MakeItems(&table, 0, kPanel, items);
  __syncthreads();
  Worker<T, kSets, kWhole> worker(args, items, memory + args.table_bytes);
  worker.Publish(1);
  worker.Fill();
  worker.Prepare(items[0]);
  if (watcher) items[0].Await();
  for (int i = 0;; ++i) {
    __syncthreads();
    const Item<T>& item = items[i % kItems];
    if (item.kind == Item<T>::kEnd) return;
    const Item<T>& next = items[(i + 1) % kItems];
    worker.Publish(i + 2);
    const auto beside = [&] {
      if (counter && !counted) CountItem(items[(i + kItems - 1) % kItems]);
      if (watcher) {
        // Few segments: most likely it is not, and to look takes longer than to load vectors.
        const bool is_ready = item.log_strips > 0 && next.IsReady();
        if (Lane() == 0) ready = next.kind != Item<T>::kEnd && is_ready;
      }
    };
    if (item.kind == Item<T>::kWork) {
      worker.Work(item, beside, ready);
    } else {
      beside();
    }
    __syncthreads();
    // Of kItems places those of item i and of the ones after it are in use.
    const bool makes = i % kMadeTogether == 1;
    if (counter) {
      counted = !ready || makes;
      if (counted) CountItem(item);
    }
    worker.Fill();
    if (makes && maker) MakeItems(&table, i - 1 + kMadeTogether, kPanel, items);
    worker.Prepare(next);
    if (watcher && !ready) next.Await();
  }
}

int64_t Minimum(int64_t a, int64_t b) { return a < b ? a : b; }

// Strips of an item: fewer where a level has few segments, so that all thread blocks have one, or
// in float32 every second, as items are short. The order of sums follows from it, so neither other
// columns nor other systems may change it.
template <typename T>
int32_t LogStripsOf(const SolveArgs& args, const SolveLevel& level, int64_t multiprocessors) {
  const int64_t tiles = (args.n + kWideStrip<T> - 1) / kWideStrip<T>;
  int32_t log = kLogSlots;
  const int64_t enough = (sizeof(T) == 4 ? 1 : 2) * multiprocessors;
  while (log > 0 && level.shape.segments() * ((tiles + (1 << log) - 1) >> log) < enough) {
    --log;
  }
  return log;
}

// Items of one system and panel in the busiest row, at most.
template <typename T>
int64_t MostItems(const SolveArgs& args) {
  const int64_t tiles = (args.n + kWideStrip<T> - 1) / kWideStrip<T>;
  int64_t most = 0;
  for (int32_t l = 0; l < args.num_levels; ++l) {
    const SolveLevel& level = args.levels[l];
    const int64_t items = level.shape.segments() * 2 * tiles;
    most = items > most ? items : most;
  }
  return most;
}

// Shared memory that a thread block has besides its vectors and sums.
template <typename T>
inline constexpr int64_t kOther = kItems * sizeof(Item<T>) + 1024 + 128;

template <typename T, int kSets>
LaunchResult Launch(SolveArgs args, const DeviceLimits& limits, Stream stream) {
  constexpr int64_t kSums = kSumBytes<T, kSets>;
  args.table_bytes = (ItemTable<T>::Bytes(args) + 127) / 128 * 128;
  const int64_t fixed = kSums + kOther<T> + args.table_bytes;
  const int64_t row_bytes = args.most_columns * static_cast<int64_t>(sizeof(T));
  const int64_t rows = (args.n + 31) / 32 * 32;
  // Two thread blocks share a multiprocessor, if that leaves enough for the vectors.
  constexpr int64_t kEnoughRows = 256;
  const int64_t half = limits.shared_bytes / 2;
  const bool two = fixed + row_bytes * (kEnoughRows + 8) <= half;
  const int64_t fit = ((two ? half : limits.block_shared_bytes) - fixed) / row_bytes - 8;
  args.vector_rows = rows <= fit ? rows : fit / 256 * 256;
  const size_t shared =
      static_cast<size_t>(args.table_bytes + kSums + row_bytes * (args.vector_rows + 8));
  const auto kernel = args.n % kStep == 0 ? SubstituteLockstepKernel<T, kSets, true>
                                          : SubstituteLockstepKernel<T, kSets, false>;
  int resident = 0;
  const Error error = BLOCKD_GPU(OccupancyMaxActiveBlocksPerMultiprocessor)(
      &resident, reinterpret_cast<const void*>(kernel), kThreads, shared);
  if (error != kSuccess) return {error, "SubstituteLockstep"};
  const int64_t blocks = resident * limits.multiprocessors;
  for (int32_t l = 0; l < args.num_levels; ++l) {
    args.levels[l].log_strips = LogStripsOf<T>(args, args.levels[l], limits.multiprocessors);
  }
  const int64_t most = MostItems<T>(args) * args.num_systems * args.num_panels;
  void* parameters[] = {&args};
  return {BLOCKD_GPU(LaunchCooperativeKernel)(reinterpret_cast<const void*>(kernel),
                                              dim3(static_cast<unsigned>(Minimum(most, blocks))),
                                              dim3(kThreads), parameters,
                                              static_cast<unsigned>(shared), stream),
          "SubstituteLockstep"};
}

template <typename T, int kSets>
Error Allow(size_t bytes) {
  const Error error = AllowShared(SubstituteLockstepKernel<T, kSets, true>, bytes);
  return error == kSuccess ? AllowShared(SubstituteLockstepKernel<T, kSets, false>, bytes) : error;
}

}  // namespace

LaunchResult PrepareSolve(const DeviceLimits& limits) {
  const size_t bytes = static_cast<size_t>(limits.block_shared_bytes - kOther<double>);
  Error error = Allow<double, 1>(bytes);
  if (error == kSuccess) error = Allow<double, 2>(bytes);
  if (error == kSuccess) error = Allow<float, 1>(bytes);
  if (error == kSuccess) error = Allow<float, 2>(bytes);
  return {error, "SubstituteLockstep"};
}

template <typename T>
LaunchResult Substitute(const SolveArgs& args, const DeviceLimits& limits, Stream stream) {
  return args.panel_columns == kColumns ? Launch<T, 1>(args, limits, stream)
                                        : Launch<T, 2>(args, limits, stream);
}

template LaunchResult Substitute<double>(const SolveArgs&, const DeviceLimits&, Stream);
template LaunchResult Substitute<float>(const SolveArgs&, const DeviceLimits&, Stream);

}  // namespace blockd::gpu::lockstep
