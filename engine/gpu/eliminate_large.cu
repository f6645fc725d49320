// Blocks of more than 64 rows: all segments of a level, and all systems, move in lock-step, one
// block a step. A step is a few launches over 64 x 64 tiles:
//
//     prepare   D = D_k - C C', S = -W C', the separators' updates; C and W of the block before
//     divide    for each block column j: L(i,j) and the inverse's row j    (launch 1)
//               what they change: rest of A, rest of the inverse, and inv(L(j+1,j+1))  (launch 2)
//     multiply  C = E inv(L)', W = S inv(L)'
//
// The inverse grows in the columns of A that are done, as in CholeskyInverse of tile.h.
#include "blockd/engine/gpu/block_product.h"
#include "blockd/engine/gpu/launch.h"

namespace blockd::gpu {
namespace {

constexpr int kSharedScalars = kProductScalars;
static_assert(kProductScalars >= kBlock * kLd<kBlock>);

// A segment's scratch: D and, in its place, the growing inverse; S; a block column of L; a block
// row of the inverse; the inverses of this diagonal tile and of the next.
template <typename T>
struct Scratch {
  T* d;
  T* s;
  T* column;
  T* row;
  T* diagonals;

  __device__ Scratch(T* base, int64_t n)
      : d(base),
        s(d + n * n),
        column(s + n * n),
        row(column + n * kBlock),
        diagonals(row + (n + kBlock) * kBlock) {}
  // Tile i is written while others still read tile i - 1.
  __device__ T* diagonal(int64_t i) const { return diagonals + i % 2 * kBlock * kBlock; }
};

template <typename T>
class Segment {
 public:
  // One of `tasks` thread blocks of a segment; blockIdx.y is the system.
  __device__ Segment(const EliminateArgs& args, int64_t tasks, T* shared, int* failed)
      : args_(args),
        n_(args.level.n),
        task_(blockIdx.x % tasks),
        segment_(args.level.launched(blockIdx.x / tasks)),
        system_(args.systems[blockIdx.y]),
        run_(args.level.run(segment_)),
        reader_{system_, n_, args.chain_offset},
        scratch_(static_cast<T*>(args.scratch) +
                     (blockIdx.y * args.level.segments() + segment_) * LargeScratchScalars(n_),
                 n_),
        shared_(shared),
        failed_(failed) {}

  // Tiles: lower triangle of D, the same of the left update, then all of S.
  __device__ void Prepare(int64_t k) {
    if (k > run_.count) return;
    const int64_t tiles = (n_ + kBlock - 1) / kBlock, triangle = tiles * (tiles + 1) / 2;
    int64_t task = task_;
    if (task >= triangle && !run_.has_fill()) return;
    if (task < 2 * triangle) {
      const bool update = task >= triangle;
      if (update) task -= triangle;
      int64_t i = 0;
      while (task > i) task -= ++i;
      if (update) {
        UpdateLeft(k, i, task);
      } else {
        PrepareDiagonal(k, i, task);
      }
      return;
    }
    task -= 2 * triangle;
    PrepareFill(k, task % tiles, task / tiles);
  }

  // L(i,j) below the diagonal, the inverse's tiles (j,i) left of it.
  __device__ void DividePanel(int64_t k, int64_t j) {
    if (k >= run_.count) return;
    const int64_t i = task_ + (task_ >= j);
    const Operand<T> inverse{scratch_.diagonal(j), 1, kBlock, kBlock, kBlock};
    ProductTile tile;
    if (i > j) {
      tile.Multiply(Rows(scratch_.d + j * kBlock * n_, i), inverse, kBlock, shared_);
      T* out = scratch_.column + i * kBlock;
      tile.ForEach([&](int row, int column, double value) {
        if (i * kBlock + row < n_) out[column * n_ + row] = static_cast<T>(value);
      });
      return;
    }
    const Operand<T> above{scratch_.d + i * kBlock * n_ + j * kBlock, n_, 1, kBlock,
                           n_ - j * kBlock};
    tile.Multiply(inverse, above, kBlock, shared_);
    T* out = scratch_.row + i * kBlock * kBlock;
    tile.ForEach([&](int row, int column, double value) {
      out[column * kBlock + row] = static_cast<T>(value);
      StoreInverse(k, j * kBlock + row, i * kBlock + column, value);
    });
  }

