// Solves for up to 128 rows: a thread block walks a segment forward or backward, a warp forms 16
// rows. Vectors stay in shared memory; the matrices stream through registers, so that memory is
// busy while a step waits for the one before.
#include "blockd/engine/gpu/launch.h"
#include "blockd/engine/gpu/stream.h"
#include "blockd/engine/gpu/substitute.h"

namespace blockd::gpu {
namespace {

// The matrices of a segment in the order of the walk, as one warp multiplies them.
template <typename T, bool kForward>
class SegmentSource {
 public:
  __device__ SegmentSource(const Part<T>& part, int strip)
      : p_(part), strip_(strip), left_(static_cast<int>(part.run.count)) {
    const int64_t first = kForward ? 0 : part.run.count - 1, square = p_.n * p_.n;
    inverse_ = p_.inverse + first * TriangleSize(p_.n);
    next_ = p_.next + first * square;
    fill_ = p_.fill + first * square;
  }

  __device__ bool Next(Span<T>* span) {
    if (left_ == 0) return false;
    const int order = kForward ? turn_ : turn_ == 2 ? 0 : turn_ + 1, n = p_.n;
    *span = {nullptr, false, kForward, strip_, 0, n};
    if (order == 0) {
      span->matrix = inverse_;
      span->triangle = true;
      if (kForward && strip_ + kStrip < n) span->end = strip_ + kStrip;
      if (!kForward) span->begin = strip_;
    } else if (order == 1) {
      span->matrix = next_;
      // The base's last block leads nowhere.
      if (p_.run.target() < 0 && left_ == (kForward ? 1 : p_.run.count)) span->end = 0;
    } else {
      span->matrix = fill_;
      if (!p_.run.has_fill()) span->end = 0;
    }
    if (++turn_ == 3) Advance();
    return true;
  }

 private:
  __device__ void Advance() {
    const int square = p_.n * p_.n, triangle = static_cast<int>(TriangleSize(p_.n));
    turn_ = 0;
    --left_;
    inverse_ += kForward ? triangle : -triangle;
    next_ += kForward ? square : -square;
    fill_ += kForward ? square : -square;
  }

  const Part<T>& p_;
  const int strip_;
  int left_;  // steps
  int turn_ = 0;
  const T* inverse_;
  const T* next_;
  const T* fill_;
};

// A kernel for up to kRows rows. Narrow ones need few registers and many thread blocks.
template <int kRows>
inline constexpr int kDepth = kRows <= 32 ? 2 : 4;  // pieces that are loaded ahead
template <int kRows>
inline constexpr int kBlocksAtOnce = kRows <= 32 ? 6 : 1;  // on a multiprocessor, at least
constexpr int kNarrow = 32, kWide = static_cast<int>(kLargestSmallSolve);

// Three vectors in shared memory, and a warp's stream.
template <typename T, int kSets, bool kForward, bool kWhole, int kRows>
class Walk {
 public:
  __device__ Walk(const Part<T>& part, T* vectors, int lead)
      : p_(part),
        strip_(WarpIndex() * kStrip),
        lead_(lead),
        row_(strip_ + 2 * (Lane() >> 2)),
        column_(2 * (Lane() & 3)),
        columns_(part.columns - column_),
        pieces_((part.n + kStrip - 1) / kStrip),
        v_(vectors),
        y_(v_ + lead * kSets * kColumns),
        left_(y_ + lead * kSets * kColumns),
        stream_(part.n, SegmentSource<T, kForward>(part, strip_)) {
    stream_.Fill();
  }

