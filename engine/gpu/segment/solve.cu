// Solves for up to 128 rows: a thread block walks a segment forward or backward. Vectors stay in
// shared memory; the matrices stream through rings there, so that memory is busy while a step waits
// for the one before.
//
// A warp forms 16 rows. Half of the warps multiply by C, the other half by W at the same time; what
// only one matrix is there for, inv(L) and a C without a W, they share, by pieces that take turns.
// So a vector is the sum of two parts, one by each half, which is formed when it is read: a step
// has two barriers, and the order of sums is fixed.
#include "engine/gpu/segment/launch.h"
#include "engine/gpu/segment/sizes.h"
#include "engine/gpu/segment/solve_jobs.h"
#include "engine/gpu/tile/ring_stream.h"

namespace blockd::gpu::segment {
namespace {

// A warp's share of the products of a walk.
template <typename T, bool kForward>
class Share {
 public:
  __device__ explicit Share(const Part<T>& part) : p_(part) {
    const int tiles = Tiles();
    second_ = WarpIndex() >= tiles;
    // Long strips of a triangle in one half and short ones in the other take turns.
    const int index = WarpIndex() - (second_ ? tiles : 0);
    strip_ = kStrip * (second_ == kForward ? tiles - 1 - index : index);
  }

  __device__ bool second() const { return second_; }  // of the two halves of the warps
  __device__ int strip() const { return strip_; }
  // True if the second half has a part in a product by inv(L), and in one by C and W.
  __device__ bool halves_inverse() const { return p_.n > kStrip; }
  __device__ bool halves_square() const { return p_.n > kStrip || p_.range.has_fill(); }

  __device__ Span<T> Inverse(const T* matrix) const {
    Span<T> span = {matrix, true, kForward, strip_, second_ ? kStrip : 0, p_.n, 1};
    if (kForward && strip_ + kStrip < p_.n) span.end = strip_ + kStrip;
    if (!kForward) span.begin += strip_;
    return span;
  }
  __device__ Span<T> Square(const T* matrix) const {
    const bool all = p_.range.has_fill();
    return {matrix, false, kForward, strip_, second_ && !all ? kStrip : 0, p_.n, all ? 0 : 1};
  }

 private:
  __device__ int Tiles() const { return (p_.n + kStrip - 1) / kStrip; }

  const Part<T>& p_;
  bool second_;
  int strip_;
};

// The matrices of a segment in the order of the walk, as one warp multiplies them.
template <typename T, bool kForward>
class SegmentSource {
 public:
  __device__ SegmentSource(const Part<T>& part, const Share<T, kForward>& share)
      : p_(part), share_(share), k_(kForward ? 0 : static_cast<int>(part.range.count) - 1) {}

  __device__ int n() const { return p_.n; }
  __device__ bool Next(Span<T>* span) {
    if (kForward ? k_ == p_.range.count : k_ < 0) return false;
    if (inverse_is_next_) {
      *span = share_.Inverse(p_.inverse + k_ * TriangleSize(p_.n));
    } else {
      const bool fill = share_.second() && p_.range.has_fill();
      *span = share_.Square((fill ? p_.fill : p_.next) + int64_t{k_} * (p_.n * p_.n));
      if (!p_.HasNext(k_)) span->end = 0;
    }
    if (inverse_is_next_ != kForward) k_ += kForward ? 1 : -1;
    inverse_is_next_ = !inverse_is_next_;
    return true;
  }