  // Tiles (i,l) below row j, of A right of column j, of the inverse in the others.
  __device__ void UpdateRest(int64_t k, int64_t j) {
    if (k >= run_.count) return;
    int64_t i = j + 1, l = task_;
    while (l > i) l -= ++i;
    Operand<T> right = Rows(scratch_.column, l);
    if (l < j) right = {scratch_.row + l * kBlock * kBlock, kBlock, 1, kBlock, kBlock};
    if (l == j) right = {scratch_.diagonal(j), kBlock, 1, kBlock, kBlock};
    ProductTile tile;
    tile.Multiply(Rows(scratch_.column, i), right, kBlock, shared_);
    T* out = scratch_.d + l * kBlock * n_ + i * kBlock;
    if (i == j + 1 && l == i) {
      FactorDiagonal(k, i, tile, [&](int row, int column) { return out[column * n_ + row]; });
      return;
    }
    const int64_t rows = n_ - i * kBlock, columns = n_ - l * kBlock;
    tile.SubtractFrom([&](int row, int column) {
      const bool is_new = l == j || row >= rows || column >= columns;
      return is_new ? 0.0 : static_cast<double>(out[column * n_ + row]);
    });
    tile.ForEach([&](int row, int column, double value) {
      if (row < rows && column < columns) out[column * n_ + row] = static_cast<T>(value);
    });
  }

  // Tiles of C, then of W.
  __device__ void MultiplyInverse(int64_t k) {
    if (k >= run_.count) return;
    const int64_t tiles = (n_ + kBlock - 1) / kBlock;
    int64_t task = task_;
    const bool fill = task >= tiles * tiles;
    if (fill) task -= tiles * tiles;
    if (fill ? !run_.has_fill() : (k + 1 == run_.count && run_.target() < 0)) return;
    const int64_t i = task % tiles, l = task / tiles;
    Operand<T> left = Rows(scratch_.s, i);
    if (!fill) {
      const int64_t block = run_.block(k);
      const CouplingSource<T> e =
          reader_.Coupling(run_.reversed ? block - 1 : block, run_.reversed);
      left.data = e.At(i * kBlock, 0);
      left.row_stride = e.row_stride;
      left.k_stride = e.column_stride;
    }
    Operand<T> inverse;
    inverse.data = Inverse(k);
    inverse.rows = n_ - l * kBlock;
    inverse.depth = n_;
    inverse.triangle = n_;
    inverse.row0 = l * kBlock;
    ProductTile tile;
    tile.Multiply(left, inverse, Minimum(n_, (l + 1) * kBlock), shared_);
    StoreTile(fill ? Fill(k) : Next(k), i, l, tile, 1, false);
  }

 private:
  __device__ static int64_t Minimum(int64_t a, int64_t b) { return a < b ? a : b; }
  __device__ T* Factor() const { return static_cast<T*>(system_.factor); }
  __device__ T* Inverse(int64_t k) const {
    return Factor() + args_.inverse_offset + (run_.slot + k) * args_.inverse_stride;
  }
  __device__ T* Next(int64_t k) const {
    return Factor() + args_.next_offset + (run_.slot + k) * args_.next_stride;
  }
  __device__ T* Fill(int64_t k) const {
    return Factor() + args_.fill_offset + (run_.fill_slot + k) * args_.fill_stride;
  }
  __device__ T* NextChain(int64_t separator, int part) const {
    return static_cast<T*>(system_.chains) + args_.next_chain_offset +
           (separator * 3 + part) * n_ * n_;
  }
  // Block row i of a column-major matrix with leading dimension n.
  __device__ Operand<T> Rows(const T* matrix, int64_t i) const {
    return {matrix + i * kBlock, 1, n_, n_ - i * kBlock, n_};
  }

  __device__ void StoreInverse(int64_t k, int64_t row, int64_t column, double value) const {
    const int64_t panel = column / kPanelColumns, first = panel * kPanelColumns;
    if (row >= n_ || column >= n_ || row < first) return;
    Inverse(k)[PanelOffset(n_, panel) + (column - first) * (n_ - first) + row - first] =
        row < column ? T{0} : static_cast<T>(value);
  }

  __device__ void StoreTile(T* out, int64_t i, int64_t l, const ProductTile& tile, double sign,
                            bool lower) const {
    tile.ForEach([&](int row, int column, double value) {
      const int64_t r = i * kBlock + row, c = l * kBlock + column;
      if (r < n_ && c < n_ && (!lower || c <= r)) out[c * n_ + r] = static_cast<T>(sign * value);
    });
  }

