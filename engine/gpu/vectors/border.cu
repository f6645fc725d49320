// Products with the border of an arrowhead.
#include "engine/gpu/arch/arch.h"
#include "engine/gpu/vectors/border_launch.h"

namespace blockd::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = kBorderTile;         // rows of a tile of Y' V; rows of the chain at a time
constexpr int kGroups = kThreads / kTile;  // of threads, which share the chain's rows
constexpr int kAtOnce = 4;                 // columns of a tile whose groups are summed together

template <typename Kernel, typename... Args>
LaunchResult Start(const char* name, Kernel* kernel, dim3 grid, Stream stream,
                   const Args&... args) {
  return {LaunchKernel(kernel, grid, kThreads, 0, stream, false, args...), name};
}

template <int kColumns>
struct ProductsMemory {
  double y[kTile][kTile + 1];  // [row of the chain][column]
  double v[kTile][kColumns];
  double sums[kGroups][kAtOnce][kTile];
};

// One part of one tile. Thread (i, g) has row i of the tile and of the chain the rows g, g +
// kGroups and so on of each kTile; the groups are summed in their order.
template <typename T, int kColumns>
class Products {
 public:
  __device__ Products(const BorderArgs& args, const T* y, const T* v, int64_t tile,
                      ProductsMemory<kColumns>& memory)
      : args_(args),
        y_(y),
        v_(v),
        first_row_(tile % TileRows(args) * kTile),
        first_column_(tile / TileRows(args) * kColumns),
        memory_(memory) {}

  __device__ static int64_t TileRows(const BorderArgs& args) {
    return (args.p + kTile - 1) / kTile;
  }

  __device__ void Form(int64_t begin, int64_t end, double* out) {
    double sums[kColumns] = {};
    const int i = static_cast<int>(threadIdx.x) % kTile;
    const int group = static_cast<int>(threadIdx.x) / kTile;
    for (int64_t row = begin; row < end; row += kTile) {
      __syncthreads();
      Load(row, end);
      __syncthreads();
#pragma unroll
      for (int s = 0; s < kTile; s += kGroups) {
        const double y = memory_.y[s + group][i];
#pragma unroll
        for (int c = 0; c < kColumns; ++c) sums[c] = fma(y, memory_.v[s + group][c], sums[c]);
      }
    }
#pragma unroll
    for (int c = 0; c < kColumns; c += kAtOnce) {
      constexpr int kHere = kColumns < kAtOnce ? kColumns : kAtOnce;
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kHere; ++k) memory_.sums[group][k][i] = sums[c + k];
      __syncthreads();
      if (group >= kHere) continue;
      double sum = 0;
      for (int g = 0; g < kGroups; ++g) sum += memory_.sums[g][group][i];
      out[(c + group) * kTile + i] = sum;
    }
  }

 private:
  // Zeros behind the end, and where Y or V has no column.
  __device__ void Load(int64_t row, int64_t end) {
    const int r = static_cast<int>(threadIdx.x) % kTile;
    const int64_t block = (row + r) / args_.n, in_block = row + r - block * args_.n;
    const bool there = row + r < end;
    for (int c = static_cast<int>(threadIdx.x) / kTile; c < kTile; c += kGroups) {
      const int64_t column = first_row_ + c;
      memory_.y[r][c] =
          there && column < args_.p
              ? static_cast<double>(y_[(block * args_.p + column) * args_.n + in_block])
              : 0.0;
    }
    for (int c = static_cast<int>(threadIdx.x) / kTile; c < kColumns; c += kGroups) {
      const int64_t column = first_column_ + c;
      memory_.v[r][c] =
          there && column < args_.d
              ? static_cast<double>(v_[(block * args_.d + column) * args_.n + in_block])
              : 0.0;
    }
  }

  const BorderArgs& args_;
  const T* const y_;
  const T* const v_;
  const int64_t first_row_, first_column_;
  ProductsMemory<kColumns>& memory_;
};

