// Solves for more than 128 rows: thread blocks take items, some rows of one product, in an order in
// which nothing waits for long. One warp more than those that multiply takes tickets and watches
// what the next item waits for, so that its matrices are under way, and it starts, without a pause.
#include "blockd/engine/gpu/launch.h"
#include "blockd/engine/gpu/solve_items.h"

namespace blockd::gpu {
namespace {

constexpr int kThreads = (kSlots + 1) * kWarp;
constexpr int kItems = 3;     // known at once: the one in work, the next, and one being made
constexpr int kSumLead = 18;  // scalars from a column of sums to the next

// A warp's strip and slice of the items that are known.
template <typename T>
class ItemSource {
 public:
  __device__ ItemSource(const Item<T>* items, int n, int vector_rows)
      : items_(items), n_(n), vector_rows_(vector_rows) {}
  // Items before `end` may be read.
  __device__ void Publish(int64_t end) { end_ = end; }

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
    span.strip = item.row0 + (WarpIndex() & (item.strips() - 1)) * kStrip;
    if (span.strip >= n) return span;
    span.matrix = item.matrix[matrix];
    span.triangle = item.triangle;
    span.forward = item.forward;
    span.log_slices = kLogSlots - log_strips;
    span.begin = row + slice * kStrip;
    span.end = row + vector_rows < n ? row + vector_rows : n;
    if (!item.triangle) return span;
    if (item.forward) {
      if (span.strip + kStrip < span.end) span.end = span.strip + kStrip;
    } else {
      while (span.begin < span.strip) span.begin += span.step();
    }
    return span;
  }

 private:
  const Item<T>* const items_;
  const int n_, vector_rows_;
  int64_t at_ = 0, end_ = 0;
  int matrix_ = 0, row_ = 0;
};

// Pieces that are loaded ahead, as registers allow.
template <typename T, int kSets>
inline constexpr int kDepth = sizeof(T) == 8 && kSets == 1 ? 2 : 4;

template <typename T, int kSets, bool kWhole>
class Worker {
 public:
  __device__ Worker(const SolveArgs& args, const Item<T>* items, unsigned char* memory)
      : n_(static_cast<int>(args.n)),
        vector_rows_(static_cast<int>(args.vector_rows)),
        lead_(vector_rows_ + 8),
        sums_(reinterpret_cast<double*>(memory)),
        vectors_(reinterpret_cast<T*>(memory + kSlots * kSets * kColumns * kSumLead * 8)),
        stream_(n_, ItemSource<T>(items, n_, vector_rows_)) {}

  // All items up to this one and the next are known.
  __device__ void Enter(int64_t i) {
    stream_.source().Publish(i + 2);
    stream_.Fill();
  }

  __device__ void Work(const Item<T>& item) {
    LoadStart(item);
    Sums<kSets> sums;
    bool first = true;
    for (int m = 0; m < item.matrices; ++m) {
      for (int row = item.Begin(); row < item.End(n_); row += vector_rows_) {
        if (!first) __syncthreads();
        LoadVector(item, m, row);
        if (first) AddStart(item);
        first = false;
        CopyWait();
        __syncthreads();
        const Span<T> span = ItemSource<T>::Of(item, m, row, n_, vector_rows_);
        const T* v = vectors_ + span.begin - row;
        if (item.forward) {
          stream_.template Multiply<true>(sums, span.pieces(), v, span.step(), lead_, item.columns);
        } else {
          stream_.template Multiply<false>(sums, span.pieces(), v, span.step(), lead_,
                                           item.columns);
        }
      }
    }
    if (first) AddStart(item);
    Finish(item, sums);
  }

 private:
  // Rows from `row` on, zeros below the last.
  __device__ void LoadVector(const Item<T>& item, int m, int row) {
    constexpr int kUnit = 16 / static_cast<int>(sizeof(T)), kThreadsOfAll = kSlots * kWarp;
    const T* from = item.vector[m] + row;
    const int64_t added = m == 0 ? item.vector_added : 0;
    const int below = n_ - row;
    int rows = item.End(n_) - row;
    rows = rows > vector_rows_ ? vector_rows_ : (rows + 31) / 32 * 32;
    const bool in_units = added == 0 && n_ % kUnit == 0;
    const int step = in_units ? kUnit : 1;
    int r = static_cast<int>(threadIdx.x) * step, c = 0;
    for (;; r += kThreadsOfAll * step) {
      while (r >= rows) r -= rows, ++c;
      if (c >= item.columns) break;
      const T* at = from + static_cast<int64_t>(c) * n_ + r;
      T* to = vectors_ + c * lead_ + r;
      if (in_units) {
        CopyAsync16(to, r < below ? at : from, r < below ? 16 : 0);
      } else {
        *to = r < below ? static_cast<T>(Fresh(at, added)) : T{0};
      }
    }
  }