 private:
  const Part<T>& p_;
  const Share<T, kForward> share_;
  int k_;
  bool inverse_is_next_ = kForward;
};

// A kernel for up to kRows rows and kSets times 8 columns.
template <int kRows>
inline constexpr int kMostThreads = 2 * kWarp* kRows / kStrip;
// Warps on a multiprocessor, by registers.
template <int kSets>
inline constexpr int kWarpsAtOnce = kSets == 1 ? 20 : 16;

// Vectors in shared memory: v and y of two parts, the solution at the left separator or what W y
// adds up to, and a right-hand side.
constexpr int kV = 0, kY = 2, kLeft = 4, kRhs = 5, kVectors = 6;

template <typename T, int kSets, bool kForward, bool kWhole, int kRows>
class Walk {
 public:
  __device__ Walk(const Part<T>& part, T* vectors, int depth)
      : p_(part),
        share_(part),
        second_(share_.second()),
        strip_(share_.strip()),
        vectors_(vectors),
        stream_(SegmentSource<T, kForward>(part, share_),
                vectors + kVectors * kVector + WarpIndex() * depth * kPieceScalars, depth) {}

  // y = inv(L) v, v = the next right-hand side - C y, and what W y adds up to. A right-hand side is
  // loaded a step before it is used.
  __device__ void Forward(Tickets& tickets) {
    const bool has_fill = p_.range.has_fill();
    const bool halves_y = share_.halves_inverse(), halves_v = halves_y && !has_fill;
    Rows rhs = {}, right = {};
    if (second_) {
      LoadRhs(rhs, right, X(0));
      Put(kV, rhs, right);
      if (has_fill) PutDifference(kLeft, Sums());
    } else if (p_.AddsToNext(0)) {
      LoadRhs(rhs, right, p_.Next(0));
    }
    __syncthreads();
    for (int k = 0; k < p_.range.count; ++k) {
      if (p_.IsLast(k)) tickets.Take();
      MultiplyInverse(kV, k > 0 && halves_v, kY);
      if (!second_ && p_.AddsToNext(k)) {
        Put(kRhs, rhs, right);
        if (k + 1 < p_.range.count && p_.AddsToNext(k + 1)) LoadRhs(rhs, right, p_.Next(k + 1));
      }
      __syncthreads();
      if (second_) StoreSum(kY, halves_y, X(k));
      if (p_.HasNext(k)) {
        Sums sums;
        Multiply(sums, share_.Square(nullptr), kY, halves_y);
        if (!second_ && p_.AddsToNext(k)) {
          PutDifference(kV, sums, kRhs);
        } else if (!second_) {
          PutDifference(kV, sums);
        } else if (has_fill) {
          PutDifference(kLeft, sums, kLeft);
        } else if (halves_v) {
          PutDifference(kV + 1, sums);
        }
      }
      __syncthreads();
    }
    if (second_ && has_fill) StoreSum(kLeft, false, p_.from_right.At(p_.range.left));
    if (!second_ && p_.range.target() >= 0) {
      StoreSum(
          kV, halves_v,
          p_.range.reversed ? p_.from_right.At(p_.range.left) : p_.from_left.At(p_.range.right));
    }
  }

  // y = the forward pass's y - C' v - W' left, v = inv(L)' y.
  __device__ void Backward(Tickets& tickets) {
    const bool has_fill = p_.range.has_fill(), fills = second_ && has_fill;
    const bool halves_v = share_.halves_inverse(), halves_y = share_.halves_square();
    const int last = static_cast<int>(p_.range.count) - 1;
    Rows ahead = {};
    if (!second_) {
      Rows solution = {};
      Load(ahead, X(last));
      if (p_.range.target() >= 0) Load(solution, p_.TargetSolution());
      Put(kV, solution);
      Put(kRhs, ahead);
      if (last > 0) Load(ahead, X(last - 1));
    } else if (has_fill) {
      Load(ahead, p_.from_left.At(p_.range.left));
      Put(kLeft, ahead);
    }
    __syncthreads();
    for (int k = last; k >= 0; --k) {
      if (k == 0) tickets.Take();
      // A separator is the right one of one segment, which brings its solution down.
      if (second_ && p_.HasNext(k) && !(p_.IsLast(k) && p_.range.reversed)) {
        StoreSum(kV, k < last && halves_v, p_.Next(k));
      }
      Sums sums;
      if (p_.HasNext(k)) {
        Multiply(sums, share_.Square(nullptr), fills ? kLeft : kV, !fills && k < last && halves_v);
      }
      if (!second_) {
        PutDifference(kY, sums, kRhs);
      } else if (halves_y) {
        PutDifference(kY + 1, sums);
      }
      __syncthreads();
      MultiplyInverse(kY, halves_y, kV);
      if (!second_ && k > 0) {
        Put(kRhs, ahead);
        if (k > 1) Load(ahead, X(k - 2));
      }
      __syncthreads();
    }
    if (second_) StoreSum(kV, halves_v, X(0));
  }

