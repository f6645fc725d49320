// Forward and backward substitution. A warp forms 8 rows of a product M V or M' V with the matrix
// instruction, 8 or 16 columns of V at a time, always in the same order: a column's answer depends
// on the plan alone. Up to 128 rows a thread block walks its segment; above, all segments move in
// lock-step and a block's rows are spread over thread blocks.
#include "blockd/engine/gpu/launch.h"
#include "blockd/engine/gpu/tile.h"

namespace blockd::gpu {
namespace {

constexpr int kColumns = 8;  // of one matrix instruction

// kSets times 8 columns.
template <int kSets>
struct Rows {
  double c[kSets][2] = {};

  // body(row, column, value), row 0 to 7.
  template <typename Body>
  __device__ void ForEach(const Body& body) const {
    const int row = Lane() >> 2, column = 2 * (Lane() & 3);
#pragma unroll
    for (int s = 0; s < kSets; ++s) {
      body(row, s * kColumns + column, c[s][0]);
      body(row, s * kColumns + column + 1, c[s][1]);
    }
  }
};

// Columns of a right operand: (k, column) is data[column * stride + k]; zero beyond `columns`.
template <typename T>
struct Right {
  const T* data;
  int64_t stride;
  int columns;
  __device__ double At(int64_t k, int column) const {
    return column < columns ? static_cast<double>(data[column * stride + k]) : 0.0;
  }
};

// sums[i] += sign * (tile i of the left operand) * right, k from `begin` to `end`; left(i, g, k) is
// the entry of the tile's row g. All tiles' loads of some columns come first.
template <int kTiles, int kSets, typename T, typename Left>
__device__ inline void Accumulate(Rows<kSets> (&sums)[kTiles], double sign, const Left& left,
                                  const Right<T>& right, int64_t begin, int64_t end) {
  constexpr int kUnroll = 8;
  const int g = Lane() >> 2, t = Lane() & 3;
  for (int64_t k0 = begin; k0 < end; k0 += 4 * kUnroll) {
    T a[kUnroll][kTiles];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t k = k0 + 4 * u + t;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) a[u][i] = k < end ? left(i, g, k) : T{0};
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t k = k0 + 4 * u + t;
      if (k0 + 4 * u >= end) break;
#pragma unroll
      for (int s = 0; s < kSets; ++s) {
        const double b = k < end ? right.At(k, s * kColumns + g) : 0.0;
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          Mma8x8x4(sums[i].c[s], sign * static_cast<double>(a[u][i]), b);
        }
      }
    }
  }
}
template <int kSets, typename T, typename Left>
__device__ inline void Accumulate(Rows<kSets>& sums, double sign, const Left& left,
                                  const Right<T>& right, int64_t begin, int64_t end) {
  Accumulate(reinterpret_cast<Rows<kSets>(&)[1]>(sums), sign, left, right, begin, end);
}

// The left operands. Rows count from row0.
template <typename T>
struct Square {  // M
  const T* m;
  int64_t n, row0;
  __device__ T operator()(int tile, int g, int64_t k) const {
    const int64_t row = row0 + tile * 8 + g;
    return row < n ? __ldg(m + k * n + row) : T{0};
  }
};
template <typename T>
struct SquareTransposed {  // M'
  const T* m;
  int64_t n, row0;
  __device__ T operator()(int tile, int g, int64_t k) const {
    const int64_t row = row0 + tile * 8 + g;
    return row < n ? __ldg(m + row * n + k) : T{0};
  }
};
template <typename T>
struct Triangle {  // inv(L); k up to the last of the 8 rows
  const T* m;
  int64_t n, row0;
  __device__ T operator()(int tile, int g, int64_t k) const {
    const int64_t row = row0 + tile * 8 + g, panel = k / kPanelColumns,
                  first = panel * kPanelColumns;
    if (row >= n || row < first) return T{0};
    return __ldg(m + PanelOffset(n, panel) + (k - first) * (n - first) + row - first);
  }
};
template <typename T>
struct TriangleTransposed {  // inv(L)'; row0 starts a block column
  const T* m;
  int64_t n, row0;
  __device__ T operator()(int tile, int g, int64_t k) const {
    const int64_t first = row0 + tile * 8;
    if (first + g >= n || k < first) return T{0};
    return __ldg(m + PanelOffset(n, first / kPanelColumns) + g * (n - first) + k - first);
  }
};

