// Solves with factors some of whose blocks hold -L: those are substituted with, the others
// multiplied by. A thread block takes a segment and some columns from one end to the other, in
// global memory; each pass of a solve is a launch. Sums are made in double, a column's in an order
// that n alone determines.
#include <cstdint>

#include "engine/gpu/plan/solve_part.h"
#include "engine/gpu/substitution/launch.h"
#include "engine/gpu/substitution/triangle.h"

namespace blockd::gpu::substitution {
namespace {

constexpr int kColumns = 8;  // that a thread block takes

struct Memory {
  double y[kWide][kColumns];
};

template <typename T>
class Substitution {
 public:
  __device__ Substitution(const Part<T>& part, Memory& memory)
      : p_(part), n_(part.n), columns_(part.columns), square_(n_ * n_), memory_(memory) {}

  // y = inv(L) x, and what C y and W y are subtracted from.
  __device__ void Forward() {
    const SegmentRange& range = p_.range;
    T* const left = range.left >= 0 ? p_.from_right.At(range.left) : nullptr;
    if (left != nullptr) {
      ForEntries([&](int64_t e) { left[e] = T{0}; });
    }
    AddRight(range.block(0));
    for (int64_t k = 0; k < range.count; ++k) {
      T* const x = p_.x.At(range.block(k));
      SolveLower(TriangleOf(k), x);
      if (range.has_fill()) Subtract(p_.fill + k * square_, x, left);
      const T* const c = p_.next + k * square_;
      if (k + 1 < range.count) {
        AddRight(range.block(k + 1));
        Subtract(c, x, p_.x.At(range.block(k + 1)));
      } else if (range.reversed) {
        Subtract(c, x, left);
      } else if (range.right >= 0) {
        AddRight(range.target());
        const T* const separator = p_.x.At(range.target());
        T* const to = p_.from_left.At(range.right);
        ForEntries([&](int64_t e) { to[e] = separator[e]; });
        Subtract(c, x, to);
      }
    }
  }

  // x = inv(L)' (y - C' next - W' left).
  __device__ void Backward() {
    const SegmentRange& range = p_.range;
    const T* const left = range.left >= 0 ? p_.from_left.At(range.left) : nullptr;
    const T* next = range.reversed ? left : nullptr;
    if (range.right >= 0) {
      next = p_.from_left.At(range.right);
      // A separator is the right one of one segment, which brings its solution down.
      T* const to = p_.x.At(range.target());
      const T* const solution = next;
      ForEntries([&](int64_t e) { to[e] = solution[e]; });
    }
    for (int64_t k = range.count - 1; k >= 0; --k) {
      T* const x = p_.x.At(range.block(k));
      if (next != nullptr) SubtractTransposed(p_.next + k * square_, next, x);
      if (range.has_fill()) SubtractTransposed(p_.fill + k * square_, left, x);
      SolveUpper(TriangleOf(k), x);
      next = x;
    }
  }

 private:
  __device__ Triangle<const T> TriangleOf(int64_t k) const {
    return {p_.inverse + k * TriangleSize(n_), n_};
  }

  // Calls step(e) for each entry of a block's columns. A barrier is behind the calls.
  template <typename Step>
  __device__ void ForEntries(const Step& step) const {
    for (int64_t e = threadIdx.x; e < n_ * columns_; e += kThreads) step(e);
    __syncthreads();
  }
  // Above level 0 a right-hand side is the sum of what came from its left and from its right.
  __device__ void AddRight(int64_t block) const {
    if (p_.x_right == 0) return;
    T* const x = p_.x.At(block);
    ForEntries([&](int64_t e) { x[e] += x[p_.x_right + e]; });
  }

  // sums[c] += sum over first <= j < end of entry(j) v(j, c).
  template <typename Entry>
  __device__ void AddProducts(int64_t first, int64_t end, int64_t step, const Entry& entry,
                              const T* v, double (&sums)[kColumns]) const {
    // Many loads are under way at a time.
#pragma unroll 16
    for (int64_t j = first; j < end; j += step) {
      const auto m = static_cast<double>(entry(j));
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        if (c < columns_) sums[c] = fma(m, static_cast<double>(v[c * n_ + j]), sums[c]);
      }
    }
  }

