// Blocks of up to 64 rows: a thread block takes one segment from its first block to its last, with
// D, C, W and the left separator's update in shared memory.
#include "blockd/engine/gpu/launch.h"
#include "blockd/engine/gpu/tile.h"

namespace blockd::gpu {
namespace {

// Warps of a thread block: a warp has 16 rows of C, another the same of W.
template <int kTile>
inline constexpr int kWarpsOf = kTile / 8;

template <int kTile>
constexpr int SharedScalars() {
  // Two diagonal blocks, C, W and the update.
  return 5 * kTile * kLd<kTile>;
}

template <typename T, int kTile>
class Segment {
  static constexpr int kLead = kLd<kTile>;
  static constexpr int kTiles = kTile / 8;
  static constexpr int kWarps = kWarpsOf<kTile>;
  static constexpr int kThreads = kWarps * kWarp;

 public:
  __device__ Segment(const EliminateArgs& args, T* shared, int* failed)
      : args_(args),
        system_(args.systems[blockIdx.y]),
        run_(args.level.run(args.level.launched(blockIdx.x))),
        n_(static_cast<int>(args.level.n)),
        reader_{system_, args.level.n, args.chain_offset},
        failed_(failed) {
    constexpr int kSquare = kTile * kLead;
    d_ = shared;
    next_d_ = d_ + kSquare;
    c_ = next_d_ + kSquare;
    w_ = c_ + kSquare;
    update_ = w_ + kSquare;
  }

  __device__ void Eliminate() {
    Start();
    for (int64_t k = 0; k < run_.count; ++k) {
      const bool last = k + 1 == run_.count;
      const bool has_next = !last || run_.target() >= 0;
      if (has_next) FetchNext(k, last);
      CholeskyInverse<kTile, kWarps>(d_, failed_);
      if (*failed_ >= 0) {
        if (threadIdx.x == 0) Fail(k);
        return;
      }
      StoreInverse(k);
      CopyWait();
      __syncthreads();
      if (!has_next) return;
      Divide(run_.has_fill());
      __syncthreads();
      StoreSquare(c_, args_.next_offset + (run_.slot + k) * args_.next_stride);
      if (run_.has_fill()) {
        StoreSquare(w_, args_.fill_offset + (run_.fill_slot + k) * args_.fill_stride);
      }
      Update();
      __syncthreads();
      if (run_.has_fill()) CarryFill();
      T* const done = d_;
      d_ = next_d_;
      next_d_ = done;
    }
    Finish();
  }

 private:
  template <typename Body>
  __device__ void ForEach(const Body& body) const {
    for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) body(i % kTile, i / kTile);
  }

  __device__ void LoadDiagonal(T* out, int64_t block) const {
    const DiagonalSource<T> source = reader_.Diagonal(block);
    ForEach([&](int row, int column) {
      const bool inside = row < n_ && column < n_;
      // Above the diagonal only the 8 x 8 tiles on it are used.
      if (column / 8 > row / 8) return;
      T* to = out + column * kLead + row;
      if (!inside) {
        *to = row == column ? T{1} : T{0};
      } else if (source.second) {
        const int i = source.SmallIndex(row, column);
        *to = source.first[i] + source.second[i];
      } else {
        CopyAsync(to, source.first + source.SmallIndex(row, column));
      }
    });
  }

  __device__ void LoadCoupling(T* out, int64_t i, bool transpose) const {
    const CouplingSource<T> source = reader_.Coupling(i, transpose);
    const bool by_rows = source.row_stride != 1;
    const int slow_stride = n_;
    ForEach([&](int fast, int slow) {
      const int row = by_rows ? slow : fast, column = by_rows ? fast : slow;
      T* to = out + column * kLead + row;
      if (row < n_ && column < n_) {
        CopyAsync(to, source.data + slow * slow_stride + fast);
      } else {
        *to = T{0};
      }
    });
  }

  __device__ void Start() {
    LoadDiagonal(d_, run_.block(0));
    if (run_.has_fill()) {
      LoadCoupling(w_, run_.first - 1, true);
      ForEach([&](int row, int column) { update_[column * kLead + row] = T{0}; });
    }
    CopyWait();
    __syncthreads();
  }

