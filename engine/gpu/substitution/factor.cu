// Elimination by substitution, for systems where multiplication by inv(L) is not accurate enough or
// found no positive pivot. A thread block takes a segment from its first block to its last, all in
// global memory and in place: D, L and -L or inv(L) in the block's triangle, E and C in C's place,
// S and W in W's. Sums are made in double, each entry's in an order that n alone determines.
#include <cstdint>

#include "engine/gpu/substitution/launch.h"
#include "engine/gpu/substitution/triangle.h"
#include "engine/gpu/tile/chain.h"
#include "engine/gpu/vectors/residual_rows.h"

namespace blockd::gpu::substitution {
namespace {

// Larger blocks are stored as -L whatever their growth.
constexpr int64_t kLargestInverted = 2048;
constexpr double kMostGrowthSquare = 1e4;  // kMostGrowth^2
// As for multiplication: neither a pivot nor its reciprocal is subnormal.
template <typename T>
constexpr double kLeastPivot = sizeof(T) == 8 ? 2.2250738585072014e-308 : 1.1754943508222875e-38;
constexpr int kTile = 32, kDepth = 16;  // of products

struct Memory {
  double a[kDepth][kTile], b[kDepth][kTile];
  double square[kWide][kWide];
  double sums[kThreads];
  int failed;  // row in the square, -1: none
};

template <typename T>
class Eliminator {
 public:
  __device__ Eliminator(const EliminateArgs& args, const FactorEntry& system, int64_t segment,
                        Memory& memory, double* vectors)
      : n_(args.level.n),
        square_(n_ * n_),
        range_(args.level.segment(segment)),
        chain_{system, n_, args.chain_offset},
        factor_(static_cast<T*>(system.factor)),
        next_(static_cast<T*>(system.chains) + args.next_chain_offset),
        args_(args),
        memory_(memory),
        rows_(vectors),
        column_(vectors + n_) {}

  // The segment's word (factor_args.h).
  __device__ int64_t Run() {
    float growth_square = 1;
    for (int64_t k = 0; k < range_.count; ++k) {
      const int64_t row = Factor(k);
      if (row >= 0) return FailureWord(1 + k * n_ + row);
      if (range_.has_fill()) Fill(k);
      if (HasNext(k)) Next(k);
      const double mine = n_ <= kLargestInverted ? Invert(k) : HUGE_VAL;
      if (!(mine <= kMostGrowthSquare)) {
        if (n_ <= kLargestInverted) Factor(k);
        Negate(k);
      }
      growth_square = static_cast<float>(LargerOrNaN(mine, growth_square));
    }
    Finish();
    return static_cast<int64_t>(__float_as_uint(growth_square));
  }

 private:
  __device__ Triangle<T> TriangleOf(int64_t k) const {
    return {factor_ + args_.inverse_offset + (range_.slot + k) * args_.inverse_stride, n_};
  }
  __device__ T* C(int64_t k) const {
    return factor_ + args_.next_offset + (range_.slot + k) * args_.next_stride;
  }
  __device__ T* W(int64_t k) const {
    return factor_ + args_.fill_offset + (range_.fill_slot + k) * args_.fill_stride;
  }
  __device__ bool HasNext(int64_t k) const { return k + 1 < range_.count || range_.target() >= 0; }

  // sink(i, j, sum over r < depth of A(i,r) B(j,r)), blocks n x n; where `lower`, for i >= j.
  template <typename Sink>
  __device__ void Products(const T* a, const T* b, int64_t depth, bool lower, const Sink& sink) {
    const int row = static_cast<int>(threadIdx.x) % kTile;
    const int column = static_cast<int>(threadIdx.x) / kTile;
    constexpr int kStep = kThreads / kTile, kMine = kTile / kStep;
    for (int64_t i0 = 0; i0 < n_; i0 += kTile) {
      for (int64_t j0 = 0; j0 < (lower ? i0 + 1 : n_); j0 += kTile) {
        double sums[kMine] = {};
        for (int64_t r0 = 0; r0 < depth; r0 += kDepth) {
          __syncthreads();
          for (int r = column; r < kDepth; r += kStep) {
            const bool has = r0 + r < depth;
            memory_.a[r][row] = has && i0 + row < n_ ? a[(r0 + r) * n_ + i0 + row] : T{0};
            memory_.b[r][row] = has && j0 + row < n_ ? b[(r0 + r) * n_ + j0 + row] : T{0};
          }
          __syncthreads();
#pragma unroll 4
          for (int r = 0; r < kDepth; ++r) {
#pragma unroll
            for (int q = 0; q < kMine; ++q) {
              sums[q] = fma(memory_.a[r][row], memory_.b[r][column + q * kStep], sums[q]);
            }
          }
        }
        for (int q = 0; q < kMine; ++q) {
          const int64_t i = i0 + row, j = j0 + column + q * kStep;
          if (i < n_ && j < n_ && (!lower || i >= j)) sink(i, j, sums[q]);
        }
      }
    }
    __syncthreads();
  }