  // y = inv(L) v, v = the next right-hand side - C y, and what W y adds up to. A right-hand side is
  // loaded a step before it is used.
  __device__ void Forward() {
    const int64_t block = p_.run.reversed ? -p_.x.block : p_.x.block;
    T* x = p_.x.At(p_.run.block(0));
    Entries ahead = {}, right = {};
    LoadRhs(ahead, right, x);
    Values values, left;
    Add(values, ahead, right);
    Store(values, v_, lead_);
    if (p_.AddsToNext(0)) LoadRhs(ahead, right, x + block);
    Zero(left);
    __syncthreads();
    for (int k = 0; k < p_.run.count; ++k, x += block) {
      {
        Sums<kSets> y;
        Multiply(y, v_, strip_ / kStrip + 1);
        y.MoveTo(values);
      }
      Store(values, y_, lead_);
      Store(values, x, p_.n);
      __syncthreads();
      if (p_.HasNext(k)) {
        Sums<kSets> c;
        Multiply(c, y_, pieces_);
        const bool adds = p_.AddsToNext(k);
        Zero(values);
        if (adds) Add(values, ahead, right);
        if (k + 1 < p_.run.count && p_.AddsToNext(k + 1)) LoadRhs(ahead, right, x + 2 * block);
        c.SubtractFrom(values);
        if (!p_.IsLast(k)) {
          Store(values, v_, lead_);
        } else {
          Store(values, adds ? p_.from_left.At(p_.run.right) : p_.from_right.At(p_.run.left), p_.n);
        }
      }
      if (p_.run.has_fill()) {
        Sums<kSets> w;
        Multiply(w, y_, pieces_);
        w.SubtractFrom(left);
      }
      __syncthreads();
    }
    if (p_.run.has_fill()) Store(left, p_.from_right.At(p_.run.left), p_.n);
  }

  // y = the forward pass's y - C' v - W' left, v = inv(L)' y.
  __device__ void Backward() {
    const int64_t block = p_.run.reversed ? p_.x.block : -p_.x.block;
    T* x = p_.x.At(p_.run.block(p_.run.count - 1));
    Entries ahead = {};
    Values values;
    if (p_.run.target() >= 0) {
      Entries solution = {};
      Load(solution, p_.TargetSolution());
      Copy(values, solution);
      Store(values, v_, lead_);
      // A separator is the right one of one segment, which brings its solution down.
      if (!p_.run.reversed) Store(values, p_.x.At(p_.run.target()), p_.n);
    }
    if (p_.run.has_fill()) {
      Entries at_left = {};
      Load(at_left, p_.from_left.At(p_.run.left));
      Copy(values, at_left);
      Store(values, left_, lead_);
    }
    Load(ahead, x);
    __syncthreads();
    for (int k = static_cast<int>(p_.run.count) - 1; k >= 0; --k, x += block) {
      Copy(values, ahead);
      if (k > 0) Load(ahead, x + block);
      {
        Sums<kSets> sums;
        if (p_.HasNext(k)) Multiply(sums, v_, pieces_);
        if (p_.run.has_fill()) Multiply(sums, left_, pieces_);
        sums.SubtractFrom(values);
      }
      Store(values, y_, lead_);
      __syncthreads();
      {
        Sums<kSets> v;
        Multiply(v, y_ + strip_, pieces_ - strip_ / kStrip);
        v.MoveTo(values);
      }
      Store(values, v_, lead_);
      Store(values, x, p_.n);
      __syncthreads();
    }
  }

 private:
  using Values = double[kSets][4];  // (row, column), (row, column + 1), (row + 1, column), ...
  using Entries = T[kSets][2][2];   // of a column two rows

  __device__ static void Zero(Values& values) {
#pragma unroll
    for (int i = 0; i < 4 * kSets; ++i) values[i / 4][i % 4] = 0;
  }
  __device__ static void Copy(Values& values, const Entries& entries) {
#pragma unroll
    for (int i = 0; i < 4 * kSets; ++i) {
      values[i / 4][i % 4] = static_cast<double>(entries[i / 4][i & 1][i >> 1 & 1]);
    }
  }
  __device__ void Add(Values& values, const Entries& a, const Entries& b) const {
    Copy(values, a);
    if (p_.x_right == 0) return;
#pragma unroll
    for (int i = 0; i < 4 * kSets; ++i) {
      const int s = i / 4, c = i & 1, r = i >> 1 & 1;
      values[s][i % 4] = static_cast<double>(a[s][c][r] + b[s][c][r]);
    }
  }
  // body(set, column of the pair, is there, scalars from the lane's first) for each column that the
  // lane has entries of.
  template <typename Body>
  __device__ void ForEachColumn(int lead, const Body& body) const {
#pragma unroll
    for (int s = 0; s < kSets; ++s) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        body(s, c, s * kColumns + c < columns_, (s * kColumns + c) * lead);
      }
    }
  }
  __device__ void Load(Entries& entries, const T* from) const {
    from += column_ * p_.n + row_;
    ForEachColumn(p_.n, [&](int s, int c, bool there, int at) {
      if constexpr (kWhole) {
        if (there) LoadFreshPair(entries[s][c], from + at);
      } else {
        if (there && row_ < p_.n) entries[s][c][0] = LoadFresh(from + at);
        if (there && row_ + 1 < p_.n) entries[s][c][1] = LoadFresh(from + at + 1);
      }
    });
  }
  __device__ void LoadRhs(Entries& entries, Entries& right, const T* from) const {
    Load(entries, from);
    if (p_.x_right != 0) Load(right, from + p_.x_right);
  }
  __device__ void Store(const Values& values, T* out, int lead) const {
    out += column_ * lead + row_;
    ForEachColumn(lead, [&](int s, int c, bool there, int at) {
      if constexpr (kWhole) {
        if (there) StorePair(out + at, values[s][c], values[s][2 + c]);
      } else {
        if (there && row_ < p_.n) out[at] = static_cast<T>(values[s][c]);
        if (there && row_ + 1 < p_.n) out[at + 1] = static_cast<T>(values[s][2 + c]);
      }
    });
  }
  __device__ void Multiply(Sums<kSets>& sums, const T* vectors, int pieces) {
    stream_.template Multiply<kForward>(sums, pieces, vectors, kStrip, lead_, p_.columns);
  }