// Vectors of a level: (row r of block i, column c) is data[i * block + c * column + r].
template <typename T>
struct Vectors {
  T* data = nullptr;
  int64_t block = 0;
  int64_t column = 0;
  __device__ T* At(int64_t i) const { return data + i * block; }
};

// One segment of one system and a panel of its columns.
template <typename T>
struct Part {
  int64_t n;
  int columns;  // 0: nothing to do
  Run run;
  const T* inverse;
  const T* next;
  const T* fill;
  Vectors<T> x;
  const T* x_right = nullptr;  // to be added to x, at the same places; only forward above level 0
  Vectors<T> from_left;        // the next level's; backward, the solution
  Vectors<T> from_right;

  __device__ Part(const SubstituteArgs& args, int64_t system, int64_t segment, int64_t first_column,
                  int most_columns) {
    const SolveEntry& entry = args.systems[system];
    n = args.level.n;
    const int64_t left_over = entry.num_rhs - first_column;
    columns = static_cast<int>(left_over < most_columns ? left_over : most_columns);
    if (columns <= 0) return;
    run = args.level.run(segment);
    const T* factor = static_cast<const T*>(entry.factor);
    inverse = factor + args.inverse_offset + run.slot * TriangleSize(n);
    next = factor + args.next_offset + run.slot * n * n;
    fill = factor + args.fill_offset + run.fill_slot * n * n;
    const int64_t part = n * entry.num_rhs, skip = first_column * n;
    T* chains = static_cast<T*>(entry.chains);
    if (args.separators_before < 0) {
      x = {static_cast<T*>(entry.x) + skip, part, n};
    } else {
      x = {chains + args.separators_before * 2 * part + skip, 2 * part, n};
      x_right = x.data + part;
    }
    T* above = chains + args.next_separators_before * 2 * part;
    from_left = {above + skip, 2 * part, n};
    from_right = {above + part + skip, 2 * part, n};
  }

  // A right-hand side of block i as the forward pass finds it.
  __device__ double Rhs(int64_t i, int64_t row, int column) const {
    const int64_t at = i * x.block + column * x.column + row;
    return static_cast<double>(x_right ? x.data[at] + x_right[at] : x.data[at]);
  }
  __device__ bool IsLast(int64_t k) const { return k + 1 == run.count; }
};

// -----------------------------------------------------------------------------------------------------
// Up to 128 rows

int SmallLead(int64_t n) { return static_cast<int>((n + 7) / 8 * 8 + 4); }

template <typename T, int kSets>
class SmallWalk {
 public:
  __device__ SmallWalk(const Part<T>& part, T* shared)
      : p_(part),
        n_(static_cast<int>(part.n)),
        lead_((n_ + 7) / 8 * 8 + 4),
        tiles_((n_ + 7) / 8),
        warps_(static_cast<int>(blockDim.x) / kWarp) {
    v_ = shared;
    y_ = v_ + lead_ * kSets * kColumns;
    left_ = y_ + lead_ * kSets * kColumns;
  }

  __device__ void Forward() {
    ForEachEntry([&](int row, int column) {
      v_[column * lead_ + row] = static_cast<T>(p_.Rhs(p_.run.block(0), row, column));
      left_[column * lead_ + row] = T{0};
    });
    __syncthreads();
    for (int64_t k = 0; k < p_.run.count; ++k) {
      const T* inverse = p_.inverse + k * TriangleSize(p_.n);
      for (int i = WarpIndex(); i < tiles_; i += warps_) {
        Rows<kSets> sums;
        Accumulate(sums, 1, Triangle<T>{inverse, p_.n, i * 8}, In(v_), 0, Minimum(n_, i * 8 + 8));
        T* x = p_.x.At(p_.run.block(k));
        StoreRows(sums, i, [&](int row, int column, T value) {
          y_[column * lead_ + row] = value;
          x[column * p_.x.column + row] = value;
        });
      }
      __syncthreads();
      ForwardUpdates(k);
      __syncthreads();
    }
    Leave();
  }

