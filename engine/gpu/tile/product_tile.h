// Device code: a thread block forms a tile of a sum of products A B', the operands streamed from
// global memory through shared memory, kDepth columns at a time, a few stages ahead.
#ifndef BLOCKD_ENGINE_GPU_TILE_PRODUCT_TILE_H_
#define BLOCKD_ENGINE_GPU_TILE_PRODUCT_TILE_H_

#include "engine/gpu/tile/chain.h"
#include "engine/gpu/tile/tile_inverter.h"

namespace blockd::gpu {

// Rows of an operand: entry (row, k) is data[k * stride + row] or, where k runs along the memory,
// data[row * stride + k]; zero for row >= rows, and for k beyond the product's depth.
template <typename T>
struct Operand {
  const T* data = nullptr;
  int64_t stride = 0;
  int rows = 0;
  bool along = false;
};

// One product of a sum; depth 0: none.
template <typename T>
struct Product {
  Operand<T> a, b;
  int depth = 0;
};

// A tile of the lower triangle of an n x n matrix; packed: columns start at the diagonal; whole:
// what is above it counts too.
template <typename T>
struct LowerTriangle {
  const T* data;
  int n, row0, column0;
  bool packed, whole = false;

  // The place of an entry of the tile; Step: from there to the one kProductColumns columns on.
  __device__ int Offset(int row, int column) const {
    const int c = column0 + column, skip = packed ? c * (c + 1) / 2 : 0;
    return c * n - skip + row0 + row;
  }
  __device__ int Step(int column) const {
    constexpr int kBy = kProductColumns;
    return kBy * n - (packed ? kBy * (column0 + column) + kBy * (kBy + 1) / 2 : 0);
  }
};

// Layout says how large a tile is, how its warps share it (each has kRows / kWarpRows rows), how
// many stages of how many columns are under way, and how many thread blocks a multiprocessor has at
// a time.
template <typename T, typename Layout>
class ProductTile {
  static constexpr bool kIsFloat = std::is_same_v<T, float>;
  // Warpgroups have all columns of 64 rows. The host, which knows nothing of that, asks only for
  // threads and shared memory, and these are the same.
  static constexpr bool kByWarpgroups = kHasWarpgroups && kIsFloat;
  static constexpr int kWarps = Layout::kWarpRows * Layout::kWarpColumns;
  static constexpr int kWarpColumns = kByWarpgroups ? 1 : Layout::kWarpColumns;
  static constexpr int kWarpRows = kWarps / kWarpColumns;
  // Results of one matrix instruction, 16 x kProductColumns, that a warp has.
  using Result = ResultLayout<T>;
  static constexpr int kRowTiles = Layout::kRows / kWarpRows / 16;
  static constexpr int kColumnTiles = Layout::kColumns / kWarpColumns / kProductColumns;

 public:
  static constexpr int kVector = 16 / sizeof(T);  // scalars of a copy
  static constexpr int kRows = Layout::kRows, kColumns = Layout::kColumns;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kResident = Layout::kResident;
  static constexpr int kDepth = Layout::kDepth;
  static constexpr int kStages = Layout::kStages;
  // A stage holds an operand column after column; the leading dimensions keep a warp's fragments
  // free of bank conflicts.
  static constexpr int kPad = 32 / static_cast<int>(sizeof(T));
  static constexpr int kLeadA = kRows + kPad, kLeadB = kColumns + kPad;
  static constexpr int kStageA = kDepth * kLeadA, kStage = kDepth * (kLeadA + kLeadB);
  static constexpr int kLeadLaid = kRows + 3;  // odd: a tile that is laid is read both ways
  // Scalars of a part of B that warpgroups read: of kDepth columns, big parts and small ones,
  // twice.
  static constexpr int kParts = kIsFloat && kMayHaveWarpgroups ? kDepth * kColumns : 0;
  static constexpr int kStaged = kStages * kStage + 4 * kParts, kLaid = kColumns * kLeadA;
  static constexpr int kSharedScalars = kStaged > kLaid ? kStaged : kLaid;