  const Part<T>& p_;
  const int strip_;
  const int lead_;
  const int row_, column_, columns_;  // this lane's first, and how many from there on
  const int pieces_;                  // of a square's strip
  T* const v_;
  T* const y_;
  T* const left_;
  MatrixStream<T, kWhole, kDepth<kRows>, SegmentSource<T, kForward>> stream_;
};

// A walk and what it waits for. In shared memory: registers are short.
template <typename T>
struct Job {
  Part<T> part;
  bool forward;
  unsigned* done;
  const unsigned* before;  // null: nothing
  unsigned target;
};

template <typename T, int kSets, bool kForward, bool kWhole, int kRows>
__device__ void WalkSegment(const SolveArgs& args, const Job<T>& job, T* vectors) {
  Walk<T, kSets, kForward, kWhole, kRows> walk(job.part, vectors,
                                               static_cast<int>(args.vector_rows));
  if (job.before != nullptr) {
    if (threadIdx.x == 0) WaitFor(job.before, job.target);
    __syncthreads();
  }
  if constexpr (kForward) {
    walk.Forward();
  } else {
    walk.Backward();
  }
}

// Finds the job of a ticket; tickets must rise.
class JobOrder {
 public:
  __device__ explicit JobOrder(const SolveArgs& args)
      : args_(args), units_(args.num_systems * args.num_panels), pass_(args.first_pass) {}

  // False: there is none.
  template <typename T>
  __device__ bool At(int64_t ticket, int panel_columns, Job<T>* job) {
    while (pass_ < args_.end_pass && ticket - passed_ >= segments() * units_) {
      passed_ += segments() * units_;
      ++pass_;
    }
    if (pass_ >= args_.end_pass) return false;
    const int64_t unit = (ticket - passed_) / segments();
    job->part = Part<T>(args_, level(), unit / args_.num_panels,
                        level().shape.launched((ticket - passed_) % segments()),
                        args_.first_panel + unit % args_.num_panels, panel_columns);
    const PassCounter counter = {args_.counters + unit * 2 * args_.num_levels};
    job->forward = args_.is_forward(pass_);
    job->done = counter.Of(pass_);
    job->before = counter.Before(args_, pass_);
    if (job->before != nullptr) job->target = PassCounter::Target(args_, pass_);
    return true;
  }

 private:
  __device__ const SolveLevel& level() const { return args_.levels[args_.level_of(pass_)]; }
  __device__ int64_t segments() const { return level().shape.segments(); }

  const SolveArgs& args_;
  const int64_t units_;
  int32_t pass_;
  int64_t passed_ = 0;  // tickets of the passes before
};

