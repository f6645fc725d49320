// Device code: how large the tiles of large blocks are, and what a thread block does with one.
#ifndef BLOCKD_ENGINE_GPU_TILE_TILE_TASK_H_
#define BLOCKD_ENGINE_GPU_TILE_TILE_TASK_H_

#include "engine/gpu/tile/product_tile.h"

namespace blockd::gpu {

// Stages of operands. More are of use only where copies go on by themselves.
constexpr int Stages(int most) { return kCopiesAside ? most : 2; }

// Tiles of the columns, kTile x kTile: a thread block has a multiprocessor to itself, unless
// warpgroups, who need no registers for B, make room for a second one.
template <typename T, int kTile>
struct ColumnLayout {
  static constexpr int kRows = 128, kColumns = 128, kWarpRows = 2, kWarpColumns = 4;
  static constexpr int kStages = Stages(4), kDepth = 16;
  static constexpr int kResident = kHasWarpgroups && std::is_same_v<T, float> ? 2 : 1;
};
// All others: a few share a multiprocessor, and one computes while another begins or ends. Of AMD's
// shared memory one of them takes more than half.
template <typename T, int kTile>
struct SharedLayout {
  static constexpr int kRows = 128, kColumns = 64, kWarpRows = 2, kWarpColumns = 2;
  static constexpr int kStages = Stages(4), kDepth = 16, kResident = kIsAmd ? 1 : 2;
};
// By warpgroups; without them, as large all the same, for the host asks for the same thread blocks.
template <>
struct SharedLayout<float, 128> : ColumnLayout<float, 128> {};
template <typename T>
struct SharedLayout<T, 64> {
  static constexpr int kRows = 64, kColumns = 64, kWarpRows = 2, kWarpColumns = 2;
  static constexpr int kStages = Stages(sizeof(T) == 8 ? 3 : 4), kDepth = 16;
  static constexpr int kResident = kIsAmd ? 1 : 3;
};
template <typename T>
struct ColumnLayout<T, 64> : SharedLayout<T, 64> {};
// Where there are few tiles of 128, so that more multiprocessors have some of the work.
template <typename T>
struct NarrowLayout {
  static constexpr int kRows = 128, kColumns = 32, kWarpRows = 4, kWarpColumns = 2;
  static constexpr int kStages = Stages(4), kDepth = 128 / sizeof(T), kResident = kIsAmd ? 1 : 2;
};

template <typename T, int kTile>
inline constexpr bool kCanBeNarrow = kTile == NarrowLayout<T>::kRows;

// A tile of a matrix: start - first - second, or the sum of the products alone.
template <typename T>
struct Task {
  Product<T> first, second;
  DiagonalSource<T> start;  // none: zero
  int row0 = 0, column0 = 0;
  T* out =
      nullptr;  // entry (row, column) of the matrix at row * row_stride + column * column_stride
  int64_t row_stride = 1, column_stride = 0;
  bool any = false;  // is there a tile to form?
  bool negative = false;
  bool lower = false;   // nothing above the matrix's diagonal is read or written
  bool whole = false;   // what it starts from is no triangle
  bool factor = false;  // the tile becomes its inverse factor
};

// With blocks of n rows; `shared` is the thread block's.
template <typename T, int kTile, typename Tile>
class TileTask {
 public:
  __device__ TileTask(const Task<T>& task, int n, T* shared)
      : task_(task), n_(n), shared_(shared) {}

  // A sum begins with what it is to be subtracted from, negative.
  __device__ void Start(Tile& tile) const {
    const int row0 = task_.row0, column0 = task_.column0;
    if (task_.start.first) {
      tile.StartMinus(
          LowerTriangle<T>{task_.start.first, n_, row0, column0, task_.start.packed, task_.whole},
          task_.start.second);
    }
    // Outside of the matrix with the identity, for the Cholesky factor of an unfilled tile.
    if (Tile::kColumns == kTile && task_.factor && row0 + kTile > n_) {
      tile.ForEach([&](int r, int c, T& value) {
        if (r == c && row0 + r >= n_) value = -1;
      });
    }
  }

  __device__ void Lay(Tile& tile) const { tile.Lay(task_.negative ? -1 : 1, shared_); }
  // Stores what Lay has laid. The values that a loop over entries needs stand in registers: after
  // each store the task, in shared memory, would be read again.
  __device__ void Store() const {
    const int rows = n_ - task_.row0, columns = n_ - task_.column0;
    const int below = task_.lower ? task_.row0 - task_.column0 : n_;  // columns up to row + below
    const int row_stride = static_cast<int>(task_.row_stride);
    const int column_stride = static_cast<int>(task_.column_stride);
    T* const out = task_.out + task_.row0 * task_.row_stride + task_.column0 * task_.column_stride;
    if (column_stride == 1) {
      Tile::template ForEachLaid<true>(
          shared_, rows, columns, [=](int r, int c, T value) { out[r * row_stride + c] = value; });
    } else {
      Tile::template ForEachLaid<false>(shared_, rows, columns, [=](int r, int c, T value) {
        if (c <= r + below) out[c * column_stride + r] = value;
      });
    }
  }