  __device__ void PrepareDiagonal(int64_t k, int64_t i, int64_t l) {
    const int64_t target = k < run_.count ? run_.block(k) : run_.target();
    if (target < 0) return;
    ProductTile tile;
    if (k > 0) tile.Multiply(Rows(Next(k - 1), i), Rows(Next(k - 1), l), n_, shared_);
    const DiagonalSource<T> source = reader_.Diagonal(target);
    const auto base = [&](int row, int column) {
      return source.At(i * kBlock + row, l * kBlock + column);
    };
    if (k < run_.count && i == 0) {
      FactorDiagonal(k, 0, tile, base);
      return;
    }
    const bool last = k == run_.count;
    T* out = scratch_.d;
    if (last) out = run_.reversed ? NextChain(run_.left, 1) : NextChain(run_.right, 0);
    const auto outside = [&](int row, int column) {
      const int64_t r = i * kBlock + row, c = l * kBlock + column;
      return r >= n_ || c >= n_ || (last && c > r);
    };
    const bool from_zero = last && run_.reversed;
    tile.SubtractFrom([&](int row, int column) {
      return from_zero || outside(row, column) ? 0.0 : static_cast<double>(base(row, column));
    });
    out += l * kBlock * n_ + i * kBlock;
    tile.ForEach([&](int row, int column, double value) {
      if (!outside(row, column)) out[column * n_ + row] = static_cast<T>(value);
    });
  }

  __device__ void UpdateLeft(int64_t k, int64_t i, int64_t l) {
    if (k == 0) return;
    ProductTile tile;
    tile.Multiply(Rows(Fill(k - 1), i), Rows(Fill(k - 1), l), n_, shared_);
    T* out = NextChain(run_.left, 1) + l * kBlock * n_ + i * kBlock;
    const auto outside = [&](int row, int column) {
      const int64_t r = i * kBlock + row, c = l * kBlock + column;
      return r >= n_ || c > r;
    };
    tile.SubtractFrom([&](int row, int column) {
      return k == 1 || outside(row, column) ? 0.0 : static_cast<double>(out[column * n_ + row]);
    });
    tile.ForEach([&](int row, int column, double value) {
      if (!outside(row, column)) out[column * n_ + row] = static_cast<T>(value);
    });
  }

  __device__ void PrepareFill(int64_t k, int64_t i, int64_t l) {
    if (k == 0) {
      const CouplingSource<T> e = reader_.Coupling(run_.first - 1, true);
      for (int t = threadIdx.x; t < kBlock * kBlock; t += kProductThreads) {
        const int64_t r = i * kBlock + t % kBlock, c = l * kBlock + t / kBlock;
        if (r < n_ && c < n_) scratch_.s[c * n_ + r] = *e.At(r, c);
      }
      return;
    }
    const bool last = k == run_.count;
    T* const left = last ? Next(k - 1) : Fill(k - 1);
    T* const right = last ? Fill(k - 1) : Next(k - 1);
    ProductTile tile;
    tile.Multiply(Rows(left, i), Rows(right, l), n_, shared_);
    StoreTile(last ? NextChain(run_.left, 2) : scratch_.s, i, l, tile, -1, false);
  }

  // base - tile, the diagonal tile i of A, becomes its inverse factor.
  template <typename Base>
  __device__ void FactorDiagonal(int64_t k, int64_t i, ProductTile& tile, const Base& base) {
    // Outside of the matrix, where the product is zero, the identity.
    tile.SubtractFrom([&](int row, int column) {
      const bool inside = i * kBlock + row < n_ && i * kBlock + column < n_;
      return inside ? static_cast<double>(base(row, column)) : (row == column ? 1.0 : 0.0);
    });
    tile.ForEach([&](int row, int column, double value) {
      shared_[column * kLd<kBlock> + row] = static_cast<T>(value);
    });
    __syncthreads();
    CholeskyInverse<kBlock, kProductWarps>(shared_, failed_);
    if (*failed_ >= 0 && threadIdx.x == 0) {
      int64_t* info = args_.info + blockIdx.y * args_.info_stride + segment_;
      if (*info == 0) *info = 1 + k * n_ + i * kBlock + *failed_;
    }
    for (int t = threadIdx.x; t < kBlock * kBlock; t += kProductThreads) {
      const int row = t % kBlock, column = t / kBlock;
      const T value = row < column ? T{0} : shared_[column * kLd<kBlock> + row];
      scratch_.diagonal(i)[t] = value;
      StoreInverse(k, i * kBlock + row, i * kBlock + column, value);
    }
  }