 private:
  using Sums = gpu::Sums<kSets>;
  static constexpr int kLead = static_cast<int>(VectorLead(kRows));
  static constexpr int kVector = kLead * kSets * kColumns;

  __device__ T* X(int k) const { return p_.x.At(p_.range.block(k)); }

  // This warp's rows, side by side in memory by lanes side by side.
  static constexpr int kEntries = kSets * kColumns * kStrip / kWarp;
  using Rows = T[kEntries];
  // body(entry, scalars from the vector's first in shared and in global memory)
  template <typename Body>
  __device__ void ForEachRow(const Body& body) const {
    const int row = strip_ + Lane() % kStrip, first = Lane() / kStrip;
    const int n = p_.n, columns = p_.columns;  // not to be read again after each store
#pragma unroll
    for (int i = 0; i < kEntries; ++i) {
      const int c = first + i * (kWarp / kStrip);
      if (c < columns && row < n) body(i, c * kLead + row, c * n + row);
    }
  }
  __device__ void Load(Rows& rows, const T* from) const {
    ForEachRow([&](int i, int, int at) { rows[i] = LoadFresh(from + at); });
  }
  __device__ void LoadRhs(Rows& rows, Rows& right, const T* from) const {
    Load(rows, from);
    if (p_.x_right != 0) Load(right, from + p_.x_right);
  }
  __device__ void Put(int vector, const Rows& rows) const {
    ForEachRow([&](int i, int at, int) { vectors_[vector * kVector + at] = rows[i]; });
  }
  __device__ void Put(int vector, const Rows& rows, const Rows& right) const {
    const bool both = p_.x_right != 0;
    ForEachRow([&](int i, int at, int) {
      vectors_[vector * kVector + at] = both ? rows[i] + right[i] : rows[i];
    });
  }

  // Beyond n rows vectors are zero: what is not finite would stay there, and go on to others.
  __device__ void PutRun(T* at, int row, const double (&values)[kLeftRows]) const {
    const bool first = kWhole || row < p_.n;
    if constexpr (kLeftRows == 2) {
      const bool second = kWhole || row + 1 < p_.n;
      StorePair(at, first ? values[0] : 0, second ? values[1] : 0);
    } else {
      *at = static_cast<T>(first ? values[0] : 0);
    }
  }
  __device__ static void ReadRun(double (&values)[kLeftRows], const T* from) {
    if constexpr (kLeftRows == 2) {
      ReadPair(values, from);
    } else {
      values[0] = static_cast<double>(*from);
    }
  }

  // The vector `to` = `from`, if there is one, - sums: this warp's rows.
  __device__ void PutDifference(int to, const Sums& sums, int from = -1) const {
    const int row = strip_ + Sums::Row(), column = Sums::Column();
    T* at = vectors_ + column * kLead + row;
    const int columns = p_.columns;
    sums.ForEachRun([&](int down, int across, const double(&values)[kLeftRows]) {
      if (column + across >= columns) return;
      const int offset = across * kLead + down;
      double v[kLeftRows] = {};
      if (from >= 0) ReadRun(v, at + from * kVector + offset);
#pragma unroll
      for (int r = 0; r < kLeftRows; ++r) v[r] -= values[r];
      PutRun(at + to * kVector + offset, row + down, v);
    });
  }