  // Stores a tile of inv(L) below its diagonal, as Lay has laid it: its transpose goes above the
  // diagonal of `inverse`, and the tile to the stored triangle `kept`.
  __device__ void StoreInverseTile(T* inverse, T* kept) const {
    const int n = n_, row0 = task_.row0, column0 = task_.column0;
    const int rows = n - row0, columns = n - column0;
    T* const transposed = inverse + static_cast<int64_t>(row0) * n + column0;
    T* const kept_rows = kept + row0;
    Tile::template ForEachLaid<true>(shared_, rows, columns,
                                     [=](int r, int c, T value) { transposed[r * n + c] = value; });
    Tile::template ForEachLaid<false>(shared_, rows, columns, [=](int r, int c, T value) {
      KeptColumn(kept_rows, n, column0 + c)[r] = value;
    });
  }

  // The tile, minus one on a block's diagonal, becomes that of inv(L), in shared memory.
  __device__ void Invert(Tile& tile, int* failed) const {
    tile.template Lay<kLead>(-1, shared_);
    InvertLaid(failed);
  }
  // The same of what the task starts from alone.
  __device__ void InvertStart(int* failed) const {
    LoadStart();
    __syncthreads();
    InvertLaid(failed);
  }

  // The sum of squares of a column of what Invert has made; other threads ask for the next columns.
  __device__ T SumOfColumn(int column) const {
    constexpr int kTogether = 8 / kVector;
    // Every other four columns have two vectors in the other order, for the sake of the banks.
    const int swapped = column / 4 % 2;
    const T* const entries = shared_ + column * kLead;
    T sums[kVector] = {};
    // From the 8 x 8 tile on the diagonal on, which is whole.
#pragma unroll 2
    for (int row = column & -8; row < kTile; row += 8) {
      T values[kTogether][kVector];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        LoadVector(values[i], entries + row + (i ^ swapped) * kVector);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const T value = values[i / kVector][i % kVector];
        sums[i % kVector] = fma(value, value, sums[i % kVector]);
      }
    }
    T sum = sums[0];
#pragma unroll
    for (int i = 1; i < kVector; ++i) sum += sums[i];
    return sum;
  }