  // Columns [first, first + width) of X = (X - sum_{c < first} X(:,c) L(j,c)) for the row whose
  // entries are in `sums`; x(c) is X(row, c).
  template <typename X>
  __device__ void SubtractBefore(const Triangle<T>& l, int64_t first, int width, const X& x,
                                 double (&sums)[kWide]) const {
    for (int64_t c = 0; c < first; ++c) {
      const auto entry = static_cast<double>(x(c));
      const T* const column = l.Column(c) + first;
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        if (j < width) sums[j] = fma(-entry, static_cast<double>(column[j]), sums[j]);
      }
    }
  }

  // Row r of X = X inv(L)': init(r, j) is its entry before that.
  template <typename Init>
  __device__ void SolveRows(const Triangle<T>& l, T* out, const Init& init) {
    for (int64_t r = threadIdx.x; r < n_; r += kThreads) {
      for (int64_t first = 0; first < n_; first += kWide) {
        const int width = Width(n_, first);
        double sums[kWide] = {};
#pragma unroll
        for (int j = 0; j < kWide; ++j) {
          if (j < width) sums[j] = init(r, first + j);
        }
        SubtractBefore(
            l, first, width, [&](int64_t c) { return out[c * n_ + r]; }, sums);
#pragma unroll
        for (int j = 0; j < kWide; ++j) {
          if (j >= width) break;
          const T* const column = l.Column(first + j) + first;
          sums[j] /= static_cast<double>(column[j]);
          out[(first + j) * n_ + r] = static_cast<T>(sums[j]);
          sums[j] = static_cast<double>(out[(first + j) * n_ + r]);
#pragma unroll
          for (int i = j + 1; i < kWide; ++i) {
            if (i < width) sums[i] = fma(-sums[j], static_cast<double>(column[i]), sums[i]);
          }
        }
      }
    }
    __syncthreads();
  }

  // L of D - C C'. Returns the row of a pivot that is not positive, or -1.
  __device__ int64_t Factor(int64_t k) {
    const Triangle<T> l = TriangleOf(k);
    const DiagonalSource<T> d = chain_.Diagonal(range_.block(k));
    const T* const c = k > 0 ? C(k - 1) : nullptr;
    Products(c, c, k > 0 ? n_ : 0, true, [&](int64_t i, int64_t j, double sum) {
      l.Column(j)[i] = static_cast<T>(static_cast<double>(d.At(i, j)) - sum);
    });
    for (int64_t first = 0; first < n_; first += kWide) {
      const int width = Width(n_, first);
      for (int64_t r = first + threadIdx.x; r < n_; r += kThreads) {
        double sums[kWide] = {};
        const int mine = r - first < width ? static_cast<int>(r - first) + 1 : width;
        for (int j = 0; j < mine; ++j) sums[j] = static_cast<double>(l.Column(first + j)[r]);
        SubtractBefore(
            l, first, mine, [&](int64_t at) { return l.Column(at)[r]; }, sums);
        for (int j = 0; j < width; ++j) {
          if (r - first < width) {
            memory_.square[r - first][j] = j < mine ? sums[j] : 0;
          } else {
            l.Column(first + j)[r] = static_cast<T>(sums[j]);
          }
        }
      }
      __syncthreads();
      if (threadIdx.x == 0) memory_.failed = FactorSquare(width);
      __syncthreads();
      const int failed = memory_.failed;
      if (failed >= 0) return first + failed;
      StorePanel(l, first, width);
      __syncthreads();
    }
    return -1;
  }

  // One thread. L takes the place of the square, rounded to T.
  __device__ int FactorSquare(int width) {
    double(&s)[kWide][kWide] = memory_.square;
    for (int j = 0; j < width; ++j) {
      const auto pivot = static_cast<double>(static_cast<T>(s[j][j]));
      if (!(pivot >= kLeastPivot<T> && pivot < 1 / kLeastPivot<T>)) return j;
      s[j][j] = static_cast<double>(static_cast<T>(sqrt(pivot)));
      for (int i = j + 1; i < width; ++i) {
        s[i][j] = static_cast<double>(static_cast<T>(s[i][j] / s[j][j]));
      }
      for (int i = j + 1; i < width; ++i) {
        for (int c = j + 1; c <= i; ++c) s[i][c] = fma(-s[i][j], s[c][j], s[i][c]);
      }
    }
    return -1;
  }
  // The square, with zeros above its diagonal, and the rows below it.
  __device__ void StorePanel(const Triangle<T>& l, int64_t first, int width) {
    for (int64_t r = first + threadIdx.x; r < n_; r += kThreads) {
      if (r - first < width) {
        for (int j = 0; j < width; ++j) {
          l.Column(first + j)[r] =
              j <= r - first ? static_cast<T>(memory_.square[r - first][j]) : T{0};
        }
        continue;
      }
      double row[kWide] = {};
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        if (j >= width) break;
        T* const to = l.Column(first + j) + r;
        double sum = static_cast<double>(*to);
#pragma unroll
        for (int c = 0; c < kWide; ++c) {
          if (c < j) sum = fma(-row[c], memory_.square[j][c], sum);
        }
        *to = static_cast<T>(sum / memory_.square[j][j]);
        row[j] = static_cast<double>(*to);
      }
    }
  }