  // body(entry, row, column, place), for the entries t, t + 256, ... of the item that thread t has.
  template <typename Body>
  __device__ void ForEachEntry(const Item<T>& item, const Body& body) const {
    const int rows = item.strips() * kStrip;
#pragma unroll
    for (int u = 0; u < kEntries; ++u) {
      const int i = static_cast<int>(threadIdx.x) + u * kSlots * kWarp;
      const int row = i & (rows - 1), column = i >> (item.log_strips + 4);
      if (column < item.columns && item.row0 + row < n_) body(u, row, column, column * n_ + row);
    }
  }
  // What the sums are added to, and what is copied besides. Loads first: it takes a while.
  __device__ void LoadStart(const Item<T>& item) {
#pragma unroll
    for (int u = 0; u < kEntries; ++u) start_[u] = T{0};
    if (item.start != nullptr) {
      ForEachEntry(item, [&](int u, int, int, int at) { start_[u] = LoadFresh(item.start + at); });
    }
  }
  __device__ void AddStart(const Item<T>& item) {
    T values[kEntries];
    if (item.start_added != 0) {
      const T* from = item.start + item.start_added;
      ForEachEntry(item, [&](int u, int, int, int at) { values[u] = LoadFresh(from + at); });
      ForEachEntry(item, [&](int u, int, int, int) { start_[u] += values[u]; });
    }
    if (item.copy_to == nullptr) return;
    ForEachEntry(item,
                 [&](int u, int, int, int at) { values[u] = LoadFresh(item.copy_from + at); });
    ForEachEntry(item, [&](int u, int, int, int at) { item.copy_to[at] = values[u]; });
  }

  // Adds up the slices, in order, and stores.
  __device__ void Finish(const Item<T>& item, const Sums<kSets>& sums) {
    double* mine = sums_ + WarpIndex() * kSets * kColumns * kSumLead;
    sums.ForEach([&](int row, int column, double value) { mine[column * kSumLead + row] = value; });
    __syncthreads();
    ForEachEntry(item, [&](int u, int row, int column, int at) {
      double sum = 0;
      for (int slot = row / kStrip; slot < kSlots; slot += item.strips()) {
        sum += sums_[(slot * kSets * kColumns + column) * kSumLead + row % kStrip];
      }
      const double start = static_cast<double>(start_[u]);
      item.out[at] = static_cast<T>(item.negative ? start - sum : start + sum);
    });
  }

  static constexpr int kEntries = kStrip * kSlots * kSets * kColumns / (kSlots * kWarp);

  const int n_;
  const int vector_rows_;
  const int lead_;
  double* const sums_;
  T* const vectors_;
  T start_[kEntries];
  MatrixStream<T, kWhole, kDepth<T, kSets>, ItemSource<T>> stream_;
};

template <typename T>
__device__ void CountItem(const Item<T>& item) {
  if (Signal(item.done) == item.last) Signal(item.pass_done);
}

// The thread that finds work. Its barriers are those of Worker::Work and of the loop around it.
template <typename T, int kSets>
__device__ void FindWork(const SolveArgs& args, Item<T>* items) {
  ItemOrder order(args);
  const bool leader = Lane() == 0;
  const auto make = [&](int64_t i) {
    if (leader) items[i % kItems] = order.At<T>(TakeTicket(args), kSets * kColumns);
  };
  make(0);
  make(1);
  if (leader && items[0].kind == Item<T>::kWork && items[0].wait != nullptr) {
    WaitFor(items[0].wait, items[0].target);
  }
  for (int64_t i = 0;; ++i) {
    __syncthreads();
    const Item<T>& item = items[i % kItems];
    if (item.kind == Item<T>::kEnd) return;
    make(i + 2);
    const Item<T>& next = items[(i + 1) % kItems];
    bool ready = !leader || next.kind != Item<T>::kWork || next.wait == nullptr ||
                 HasReached(next.wait, next.target);
    if (item.kind == Item<T>::kWork) {
      const int rounds = item.Rounds(static_cast<int>(args.n), static_cast<int>(args.vector_rows));
      for (int b = 0; b < 2 * rounds - 1; ++b) __syncthreads();
      __syncthreads();  // the sums
    }
    __syncthreads();  // the item's end
    if (!ready) WaitFor(next.wait, next.target);
    SyncWarp();
  }
}

template <typename T, int kSets, bool kWhole>
__global__ void __launch_bounds__(kThreads, kSets == 1 ? 2 : 1)
    SubstituteLargeKernel(const BLOCKD_KERNEL_ARGUMENT SolveArgs args) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ __align__(16) unsigned char item_memory[kItems * sizeof(Item<T>)];
  Item<T>* items = reinterpret_cast<Item<T>*>(item_memory);
  if (WarpIndex() == kSlots) {
    FindWork<T, kSets>(args, items);
    return;
  }
  Worker<T, kSets, kWhole> worker(args, items, memory);
  for (int64_t i = 0;; ++i) {
    __syncthreads();
    const Item<T>& item = items[i % kItems];
    if (item.kind == Item<T>::kEnd) return;
    worker.Enter(i);
    if (item.kind == Item<T>::kWork) worker.Work(item);
    __syncthreads();
    if (threadIdx.x == 0 && item.kind == Item<T>::kWork) CountItem(item);
  }
}

