// A matrix in information form, a thread block a tile of a step: first all V' = F' U', then all
// blocks. Triangles are multiplied as far as they are not zero.
#include "engine/gpu/information/launch.h"
#include "engine/gpu/tile/tile_task.h"

namespace blockd::gpu::information {
namespace {

constexpr int kTile = 64;
template <typename T>
using TileOf = ProductTile<T, SharedLayout<T, kTile>>;
template <typename T>
constexpr int64_t kShared = sizeof(T) * TileOf<T>::kSharedScalars;

enum class Phase { kProducts, kBlocks };

// A tile's products, and where it goes; in shared memory.
template <typename T>
struct TileWork {
  Product<T> first, second, third;
  int row0, column0;
  bool any, negative, lower;
  T* out;
};

// The work of a thread block for one step.
template <typename T>
class StepWork {
 public:
  __device__ StepWork(const InformationArgs& args, int64_t step)
      : args_(args), step_(step), n_(static_cast<int>(args.n)), tiles_((n_ + kTile - 1) / kTile) {}

  // V' = F' U', of which row k of U ends at column k.
  __device__ void FindProduct(int index, TileWork<T>& work) const {
    work.any = true;
    SetPlace(index % tiles_, index / tiles_, V(), work);
    const int end = work.column0 + kTile;
    work.first = {Across(F(), work.row0, n_, 0), Rows(U(step_), work.column0, 0),
                  end < n_ ? end : n_};
  }

  // Tiles of the diagonal block's lower triangle, then those of the coupling.
  __device__ void FindBlock(int index, TileWork<T>& work) const {
    const int lower = tiles_ * (tiles_ + 1) / 2;
    index < lower ? FindDiagonal(index, work) : FindCoupling(index - lower, work);
  }

  __device__ void Work(const TileWork<T>& work, T* shared) const {
    if (!work.any) return;
    TileOf<T> tile;
    tile.Add(work.first, work.second, shared);
    if (work.third.depth > 0) tile.Add(work.third, Product<T>(), shared);
    tile.Lay(work.negative ? -1 : 1, shared);
    const int n = n_, below = work.lower ? work.row0 - work.column0 : n;
    T* const out = work.out + static_cast<int64_t>(work.column0) * n + work.row0;
    TileOf<T>::template ForEachLaid<false>(shared, n - work.row0, n - work.column0,
                                           [=](int r, int c, T value) {
                                             if (c <= r + below)
                                               out[static_cast<int64_t>(c) * n + r] = value;
                                           });
  }

 private:
  __device__ int64_t Square() const { return static_cast<int64_t>(n_) * n_; }
  __device__ const T* F() const {
    return static_cast<const T*>(args_.transitions) + step_ * args_.transition_stride;
  }
  __device__ const T* U(int64_t step) const {
    return static_cast<const T*>(args_.whiteners) + step * args_.whitener_stride;
  }
  __device__ T* V() const { return static_cast<T*>(args_.products) + step_ * Square(); }

  // Rows from row0, columns from k0 on; of a matrix of n rows, or of the transpose of one of
  // `rows`.
  __device__ Operand<T> Rows(const T* matrix, int row0, int k0) const {
    return {matrix + static_cast<int64_t>(k0) * n_ + row0, n_, n_ - row0};
  }
  __device__ Operand<T> Across(const T* matrix, int row0, int64_t rows, int k0) const {
    return {matrix + row0 * rows + k0, rows, n_ - row0, true};
  }
  __device__ static void SetPlace(int i, int j, T* out, TileWork<T>& work) {
    work.row0 = i * kTile;
    work.column0 = j * kTile;
    work.out = out;
  }