  // Stores the j-th tile on the diagonal, as Invert has made it: to its place in `inverse`, its
  // transpose to `transposed`, and to the stored triangle `kept`; null: not there.
  __device__ void StoreFactor(int j, T* inverse, T* transposed, T* kept) const {
    const int n = n_, j0 = j * kTile, size = n - j0 < kTile ? n - j0 : kTile;
    const T* const tile_of = shared_;
    T* const out = inverse ? inverse + static_cast<int64_t>(j0) * n + j0 : nullptr;
    T* const across_out = transposed ? transposed + j0 : nullptr;
    if (!transposed && n % kVector == 0) return StoreColumns(j0, size, out, kept);
    constexpr int kParts = kTile / kWarp;
#pragma unroll 2
    for (int column = WarpIndex(); column < size; column += Tile::kThreads / kWarp) {
      // All is read before anything is written: a load waits for the stores before it.
      T down[kParts], across[kParts];
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        const int row = Lane() + p * kWarp;
        down[p] = row < column ? T{0} : tile_of[column * kLead + row];
        across[p] = column < row || !across_out ? T{0} : tile_of[row * kLead + column];
      }
      T* const kept_column = kept ? KeptColumn(kept, n, j0 + column) + j0 : nullptr;
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        const int row = Lane() + p * kWarp;
        if (row >= size) break;
        if (out) out[column * n + row] = down[p];
        if (kept && row >= (column & -kPanelColumns)) kept_column[row] = down[p];
        if (across_out) across_out[column * n + row] = across[p];
      }
    }
  }

 private:
  static constexpr int kLead = kLd<T, kTile>;
  static constexpr int kVector = 16 / static_cast<int>(sizeof(T));
  static constexpr int kVectors = kTile / kVector;  // of a column
  static constexpr int kColumnsAtOnce = Tile::kThreads / kVectors;

  // The lower triangle is there; the tiles of 8 on the diagonal have to be whole.
  __device__ void InvertLaid(int* failed) const {
    for (int i = threadIdx.x; i < kTile * 8; i += Tile::kThreads) {
      const int column = i / 8, row = (column & -8) + i % 8;
      if (row < column) shared_[column * kLead + row] = shared_[row * kLead + column];
    }
    __syncthreads();
    TileInverter<kTile, Tile::kThreads / kWarp, T>(shared_, failed, WarpIndex()).Run();
  }

  // Outside of the matrix with the identity; above the diagonal anything may come.
  __device__ void LoadStart() const {
    const DiagonalSource<T> from = task_.start;
    const int n = n_, row0 = task_.row0, column0 = task_.column0;
    const int rows = n - row0, columns = n - column0;
    const bool aligned =
        !from.packed && n % kVector == 0 &&
        ((reinterpret_cast<uintptr_t>(from.first) | reinterpret_cast<uintptr_t>(from.second)) &
         15) == 0;
    if (!aligned) {
#pragma unroll 8
      for (int i = threadIdx.x; i < kTile * kTile; i += Tile::kThreads) {
        const int row = i % kTile, column = i / kTile;
        T value = row == column ? T{1} : T{0};
        if (column <= row && row < rows) {
          const int at = from.packed
                             ? LowerTriangle<T>{nullptr, n, row0, column0, true}.Offset(row, column)
                             : (column0 + column) * n + row0 + row;
          value = LoadFresh(from.first + at);
          if (from.second) value += LoadFresh(from.second + at);
        }
        if (column <= row) shared_[column * kLead + row] = value;
      }
      return;
    }
    const int row = static_cast<int>(threadIdx.x) % kVectors * kVector;
    const int column = static_cast<int>(threadIdx.x) / kVectors;
    constexpr int kTogether = 8;
    static_assert(kTile % (kTogether * kColumnsAtOnce) == 0);
#pragma unroll 1
    for (int first = column; first < kTile; first += kTogether * kColumnsAtOnce) {
      T values[kTogether][kVector], more[kTogether][kVector];
      // Loads under a condition would wait for one another.
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        const int c = first + u * kColumnsAtOnce;
        const int at = (column0 + (c < columns ? c : 0)) * n + row0 + (row < rows ? row : 0);
        LoadVectorFresh(values[u], from.first + at);
        LoadVectorFresh(more[u], (from.second ? from.second : from.first) + at);
      }
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        const int c = first + u * kColumnsAtOnce;
        const bool inside = row < rows && c < columns;
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
          if (from.second) values[u][e] += more[u][e];
          if (!inside) values[u][e] = row + e == c ? T{1} : T{0};
        }
        StoreVector(shared_ + c * kLead + row, values[u]);
      }
    }
  }

  // Rows and columns up to `size`, a vector at a time, zeros above the diagonal.
  __device__ void StoreColumns(int j0, int size, T* out, T* kept) const {
    const int n = n_;
    const int row = static_cast<int>(threadIdx.x) % kVectors * kVector;
    if (row >= size) return;
#pragma unroll 4
    for (int column = static_cast<int>(threadIdx.x) / kVectors; column < size;
         column += kColumnsAtOnce) {
      T values[kVector];
      LoadVector(values, shared_ + column * kLead + row);
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        if (row + e < column) values[e] = 0;
      }
      if (out) StoreVector(out + column * n + row, values);
      if (kept && row >= (column & -kPanelColumns)) {
        StoreVector(KeptColumn(kept, n, j0 + column) + j0 + row, values);
      }
    }
  }

  // Entry (row, column) of a stored triangle is KeptColumn(kept, n, column)[row].
  __device__ static T* KeptColumn(T* kept, int n, int column) {
    const int panel = column / kPanelColumns, first = panel * kPanelColumns;
    return kept + PanelOffset(n, panel) + (column - first) * (n - first) - first;
  }

  const Task<T>& task_;
  const int n_;
  T* const shared_;
};

// Copies 64 x 64 entries of a coupling block, of n rows, to a column-major one; along the memory
// both times. Ends without a barrier.
template <int kThreads, typename T>
__device__ inline void CopySquare(const CouplingSource<T>& from, int n, int row0, int column0,
                                  T* shared, T* out) {
  constexpr int kSide = 64, kLead = kSide + 1;
  const bool turn = from.row_stride != 1;
#pragma unroll 8
  for (int i = threadIdx.x; i < kSide * kSide; i += kThreads) {
    const int row = turn ? i / kSide : i % kSide, column = turn ? i % kSide : i / kSide;
    if (row0 + row < n && column0 + column < n) {
      CopyAsync(shared + column * kLead + row, from.At(row0 + row, column0 + column));
    }
  }
  CopyWait();
  __syncthreads();
#pragma unroll 8
  for (int i = threadIdx.x; i < kSide * kSide; i += kThreads) {
    const int row = i % kSide, column = i / kSide;
    if (row0 + row < n && column0 + column < n) {
      out[static_cast<int64_t>(column0 + column) * n + row0 + row] = shared[column * kLead + row];
    }
  }
}

// Says that row `failed` of a segment's blocks has a bad pivot, unless one before had: of the
// segment's word. `first`: this is its first row. By one thread.
__device__ inline void NoteFailure(int64_t* info, bool first, int64_t rows_before, int failed) {
  if (first) *info = 0;  // scratch is not cleared
  if (failed >= 0 && (first || !IsFailure(LoadFresh(info)))) {
    *info = FailureWord(1 + rows_before + failed);
  }
}

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_TILE_TILE_TASK_H_