  // this += the sum of the products, which had better be in shared memory: registers are few.
  // Every thread calls it; `shared` has kSharedScalars and is free again when it returns.
  __device__ void Add(const Product<T>& first, const Product<T>& second, T* shared) {
    const int stages_of_first = Stages(first);
    const int count = stages_of_first + Stages(second);
    const bool vector = IsAligned(first) && IsAligned(second);
    VectorReader<kRows> reader_a;
    VectorReader<kColumns> reader_b;
    int depth = 0;  // that is left of the product
    const auto fetch = [&](int index) {
      if (index < count) {
        T* to = shared + index % kStages * kStage;
        const bool is_first = index < stages_of_first;
        if (index == 0 || index == stages_of_first) {
          const Product<T>& product = is_first ? first : second;
          reader_a.Start(product.a);
          reader_b.Start(product.b);
          depth = product.depth;
        }
        if (vector) {
          reader_a.Fetch(depth, to);
          reader_b.Fetch(depth, to + kStageA);
        } else {
          const Product<T>& product = is_first ? first : second;
          FetchScalars<kRows>(product.a, product.depth - depth, depth, to);
          FetchScalars<kColumns>(product.b, product.depth - depth, depth, to + kStageA);
        }
        depth -= kDepth;
      }
      CopyCommit();
    };
    // Stores what was fetched by way of registers to its stage.
    const auto land = [&](int index) {
      if (kCopiesAside || !vector || index >= count) return;
      T* to = shared + index % kStages * kStage;
      reader_a.Land(to);
      reader_b.Land(to + kStageA);
    };
    for (int index = 0; index < kStages - 1; ++index) {
      fetch(index);
      land(index);
    }
    if constexpr (kByWarpgroups) {
      MultiplyByWarpgroups(count, fetch, shared);
    } else {
      MultiplyByWarps(count, fetch, land, shared);
    }
  }