template <typename T, int kSets, bool kWhole, int kRows>
__global__ void __launch_bounds__(2 * kRows, kBlocksAtOnce<kRows>)
    SubstituteSmallKernel(const BLOCKD_KERNEL_ARGUMENT SolveArgs args) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ __align__(16) unsigned char job_memory[sizeof(Job<T>)];
  __shared__ bool found;
  Job<T>& job = *reinterpret_cast<Job<T>*>(job_memory);
  T* vectors = reinterpret_cast<T*>(memory);
  ClearStale(args);
  const int scalars = 3 * static_cast<int>(args.vector_rows) * kSets * kColumns;
  // Beyond n rows the vectors are zero, and stay so.
  for (int i = threadIdx.x; i < scalars; i += blockDim.x) vectors[i] = T{0};
  JobOrder order(args);
  for (;;) {
    if (threadIdx.x == 0) found = order.At(TakeTicket(args), kSets * kColumns, &job);
    __syncthreads();
    if (!found) return;
    if (job.part.columns > 0) {
      if (job.forward) {
        WalkSegment<T, kSets, true, kWhole, kRows>(args, job, vectors);
      } else {
        WalkSegment<T, kSets, false, kWhole, kRows>(args, job, vectors);
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) Signal(job.done);
  }
}

int64_t Minimum(int64_t a, int64_t b) { return a < b ? a : b; }

template <typename T, int kSets>
auto KernelOf(int64_t n) {
  if (n <= kNarrow) {
    return n % kStrip == 0 ? SubstituteSmallKernel<T, kSets, true, kNarrow>
                           : SubstituteSmallKernel<T, kSets, false, kNarrow>;
  }
  return n % kStrip == 0 ? SubstituteSmallKernel<T, kSets, true, kWide>
                         : SubstituteSmallKernel<T, kSets, false, kWide>;
}

template <typename T, int kSets>
LaunchResult Launch(SolveArgs args, const SolveLimits& limits, Stream stream) {
  const int64_t warps = (args.n + kStrip - 1) / kStrip;
  args.vector_rows = VectorLead(args.n);
  const int64_t bytes = 3 * args.vector_rows * kSets * kColumns * static_cast<int64_t>(sizeof(T));
  const int64_t most_warps = args.n <= kNarrow ? 12 : 8;  // of a multiprocessor, by registers
  int64_t blocks = Minimum(limits.shared_bytes / (bytes + kReservedShared), most_warps / warps);
  if (blocks < 1) blocks = 1;
  int64_t most = 0;  // segments of one pass
  for (int32_t pass = args.first_pass; pass < args.end_pass; ++pass) {
    const int64_t segments = args.levels[args.level_of(pass)].shape.segments();
    if (segments > most) most = segments;
  }
  most *= args.num_systems * args.num_panels;
  const unsigned grid = static_cast<unsigned>(Minimum(most, blocks * limits.multiprocessors));
  const unsigned threads = static_cast<unsigned>(warps) * kWarp;
  const size_t shared = static_cast<size_t>(bytes);
  const auto kernel = KernelOf<T, kSets>(args.n);
  kernel<<<grid, threads, shared, stream>>>(args);
  return {BLOCKD_GPU(GetLastError)(), "SubstituteSmall"};
}

template <typename T, int kSets>
Error Allow(size_t bytes) {
  Error error = kSuccess;
  for (const int64_t n : {kNarrow - 1, kNarrow, kWide - 1, kWide}) {
    if (error == kSuccess) error = AllowShared(KernelOf<T, kSets>(n), bytes);
  }
  return error;
}

}  // namespace

int64_t SolvePanelColumns(const SolveLimits& limits, int64_t columns) {
  constexpr int64_t kSharedForTwoSets = 96 << 10;
  const bool one_set = columns <= kColumns || limits.block_shared_bytes < kSharedForTwoSets;
  return one_set ? kColumns : 2 * kColumns;
}

LaunchResult PrepareSubstituteSmall(const SolveLimits& limits) {
  const size_t bytes = static_cast<size_t>(limits.block_shared_bytes - kStaticShared);
  Error error = Allow<double, 1>(bytes);
  if (error == kSuccess) error = Allow<double, 2>(bytes);
  if (error == kSuccess) error = Allow<float, 1>(bytes);
  if (error == kSuccess) error = Allow<float, 2>(bytes);
  return {error, "SubstituteSmall"};
}

template <typename T>
LaunchResult SubstituteSmall(const SolveArgs& args, const SolveLimits& limits, Stream stream) {
  return args.panel_columns == kColumns ? Launch<T, 1>(args, limits, stream)
                                        : Launch<T, 2>(args, limits, stream);
}

template LaunchResult SubstituteSmall<double>(const SolveArgs&, const SolveLimits&, Stream);
template LaunchResult SubstituteSmall<float>(const SolveArgs&, const SolveLimits&, Stream);

}  // namespace blockd::gpu