  __device__ void Backward() {
    const int64_t target = p_.run.target();
    const int64_t separator = p_.run.reversed ? p_.run.left : p_.run.right;
    ForEachEntry([&](int row, int column) {
      const int64_t at = column * p_.from_left.column + row;
      if (p_.run.has_fill()) left_[column * lead_ + row] = p_.from_left.At(p_.run.left)[at];
      if (target < 0) return;
      const T value = p_.from_left.At(separator)[at];
      v_[column * lead_ + row] = value;
      // A separator is the right one of one segment, which brings its solution down.
      if (!p_.run.reversed) p_.x.At(target)[column * p_.x.column + row] = value;
    });
    __syncthreads();
    for (int64_t k = p_.run.count - 1; k >= 0; --k) {
      T* x = p_.x.At(p_.run.block(k));
      for (int i = WarpIndex(); i < tiles_; i += warps_) {
        Rows<kSets> sums = Start(i, [&](int row, int column) {
          return static_cast<double>(x[column * p_.x.column + row]);
        });
        if (target >= 0 || !p_.IsLast(k)) {
          Accumulate(sums, -1, SquareTransposed<T>{p_.next + k * p_.n * p_.n, p_.n, i * 8}, In(v_),
                     0, n_);
        }
        if (p_.run.has_fill()) {
          Accumulate(sums, -1, SquareTransposed<T>{p_.fill + k * p_.n * p_.n, p_.n, i * 8},
                     In(left_), 0, n_);
        }
        StoreRows(sums, i, [&](int row, int column, T value) { y_[column * lead_ + row] = value; });
      }
      __syncthreads();
      const T* inverse = p_.inverse + k * TriangleSize(p_.n);
      for (int i = WarpIndex(); i < tiles_; i += warps_) {
        Rows<kSets> sums;
        Accumulate(sums, 1, TriangleTransposed<T>{inverse, p_.n, i * 8}, In(y_), i * 8, n_);
        StoreRows(sums, i, [&](int row, int column, T value) {
          v_[column * lead_ + row] = value;
          x[column * p_.x.column + row] = value;
        });
      }
      __syncthreads();
    }
  }

 private:
  __device__ static int64_t Minimum(int64_t a, int64_t b) { return a < b ? a : b; }
  __device__ Right<T> In(const T* vectors) const { return {vectors, lead_, p_.columns}; }

  template <typename Body>
  __device__ void ForEachEntry(const Body& body) const {
    for (int i = threadIdx.x; i < n_ * p_.columns; i += blockDim.x) body(i % n_, i / n_);
  }
  template <typename Body>
  __device__ void StoreRows(const Rows<kSets>& sums, int tile, const Body& body) const {
    sums.ForEach([&](int row, int column, double value) {
      if (tile * 8 + row < n_ && column < p_.columns) {
        body(tile * 8 + row, column, static_cast<T>(value));
      }
    });
  }
  template <typename Body>
  __device__ Rows<kSets> Start(int tile, const Body& body) const {
    Rows<kSets> rows;
    const int row = tile * 8 + (Lane() >> 2);
#pragma unroll
    for (int s = 0; s < kSets; ++s) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = s * kColumns + 2 * (Lane() & 3) + e;
        if (row < n_ && column < p_.columns) rows.c[s][e] = body(row, column);
      }
    }
    return rows;
  }

  // v = the next block's right-hand side - C y; left -= W y, or C y in a reversed segment's last
  // step.
  __device__ void ForwardUpdates(int64_t k) {
    const bool last = p_.IsLast(k);
    const bool to_left = last && p_.run.reversed;
    const bool has_next = !last || p_.run.target() >= 0;
    const int64_t next = last ? p_.run.target() : p_.run.block(k + 1);
    const int tasks = p_.run.has_fill() ? 2 * tiles_ : tiles_;
    for (int task = WarpIndex(); task < tasks; task += warps_) {
      const int i = task % tiles_;
      const bool fill = task >= tiles_;
      if (!fill && !has_next) continue;
      T* out = fill || to_left ? left_ : v_;
      Rows<kSets> sums = Start(i, [&](int row, int column) {
        return out == left_ ? static_cast<double>(left_[column * lead_ + row])
                            : p_.Rhs(next, row, column);
      });
      const T* m = fill ? p_.fill : p_.next;
      Accumulate(sums, -1, Square<T>{m + k * p_.n * p_.n, p_.n, i * 8}, In(y_), 0, n_);
      StoreRows(sums, i, [&](int row, int column, T value) { out[column * lead_ + row] = value; });
    }
  }

  __device__ void Leave() const {
    ForEachEntry([&](int row, int column) {
      if (p_.run.right >= 0) {
        p_.from_left.At(p_.run.right)[column * p_.from_left.column + row] =
            v_[column * lead_ + row];
      }
      if (p_.run.left >= 0) {
        p_.from_right.At(p_.run.left)[column * p_.from_right.column + row] =
            left_[column * lead_ + row];
      }
    });
  }

  const Part<T>& p_;
  const int n_;
  const int lead_;
  const int tiles_;
  const int warps_;
  T* v_;
  T* y_;
  T* left_;
};