  // E of the k-th interior into c_, the next diagonal block into next_d_.
  __device__ void FetchNext(int64_t k, bool last) {
    const int64_t block = run_.block(k);
    LoadCoupling(c_, run_.reversed ? block - 1 : block, run_.reversed);
    if (last && run_.reversed) {
      ForEach([&](int row, int column) { next_d_[column * kLead + row] = T{0}; });
    } else {
      LoadDiagonal(next_d_, last ? run_.target() : run_.block(k + 1));
    }
  }

  // C = E inv(L)' and W = S inv(L)', in place: a warp has whole rows.
  __device__ void Divide(bool fill) {
    constexpr int kRowTiles = kTile / 16;
    const int warp = WarpIndex();
    if (warp >= kRowTiles && !fill) return;
    T* rows = (warp < kRowTiles ? c_ : w_) + warp % kRowTiles * 16;
    double sums[kTiles][4] = {};
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
      double a[4];
      LoadRows<kLead>(a, rows, 8 * k);
#pragma unroll
      for (int j = k; j < kTiles; ++j) {
        const double b[2] = {RowFragment<kLead>(d_ + 8 * j, 8 * k),
                             RowFragment<kLead>(d_ + 8 * j, 8 * k + 4)};
        Mma16x8x8(sums[j], a, b);
      }
    }
    SyncWarp();
#pragma unroll
    for (int j = 0; j < kTiles; ++j) StoreTile<kLead>(rows + 8 * j * kLead, sums[j]);
  }

  // out -= rows rows', the lower triangle in tiles of 16 x 8.
  __device__ void SubtractSquare(T* out, const T* rows, int first_task) const {
    constexpr int kTasks = kTile / 16 * (kTile / 16 + 1);
    for (int task = first_task; task < kTasks; task += kWarps) {
      int i = 0, j = task;
      while (j >= 2 * (i + 1)) j -= 2 * (i + 1), ++i;
      double sum[4];
      T* tile = out + j * 8 * kLead + i * 16;
      LoadTile<kLead>(sum, tile);
#pragma unroll
      for (int k = 0; k < kTile; k += 8) {
        double a[4];
        LoadRows<kLead>(a, rows + i * 16, k);
#pragma unroll
        for (double& x : a) x = -x;
        const double b[2] = {RowFragment<kLead>(rows + 8 * j, k),
                             RowFragment<kLead>(rows + 8 * j, k + 4)};
        Mma16x8x8(sum, a, b);
      }
      StoreTile<kLead>(tile, sum);
    }
  }

  __device__ void Update() {
    const int warp = WarpIndex();
    SubtractSquare(next_d_, c_, warp);
    if (run_.has_fill()) SubtractSquare(update_, w_, kWarps - 1 - warp);
  }

  // S = -W C', in place of W.
  __device__ void CarryFill() {
    constexpr int kRowTiles = kTile / 16;
    const int warp = WarpIndex();
    T* rows = w_ + warp % kRowTiles * 16;
    const int half = warp / kRowTiles * (kTiles / 2);
    double sums[kTiles / 2][4] = {};
#pragma unroll
    for (int k = 0; k < kTile; k += 8) {
      double a[4];
      LoadRows<kLead>(a, rows, k);
#pragma unroll
      for (double& x : a) x = -x;
#pragma unroll
      for (int j = 0; j < kTiles / 2; ++j) {
        const T* right = c_ + 8 * (half + j);
        const double b[2] = {RowFragment<kLead>(right, k), RowFragment<kLead>(right, k + 4)};
        Mma16x8x8(sums[j], a, b);
      }
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kTiles / 2; ++j) StoreTile<kLead>(rows + 8 * (half + j) * kLead, sums[j]);
    __syncthreads();
  }

  __device__ void StoreSquare(const T* from, int64_t offset) const {
    T* out = static_cast<T*>(system_.factor) + offset;
    ForEach([&](int row, int column) {
      if (row < n_ && column < n_) out[column * n_ + row] = from[column * kLead + row];
    });
  }