// Thread block (p, t): part p of the t-th tile from `first` on.
template <typename T, int kColumns>
__global__ void MultiplyKernel(const BorderArgs args, const T* y, const T* v, int64_t first,
                               double* partial) {
  __shared__ __align__(16) unsigned char memory[sizeof(ProductsMemory<kColumns>)];
  Products<T, kColumns> products(args, y, v, first + blockIdx.y,
                                 *reinterpret_cast<ProductsMemory<kColumns>*>(memory));
  const int64_t rows = args.blocks * args.n;
  products.Form(rows * blockIdx.x / gridDim.x, rows * (blockIdx.x + 1) / gridDim.x,
                partial + (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * kTile * kColumns);
}

// A tile has `entries`.
__global__ void SumPartsKernel(const double* partial, int64_t parts, int64_t entries, int64_t tiles,
                               double* products) {
  const int64_t e = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (e >= tiles * entries) return;
  const double* const mine = partial + e / entries * parts * entries + e % entries;
  double sum = 0;
  for (int64_t part = 0; part < parts; ++part) sum += mine[part * entries];
  products[e] = sum;
}

// Thread blocks (b, c): kThreads rows of the chain, every gridDim.y-th kColumns columns of V.
template <typename T, int kColumns>
__global__ void AddKernel(const BorderArgs args, const T* y, const double* x, T* v, bool add) {
  const int64_t rows = args.blocks * args.n, step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; row < rows;
       row += step) {
    const int64_t block = row / args.n, in_block = row - block * args.n;
    const T* const mine = y + block * args.p * args.n + in_block;
    T* const to = v + block * args.d * args.n + in_block;
    for (int64_t first = int64_t{blockIdx.y} * kColumns; first < args.d;
         first += int64_t{gridDim.y} * kColumns) {
      // A column behind the last one is that once more.
      const auto column = [&](int c) { return first + c < args.d ? first + c : args.d - 1; };
      double sums[kColumns];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        sums[c] = add ? static_cast<double>(to[column(c) * args.n]) : 0.0;
      }
      for (int64_t i = 0; i < args.p; ++i) {
        const auto entry = static_cast<double>(mine[i * args.n]);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          sums[c] = fma(entry, x[column(c) * args.p + i], sums[c]);
        }
      }
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        if (first + c < args.d) to[(first + c) * args.n] = static_cast<T>(sums[c]);
      }
    }
  }
}

// Z(b + below, b) of `blocks` blocks, entry after entry; below: 0 or 1. entries: of the diagonal
// alone.
template <typename T>
__global__ void AddSquaresKernel(const BorderArgs args, const T* h, int64_t blocks, int below,
                                 bool entries, T* z) {
  const int64_t n = args.n, size = entries ? n : n * n;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t e = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; e < blocks * size;
       e += step) {
    const int64_t block = e / size, in_block = e - block * size;
    const int64_t column = entries ? in_block : in_block / n;
    const int64_t row = entries ? in_block : in_block - column * n;
    const T* const of_row = h + (block + below) * args.p * n + row;
    const T* const of_column = h + block * args.p * n + column;
    auto sum = static_cast<double>(z[e]);
    for (int64_t i = 0; i < args.p; ++i) {
      sum = fma(static_cast<double>(of_row[i * n]), static_cast<double>(of_column[i * n]), sum);
    }
    z[e] = static_cast<T>(sum);
  }
}

dim3 Blocks(int64_t threads, int64_t y = 1) {
  constexpr int64_t kMost = 16384;
  const int64_t blocks = (threads + kThreads - 1) / kThreads;
  return dim3(static_cast<unsigned>(blocks < kMost ? blocks : kMost), static_cast<unsigned>(y));
}

}  // namespace

