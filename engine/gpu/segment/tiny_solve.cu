// Solves for up to 8 rows: a warp walks a segment forward or backward. A lane has a row of some
// columns; rows come to one another by shuffles. The matrices of several steps, which are side by
// side in memory, are copied to shared memory as a chunk, and the chunks after it are under way
// meanwhile; so are the right-hand sides of the next chunk, in registers.
#include "engine/gpu/segment/launch.h"
#include "engine/gpu/segment/sizes.h"
#include "engine/gpu/segment/solve_jobs.h"
#include "engine/gpu/tile/span.h"

namespace blockd::gpu::segment {
namespace {

// kRows: 4 or 8, blocks have as many or fewer. kSets times 8 columns.
template <typename T, int kSets, int kRows>
struct TinySizes {
  static constexpr int kGroups = kWarp / kRows;  // columns that a warp has side by side
  // Columns of a lane.
  static constexpr int kMine = kSets * kColumns > kGroups ? kSets* kColumns / kGroups : 1;
  // Steps of a chunk; chunks that have a place in shared memory.
  static constexpr int kSteps = 32 / kRows / kSets;
  static constexpr int kChunks = kSteps * kRows * kRows > 128 ? 2 : 3;
  static constexpr int kChunkScalars = 3 * kSteps * kRows * kRows;
  static constexpr int64_t kBytes = int64_t{kChunks} * kChunkScalars * int64_t{sizeof(T)};
};

template <typename T, int kSets, bool kForward, bool kWhole, int kRows>
class TinyWalk {
  using Sizes = TinySizes<T, kSets, kRows>;
  static constexpr int kMine = Sizes::kMine, kSteps = Sizes::kSteps, kChunks = Sizes::kChunks;

 public:
  // Starts the first copies: the factor waits for nobody.
  __device__ TinyWalk(const Part<T>& part, T* chunks)
      : p_(part),
        n_(kWhole ? kRows : part.n),
        square_(n_ * n_),
        count_(static_cast<int>(part.range.count)),
        has_fill_(part.range.has_fill()),
        row_(Lane() % kRows),
        group_(Lane() / kRows),
        has_row_(kWhole || row_ < n_),
        chunks_(chunks),
        next_chunk_(kForward ? 0 : (count_ - 1) / kSteps) {
#pragma unroll 1
    for (int i = 1; i < kChunks; ++i) CopyNext();
  }

  // y = inv(L) v, v = the next right-hand side - C y, and what W y adds up to.
  __device__ void Forward(Tickets& tickets) {
    const int columns = p_.columns;
    Vector v, left = {};
    Load(v, p_.x.At(p_.range.block(0)), p_.x_right);
    Vectors ahead;  // of a chunk: each step's next right-hand side
    LoadChunk(ahead, 1, LastRhs(), p_.x_right);
#pragma unroll 1
    for (int k = 0; k < count_; k += kSteps) {
      if (k + kSteps >= count_) tickets.Take();
      const T* const chunk = NextChunk();
      Vectors vectors;
      Scalars loaded, right = {};
      Keep(vectors, ahead, k + 1, LastRhs());
      StartChunk(loaded, right, k + kSteps + 1, LastRhs(), p_.x_right);
      if (has_fill_) {
        ForwardChunk<true>(vectors, v, left, chunk, k);
      } else {
        ForwardChunk<false>(vectors, v, left, chunk, k);
      }
      Add(ahead, loaded, right, p_.x_right != 0);
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        if (k + s < count_) Store(vectors[s], p_.x.At(p_.range.block(k + s)), columns);
      }
    }
    if (has_fill_) Store(left, p_.from_right.At(p_.range.left), columns);
    if (p_.range.target() < 0) return;
    Store(v, p_.range.reversed ? p_.from_right.At(p_.range.left) : p_.from_left.At(p_.range.right),
          columns);
  }