  // y -= M v.
  __device__ void Subtract(const T* m, const T* v, T* y) const {
    for (int64_t i = threadIdx.x; i < n_; i += kThreads) {
      double sums[kColumns] = {};
      AddProducts(
          0, n_, 1, [&](int64_t j) { return m[j * n_ + i]; }, v, sums);
      for (int c = 0; c < columns_; ++c) {
        T& to = y[c * n_ + i];
        to = static_cast<T>(static_cast<double>(to) - sums[c]);
      }
    }
    __syncthreads();
  }
  // x -= M' v, a warp an entry.
  __device__ void SubtractTransposed(const T* m, const T* v, T* x) const {
    ForDots(
        0, n_,
        [&](int64_t j, double(&sums)[kColumns]) {
          AddProducts(
              Lane(), n_, kWarp, [&](int64_t i) { return m[j * n_ + i]; }, v, sums);
        },
        [&](int64_t j, int c, double sum) {
          T& to = x[c * n_ + j];
          to = static_cast<T>(static_cast<double>(to) - sum);
        });
    __syncthreads();
  }

  // For first <= j < end: `add` has each lane of a warp sum its part, `take` gets each column's sum
  // in one lane.
  template <typename Add, typename Take>
  __device__ void ForDots(int64_t first, int64_t end, const Add& add, const Take& take) const {
    for (int64_t j = first + WarpIndex(); j < end; j += kThreads / kWarp) {
      double sums[kColumns] = {};
      add(j, sums);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const double sum = SumOfLanes<kWarp>(sums[c]);
        if (Lane() == 0 && c < columns_) take(j, c, sum);
      }
    }
  }

  __device__ void SolveLower(const Triangle<const T>& l, T* x) const {
    if (l.IsSubstituted()) return SubstituteLower(l, x);
    for (int64_t i = threadIdx.x; i < n_; i += kThreads) {
      double sums[kColumns] = {};
      AddProducts(
          0, i + 1, 1, [&](int64_t j) { return l.Column(j)[i]; }, x, sums);
      for (int c = 0; c < columns_; ++c) p_.scratch[c * n_ + i] = static_cast<T>(sums[c]);
    }
    __syncthreads();
    ForEntries([&](int64_t e) { x[e] = p_.scratch[e]; });
  }
  __device__ void SolveUpper(const Triangle<const T>& l, T* x) const {
    if (l.IsSubstituted()) return SubstituteUpper(l, x);
    ForDots(
        0, n_,
        [&](int64_t j, double(&sums)[kColumns]) {
          const T* const column = l.Column(j);
          AddProducts(
              j + Lane(), n_, kWarp, [&](int64_t i) { return column[i]; }, x, sums);
        },
        [&](int64_t j, int c, double sum) { p_.scratch[c * n_ + j] = static_cast<T>(sum); });
    __syncthreads();
    ForEntries([&](int64_t e) { x[e] = p_.scratch[e]; });
  }

  // With -L: each block column's square, then the rows below it.
  __device__ void SubstituteLower(const Triangle<const T>& l, T* x) const {
    for (int64_t first = 0; first < n_; first += kWide) {
      const int width = Width(n_, first);
      SolveSquare<true>(l, first, width, x);
      __syncthreads();
      for (int64_t i = first + width + threadIdx.x; i < n_; i += kThreads) {
        double sums[kColumns] = {};
        double m[kWide];
#pragma unroll
        for (int j = 0; j < kWide; ++j) {
          m[j] = j < width ? static_cast<double>(l.Column(first + j)[i]) : 0;
        }
#pragma unroll
        for (int j = 0; j < kWide; ++j) {
          if (j >= width) break;
#pragma unroll
          for (int column = 0; column < kColumns; ++column) {
            if (column < columns_) sums[column] = fma(m[j], memory_.y[j][column], sums[column]);
          }
        }
        for (int column = 0; column < columns_; ++column) {
          T& to = x[column * n_ + i];
          to = static_cast<T>(static_cast<double>(to) + sums[column]);
        }
      }
      __syncthreads();
    }
  }
  // With -L: the rows below each block column's square first, from the last one on.
  __device__ void SubstituteUpper(const Triangle<const T>& l, T* x) const {
    for (int64_t first = (n_ - 1) / kWide * kWide; first >= 0; first -= kWide) {
      const int width = Width(n_, first);
      ForDots(
          first, first + width,
          [&](int64_t j, double(&sums)[kColumns]) {
            const T* const below = l.Column(j);
            AddProducts(
                first + width + Lane(), n_, kWarp, [&](int64_t i) { return below[i]; }, x, sums);
          },
          [&](int64_t j, int c, double sum) { memory_.y[j - first][c] = sum; });
      __syncthreads();
      SolveSquare<false>(l, first, width, x);
      __syncthreads();
    }
  }