  // C = E inv(L)'.
  __device__ void Next(int64_t k) {
    const int64_t block = range_.block(k);
    const CouplingSource<T> e =
        chain_.Coupling(range_.reversed ? block - 1 : block, range_.reversed);
    SolveRows(TriangleOf(k), C(k),
              [&](int64_t r, int64_t j) { return static_cast<double>(*e.At(r, j)); });
  }

  // W = S inv(L)', and - W W' onto what the left separator gets.
  __device__ void Fill(int64_t k) {
    T* const w = W(k);
    if (k == 0) {
      const CouplingSource<T> s = chain_.Coupling(range_.first - 1, true);
      SolveRows(TriangleOf(k), w,
                [&](int64_t r, int64_t j) { return static_cast<double>(*s.At(r, j)); });
    } else {
      Products(W(k - 1), C(k - 1), n_, false,
               [&](int64_t i, int64_t j, double sum) { w[j * n_ + i] = static_cast<T>(-sum); });
      SolveRows(TriangleOf(k), w,
                [&](int64_t r, int64_t j) { return static_cast<double>(w[j * n_ + r]); });
    }
    T* const left = LeftFromRight();
    Products(w, w, n_, true, [&](int64_t i, int64_t j, double sum) {
      T* const to = left + j * n_ + i;
      *to = static_cast<T>((k == 0 ? 0 : static_cast<double>(*to)) - sum);
    });
  }

  // inv(L) takes the place of L. Returns the square of the growth.
  __device__ double Invert(int64_t k) {
    const Triangle<T> l = TriangleOf(k);
    for (int64_t i = threadIdx.x; i < n_; i += kThreads) {
      double sum = 0;
      for (int64_t c = 0; c <= i; ++c) {
        const auto entry = static_cast<double>(l.Column(c)[i]);
        sum = fma(entry, entry, sum);
      }
      rows_[i] = sum;
    }
    __syncthreads();
    for (int64_t j = n_ - 1; j >= 0; --j) {
      T* const column = l.Column(j);
      for (int64_t i = j + threadIdx.x; i < n_; i += kThreads) {
        column_[i] = static_cast<double>(column[i]);
      }
      __syncthreads();
      const double scale = 1 / column_[j];
      for (int64_t i = j + threadIdx.x; i < n_; i += kThreads) {
        double sum = i == j ? -1 : 0;
        for (int64_t c = j + 1; c <= i; ++c) {
          sum = fma(static_cast<double>(l.Column(c)[i]), column_[c], sum);
        }
        column[i] = static_cast<T>(-sum * scale);
      }
      __syncthreads();
    }
    double most = 1;
    for (int64_t j = threadIdx.x; j < n_; j += kThreads) {
      double sum = 0;
      for (int64_t i = j; i < n_; ++i) {
        const auto entry = static_cast<double>(l.Column(j)[i]);
        sum = fma(entry, entry, sum);
      }
      sum *= rows_[j];
      most = LargerOrNaN(sum, most);
    }
    return Largest(most);
  }
  // The largest value of all threads, or 1; NaN is larger than all.
  __device__ double Largest(double value) {
    memory_.sums[threadIdx.x] = value;
    __syncthreads();
    double most = 1;
    for (int i = 0; i < kThreads; ++i) {
      most = LargerOrNaN(memory_.sums[i], most);
    }
    __syncthreads();
    return most;
  }

  __device__ void Negate(int64_t k) {
    T* const triangle = TriangleOf(k).data;
    for (int64_t i = threadIdx.x; i < TriangleSize(n_); i += kThreads) {
      triangle[i] = triangle[i] == T{0} ? T{0} : -triangle[i];
    }
    __syncthreads();
  }

