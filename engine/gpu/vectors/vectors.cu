// Everything that is not elimination or substitution: columns in and out, sums, norms, failures.
#include "engine/gpu/tile/chain.h"
#include "engine/gpu/vectors/launch.h"
#include "engine/gpu/vectors/residual_rows.h"

namespace blockd::gpu {
namespace {

constexpr int kThreads = 256;

template <typename Kernel, typename... Args>
LaunchResult Start(const char* name, Kernel* kernel, dim3 grid, Stream stream,
                   const Args&... args) {
  return {LaunchKernel(kernel, grid, kThreads, 0, stream, false, args...), name};
}

// In fixed order: thread i takes half of what thread i + half has, again and again.
template <typename T, typename Combine>
__device__ T Reduce(T value, T* shared, const Combine& combine) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) {
      shared[threadIdx.x] = combine(shared[threadIdx.x], shared[threadIdx.x + half]);
    }
    __syncthreads();
  }
  const T result = shared[0];
  __syncthreads();
  return result;
}

__global__ void FindOutcomesKernel(const FactorEntry* systems, int64_t segments) {
  __shared__ int64_t shared[kThreads];
  const FactorEntry& mine = systems[blockIdx.x];
  int64_t best = segments, most = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < segments; i += kThreads) {
    const int64_t word = mine.info[i];
    best = IsFailure(word) && i < best ? i : best;
    most = !IsFailure(word) && word > most ? word : most;
  }
  best = Reduce(best, shared, [](int64_t a, int64_t b) { return a < b ? a : b; });
  most = Reduce(most, shared, [](int64_t a, int64_t b) { return a > b ? a : b; });
  if (threadIdx.x != 0) return;
  const int32_t failed = best < segments ? static_cast<int32_t>(best) + 1 : 0;
  TellHost(mine.outcome, SystemOutcome{failed, static_cast<uint32_t>(most)});
}

// Thread blocks (.., e) move the e-th entry. Index is wide enough for the entry's scalars.
template <typename Index, bool kScatter, typename T>
__device__ void MoveEntry(const ColumnEntry& entry, Index blocks, Index n) {
  T* const host = static_cast<T*>(entry.host);
  T* const packed = static_cast<T*>(entry.packed);
  const Index all = static_cast<Index>(entry.pieces) * n;
  const Index step = static_cast<Index>(gridDim.x) * kThreads;
#pragma unroll 4
  for (Index i = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x; i < all; i += step) {
    const Index in_entry = i / n, row = i - in_entry * n;
    const Index piece = static_cast<Index>(entry.first_piece) + in_entry;
    const Index column = piece / blocks, block = piece - column * blocks;
    T* const at =
        packed + (int64_t{block} * entry.total_columns + entry.first_column + column) * n + row;
    if (kScatter) {
      *at = host[i];
    } else {
      host[i] = *at;
    }
  }
}

template <bool kScatter, typename T>
__global__ void MoveColumnsKernel(const MoveArgs args) {
  if (args.first && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
    TellHost(&args.times->begin, DeviceNanoseconds());
  }
  const ColumnEntry entry = args.entries == nullptr ? args.only : args.entries[blockIdx.y];
  constexpr int64_t kNarrow = int64_t{1} << 31;
  if (args.blocks < kNarrow && (entry.first_piece + entry.pieces) * args.n < kNarrow) {
    MoveEntry<uint32_t, kScatter, T>(entry, static_cast<uint32_t>(args.blocks),
                                     static_cast<uint32_t>(args.n));
  } else {
    MoveEntry<int64_t, kScatter, T>(entry, args.blocks, args.n);
  }
  if (!args.last) return;
  const unsigned all = gridDim.x * gridDim.y;
  if (kScatter) {
    // Nobody waits for that: it is read with the other times.
    SyncToSignal();
    if (threadIdx.x == 0 && IsLast(args.counter, all)) {
      TellHost(&args.times->end, DeviceNanoseconds());
    }
    return;
  }
  SyncToTellHost();
  if (threadIdx.x == 0 && IsLastToTellHost(args.counter, all)) {
    TellHost(&args.times->end, DeviceNanoseconds());
    __threadfence_system();
    TellHost(&args.times->done, args.number);
  }
}