  const EliminateArgs& args_;
  const int64_t n_;
  const int64_t task_;
  const int64_t segment_;
  const FactorEntry system_;
  const Run run_;
  const ChainReader<T> reader_;
  const Scratch<T> scratch_;
  T* const shared_;
  int* const failed_;
};

enum class Step { kPrepare, kPanel, kRest, kMultiply };

template <typename T, Step kStep>
__global__ void __launch_bounds__(kProductThreads)
    EliminateLargeKernel(const BLOCKD_KERNEL_ARGUMENT EliminateArgs args, int64_t tasks, int64_t k,
                         int64_t j) {
  extern __shared__ double shared[];
  __shared__ int failed;
  if (threadIdx.x == 0) failed = -1;
  Segment<T> segment(args, tasks, reinterpret_cast<T*>(shared), &failed);
  if constexpr (kStep == Step::kPrepare) segment.Prepare(k);
  if constexpr (kStep == Step::kPanel) segment.DividePanel(k, j);
  if constexpr (kStep == Step::kRest) segment.UpdateRest(k, j);
  if constexpr (kStep == Step::kMultiply) segment.MultiplyInverse(k);
}

template <typename T>
class Launcher {
 public:
  Launcher(const EliminateArgs& args, Stream stream) : args_(args), stream_(stream) {}

  LaunchResult Run(const std::atomic<bool>* stop) {
    const LevelShape& level = args_.level;
    const int64_t ends =
        level.first_length > level.last_length ? level.first_length : level.last_length;
    const int64_t middles = level.longest_middle();
    const int64_t steps = ends > middles ? ends : middles;
    const int64_t tiles = (level.n + kBlock - 1) / kBlock;
    for (int64_t k = 0; k <= steps && result_.ok(); ++k) {
      if (stop && stop->load(std::memory_order_relaxed)) break;
      // The ends go on alone after the others.
      const int64_t segments = k <= middles ? level.segments() : level.separators > 0 ? 2 : 1;
      const int64_t squares = tiles * tiles * (segments > 2 ? 2 : 1);
      const int64_t triangles = tiles * (tiles + 1) / 2;
      Launch<Step::kPrepare>(triangles + (segments > 2 ? triangles + tiles * tiles : 0), segments,
                             k, 0, "EliminateLarge prepare");
      if (k == steps) break;
      for (int64_t j = 0; j < tiles; ++j) {
        Launch<Step::kPanel>(tiles - 1, segments, k, j, "EliminateLarge panel");
        Launch<Step::kRest>(triangles - (j + 1) * (j + 2) / 2, segments, k, j,
                            "EliminateLarge rest");
      }
      Launch<Step::kMultiply>(squares, segments, k, 0, "EliminateLarge multiply");
    }
    return result_;
  }

 private:
  template <Step kStep>
  void Launch(int64_t tasks, int64_t segments, int64_t k, int64_t j, const char* name) {
    if (tasks == 0 || !result_.ok()) return;
    const dim3 grid(static_cast<unsigned>(tasks * segments),
                    static_cast<unsigned>(args_.num_systems));
    EliminateLargeKernel<T, kStep>
        <<<grid, kProductThreads, kSharedScalars * sizeof(T), stream_>>>(args_, tasks, k, j);
    result_ = {BLOCKD_GPU(GetLastError)(), name};
  }

  const EliminateArgs& args_;
  const Stream stream_;
  LaunchResult result_;
};

template <typename T>
LaunchResult Allow() {
  const size_t bytes = kSharedScalars * sizeof(T);
  for (const Error error : {AllowShared(EliminateLargeKernel<T, Step::kPrepare>, bytes),
                            AllowShared(EliminateLargeKernel<T, Step::kPanel>, bytes),
                            AllowShared(EliminateLargeKernel<T, Step::kRest>, bytes),
                            AllowShared(EliminateLargeKernel<T, Step::kMultiply>, bytes)}) {
    if (error != kSuccess) return {error, "EliminateLarge"};
  }
  return {};
}

}  // namespace

LaunchResult PrepareLarge() {
  const LaunchResult result = Allow<double>();
  return result.ok() ? Allow<float>() : result;
}

template <typename T>
LaunchResult EliminateLarge(const EliminateArgs& args, Stream stream,
                            const std::atomic<bool>* stop) {
  return Launcher<T>(args, stream).Run(stop);
}

template LaunchResult EliminateLarge<double>(const EliminateArgs&, Stream,
                                             const std::atomic<bool>*);
template LaunchResult EliminateLarge<float>(const EliminateArgs&, Stream, const std::atomic<bool>*);

}  // namespace blockd::gpu