template <typename T, int kSets, bool kForward>
__global__ void __launch_bounds__(256)
    SubstituteSmallKernel(const BLOCKD_KERNEL_ARGUMENT SubstituteArgs args) {
  extern __shared__ double shared[];
  const Part<T> part(args, blockIdx.y, args.level.launched(blockIdx.x),
                     static_cast<int64_t>(blockIdx.z) * kSets * kColumns, kSets * kColumns);
  if (part.columns <= 0) return;
  SmallWalk<T, kSets> walk(part, reinterpret_cast<T*>(shared));
  if constexpr (kForward) {
    walk.Forward();
  } else {
    walk.Backward();
  }
}

template <typename T, int kSets>
LaunchResult LaunchSmall(const SubstituteArgs& args, bool forward, Stream stream) {
  const int64_t panels = (args.max_rhs + kSets * kColumns - 1) / (kSets * kColumns);
  const dim3 grid(static_cast<unsigned>(args.level.segments()),
                  static_cast<unsigned>(args.num_systems), static_cast<unsigned>(panels));
  const int64_t tiles = (args.level.n + 7) / 8;
  const unsigned threads = kWarp * static_cast<unsigned>(tiles < 8 ? tiles : 8);
  const size_t bytes = 3 * SmallLead(args.level.n) * kSets * kColumns * sizeof(T);
  if (forward) {
    SubstituteSmallKernel<T, kSets, true><<<grid, threads, bytes, stream>>>(args);
  } else {
    SubstituteSmallKernel<T, kSets, false><<<grid, threads, bytes, stream>>>(args);
  }
  return {BLOCKD_GPU(GetLastError)(), "SubstituteSmall"};
}

// -----------------------------------------------------------------------------------------------------
// Above 128 rows

constexpr int kRowTiles = 2;  // tiles of 8 rows that a thread block forms together
constexpr int kSlices = 8;    // its warps share the columns of the matrix
constexpr int kLargeColumns = 16;

enum class LargeStep { kForwardDivide, kForwardUpdate, kBackwardUpdate, kBackwardDivide };

// `unit0` counts segments, system after system; blockIdx.x the rows, y the units, z the panels of
// columns. A unit has n * kLargeColumns scalars of scratch for each panel.
template <typename T, LargeStep kStep>
class LargeWalk {
 public:
  __device__ LargeWalk(const Part<T>& part, T* scratch, double* shared, int64_t k)
      : p_(part),
        n_(part.n),
        row0_(static_cast<int64_t>(blockIdx.x) * kRowTiles * 8),
        scratch_(scratch),
        shared_(shared),
        k_(k) {}

  __device__ void Run() {
    if (k_ >= p_.run.count) return;
    const bool last = p_.IsLast(k_);
    T* x = p_.x.At(p_.run.block(k_));
    const Right<T> v = {scratch_, n_, p_.columns};
    if constexpr (kStep == LargeStep::kForwardDivide) {
      Product<Triangle<T>>(p_.inverse + k_ * TriangleSize(n_), v, 1, 0, LastRow());
      Finish([](int64_t, int) { return 0.0; },
             [&](int64_t row, int column, T value) { x[column * p_.x.column + row] = value; });
    }
    if constexpr (kStep == LargeStep::kForwardUpdate) {
      ForwardUpdate(last, x);
    }
    if constexpr (kStep == LargeStep::kBackwardUpdate) {
      BackwardUpdate(last, x);
    }
    if constexpr (kStep == LargeStep::kBackwardDivide) {
      Product<TriangleTransposed<T>>(p_.inverse + k_ * TriangleSize(n_), v, 1, row0_, n_);
      Finish([](int64_t, int) { return 0.0; },
             [&](int64_t row, int column, T value) { x[column * p_.x.column + row] = value; });
    }
  }