  __device__ void StoreInverse(int64_t k) const {
    T* out = static_cast<T*>(system_.factor) + args_.inverse_offset +
             (run_.slot + k) * args_.inverse_stride;
    ForEach([&](int row, int column) {
      const int first = column / 8 * 8;
      if (row >= n_ || column >= n_ || row < first) return;
      out[column / 8 * (8 * n_ - 32 * (column / 8 - 1)) + (column - first) * (n_ - first) + row -
          first] = row < column ? T{0} : d_[column * kLead + row];
    });
  }

  __device__ T* NextChain(int64_t separator, int part) const {
    return static_cast<T*>(system_.chains) + args_.next_chain_offset +
           (separator * 3 + part) * n_ * n_;
  }

  // What the segment leaves on its separators. d_ is the target's block, w_ is S.
  __device__ void Finish() {
    if (run_.target() >= 0 && args_.next_chain_offset >= 0) {
      T* out = run_.reversed ? NextChain(run_.left, 1) : NextChain(run_.right, 0);
      ForEach([&](int row, int column) {
        if (row < n_ && column <= row) out[column * n_ + row] = d_[column * kLead + row];
      });
    }
    if (!run_.has_fill()) return;
    T* update = NextChain(run_.left, 1);
    T* coupling = NextChain(run_.left, 2);
    ForEach([&](int row, int column) {
      if (row >= n_ || column >= n_) return;
      if (column <= row) update[column * n_ + row] = update_[column * kLead + row];
      coupling[column * n_ + row] = w_[row * kLead + column];
    });
  }

  __device__ void Fail(int64_t k) const {
    args_.info[blockIdx.y * args_.info_stride + args_.level.launched(blockIdx.x)] =
        1 + k * n_ + *failed_;
  }

  const EliminateArgs& args_;
  const FactorEntry system_;
  const Run run_;
  const int n_;
  const ChainReader<T> reader_;
  int* const failed_;
  T* d_;
  T* next_d_;
  T* c_;
  T* w_;
  T* update_;
};

template <typename T, int kTile>
__global__ void __launch_bounds__(kWarpsOf<kTile>* kWarp)
    EliminateSmallKernel(const BLOCKD_KERNEL_ARGUMENT EliminateArgs args) {
  extern __shared__ double shared[];
  __shared__ int failed;
  if (threadIdx.x == 0) failed = -1;
  Segment<T, kTile>(args, reinterpret_cast<T*>(shared), &failed).Eliminate();
}

template <typename T, int kTile>
LaunchResult Launch(const EliminateArgs& args, Stream stream) {
  const dim3 grid(static_cast<unsigned>(args.level.segments()),
                  static_cast<unsigned>(args.num_systems));
  EliminateSmallKernel<T, kTile>
      <<<grid, kWarpsOf<kTile> * kWarp, SharedScalars<kTile>() * sizeof(T), stream>>>(args);
  return {BLOCKD_GPU(GetLastError)(), "EliminateSmall"};
}

template <typename T, int kTile>
Error Allow() {
  return AllowShared(EliminateSmallKernel<T, kTile>, SharedScalars<kTile>() * sizeof(T));
}

}  // namespace

LaunchResult PrepareSmall() {
  for (const Error error : {Allow<double, 16>(), Allow<double, 32>(), Allow<double, 64>(),
                            Allow<float, 16>(), Allow<float, 32>(), Allow<float, 64>()}) {
    if (error != kSuccess) return {error, "EliminateSmall"};
  }
  return {};
}

template <typename T>
LaunchResult EliminateSmall(const EliminateArgs& args, Stream stream) {
  if (args.level.n <= 16) return Launch<T, 16>(args, stream);
  if (args.level.n <= 32) return Launch<T, 32>(args, stream);
  return Launch<T, 64>(args, stream);
}

template LaunchResult EliminateSmall<double>(const EliminateArgs&, Stream);
template LaunchResult EliminateSmall<float>(const EliminateArgs&, Stream);

}  // namespace blockd::gpu