  // The left separator's diagonal block from its right. Finish stores what the segment's last block
  // leaves on the separators.
  __device__ T* LeftFromRight() const { return next_ + (range_.left * 3 + 1) * square_; }
  __device__ void Finish() {
    const int64_t target = range_.target();
    if (target < 0) return;
    const T* const c = C(range_.count - 1);
    if (range_.reversed) {
      T* const left = LeftFromRight();
      Products(c, c, n_, true,
               [&](int64_t i, int64_t j, double sum) { left[j * n_ + i] = static_cast<T>(-sum); });
      return;
    }
    T* const right = next_ + range_.right * 3 * square_;
    const DiagonalSource<T> d = chain_.Diagonal(target);
    Products(c, c, n_, true, [&](int64_t i, int64_t j, double sum) {
      right[j * n_ + i] = static_cast<T>(static_cast<double>(d.At(i, j)) - sum);
    });
    if (!range_.has_fill()) return;
    T* const coupling = next_ + (range_.left * 3 + 2) * square_;
    Products(c, W(range_.count - 1), n_, false, [&](int64_t i, int64_t j, double sum) {
      coupling[j * n_ + i] = static_cast<T>(-sum);
    });
  }

  const int64_t n_, square_;
  const SegmentRange range_;
  const ChainReader<T> chain_;
  T* const factor_;
  T* const next_;  // the next level's chain
  const EliminateArgs& args_;
  Memory& memory_;
  double* const rows_;    // the squares of L's rows, summed
  double* const column_;  // of L
};

// Thread block (i, s): the i-th segment of the s-th system.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    EliminateKernel(const BLOCKD_KERNEL_ARGUMENT EliminateArgs given) {
  const EliminateArgs& args = InPlace(given);
  BLOCKD_DYNAMIC_SHARED(double, vectors, 16);
  __shared__ __align__(16) unsigned char memory[sizeof(Memory)];
  const FactorEntry& system = args.systems[blockIdx.y];
  const int64_t segment = args.level.launched(blockIdx.x);
  // An open plan has segments without interiors.
  if (args.level.segment(segment).count == 0) return;
  Eliminator<T> eliminator(args, system, segment, *reinterpret_cast<Memory*>(memory), vectors);
  const int64_t word = eliminator.Run();
  if (threadIdx.x == 0) system.info[args.segments_before + segment] = word;
}

// A thread a column; thread block (.., t) has triangle t.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    InvertTrianglesKernel(const T* triangles, int64_t count, int64_t n, T* out) {
  for (int64_t t = blockIdx.x; t < count; t += gridDim.x) {
    const Triangle<const T> l = {triangles + t * TriangleSize(n), n};
    if (!l.IsSubstituted()) continue;
    const Triangle<T> inverse = {out + t * TriangleSize(n), n};
    for (int64_t j = threadIdx.x; j < n; j += kThreads) {
      T* const column = inverse.Column(j);
      for (int64_t i = j; i < n; ++i) {
        double sum = i == j ? -1 : 0;
        for (int64_t c = j; c < i; ++c) {
          sum = fma(-static_cast<double>(l.Column(c)[i]), static_cast<double>(column[c]), sum);
        }
        column[i] = static_cast<T>(sum / static_cast<double>(l.Column(i)[i]));
      }
      for (int64_t i = j / kWide * kWide; i < j; ++i) column[i] = T{0};
    }
  }
}

size_t VectorBytes(int64_t n) {
  return n <= kLargestInverted ? static_cast<size_t>(2 * n) * sizeof(double) : 0;
}

}  // namespace

LaunchResult PrepareFactor() {
  for (const LaunchResult& result :
       {LaunchResult{Load(EliminateKernel<double>), "EliminateBySubstitution"},
        {Load(EliminateKernel<float>), "EliminateBySubstitution"},
        {Load(InvertTrianglesKernel<double>), "InvertTriangles"},
        {Load(InvertTrianglesKernel<float>), "InvertTriangles"}}) {
    if (!result.ok()) return result;
  }
  return {};
}

template <typename T>
LaunchResult Eliminate(const EliminateArgs& args, Stream stream) {
  const dim3 grid(static_cast<unsigned>(args.level.segments()),
                  static_cast<unsigned>(args.num_systems));
  return Start("EliminateBySubstitution", EliminateKernel<T>, grid, VectorBytes(args.level.n),
               stream, args);
}

template <typename T>
LaunchResult InvertTriangles(const T* triangles, int64_t count, int64_t n, T* out, Stream stream) {
  constexpr int64_t kMost = 65535;
  const dim3 grid(static_cast<unsigned>(count < kMost ? count : kMost));
  return Start("InvertTriangles", InvertTrianglesKernel<T>, grid, 0, stream, triangles, count, n,
               out);
}

template LaunchResult Eliminate<double>(const EliminateArgs&, Stream);
template LaunchResult Eliminate<float>(const EliminateArgs&, Stream);
template LaunchResult InvertTriangles<double>(const double*, int64_t, int64_t, double*, Stream);
template LaunchResult InvertTriangles<float>(const float*, int64_t, int64_t, float*, Stream);

}  // namespace blockd::gpu::substitution