 private:
  __device__ static int64_t Minimum(int64_t a, int64_t b) { return a < b ? a : b; }
  __device__ int64_t LastRow() const { return Minimum(n_, row0_ + kRowTiles * 8); }

  __device__ void ForwardUpdate(bool last, const T* y) {
    const Right<T> right = {y, p_.x.column, p_.columns};
    if (blockIdx.y % 2 == 1) {
      UpdateLeft(right);
      return;
    }
    if (last && p_.run.target() < 0) return;
    Product<Square<T>>(p_.next + k_ * n_ * n_, right, -1, 0, n_);
    const int64_t next = last ? p_.run.target() : p_.run.block(k_ + 1);
    const bool to_left = last && p_.run.reversed;
    T* out = scratch_;
    if (last) out = to_left ? p_.from_right.At(p_.run.left) : p_.from_left.At(p_.run.right);
    Finish([&](int64_t row, int column) { return to_left ? 0.0 : p_.Rhs(next, row, column); },
           [&](int64_t row, int column, T value) { out[column * n_ + row] = value; });
  }
  __device__ void UpdateLeft(const Right<T>& right) {
    if (!p_.run.has_fill()) return;
    Product<Square<T>>(p_.fill + k_ * n_ * n_, right, -1, 0, n_);
    T* out = p_.from_right.At(p_.run.left);
    Finish([&](int64_t row,
               int column) { return k_ == 0 ? 0.0 : static_cast<double>(out[column * n_ + row]); },
           [&](int64_t row, int column, T value) { out[column * n_ + row] = value; });
  }

  __device__ void BackwardUpdate(bool last, const T* x) {
    const int64_t target = p_.run.target();
    if (last && target >= 0) {
      const T* solution = p_.from_left.At(p_.run.reversed ? p_.run.left : p_.run.right);
      Product<SquareTransposed<T>>(p_.next + k_ * n_ * n_, {solution, n_, p_.columns}, -1, 0, n_);
      // A separator is the right one of one segment, which brings its solution down.
      if (!p_.run.reversed) BringDown(p_.x.At(target), solution);
    } else if (!last) {
      const T* solution = p_.x.At(p_.run.block(k_ + 1));
      Product<SquareTransposed<T>>(p_.next + k_ * n_ * n_, {solution, p_.x.column, p_.columns}, -1,
                                   0, n_);
    }
    if (p_.run.has_fill()) {
      const T* solution = p_.from_left.At(p_.run.left);
      Product<SquareTransposed<T>>(p_.fill + k_ * n_ * n_, {solution, n_, p_.columns}, -1, 0, n_);
    }
    Finish(
        [&](int64_t row, int column) { return static_cast<double>(x[column * p_.x.column + row]); },
        [&](int64_t row, int column, T value) { scratch_[column * n_ + row] = value; });
  }
  __device__ void BringDown(T* out, const T* solution) const {
    for (int i = threadIdx.x; i < kRowTiles * 8 * p_.columns; i += blockDim.x) {
      const int64_t row = row0_ + i % (kRowTiles * 8);
      const int column = i / (kRowTiles * 8);
      if (row < n_) out[column * p_.x.column + row] = solution[column * n_ + row];
    }
  }

  // This warp's slice of the columns k from `begin` to `end`.
  template <typename Left>
  __device__ void Product(const T* m, const Right<T>& right, double sign, int64_t begin,
                          int64_t end) {
    const int64_t slice = ((n_ + kSlices - 1) / kSlices + 7) / 8 * 8;
    const int64_t from = WarpIndex() * slice;
    const int64_t to = Minimum(from + slice, end);
    const int64_t first = from > begin ? from : begin;
    if (first >= to) return;
    Accumulate(sums_, sign, Left{m, n_, row0_}, right, first, to);
  }