  // y = the forward pass's y - C' v - W' left, v = inv(L)' y.
  __device__ void Backward(Tickets& tickets) {
    const int columns = p_.columns, last = count_ - 1;
    Vector v = {}, left = {};
    if (p_.range.target() >= 0) Load(v, p_.TargetSolution(), 0);
    if (has_fill_) Load(left, p_.from_left.At(p_.range.left), 0);
    Vectors ahead;
    const int first = last / kSteps * kSteps;
    LoadChunk(ahead, first, last, 0);
    // A separator is the right one of one segment, which brings its solution down.
    if (p_.AddsToNext(last)) Store(v, p_.Next(last), columns);
#pragma unroll 1
    for (int k = first; k >= 0; k -= kSteps) {
      if (k == 0) tickets.Take();
      const T* const chunk = NextChunk();
      Vectors vectors;
      Scalars loaded, right = {};
      Keep(vectors, ahead, k, last);
      StartChunk(loaded, right, k - kSteps, last, 0);
      if (has_fill_) {
        BackwardChunk<true>(vectors, v, left, chunk, k);
      } else {
        BackwardChunk<false>(vectors, v, left, chunk, k);
      }
      Add(ahead, loaded, right, false);
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        if (k + s < count_) Store(vectors[s], p_.x.At(p_.range.block(k + s)), columns);
      }
    }
  }

 private:
  using Vector = double[kMine];  // this lane's row of its columns
  using Vectors = double[kSteps][kMine];
  using Scalars = T[kSteps][kMine];
  using Row = double[kRows];

  // --- Chunks of matrices: inv(L) of all steps, then C, then W ----------------------------------

  // Starts the copy of the next chunk; of nothing, if there is none.
  __device__ void CopyNext() {
    const int k = next_chunk_ * kSteps;
    if (0 <= k && k < count_) {
      const int steps = count_ - k < kSteps ? count_ - k : kSteps;
      const int nexts = p_.HasNext(k + steps - 1) ? steps : steps - 1;
      T* const to = chunks_ + next_place_ * Sizes::kChunkScalars;
      const int64_t from = int64_t{k} * square_;
      Copy(to, p_.inverse + from, steps);
      Copy(to + kSteps * square_, p_.next + from, nexts);
      if (nexts < steps) {
        for (int i = Lane(); i < square_; i += kWarp) to[(kSteps + nexts) * square_ + i] = 0;
      }
      if (has_fill_) Copy(to + 2 * kSteps * square_, p_.fill + from, steps);
    }
    CopyCommit();
    next_chunk_ += kForward ? 1 : -1;
    next_place_ = next_place_ + 1 == kChunks ? 0 : next_place_ + 1;
  }
  __device__ void Copy(T* to, const T* from, int steps) const {
    constexpr int kVector = 16 / static_cast<int>(sizeof(T));
    const int scalars = steps * square_;
    if (square_ % kVector == 0) {
      for (int i = Lane() * kVector; i < scalars; i += kWarp * kVector) {
        CopyAsync16(to + i, from + i);
      }
    } else {
      for (int i = Lane(); i < scalars; i += kWarp) CopyAsync(to + i, from + i);
    }
  }
  // The next chunk; what the one before has is not read any more.
  __device__ const T* NextChunk() {
    SyncWarp();
    CopyNext();
    CopyWaitBut<kChunks - 1>();
    SyncWarp();
    const T* const chunk = chunks_ + place_ * Sizes::kChunkScalars;
    place_ = place_ + 1 == kChunks ? 0 : place_ + 1;
    return chunk;
  }