  // Begins with minus a tile of a triangle and, if there is `second`, of another one that lies in
  // the same way; above the diagonal anything may come. As many entries as there are registers for
  // are asked for before any is waited for.
  __device__ void StartMinus(LowerTriangle<T> from, const T* second) {
    constexpr int kMost = kRowTiles < 4 ? 4 / kRowTiles : 1;  // of the second, 16 entries
    constexpr int kTogether = kMost < kColumnTiles ? kMost : kColumnTiles;
    static_assert(kColumnTiles % kTogether == 0);
    constexpr int kMine = Result::kColumns, kDown = Result::kRows;
    const int row = Row0() + Result::Row(), column = Column0() + Result::Column();
    const int rows = from.n - from.row0 - row, all = from.n - from.column0 - column;
    // Columns up to the diagonal in this lane's last row.
    constexpr int kToLast = (kRowTiles - 1) * 16 + (kDown - 1) * Result::kStep;
    const int below = from.row0 + row + kToLast - from.column0 - column;
    const int columns = below < all && !from.whole ? below + 1 : all;
    // Finds this lane's columns of a tile; each load moves on to those of the next tile.
    const auto start = [&](const T*(&at)[kMine], const T* matrix) {
      for (int e = 0; e < kMine; ++e) at[e] = matrix + from.Offset(row, column + e);
    };
    const auto load = [&](T(&to)[kRowTiles][kColumnTiles][4], int place, const T*(&at)[kMine],
                          int j) {
#pragma unroll
      for (int e = 0; e < kMine; ++e) {
        const bool inside = j * kProductColumns + e < columns;
#pragma unroll
        for (int i = 0; i < kDown * kRowTiles; ++i) {
          const int down = i / kDown * 16 + i % kDown * Result::kStep;
          T& value = to[i / kDown][place][i % kDown * kMine + e];
          value = 0;
          if (inside && down < rows) value = LoadFresh(at[e] + down);
        }
        at[e] += from.Step(column + j * kProductColumns + e);
      }
    };
    const T* at[kMine];
    start(at, from.data);
#pragma unroll
    for (int j = 0; j < kColumnTiles; ++j) load(c_, j, at, j);
    if (second) {
      // Or where the second's columns are would be kept from the first on.
      Renew(from.n);
      Renew(from.column0);
      start(at, second);
#pragma unroll
      for (int first = 0; first < kColumnTiles; first += kTogether) {
        HoldMemory();
        T values[kRowTiles][kColumnTiles][4];
#pragma unroll
        for (int j = 0; j < kTogether; ++j) load(values, j, at, first + j);
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
#pragma unroll
          for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
            for (int e = 0; e < 4; ++e) c_[i][first + j][e] += values[i][j][e];
          }
        }
      }
    }
    ForEach([](int, int, T& value) { value = T{0} - value; });
  }

  // Lays the tile, times `sign`, into `shared`, column after column. Every thread calls it.
  template <int kLead = kLeadLaid>
  __device__ void Lay(T sign, T* shared) {
    static_assert(kColumns * kLead <= kSharedScalars);
    ForEach([=](int row, int column, T& value) { shared[column * kLead + row] = sign * value; });
    __syncthreads();
  }
  // body(row, column, value) for the entries of as many rows and columns of a tile that lies in
  // `shared`. The lanes of a warp have them side by side in a column or, if kAcross, in a row, of
  // which a warp has the whole: the compiler finds its place once.
  template <bool kAcross, typename Body>
  __device__ static void ForEachLaid(const T* shared, int rows, int columns, const Body& body) {
    constexpr int kLines = kAcross ? kRows : kColumns, kPlaces = kAcross ? kColumns : kRows;
    constexpr int kPieces = (kPlaces + kWarp - 1) / kWarp;
    constexpr int kTogether = 2;
    static_assert(kLines % (kTogether * kWarps) == 0);
    const int lines = kAcross ? rows : columns, places = kAcross ? columns : rows;
#pragma unroll 1
    for (int first = WarpIndex(); first < kLines && first < lines; first += kTogether * kWarps) {
      // All is read before anything is written: a load waits for the stores before it.
      T values[kTogether][kPieces];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
          const int line = first + i * kWarps;
          const int place = kPlaces < kWarp ? Lane() % kPlaces : Lane() + p * kWarp;
          values[i][p] = shared[kAcross ? place * kLeadLaid + line : line * kLeadLaid + place];
        }
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int line = first + i * kWarps;
        if (line >= lines) break;
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
          const int place = Lane() + p * kWarp;
          if (kPlaces < kWarp && place >= kPlaces) continue;
          if (place < places) body(kAcross ? line : place, kAcross ? place : line, values[i][p]);
        }
      }
    }
  }

  // body(row, column, value&) for each entry that this thread has.
  template <typename Body>
  __device__ void ForEach(const Body& body) {
    const int row0 = Row0() + Result::Row(), column0 = Column0() + Result::Column();
#pragma unroll
    for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
      for (int e = 0; e < Result::kColumns; ++e) {
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
          for (int d = 0; d < Result::kRows; ++d) {
            body(row0 + i * 16 + d * Result::kStep, column0 + j * kProductColumns + e,
                 c_[i][j][d * Result::kColumns + e]);
          }
        }
      }
      HoldMemory();  // or the addresses of all entries take more registers than there are
    }
  }

 private:
  // Adds the products of `count` stages, of which the first kStages - 1 are under way; fetch(index)
  // starts another, which is there some time after land(index).
  template <typename Fetch, typename Land>
  __device__ void MultiplyByWarps(int count, const Fetch& fetch, const Land& land,
                                  const T* shared) {
    // Fragments are read one instruction's depth ahead, over the ends of stages too.
    constexpr int kSteps = kDepth / kStep;
    static_assert(kSteps % 2 == 0);
    const T* const b = shared + kStageA + OperandDepth() * kLeadB + Column0() + OperandRow();
    const T* const a = shared + OperandDepth() * kLeadA + Row0() + OperandRow();
    Fragments fragments[2];
    CopyWaitBut<kStages - 2>();
    __syncthreads();
    fragments[0].Read(a, b, 0);
    int ahead = 0;  // the stage that fragments come from
    for (int index = 0; index < count; ++index) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if (step == kSteps - 1) {
          land(index + kStages - 1);
          CopyWaitBut<kStages - 2>();
          __syncthreads();
          if (++ahead == kStages) ahead = 0;
        }
        fragments[(step + 1) % 2].Read(a + ahead * kStage, b + ahead * kStage,
                                       (step + 1) % kSteps * kStep);
        if (step == 0) fetch(index + kStages - 1);
        fragments[step % 2].Multiply(c_);
      }
    }
    CopyWait();
    __syncthreads();
  }

  // The same by warpgroups. The parts of a stage of B are made while the stage before is
  // multiplied.
  template <typename Fetch>
  __device__ void MultiplyByWarpgroups(int count, const Fetch& fetch, T* shared) {
    static_assert(kRows == 16 * kWarps && kRowTiles == 1 && kStages >= 3);
    constexpr int kSteps = kDepth / kStep;
    uint32_t* const parts = reinterpret_cast<uint32_t*>(shared + kStages * kStage);
    const uint64_t description = DescribeMatrix<kColumns>(parts);
    CopyWaitBut<kStages - 2>();
    __syncthreads();
    // A's parts are made a stage ahead too, if there are registers for them.
    constexpr bool kAhead = kColumnTiles <= 4;
    uint32_t big[kSteps][4], small[kSteps][4];
    if (count > 0) {
      Split(shared + kStageA, parts);
      if (kAhead) SplitRows(shared, big, small);
    }
    CopyWaitBut<kStages - 3>();
    ShareWithWarpgroups();
    __syncthreads();
    for (int index = 0; index < count; ++index) {
      if (!kAhead) SplitRows(shared + index % kStages * kStage, big, small);
      uint32_t next_big[kSteps][4], next_small[kSteps][4];
      const uint64_t b = description + index % 2 * (2 * kParts / 4);
      BeginProducts();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const uint64_t b_big = b + step * 2 * kColumns, b_small = b_big + kParts / 4;
        StartProduct(c_[0], small[step], b_big);
        StartProduct(c_[0], big[step], b_small);
        StartProduct(c_[0], big[step], b_big);
      }
      EndProducts();
      if (index + 1 < count) {
        const T* const next = shared + (index + 1) % kStages * kStage;
        Split(next + kStageA, parts + (index + 1) % 2 * 2 * kParts);
        if (kAhead) SplitRows(next, next_big, next_small);
      }
      ShareWithWarpgroups();
      fetch(index + kStages - 1);
      CopyWaitBut<kStages - 3>();
      WaitForProducts();
      if constexpr (kAhead) {
        // Until now the products read these registers, which the compiler does not know.
#pragma unroll
        for (int i = 0; i < kSteps * 4; ++i) {
          Renew(big[i / 4][i % 4]);
          Renew(small[i / 4][i % 4]);
        }
        memcpy(big, next_big, sizeof(big));
        memcpy(small, next_small, sizeof(small));
      }
      __syncthreads();
    }
    CopyWait();
    __syncthreads();
  }
  // The parts of this lane's entries of a stage of A.
  template <int kSteps>
  __device__ static void SplitRows(const T* stage, uint32_t (&big)[kSteps][4],
                                   uint32_t (&small)[kSteps][4]) {
    const T* const a = stage + (Lane() & 3) * kLeadA + Row0() + (Lane() >> 2);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const SplitFloat x(a[(step * kStep + e / 2 * 4) * kLeadA + e % 2 * 8]);
        big[step][e] = x.big, small[step][e] = x.small;
      }
    }
  }
  // The parts of a stage of B, as DescribeMatrix has them.
  __device__ static void Split(const T* stage, uint32_t* parts) {
    static_assert(kParts % (4 * kThreads) == 0);
#pragma unroll
    for (int i = 0; i < kParts / 4 / kThreads; ++i) {
      const int index = static_cast<int>(threadIdx.x) + i * kThreads;
      const T* const from = stage + index / kColumns * 4 * kLeadB + index % kColumns;
      const SplitFloat x0(from[0]), x1(from[kLeadB]), x2(from[2 * kLeadB]), x3(from[3 * kLeadB]);
      reinterpret_cast<uint4*>(parts)[index] = {x0.big, x1.big, x2.big, x3.big};
      reinterpret_cast<uint4*>(parts + kParts)[index] = {x0.small, x1.small, x2.small, x3.small};
    }
  }

  __device__ static int Row0() { return WarpIndex() / kWarpColumns * (kRows / kWarpRows); }
  __device__ static int Column0() { return WarpIndex() % kWarpColumns * (kColumns / kWarpColumns); }
  __device__ static int Stages(const Product<T>& p) { return (p.depth + kDepth - 1) / kDepth; }

  // True if an operand's columns can be copied 16 bytes at a time.
  __device__ static bool IsAligned(const Operand<T>& o) {
    return !o.along &&
           ((reinterpret_cast<uintptr_t>(o.data) | static_cast<uintptr_t>(o.stride * sizeof(T))) &
            15) == 0;
  }
  __device__ static bool IsAligned(const Product<T>& p) {
    return p.depth == 0 || (IsAligned(p.a) && IsAligned(p.b));
  }

  // This thread's pieces of an operand's columns, 16 bytes each.
  template <int kMost>
  struct VectorReader {
    static constexpr int kPieces = kMost / kVector;  // of a column
    static constexpr int kAll = kThreads / kPieces, kTogether = kAll < kDepth ? kAll : kDepth;
    static_assert(kAll * kPieces == kThreads && kDepth % kTogether == 0);
    const T* from;
    int stride;
    int bytes;  // of a piece
    // Where copies do not go on by themselves: the pieces under way.
    static constexpr int kMine = kDepth / kTogether;
    T held[kCopiesAside ? 1 : kMine][kVector];

    __device__ static int Row() { return static_cast<int>(threadIdx.x) % kPieces * kVector; }
    __device__ static int K() { return static_cast<int>(threadIdx.x) / kPieces; }
    __device__ void Start(const Operand<T>& operand) {
      stride = static_cast<int>(operand.stride);
      from = operand.data + K() * operand.stride + Row();
      const int left = operand.rows - Row();
      bytes = left >= kVector ? 16 : left > 0 ? left * static_cast<int>(sizeof(T)) : 0;
    }
    __device__ void Fetch(int depth, T* stage) {
      if (kAll > kDepth && K() >= kDepth) return;
      T* to = stage + K() * (kMost + kPad) + Row();
#pragma unroll
      for (int e = 0; e < kMine; ++e) {
        const int there = K() + e * kTogether < depth ? bytes : 0;
        if constexpr (kCopiesAside) {
          CopyAsync16(to + e * kTogether * (kMost + kPad), from, there);
        } else {
#pragma unroll
          for (int i = 0; i < kVector; ++i) {
            held[e][i] = i * static_cast<int>(sizeof(T)) < there ? from[i] : T{0};
          }
        }
        from += kTogether * stride;
      }
    }
    __device__ void Land(T* stage) const {
      if (kAll > kDepth && K() >= kDepth) return;
      T* to = stage + K() * (kMost + kPad) + Row();
#pragma unroll
      for (int e = 0; e < kMine; ++e) StoreVector(to + e * kTogether * (kMost + kPad), held[e]);
    }
  };

  template <int kMost>
  __device__ static void FetchScalars(const Operand<T>& operand, int k0, int depth, T* stage) {
    const bool along = operand.along;
    const int64_t row_stride = along ? operand.stride : 1, k_stride = along ? 1 : operand.stride;
#pragma unroll 1
    for (int i = threadIdx.x; i < kMost * kDepth; i += kThreads) {
      const int row = along ? i / kDepth : i % kMost, k = along ? i % kDepth : i / kMost;
      T* to = stage + k * (kMost + kPad) + row;
      if (row < operand.rows && k < depth) {
        CopyAsync(to, operand.data + row * row_stride + (k0 + k) * k_stride);
      } else {
        *to = T{0};
      }
    }
  }

  // The operands that a warp multiplies at a time: kStep columns of its rows of A and of B.
  static constexpr int kStep = sizeof(T) == 8 ? 4 : 8;
  struct Fragments {
    T rows[kRowTiles][kStep / 4 * kLeftRows], columns[kColumnTiles][kStep / 4];

    __device__ void Read(const T* a, const T* b, int k) {
#pragma unroll
      for (int q = 0; q < kStep / 4; ++q) {
#pragma unroll
        for (int j = 0; j < kColumnTiles; ++j) {
          columns[j][q] = b[(k + 4 * q) * kLeadB + j * kProductColumns];
        }
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
          for (int r = 0; r < kLeftRows; ++r) {
            rows[i][kLeftRows * q + r] = a[(k + 4 * q) * kLeadA + i * 16 + r * 8];
          }
        }
      }
    }
    __device__ void Multiply(T (&c)[kRowTiles][kColumnTiles][4]) const {
      MultiplyTiles(c, rows, columns);
    }
  };

  T c_[kRowTiles][kColumnTiles][4] = {};
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_TILE_PRODUCT_TILE_H_