int64_t Minimum(int64_t a, int64_t b) { return a < b ? a : b; }

// Strips of an item: fewer where a level has few segments, so that all multiprocessors have some.
int32_t LogStripsOf(const SolveArgs& args, const SolveLevel& level, const SolveLimits& limits) {
  const int64_t tiles = (args.n + kStrip - 1) / kStrip;
  int32_t log = kLogSlots;
  while (log > 0 &&
         level.shape.segments() * ((tiles + (1 << log) - 1) >> log) < 4 * limits.multiprocessors) {
    --log;
  }
  return log;
}

// Items of one system and panel in the busiest row, at most.
int64_t MostItems(const SolveArgs& args) {
  const int64_t tiles = (args.n + kStrip - 1) / kStrip;
  int64_t most = 0;
  for (int32_t l = 0; l < args.num_levels; ++l) {
    const SolveLevel& level = args.levels[l];
    const int64_t items = level.shape.segments() * 2 * tiles;
    most = items > most ? items : most;
  }
  return most;
}

template <typename T, int kSets>
LaunchResult Launch(SolveArgs args, const SolveLimits& limits, Stream stream) {
  static_assert(kItems * sizeof(Item<T>) <= kStaticShared);
  constexpr int64_t kSumBytes = kSlots * kSets * kColumns * kSumLead * 8;
  const int64_t rows = (args.n + 31) / 32 * 32;
  const int64_t room = limits.block_shared_bytes - kReservedShared - kSumBytes;
  const int64_t fit = room / (args.most_columns * static_cast<int64_t>(sizeof(T))) - 8;
  args.vector_rows = rows <= fit ? rows : fit / 256 * 256;
  const int64_t bytes =
      kSumBytes + args.most_columns * (args.vector_rows + 8) * static_cast<int64_t>(sizeof(T));
  for (int32_t l = 0; l < args.num_levels; ++l) {
    args.levels[l].log_strips = LogStripsOf(args, args.levels[l], limits);
  }
  const int64_t most = MostItems(args) * args.num_systems * args.num_panels;
  const int64_t blocks = kSets == 1 && 2 * (bytes + kReservedShared) <= limits.shared_bytes ? 2 : 1;
  const unsigned grid = static_cast<unsigned>(Minimum(most, blocks * limits.multiprocessors));
  const size_t shared = static_cast<size_t>(bytes);
  if (args.n % kStrip == 0) {
    SubstituteLargeKernel<T, kSets, true><<<grid, kThreads, shared, stream>>>(args);
  } else {
    SubstituteLargeKernel<T, kSets, false><<<grid, kThreads, shared, stream>>>(args);
  }
  return {BLOCKD_GPU(GetLastError)(), "SubstituteLarge"};
}

template <typename T, int kSets>
Error Allow(size_t bytes) {
  const Error error = AllowShared(SubstituteLargeKernel<T, kSets, true>, bytes);
  return error == kSuccess ? AllowShared(SubstituteLargeKernel<T, kSets, false>, bytes) : error;
}

}  // namespace

int64_t SolveCounters(const SolveArgs& args) {
  const int64_t segments = args.separators + args.num_levels;
  return 2 * args.num_levels + (args.n > kLargestSmallSolve ? 2 * segments : 0);
}

LaunchResult PrepareSubstituteLarge(const SolveLimits& limits) {
  const size_t bytes = static_cast<size_t>(limits.block_shared_bytes - kStaticShared);
  Error error = Allow<double, 1>(bytes);
  if (error == kSuccess) error = Allow<double, 2>(bytes);
  if (error == kSuccess) error = Allow<float, 1>(bytes);
  if (error == kSuccess) error = Allow<float, 2>(bytes);
  return {error, "SubstituteLarge"};
}

template <typename T>
LaunchResult SubstituteLarge(const SolveArgs& args, const SolveLimits& limits, Stream stream) {
  return args.panel_columns == kColumns ? Launch<T, 1>(args, limits, stream)
                                        : Launch<T, 2>(args, limits, stream);
}

template LaunchResult SubstituteLarge<double>(const SolveArgs&, const SolveLimits&, Stream);
template LaunchResult SubstituteLarge<float>(const SolveArgs&, const SolveLimits&, Stream);

}  // namespace blockd::gpu