  // This lane's row of a matrix or of its transpose.
  __device__ void ReadRow(Row& row, const T* matrix) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const bool has = kWhole || (has_row_ && i < n_);
      row[i] = has ? static_cast<double>(matrix[kForward ? i * n_ + row_ : row_ * n_ + i]) : 0;
    }
  }

  // --- Vectors ----------------------------------------------------------------------------------

  // sums += or -= the row times a vector of all rows.
  template <bool kMinus>
  __device__ static void Multiply(Vector& sums, const Row& row, const Vector& v) {
    const int first = Lane() & ~(kRows - 1);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kMine; ++j) {
        const T other = Shuffle(static_cast<T>(v[j]), first + i);
        sums[j] = fma(kMinus ? -row[i] : row[i], static_cast<double>(other), sums[j]);
      }
    }
  }
  __device__ static void Round(Vector& v) {
#pragma unroll
    for (int j = 0; j < kMine; ++j) v[j] = static_cast<double>(static_cast<T>(v[j]));
  }
  // Where this lane's entry of its j-th column is; of lanes that have none, another's.
  __device__ int At(int j) const {
    const int column = group_ + j * Sizes::kGroups;
    return (column < p_.columns ? column * n_ : 0) + (has_row_ ? row_ : 0);
  }
  __device__ void Load(Vector& v, const T* from, int64_t right) const {
#pragma unroll
    for (int j = 0; j < kMine; ++j) {
      const double value = Fresh(from + At(j), right);
      v[j] = has_row_ ? value : 0;
    }
  }
  __device__ void Store(const Vector& v, T* to, int columns) const {
#pragma unroll
    for (int j = 0; j < kMine; ++j) {
      const int column = group_ + j * Sizes::kGroups;
      if (has_row_ && column < columns) to[column * n_ + row_] = static_cast<T>(v[j]);
    }
  }

  // The last block of which the forward pass reads a right-hand side: an interior or the target.
  __device__ int LastRhs() const { return p_.AddsToNext(count_ - 1) ? count_ : count_ - 1; }
  // Starts to load what is in the chain's vectors for the segment's blocks from k on.
  __device__ void StartChunk(Scalars& loaded, Scalars& right, int k, int last,
                             int64_t further) const {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int block = k + s < 0 ? 0 : k + s < last ? k + s : last;
      const T* const from = p_.x.At(p_.range.block(block));
#pragma unroll
      for (int j = 0; j < kMine; ++j) loaded[s][j] = LoadFresh(from + At(j));
      if (further != 0) {
#pragma unroll
        for (int j = 0; j < kMine; ++j) right[s][j] = LoadFresh(from + further + At(j));
      }
    }
  }
  __device__ static void Add(Vectors& sums, const Scalars& loaded, const Scalars& right,
                             bool both) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int j = 0; j < kMine; ++j) {
        sums[s][j] = static_cast<double>(both ? loaded[s][j] + right[s][j] : loaded[s][j]);
      }
    }
  }
  __device__ void LoadChunk(Vectors& vectors, int k, int last, int64_t further) const {
    Scalars loaded, right = {};
    StartChunk(loaded, right, k, last, further);
    Add(vectors, loaded, right, further != 0);
  }
  // Zero where there is none.
  __device__ void Keep(Vectors& to, const Vectors& from, int k, int last) const {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int j = 0; j < kMine; ++j) to[s][j] = has_row_ && k + s <= last ? from[s][j] : 0;
    }
  }

  // --- Steps ------------------------------------------------------------------------------------

  // vectors: what is subtracted from, which y takes the place of.
  template <bool kFill>
  __device__ void ForwardChunk(Vectors& vectors, Vector& v, Vector& left, const T* chunk,
                               int k) const {
    if (k + kSteps <= count_) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) ForwardStep<kFill>(vectors[s], v, left, chunk + s * square_);
    } else {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        if (k + s < count_) ForwardStep<kFill>(vectors[s], v, left, chunk + s * square_);
      }
    }
  }
  template <bool kFill>
  __device__ void ForwardStep(Vector& vector, Vector& v, Vector& left, const T* inverse) const {
    Row l, c, w;
    ReadRow(l, inverse);
    ReadRow(c, inverse + kSteps * square_);
    if (kFill) ReadRow(w, inverse + 2 * kSteps * square_);
    Vector y = {};
    Multiply<false>(y, l, v);
    Round(y);
#pragma unroll
    for (int j = 0; j < kMine; ++j) v[j] = vector[j], vector[j] = y[j];
    Multiply<true>(v, c, y);
    Round(v);
    if (kFill) Multiply<true>(left, w, y);
  }

  // vectors: the forward pass's y, which v takes the place of.
  template <bool kFill>
  __device__ void BackwardChunk(Vectors& vectors, Vector& v, const Vector& left, const T* chunk,
                                int k) const {
    if (k + kSteps <= count_) {
#pragma unroll
      for (int s = kSteps - 1; s >= 0; --s) {
        BackwardStep<kFill>(vectors[s], v, left, chunk + s * square_);
      }
    } else {
#pragma unroll
      for (int s = kSteps - 1; s >= 0; --s) {
        if (k + s < count_) BackwardStep<kFill>(vectors[s], v, left, chunk + s * square_);
      }
    }
  }
  template <bool kFill>
  __device__ void BackwardStep(Vector& vector, Vector& v, const Vector& left,
                               const T* inverse) const {
    Row l, c, w;
    ReadRow(l, inverse);
    ReadRow(c, inverse + kSteps * square_);
    if (kFill) {
      ReadRow(w, inverse + 2 * kSteps * square_);
      Multiply<true>(vector, w, left);
    }
    Multiply<true>(vector, c, v);
    Round(vector);
#pragma unroll
    for (int j = 0; j < kMine; ++j) v[j] = 0;
    Multiply<false>(v, l, vector);
    Round(v);
#pragma unroll
    for (int j = 0; j < kMine; ++j) vector[j] = v[j];
  }

  const Part<T>& p_;
  const int n_, square_, count_;
  const bool has_fill_;
  const int row_, group_;
  const bool has_row_;
  T* const chunks_;
  int next_chunk_, next_place_ = 0, place_ = 0;
};