  // The sum of a vector's parts.
  __device__ void StoreSum(int vector, bool halves, T* out) const {
    const T* from = vectors_ + vector * kVector;
    ForEachRow([&](int, int at, int to) {
      T value = from[at];
      if (halves) value += from[kVector + at];
      out[to] = value;
    });
  }

  // halves: the vector has a second part.
  __device__ void Multiply(Sums& sums, const Span<T>& span, int vector, bool halves) {
    stream_.Multiply(sums, span.pieces(), vectors_ + vector * kVector + span.begin, span.step(),
                     kLead, p_.columns, kVector, halves);
  }
  __device__ void MultiplyInverse(int vector, bool halves, int out) {
    Sums sums;
    Multiply(sums, share_.Inverse(nullptr), vector, halves);
    if (!second_ || share_.halves_inverse()) PutSums(out + second_, sums);
  }
  __device__ void PutSums(int to, const Sums& sums) const {
    const int row = strip_ + Sums::Row(), column = Sums::Column();
    T* at = vectors_ + to * kVector + column * kLead + row;
    const int columns = p_.columns;
    sums.ForEachRun([&](int down, int across, const double(&values)[kLeftRows]) {
      if (column + across < columns) PutRun(at + across * kLead + down, row + down, values);
    });
  }

  const Part<T>& p_;
  const Share<T, kForward> share_;
  const bool second_;  // of the second half of the warps
  const int strip_;
  T* const vectors_;
  RingStream<T, kForward, kWhole, SegmentSource<T, kForward>> stream_;
};

template <typename T, int kSets, bool kForward, bool kWhole, int kRows>
__device__ void WalkSegment(Tickets& tickets, const Job<T>& job, T* vectors) {
  Walk<T, kSets, kForward, kWhole, kRows> walk(job.part, vectors, tickets.args.pieces_ahead);
  if (job.before != nullptr) {
    if (threadIdx.x == 0) WaitFor(job.before, job.target);
    __syncthreads();
  }
  if constexpr (kForward) {
    walk.Forward(tickets);
  } else {
    walk.Backward(tickets);
  }
}

template <typename T, int kSets, bool kWhole, int kRows>
__global__ void BLOCKD_LAUNCH_BOUNDS(kMostThreads<kRows>,
                                     kWarpsAtOnce<kSets>* kWarp / kMostThreads<kRows>)
    SubstituteSegmentsKernel(const BLOCKD_KERNEL_ARGUMENT SolveArgs given) {
  const SolveArgs& args = InPlace(given);
  BLOCKD_DYNAMIC_SHARED(unsigned char, memory, 128);
  __shared__ __align__(16) unsigned char job_memory[sizeof(Job<T>)];
  __shared__ JobOrder order;
  __shared__ bool found;
  Job<T>& job = *reinterpret_cast<Job<T>*>(job_memory);
  T* vectors = reinterpret_cast<T*>(memory);
  ClearStale(args.stale, args.stale_words);
  constexpr int kScalars = kVectors * static_cast<int>(VectorLead(kRows)) * kSets * kColumns;
  // Beyond n rows the vectors are zero, and stay so.
  for (int i = threadIdx.x; i < kScalars; i += blockDim.x) vectors[i] = T{0};
  Tickets tickets = {args};
  if (tickets.taker) order = {0, args.first_pass};
  tickets.Take();
  for (;;) {
    if (tickets.taker) found = order.At(args, tickets.next, kSets * kColumns, &job);
    __syncthreads();
    if (!found) return;
    if (job.part.columns == 0) {
      tickets.Take();
    } else if (job.forward) {
      WalkSegment<T, kSets, true, kWhole, kRows>(tickets, job, vectors);
    } else {
      WalkSegment<T, kSets, false, kWhole, kRows>(tickets, job, vectors);
    }
    unsigned* const done = job.done;
    SyncToSignal();
    if (threadIdx.x == 0) Signal(done);
  }
}

template <typename T, int kSets, int kRows>
auto KernelOf(int64_t n) {
  return n % kStrip == 0 ? SubstituteSegmentsKernel<T, kSets, true, kRows>
                         : SubstituteSegmentsKernel<T, kSets, false, kRows>;
}

template <typename T, int kSets, int kRows>
LaunchResult Launch(SolveArgs args, const DeviceLimits& limits, Stream stream) {
  constexpr int64_t kBytes = kVectors * VectorLead(kRows) * kSets * kColumns * int64_t{sizeof(T)};
  const int64_t warps = 2 * ((args.n + kStrip - 1) / kStrip);
  int64_t blocks = kWarpsAtOnce<kSets> / warps, ahead = 0, bytes = kBytes;
  if (kCopiesAside) {
    const int64_t piece = warps * kPieceScalars * int64_t{sizeof(T)};
    const int64_t room = Minimum(limits.shared_bytes / blocks, limits.block_shared_bytes);
    ahead = Minimum((room - kReservedShared - kBytes) / piece, kMostAhead);
    if (ahead < 1) ahead = 1;
    bytes += ahead * piece;
  }
  args.pieces_ahead = static_cast<int32_t>(ahead);
  blocks = Minimum(blocks, limits.shared_bytes / (bytes + kReservedShared));
  if (blocks < 1) blocks = 1;
  const unsigned grid =
      static_cast<unsigned>(Minimum(MostAtOnce(args), blocks * limits.multiprocessors));
  const unsigned threads = static_cast<unsigned>(warps) * kWarp;
  const auto kernel = KernelOf<T, kSets, kRows>(args.n);
  return {LaunchKernel(kernel, dim3(grid), static_cast<int>(threads), static_cast<size_t>(bytes),
                       stream, false, args),
          "SubstituteSegments"};
}

template <typename T, int kSets>
LaunchResult Launch(const SolveArgs& args, const DeviceLimits& limits, Stream stream) {
  if (args.n <= 32) return Launch<T, kSets, 32>(args, limits, stream);
  return args.n <= 64 ? Launch<T, kSets, 64>(args, limits, stream)
                      : Launch<T, kSets, 128>(args, limits, stream);
}

template <typename T, int kSets>
Error Allow(size_t bytes) {
  Error error = kSuccess;
  for (const int64_t n : {kStrip - 1, kStrip}) {
    if (error == kSuccess) error = AllowShared(KernelOf<T, kSets, 32>(n), bytes);
    if (error == kSuccess) error = AllowShared(KernelOf<T, kSets, 64>(n), bytes);
    if (error == kSuccess) error = AllowShared(KernelOf<T, kSets, 128>(n), bytes);
  }
  return error;
}

}  // namespace

LaunchResult PrepareSolve(const DeviceLimits& limits) {
  const size_t bytes = static_cast<size_t>(limits.block_shared_bytes - kStaticShared);
  Error error = Allow<double, 1>(bytes);
  if (error == kSuccess) error = Allow<double, 2>(bytes);
  if (error == kSuccess) error = Allow<float, 1>(bytes);
  if (error == kSuccess) error = Allow<float, 2>(bytes);
  return {error, "SubstituteSegments"};
}

template <typename T>
LaunchResult Substitute(const SolveArgs& args, const DeviceLimits& limits, Stream stream) {
  if (args.n <= kTinyRows) return SubstituteTiny<T>(args, limits, stream);
  return args.panel_columns == kColumns ? Launch<T, 1>(args, limits, stream)
                                        : Launch<T, 2>(args, limits, stream);
}

template LaunchResult Substitute<double>(const SolveArgs&, const DeviceLimits&, Stream);
template LaunchResult Substitute<float>(const SolveArgs&, const DeviceLimits&, Stream);

}  // namespace blockd::gpu::segment