  // Sums the slices in order and hands out start(row, column) + sum.
  template <typename Start, typename Store>
  __device__ void Finish(const Start& start, const Store& store) {
    constexpr int kTile = kRowTiles * 8 * kLargeColumns;
    double* mine = shared_ + WarpIndex() * kTile;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      sums_[i].ForEach([&](int row, int column, double value) {
        mine[column * kRowTiles * 8 + i * 8 + row] = value;
      });
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kRowTiles * 8 * p_.columns; i += blockDim.x) {
      const int64_t row = row0_ + i % (kRowTiles * 8);
      const int column = i / (kRowTiles * 8);
      if (row >= n_) continue;
      double sum = start(row, column);
      for (int s = 0; s < kSlices; ++s) sum += shared_[s * kTile + i];
      store(row, column, static_cast<T>(sum));
    }
  }

  const Part<T>& p_;
  const int64_t n_;
  const int64_t row0_;
  T* const scratch_;
  double* const shared_;
  const int64_t k_;
  Rows<kLargeColumns / kColumns> sums_[kRowTiles];
};

template <typename T, LargeStep kStep>
__global__ void __launch_bounds__(kSlices* kWarp)
    SubstituteLargeKernel(const BLOCKD_KERNEL_ARGUMENT SubstituteArgs args, int64_t unit0,
                          int64_t panel0, int64_t k) {
  extern __shared__ double shared[];
  constexpr bool kPairs = kStep == LargeStep::kForwardUpdate;
  const int64_t local = kPairs ? blockIdx.y / 2 : blockIdx.y;
  const int64_t units = kPairs ? gridDim.y / 2 : gridDim.y;
  const int64_t segments = args.level.segments();
  const int64_t unit = unit0 + local;
  const Part<T> part(args, unit / segments, args.level.launched(unit % segments),
                     (panel0 + blockIdx.z) * kLargeColumns, kLargeColumns);
  if (part.columns <= 0) return;
  T* scratch =
      static_cast<T*>(args.scratch) + (blockIdx.z * units + local) * args.level.n * kLargeColumns;
  LargeWalk<T, kStep>(part, scratch, shared, k).Run();
}

// The first blocks' right-hand sides into the scratch.
template <typename T>
__global__ void StartForwardKernel(const BLOCKD_KERNEL_ARGUMENT SubstituteArgs args, int64_t unit0,
                                   int64_t panel0) {
  const int64_t segments = args.level.segments(), n = args.level.n;
  const int64_t unit = unit0 + blockIdx.y;
  const Part<T> part(args, unit / segments, args.level.launched(unit % segments),
                     (panel0 + blockIdx.z) * kLargeColumns, kLargeColumns);
  T* scratch = static_cast<T*>(args.scratch) +
               (static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) * n * kLargeColumns;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= n) return;
  for (int c = 0; c < part.columns; ++c) {
    scratch[c * n + row] = static_cast<T>(part.Rhs(part.run.block(0), row, c));
  }
}

// Units and panels of columns at a time, as many as the scratch holds.
template <typename T>
class LargeLauncher {
 public:
  LargeLauncher(const SubstituteArgs& args, bool forward, Stream stream,
                const std::atomic<bool>* stop)
      : args_(args), forward_(forward), stream_(stream), stop_(stop) {}

  LaunchResult Run() {
    const int64_t a_unit = args_.level.n * kLargeColumns * static_cast<int64_t>(sizeof(T));
    const int64_t most = Minimum(args_.scratch_bytes / a_unit, 32000);
    const int64_t units = args_.level.segments() * args_.num_systems;
    const int64_t panels = (args_.max_rhs + kLargeColumns - 1) / kLargeColumns;
    const int64_t at_once = Minimum(units, most);
    const int64_t panels_at_once = Minimum(panels, most / at_once);
    for (int64_t p = 0; p < panels; p += panels_at_once) {
      panel0_ = p;
      panels_ = Minimum(panels - p, panels_at_once);
      for (int64_t u = 0; u < units; u += at_once) {
        unit0_ = u;
        units_ = Minimum(units - u, at_once);
        forward_ ? Forward() : Backward();
        if (!result_.ok()) return result_;
      }
    }
    return result_;
  }