// Thread blocks (b, s): every gridDim.x-th block of the chain from the b-th on, of the s-th system.
template <typename T>
__global__ void MoveLevelKernel(const BLOCKD_KERNEL_ARGUMENT SolveArgs given,
                                const LevelMove move) {
  const SolveArgs& args = InPlace(given);
  const SolveEntry& system = args.systems[blockIdx.y];
  const SolveLevel& level = args.levels[move.level];
  const int64_t part = args.n * system.num_rhs;
  T* const chains = static_cast<T*>(system.chains);
  for (int64_t b = blockIdx.x; b < move.blocks; b += gridDim.x) {
    int64_t original = b;
    for (int32_t l = move.level; l-- > 0;)
      original = args.levels[l].shape.segment(original).target();
    T* const x = static_cast<T*>(system.x) + original * part;
    const bool last = move.scratch && b + 1 == move.blocks;
    T* const in_chain =
        move.level > 0 ? chains + (level.separators_before + b) * 2 * part : nullptr;
    T* const in_scratch =
        last ? chains + (args.separators * 2 + level.next_separators_before + move.level) * part
             : nullptr;
    for (int64_t i = threadIdx.x; i < part; i += kThreads) {
      if (move.down) {
        if (last) {
          x[i] = in_scratch[i];
        } else if (in_chain) {
          x[i] = in_chain[i];
        }
      } else {
        const T value = x[i];
        if (in_chain) in_chain[i] = value;
        if (last) in_scratch[i] = value;
      }
    }
  }
}

template <typename T>
__global__ void AddKernel(T* y, const T* x, int64_t scalars) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < scalars;
       i += step) {
    y[i] += x[i];
  }
}

template <typename T>
__global__ void SumLogsKernel(const T* inverse, int64_t count, int64_t n, double* partial) {
  __shared__ double shared[kThreads];
  double sum = 0;
  const int64_t size = TriangleSize(n), step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count * n;
       i += step) {
    const int64_t row = i % n, panel = row / kPanelColumns, first = panel * kPanelColumns;
    const int64_t at = PanelOffset(n, panel) + (row - first) * (n - first) + row - first;
    const auto entry = static_cast<double>(inverse[i / n * size + at]);
    sum += entry < 0 ? -log(-entry) : log(entry);  // of -L or of inv(L)
  }
  sum = Reduce(sum, shared, [](double a, double b) { return a + b; });
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// Thread block (p, c): the p-th strip of 32 rows and every gridDim.x-th after it, the c-th
// kColumns columns of `columns` from `first` on.
template <typename T, int kColumns>
__global__ void __launch_bounds__((ResidualRows<T, kColumns>::kThreads))
    ResidualKernel(const BLOCKD_KERNEL_ARGUMENT MatrixArgs given, const T* x, const T* b, T* r,
                   int64_t num_rhs, int64_t first, int columns, double* partial) {
  const MatrixArgs& args = InPlace(given);
  using Rows = ResidualRows<T, kColumns>;
  __shared__ __align__(16) unsigned char memory[sizeof(typename Rows::Memory)];
  const int before = static_cast<int>(blockIdx.y) * kColumns;
  const int mine = columns - before < kColumns ? columns - before : kColumns;
  const ResidualVectors<T> vectors = {x, b, r, num_rhs, first + before, mine};
  Rows rows(args, vectors, *reinterpret_cast<typename Rows::Memory*>(memory));
  const int64_t strips = (args.n + Rows::kRows - 1) / Rows::kRows;
  for (int64_t i = blockIdx.x; i < args.num_blocks * strips; i += gridDim.x) {
    rows.Form(i / strips, static_cast<int>(i % strips) * Rows::kRows);
  }
  rows.StoreNorms(partial + (before * int64_t{gridDim.x} + blockIdx.x) * 4, gridDim.x * 4);
}

__global__ void LargestKernel(const double* partial, int64_t count, double* norms) {
  __shared__ double shared[kThreads];
  for (int e = 0; e < 4; ++e) {
    double most = 0;
    for (int64_t i = threadIdx.x; i < count; i += kThreads) {
      most = LargerOrNaN(partial[(blockIdx.x * count + i) * 4 + e], most);
    }
    most = Reduce(most, shared, LargerOrNaN);
    if (threadIdx.x == 0) norms[blockIdx.x * 4 + e] = most;
  }
}

// Four scalars a thread, up to some thread blocks for each multiprocessor.
dim3 MoveGrid(const MoveArgs& args) {
  constexpr int64_t kAThread = 4, kMostBlocks = 2048;
  const int64_t wanted =
      (args.most_pieces * args.n + kAThread * kThreads - 1) / kAThread / kThreads;
  const int64_t most = args.count < kMostBlocks ? kMostBlocks / args.count : 1;
  return dim3(static_cast<unsigned>(wanted < most ? wanted : most),
              static_cast<unsigned>(args.count));
}

dim3 Blocks(int64_t threads) {
  const int64_t blocks = (threads + kThreads - 1) / kThreads;
  return dim3(static_cast<unsigned>(blocks < 4096 ? blocks : 4096));
}

}  // namespace