  // V' V + W' W + U' U, of which column k of U begins at row k.
  __device__ void FindDiagonal(int index, TileWork<T>& work) const {
    int i = 0;
    while (index > i) index -= ++i;
    work.any = work.lower = true;
    SetPlace(i, index, static_cast<T*>(args_.diagonal) + step_ * Square(), work);
    const int row0 = work.row0, column0 = work.column0;
    if (step_ < args_.moves) work.first = {Rows(V(), row0, 0), Rows(V(), column0, 0), n_};
    if (const int64_t rows = args_.rows; rows > 0) {
      const T* const w = static_cast<const T*>(args_.observations) + step_ * rows * n_;
      work.second = {Across(w, row0, rows, 0), Across(w, column0, rows, 0), static_cast<int>(rows)};
    }
    const T* const to = step_ == 0 ? static_cast<const T*>(args_.to_first) : U(step_ - 1);
    if (to) work.third = {Across(to, row0, n_, row0), Across(to, column0, n_, row0), n_ - row0};
  }

  // -U' V.
  __device__ void FindCoupling(int index, TileWork<T>& work) const {
    if (step_ >= args_.moves) return;
    work.any = work.negative = true;
    SetPlace(index % tiles_, index / tiles_, static_cast<T*>(args_.coupling) + step_ * Square(),
             work);
    const int row0 = work.row0;
    work.first = {Across(U(step_), row0, n_, row0), Rows(V(), work.column0, row0), n_ - row0};
  }

  const InformationArgs& args_;
  const int64_t step_;
  const int n_, tiles_;
};

// Thread blocks (i, t): the i-th tile of step t.
template <typename T, Phase kPhase>
__global__ void BLOCKD_LAUNCH_BOUNDS(TileOf<T>::kThreads, TileOf<T>::kResident)
    InformationKernel(const BLOCKD_KERNEL_ARGUMENT InformationArgs given) {
  const InformationArgs& args = InPlace(given);
  BLOCKD_DYNAMIC_SHARED(double, shared, 16);
  __shared__ double work_space[(sizeof(TileWork<T>) + 7) / 8];
  TileWork<T>& work = reinterpret_cast<TileWork<T>&>(work_space);
  const StepWork<T> step(args, blockIdx.y);
  if (threadIdx.x == 0) {
    work = TileWork<T>();
    const int index = static_cast<int>(blockIdx.x);
    kPhase == Phase::kProducts ? step.FindProduct(index, work) : step.FindBlock(index, work);
  }
  __syncthreads();
  step.Work(work, reinterpret_cast<T*>(shared));
}

template <typename T, Phase kPhase>
LaunchResult Start(const InformationArgs& args, int64_t tiles, int64_t steps, Stream stream) {
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(steps));
  return {LaunchKernel(InformationKernel<T, kPhase>, grid, TileOf<T>::kThreads, kShared<T>, stream,
                       false, args),
          kPhase == Phase::kProducts ? "Information products" : "Information blocks"};
}

}  // namespace

LaunchResult Prepare() {
  for (const Error error :
       {AllowShared(InformationKernel<double, Phase::kProducts>, kShared<double>),
        AllowShared(InformationKernel<double, Phase::kBlocks>, kShared<double>),
        AllowShared(InformationKernel<float, Phase::kProducts>, kShared<float>),
        AllowShared(InformationKernel<float, Phase::kBlocks>, kShared<float>)}) {
    if (error != kSuccess) return {error, "Information"};
  }
  return {};
}

template <typename T>
LaunchResult Form(const InformationArgs& args, Stream stream) {
  const int64_t tiles = (args.n + kTile - 1) / kTile, square = tiles * tiles;
  if (args.moves > 0) {
    const LaunchResult result = Start<T, Phase::kProducts>(args, square, args.moves, stream);
    if (!result.ok()) return result;
  }
  return Start<T, Phase::kBlocks>(args, tiles * (tiles + 1) / 2 + square, args.count, stream);
}

template LaunchResult Form<double>(const InformationArgs&, Stream);
template LaunchResult Form<float>(const InformationArgs&, Stream);

}  // namespace blockd::gpu::information