 private:
  static int64_t Minimum(int64_t a, int64_t b) { return a < b ? a : b; }
  bool Stopped() const { return stop_ && stop_->load(std::memory_order_relaxed); }
  int64_t Steps() const {
    const LevelShape& level = args_.level;
    int64_t steps = level.first_length;
    if (level.last_length > steps) steps = level.last_length;
    return level.longest_middle() > steps ? level.longest_middle() : steps;
  }

  void Forward() {
    const dim3 grid(static_cast<unsigned>((args_.level.n + 255) / 256),
                    static_cast<unsigned>(units_), static_cast<unsigned>(panels_));
    StartForwardKernel<T><<<grid, 256, 0, stream_>>>(args_, unit0_, panel0_);
    result_ = {BLOCKD_GPU(GetLastError)(), "StartForward"};
    for (int64_t k = 0; k < Steps() && !Stopped() && result_.ok(); ++k) {
      Launch<LargeStep::kForwardDivide>(k, units_);
      Launch<LargeStep::kForwardUpdate>(k, 2 * units_);
    }
  }
  void Backward() {
    for (int64_t k = Steps() - 1; k >= 0 && !Stopped() && result_.ok(); --k) {
      Launch<LargeStep::kBackwardUpdate>(k, units_);
      Launch<LargeStep::kBackwardDivide>(k, units_);
    }
  }

  template <LargeStep kStep>
  void Launch(int64_t k, int64_t rows) {
    if (!result_.ok()) return;
    const int64_t tiles = (args_.level.n + kRowTiles * 8 - 1) / (kRowTiles * 8);
    const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(rows),
                    static_cast<unsigned>(panels_));
    constexpr size_t kBytes = kSlices * kRowTiles * 8 * kLargeColumns * sizeof(double);
    SubstituteLargeKernel<T, kStep>
        <<<grid, kSlices * kWarp, kBytes, stream_>>>(args_, unit0_, panel0_, k);
    result_ = {BLOCKD_GPU(GetLastError)(), "SubstituteLarge"};
  }

  const SubstituteArgs& args_;
  const bool forward_;
  const Stream stream_;
  const std::atomic<bool>* const stop_;
  LaunchResult result_;
  int64_t unit0_ = 0, units_ = 0, panel0_ = 0, panels_ = 0;
};

template <typename T>
Error AllowAll() {
  const size_t bytes = 3 * SmallLead(kLargestSmallSolve) * 2 * kColumns * sizeof(T);
  Error error = AllowShared(SubstituteSmallKernel<T, 1, true>, bytes);
  if (error == kSuccess) error = AllowShared(SubstituteSmallKernel<T, 1, false>, bytes);
  if (error == kSuccess) error = AllowShared(SubstituteSmallKernel<T, 2, true>, bytes);
  if (error == kSuccess) error = AllowShared(SubstituteSmallKernel<T, 2, false>, bytes);
  return error;
}

}  // namespace

LaunchResult PrepareSubstitute() {
  Error error = AllowAll<double>();
  if (error == kSuccess) error = AllowAll<float>();
  return {error, "Substitute"};
}

template <typename T>
LaunchResult SubstituteSmall(const SubstituteArgs& args, bool forward, Stream stream) {
  return args.max_rhs <= kColumns ? LaunchSmall<T, 1>(args, forward, stream)
                                  : LaunchSmall<T, 2>(args, forward, stream);
}

template <typename T>
LaunchResult SubstituteLarge(const SubstituteArgs& args, bool forward, Stream stream,
                             const std::atomic<bool>* stop) {
  return LargeLauncher<T>(args, forward, stream, stop).Run();
}

template LaunchResult SubstituteSmall<double>(const SubstituteArgs&, bool, Stream);
template LaunchResult SubstituteSmall<float>(const SubstituteArgs&, bool, Stream);
template LaunchResult SubstituteLarge<double>(const SubstituteArgs&, bool, Stream,
                                              const std::atomic<bool>*);
template LaunchResult SubstituteLarge<float>(const SubstituteArgs&, bool, Stream,
                                             const std::atomic<bool>*);

}  // namespace blockd::gpu