LaunchResult PrepareVectors() {
  for (const LaunchResult& result : {LaunchResult{Load(FindOutcomesKernel), "FindOutcomes"},
                                     {Load(MoveColumnsKernel<true, double>), "ScatterColumns"},
                                     {Load(MoveColumnsKernel<true, float>), "ScatterColumns"},
                                     {Load(MoveColumnsKernel<false, double>), "GatherColumns"},
                                     {Load(MoveColumnsKernel<false, float>), "GatherColumns"},
                                     {Load(MoveLevelKernel<double>), "MoveLevel"},
                                     {Load(MoveLevelKernel<float>), "MoveLevel"},
                                     {Load(AddKernel<double>), "AddVectors"},
                                     {Load(AddKernel<float>), "AddVectors"},
                                     {Load(SumLogsKernel<double>), "SumLogs"},
                                     {Load(SumLogsKernel<float>), "SumLogs"},
                                     {Load(ResidualKernel<double, 1>), "Residual"},
                                     {Load(ResidualKernel<double, 8>), "Residual"},
                                     {Load(ResidualKernel<double, 32>), "Residual"},
                                     {Load(ResidualKernel<float, 1>), "Residual"},
                                     {Load(ResidualKernel<float, 8>), "Residual"},
                                     {Load(ResidualKernel<float, 32>), "Residual"},
                                     {Load(LargestKernel), "Largest"}}) {
    if (!result.ok()) return result;
  }
  return {};
}

LaunchResult FindOutcomes(const FactorEntry* systems, int64_t count, int64_t segments,
                          Stream stream) {
  return Start("FindOutcomes", FindOutcomesKernel, dim3(static_cast<unsigned>(count)), stream,
               systems, segments);
}

template <typename T>
LaunchResult ScatterColumns(const MoveArgs& args, Stream stream) {
  return Start("ScatterColumns", MoveColumnsKernel<true, T>, MoveGrid(args), stream, args);
}

template <typename T>
LaunchResult GatherColumns(const MoveArgs& args, Stream stream) {
  return Start("GatherColumns", MoveColumnsKernel<false, T>, MoveGrid(args), stream, args);
}

template <typename T>
LaunchResult MoveLevel(const SolveArgs& args, const LevelMove& move, Stream stream) {
  constexpr int64_t kMost = 4096;
  const int64_t blocks = move.blocks < kMost ? move.blocks : kMost;
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(args.num_systems));
  return Start("MoveLevel", MoveLevelKernel<T>, grid, stream, args, move);
}

template <typename T>
LaunchResult AddVectors(T* y, const T* x, int64_t scalars, Stream stream) {
  return Start("AddVectors", AddKernel<T>, Blocks(scalars), stream, y, x, scalars);
}

template <typename T>
LaunchResult SumLogs(const T* inverse, int64_t count, int64_t n, double* partial, Stream stream) {
  return Start("SumLogs", SumLogsKernel<T>, dim3(kLogPartials), stream, inverse, count, n, partial);
}

template <typename T>
LaunchResult ComputeResidual(const MatrixArgs& args, const T* x, const T* b, T* r, int64_t num_rhs,
                             int64_t first_column, int64_t columns, double* partial, double* norms,
                             Stream stream) {
  const int64_t at_once = columns == 1 ? 1 : columns <= 8 ? 8 : 32;
  const int64_t parts = ResidualParts(args);
  const auto kernel = at_once == 1   ? ResidualKernel<T, 1>
                      : at_once == 8 ? ResidualKernel<T, 8>
                                     : ResidualKernel<T, 32>;
  const dim3 grid(static_cast<unsigned>(parts),
                  static_cast<unsigned>((columns + at_once - 1) / at_once));
  const LaunchResult result = Start("Residual", kernel, grid, stream, args, x, b, r, num_rhs,
                                    first_column, static_cast<int>(columns), partial);
  if (!result.ok()) return result;
  return Start("Largest", LargestKernel, dim3(static_cast<unsigned>(columns)), stream, partial,
               parts, norms);
}

template LaunchResult ScatterColumns<double>(const MoveArgs&, Stream);
template LaunchResult ScatterColumns<float>(const MoveArgs&, Stream);
template LaunchResult GatherColumns<double>(const MoveArgs&, Stream);
template LaunchResult GatherColumns<float>(const MoveArgs&, Stream);
template LaunchResult MoveLevel<double>(const SolveArgs&, const LevelMove&, Stream);
template LaunchResult MoveLevel<float>(const SolveArgs&, const LevelMove&, Stream);
template LaunchResult AddVectors<double>(double*, const double*, int64_t, Stream);
template LaunchResult AddVectors<float>(float*, const float*, int64_t, Stream);
template LaunchResult SumLogs<double>(const double*, int64_t, int64_t, double*, Stream);
template LaunchResult SumLogs<float>(const float*, int64_t, int64_t, double*, Stream);
template LaunchResult ComputeResidual<double>(const MatrixArgs&, const double*, const double*,
                                              double*, int64_t, int64_t, int64_t, double*, double*,
                                              Stream);
template LaunchResult ComputeResidual<float>(const MatrixArgs&, const float*, const float*, float*,
                                             int64_t, int64_t, int64_t, double*, double*, Stream);

}  // namespace blockd::gpu