template <typename T, int kSets, bool kForward, bool kWhole, int kRows>
__device__ void WalkTiny(Tickets& tickets, const Job<T>& job, T* chunks) {
  TinyWalk<T, kSets, kForward, kWhole, kRows> walk(job.part, chunks);
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
__global__ void BLOCKD_LAUNCH_BOUNDS(kWarp, kTinyResident)
    SubstituteTinyKernel(const BLOCKD_KERNEL_ARGUMENT SolveArgs given) {
  const SolveArgs& args = InPlace(given);
  BLOCKD_DYNAMIC_SHARED(unsigned char, memory, 128);
  __shared__ __align__(16) unsigned char job_memory[sizeof(Job<T>)];
  __shared__ JobOrder order;
  __shared__ bool found;
  Job<T>& job = *reinterpret_cast<Job<T>*>(job_memory);
  T* const chunks = reinterpret_cast<T*>(memory);
  ClearStale(args.stale, args.stale_words);
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
      WalkTiny<T, kSets, true, kWhole, kRows>(tickets, job, chunks);
    } else {
      WalkTiny<T, kSets, false, kWhole, kRows>(tickets, job, chunks);
    }
    unsigned* const done = job.done;
    SyncToSignal();
    if (threadIdx.x == 0) Signal(done);
  }
}

template <typename T, int kSets, int kRows>
LaunchResult Launch(const SolveArgs& args, const DeviceLimits& limits, Stream stream) {
  constexpr int64_t kBytes = TinySizes<T, kSets, kRows>::kBytes;
  const int64_t fit = limits.shared_bytes / (kBytes + kReservedShared);
  const int64_t blocks = fit < 1 ? 1 : Minimum(fit, kTinyResident);
  const auto kernel = args.n == kRows ? SubstituteTinyKernel<T, kSets, true, kRows>
                                      : SubstituteTinyKernel<T, kSets, false, kRows>;
  const int64_t grid = Minimum(MostAtOnce(args), blocks * limits.multiprocessors);
  return {LaunchKernel(kernel, dim3(static_cast<unsigned>(grid)), kWarp,
                       static_cast<size_t>(kBytes), stream, false, args),
          "SubstituteTiny"};
}

template <typename T, int kSets>
LaunchResult Launch(const SolveArgs& args, const DeviceLimits& limits, Stream stream) {
  return args.n <= 4 ? Launch<T, kSets, 4>(args, limits, stream)
                     : Launch<T, kSets, 8>(args, limits, stream);
}

}  // namespace

template <typename T>
LaunchResult SubstituteTiny(const SolveArgs& args, const DeviceLimits& limits, Stream stream) {
  return args.panel_columns == kColumns ? Launch<T, 1>(args, limits, stream)
                                        : Launch<T, 2>(args, limits, stream);
}

template LaunchResult SubstituteTiny<double>(const SolveArgs&, const DeviceLimits&, Stream);
template LaunchResult SubstituteTiny<float>(const SolveArgs&, const DeviceLimits&, Stream);

}  // namespace blockd::gpu::segment
