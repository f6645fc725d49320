// Everything that is not elimination or substitution: columns in and out, sums, norms, failures.
#include "engine/gpu/launch.h"
#include "engine/gpu/tile/tile_inverter.h"

namespace blockd::gpu {
namespace {

constexpr int kThreads = 256;

LaunchResult Launched(const char* kernel) { return {BLOCKD_GPU(GetLastError)(), kernel}; }

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

// The larger one; a NaN anywhere shows.
__device__ double Larger(double a, double b) { return isnan(a) || a > b ? a : b; }

__global__ void FindFailuresKernel(const FactorEntry* systems, int64_t segments) {
  __shared__ int64_t shared[kThreads];
  const FactorEntry& mine = systems[blockIdx.x];
  int64_t best = segments;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < segments; i += kThreads) {
    best = mine.info[i] != 0 && i < best ? i : best;
  }
  best = Reduce(best, shared, [](int64_t a, int64_t b) { return a < b ? a : b; });
  if (threadIdx.x == 0 && best < segments) *mine.found = {best + 1, mine.info[best]};
}

template <bool kScatter>
__global__ void MoveColumnsKernel(uint32_t* packed, uint32_t* pieces, const ColumnArgs args) {
  const int64_t words = args.bytes / 4;
  const int64_t all = args.count * words;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < all; i += step) {
    const int64_t piece = args.first_piece + i / words;
    const int64_t column = piece / args.blocks, block = piece % args.blocks;
    uint32_t* at =
        packed + (block * args.total_columns + args.first_column + column) * words + i % words;
    if (kScatter) {
      *at = pieces[i];
    } else {
      pieces[i] = *at;
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
    sum += log(static_cast<double>(inverse[i / n * size + at]));
  }
  sum = Reduce(sum, shared, [](double a, double b) { return a + b; });
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// Thread block (b, c): the blocks b, b + gridDim.x, ... of column c.
template <typename T>
__global__ void ResidualKernel(const BLOCKD_KERNEL_ARGUMENT MatrixArgs args, const T* x, const T* b,
                               T* r, int64_t num_rhs, double* partial) {
  __shared__ double shared[kThreads];
  const int64_t n = args.n, stride = n * num_rhs, column = blockIdx.y;
  const ChainReader<T> reader{args.matrix, n, -1};
  double norms[4] = {0, 0, 0, 0};
  for (int64_t i = blockIdx.x; i < args.num_blocks; i += gridDim.x) {
    const DiagonalSource<T> diagonal = reader.Diagonal(i);
    const T* xi = x + i * stride + column * n;
    for (int64_t row = threadIdx.x; row < n; row += kThreads) {
      double y = 0, sum = 0;
      for (int64_t k = 0; k < n; ++k) {
        const double a = static_cast<double>(diagonal.At(row, k));
        sum += fabs(a);
        y = fma(a, static_cast<double>(xi[k]), y);
      }
      const auto couple = [&](const CouplingSource<T>& e, const T* vector) {
        for (int64_t k = 0; k < n; ++k) {
          const double a = static_cast<double>(*e.At(row, k));
          sum += fabs(a);
          y = fma(a, static_cast<double>(vector[k]), y);
        }
      };
      if (i > 0) couple(reader.Coupling(i - 1, false), xi - stride);
      if (i + 1 < args.num_blocks) couple(reader.Coupling(i, true), xi + stride);
      const int64_t at = i * stride + column * n + row;
      const double residual = static_cast<double>(b[at]) - y;
      r[at] = static_cast<T>(residual);
      norms[0] = Larger(fabs(residual), norms[0]);
      norms[1] = Larger(sum, norms[1]);
      norms[2] = Larger(fabs(static_cast<double>(xi[row])), norms[2]);
      norms[3] = Larger(fabs(static_cast<double>(b[at])), norms[3]);
    }
  }
  for (int e = 0; e < 4; ++e) {
    const double most = Reduce(norms[e], shared, Larger);
    if (threadIdx.x == 0) partial[(column * gridDim.x + blockIdx.x) * 4 + e] = most;
  }
}

__global__ void LargestKernel(const double* partial, int64_t count, double* norms) {
  __shared__ double shared[kThreads];
  for (int e = 0; e < 4; ++e) {
    double most = 0;
    for (int64_t i = threadIdx.x; i < count; i += kThreads) {
      most = Larger(partial[(blockIdx.x * count + i) * 4 + e], most);
    }
    most = Reduce(most, shared, Larger);
    if (threadIdx.x == 0) norms[blockIdx.x * 4 + e] = most;
  }
}

unsigned Blocks(int64_t threads) {
  const int64_t blocks = (threads + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < 4096 ? blocks : 4096);
}

}  // namespace

LaunchResult PrepareVectors() {
  for (const LaunchResult& result : {LaunchResult{Load(FindFailuresKernel), "FindFailures"},
                                     {Load(MoveColumnsKernel<true>), "ScatterColumns"},
                                     {Load(MoveColumnsKernel<false>), "GatherColumns"},
                                     {Load(AddKernel<double>), "AddVectors"},
                                     {Load(AddKernel<float>), "AddVectors"},
                                     {Load(SumLogsKernel<double>), "SumLogs"},
                                     {Load(SumLogsKernel<float>), "SumLogs"},
                                     {Load(ResidualKernel<double>), "Residual"},
                                     {Load(ResidualKernel<float>), "Residual"},
                                     {Load(LargestKernel), "Largest"}}) {
    if (!result.ok()) return result;
  }
  return {};
}

LaunchResult FindFailures(const FactorEntry* systems, int64_t count, int64_t segments,
                          Stream stream) {
  FindFailuresKernel<<<static_cast<unsigned>(count), kThreads, 0, stream>>>(systems, segments);
  return Launched("FindFailures");
}

LaunchResult ScatterColumns(void* packed, const void* pieces, const ColumnArgs& args,
                            Stream stream) {
  MoveColumnsKernel<true><<<Blocks(args.count * args.bytes / 4), kThreads, 0, stream>>>(
      static_cast<uint32_t*>(packed), static_cast<uint32_t*>(const_cast<void*>(pieces)), args);
  return Launched("ScatterColumns");
}

LaunchResult GatherColumns(void* pieces, const void* packed, const ColumnArgs& args,
                           Stream stream) {
  MoveColumnsKernel<false><<<Blocks(args.count * args.bytes / 4), kThreads, 0, stream>>>(
      static_cast<uint32_t*>(const_cast<void*>(packed)), static_cast<uint32_t*>(pieces), args);
  return Launched("GatherColumns");
}

template <typename T>
LaunchResult AddVectors(T* y, const T* x, int64_t scalars, Stream stream) {
  AddKernel<T><<<Blocks(scalars), kThreads, 0, stream>>>(y, x, scalars);
  return Launched("AddVectors");
}

template <typename T>
LaunchResult SumLogs(const T* inverse, int64_t count, int64_t n, double* partial, Stream stream) {
  SumLogsKernel<T><<<kLogPartials, kThreads, 0, stream>>>(inverse, count, n, partial);
  return Launched("SumLogs");
}

template <typename T>
LaunchResult ComputeResidual(const MatrixArgs& args, const T* x, const T* b, T* r, int64_t num_rhs,
                             int64_t first_column, int64_t columns, double* partial, double* norms,
                             Stream stream) {
  const int64_t parts = ResidualParts(args.num_blocks), skip = first_column * args.n;
  const dim3 grid(static_cast<unsigned>(parts), static_cast<unsigned>(columns));
  ResidualKernel<T>
      <<<grid, kThreads, 0, stream>>>(args, x + skip, b + skip, r + skip, num_rhs, partial);
  LaunchResult result = Launched("Residual");
  if (!result.ok()) return result;
  LargestKernel<<<static_cast<unsigned>(columns), kThreads, 0, stream>>>(partial, parts, norms);
  return Launched("Largest");
}

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