LaunchResult PrepareBorder() {
  for (const LaunchResult& result :
       {LaunchResult{Load(MultiplyKernel<double, 1>), "MultiplyBorder"},
        {Load(MultiplyKernel<double, 8>), "MultiplyBorder"},
        {Load(MultiplyKernel<double, 32>), "MultiplyBorder"},
        {Load(MultiplyKernel<float, 1>), "MultiplyBorder"},
        {Load(MultiplyKernel<float, 8>), "MultiplyBorder"},
        {Load(MultiplyKernel<float, 32>), "MultiplyBorder"},
        {Load(SumPartsKernel), "SumParts"},
        {Load(AddKernel<double, 1>), "AddBorder"},
        {Load(AddKernel<double, 8>), "AddBorder"},
        {Load(AddKernel<float, 1>), "AddBorder"},
        {Load(AddKernel<float, 8>), "AddBorder"},
        {Load(AddSquaresKernel<double>), "AddBorderSquares"},
        {Load(AddSquaresKernel<float>), "AddBorderSquares"}}) {
    if (!result.ok()) return result;
  }
  return {};
}

template <typename T>
LaunchResult MultiplyBorder(const BorderArgs& args, const T* y, const T* v, int64_t first,
                            int64_t tiles, double* partial, double* products, Stream stream) {
  const int64_t columns = BorderTileColumns(args.d), parts = BorderParts(args);
  const auto kernel = columns == 1   ? MultiplyKernel<T, 1>
                      : columns == 8 ? MultiplyKernel<T, 8>
                                     : MultiplyKernel<T, kTile>;
  const dim3 grid(static_cast<unsigned>(parts), static_cast<unsigned>(tiles));
  const LaunchResult result =
      Start("MultiplyBorder", kernel, grid, stream, args, y, v, first, partial);
  if (!result.ok()) return result;
  const int64_t entries = kTile * columns;
  return Start("SumParts", SumPartsKernel, Blocks(tiles * entries), stream, partial, parts, entries,
               tiles, products);
}

template <typename T>
LaunchResult AddBorder(const BorderArgs& args, const T* y, const double* x, T* v, bool add,
                       Stream stream) {
  constexpr int64_t kAtOnceColumns = 8, kMostGroups = 1024;
  const int64_t groups = (args.d + kAtOnceColumns - 1) / kAtOnceColumns;
  const dim3 grid = Blocks(args.blocks * args.n, groups < kMostGroups ? groups : kMostGroups);
  return Start("AddBorder", args.d == 1 ? AddKernel<T, 1> : AddKernel<T, kAtOnceColumns>, grid,
               stream, args, y, x, v, add);
}

template <typename T>
LaunchResult AddBorderSquares(const BorderArgs& args, const T* h, bool entries, T* diagonal,
                              T* coupling, Stream stream) {
  const int64_t size = entries ? args.n : args.n * args.n;
  const LaunchResult result =
      Start("AddBorderSquares", AddSquaresKernel<T>, Blocks(args.blocks * size), stream, args, h,
            args.blocks, 0, entries, diagonal);
  if (!result.ok() || coupling == nullptr || args.blocks == 1) return result;
  return Start("AddBorderSquares", AddSquaresKernel<T>, Blocks((args.blocks - 1) * size), stream,
               args, h, args.blocks - 1, 1, false, coupling);
}

template LaunchResult MultiplyBorder<double>(const BorderArgs&, const double*, const double*,
                                             int64_t, int64_t, double*, double*, Stream);
template LaunchResult MultiplyBorder<float>(const BorderArgs&, const float*, const float*, int64_t,
                                            int64_t, double*, double*, Stream);
template LaunchResult AddBorder<double>(const BorderArgs&, const double*, const double*, double*,
                                        bool, Stream);
template LaunchResult AddBorder<float>(const BorderArgs&, const float*, const double*, float*, bool,
                                       Stream);
template LaunchResult AddBorderSquares<double>(const BorderArgs&, const double*, bool, double*,
                                               double*, Stream);
template LaunchResult AddBorderSquares<float>(const BorderArgs&, const float*, bool, float*, float*,
                                              Stream);

}  // namespace blockd::gpu