  // x = inv(L) x of a block column's square, y = x; or x = inv(L)' (x + y). A lane has a row of a
  // column of x, and multiplies by the reciprocal of the row's pivot.
  template <bool kLower>
  __device__ void SolveSquare(const Triangle<const T>& l, int64_t first, int width, T* x) const {
    static_assert(kWide * kColumns % kWarp == 0);
    if (threadIdx.x >= kWide * kColumns) return;
    const int r = static_cast<int>(threadIdx.x) % kWide;
    const int c = static_cast<int>(threadIdx.x) / kWide;
    double m[kWide] = {}, pivot = 1, v = 0;
    T* const at = x + c * n_ + first + r;
    if (r < width) {
      pivot = -static_cast<double>(l.Column(first + r)[first + r]);
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        if (i < width && (kLower ? i < r : i > r)) {
          m[i] = static_cast<double>(kLower ? l.Column(first + i)[first + r]
                                            : l.Column(first + r)[first + i]);
        }
      }
      if (c < columns_) v = static_cast<double>(*at) + (kLower ? 0 : memory_.y[r][c]);
    }
    const double reciprocal = 1 / pivot;
#pragma unroll
    for (int step = 0; step < kWide; ++step) {
      const int j = kLower ? step : kWide - 1 - step;
      const auto mine = static_cast<double>(static_cast<T>(v * reciprocal));
      const double solved = Shuffle(mine, Lane() - r + j);
      if (r == j) v = solved;
      if (kLower ? r > j : r < j) v = fma(m[j], solved, v);
    }
    if (r >= width || c >= columns_) return;
    *at = static_cast<T>(v);
    if (kLower) memory_.y[r][c] = v;
  }

  const Part<T>& p_;
  const int64_t n_;
  const int columns_;
  const int64_t square_;
  Memory& memory_;
};

// Thread block (i, s): of the s-th system a segment and kColumns columns.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    SubstituteKernel(const BLOCKD_KERNEL_ARGUMENT SolveArgs given, int32_t pass) {
  const SolveArgs& args = InPlace(given);
  __shared__ __align__(16) unsigned char memory[sizeof(Memory)];
  if (pass == args.first_pass) {
    unsigned i = (blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;
    for (; i < args.stale_words; i += gridDim.x * gridDim.y * blockDim.x) args.stale[i] = 0;
  }
  const SolveLevel& level = args.levels[args.level_of(pass)];
  const int64_t segments = level.shape.segments();
  const int64_t groups = args.panel_columns / kColumns;
  const Part<T> part(args, level, blockIdx.y, blockIdx.x % segments,
                     args.first_panel * groups + blockIdx.x / segments, kColumns);
  if (part.columns == 0) return;
  Substitution<T> substitution(part, *reinterpret_cast<Memory*>(memory));
  if (args.is_forward(pass)) {
    substitution.Forward();
  } else {
    substitution.Backward();
  }
}

}  // namespace

LaunchResult PrepareSolve() {
  const LaunchResult result = {Load(SubstituteKernel<double>), "SolveBySubstitution"};
  return result.ok() ? LaunchResult{Load(SubstituteKernel<float>), "SolveBySubstitution"} : result;
}

template <typename T>
LaunchResult Substitute(const SolveArgs& args, Stream stream) {
  LaunchResult result;
  for (int32_t pass = args.first_pass; result.ok() && pass < args.end_pass; ++pass) {
    const int64_t panels = args.num_panels * (args.panel_columns / kColumns);
    const dim3 grid(
        static_cast<unsigned>(args.levels[args.level_of(pass)].shape.segments() * panels),
        static_cast<unsigned>(args.num_systems));
    result = Start("SolveBySubstitution", SubstituteKernel<T>, grid, 0, stream, args, pass);
  }
  return result;
}

template LaunchResult Substitute<double>(const SolveArgs&, Stream);
template LaunchResult Substitute<float>(const SolveArgs&, Stream);

}  // namespace blockd::gpu::substitution
