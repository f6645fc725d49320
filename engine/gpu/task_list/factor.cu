// Factorizations in float32 of systems with few blocks of more than 128 rows, in one launch: there
// are fewer tiles at a time than multiprocessors, and what counts is how soon a tile is with those
// that wait for it. The host has listed the tiles, factor_tasks.h, in the order in which they
// should begin. A thread block has one, by a ticket; a tile comes after all that it waits for, so
// that nobody waits for one that has not been taken. (A loop over tiles would keep in registers
// what all of them have in common.)
#include "engine/gpu/plan/solve_part.h"
#include "engine/gpu/task_list/launch.h"
#include "engine/gpu/task_list/sizes.h"
#include "engine/gpu/tile/growth.h"
#include "engine/gpu/tile/tile_task.h"

namespace blockd::gpu::task_list {
namespace {

constexpr int kTile = FactorTask::kTile;
using Real = float;
using Wide = ProductTile<Real, SharedLayout<Real, kTile>>;
using Narrow = ProductTile<Real, NarrowLayout<Real>>;
constexpr int kThreads = Wide::kThreads;
static_assert(Wide::kRows == kTile && Wide::kColumns == kTile && Narrow::kRows == kTile &&
              Narrow::kColumns == FactorTask::kPiece && Narrow::kThreads == kThreads);
constexpr int kResident = Wide::kResident;

constexpr int Largest(int a, int b) { return a > b ? a : b; }
constexpr int64_t kSharedBytes =
    int64_t{sizeof(Real)} *
    Largest(kTile * kLd<Real, kTile>, Largest(Wide::kSharedScalars, Narrow::kSharedScalars));

// A thread block's shared memory beside tiles, because registers are for these.
struct Shared {
  FactorTask listed;
  Task<Real> task;  // the same, with addresses
  Real* kept;
  Real* transposed;
  const FactorEntry* system;
  unsigned* counters;
  unsigned ticket;
  int failed;
};

__device__ inline Real* At(FactorTask::Address address, const FactorEntry& system, int n) {
  const ChainReader<Real> matrix = {system, n, -1};
  const int64_t at = address.at(), square = static_cast<int64_t>(n) * n;
  switch (address.array()) {
    case FactorTask::Array::kNone:
      return nullptr;
    case FactorTask::Array::kFactor:
      return static_cast<Real*>(system.factor) + at;
    case FactorTask::Array::kChains:
      return static_cast<Real*>(system.chains) + at;
    case FactorTask::Array::kScratch:
      return static_cast<Real*>(system.scratch) + at;
    case FactorTask::Array::kDiagonal:
      return const_cast<Real*>(matrix.Diagonal(at / square).first) + at % square;
    case FactorTask::Array::kCoupling:
      return const_cast<Real*>(matrix.Coupling(at / square, false).data) + at % square;
  }
  return nullptr;
}

// Makes the task of what is listed: one warp, an address a lane.
__device__ inline void Resolve(const FactorEntry& system, int n, Shared& shared) {
  const FactorTask& listed = shared.listed;
  Task<Real>& task = shared.task;
  const int lane = Lane();
  if (lane < 4) {
    const int p = lane / 2;
    const bool is_a = lane % 2 == 0;
    Product<Real>& product = p == 0 ? task.first : task.second;
    Operand<Real>& operand = is_a ? product.a : product.b;
    operand = {At(is_a ? listed.a[p] : listed.b[p], system, n), n,
               n - (is_a ? listed.row_of_a[p] : listed.row_of_b[p]), false};
    product.depth = listed.depth[p];
  } else if (lane < 6) {
    const FactorTask::Address start = listed.start[lane - 4];
    (lane == 4 ? task.start.first : task.start.second) = At(start, system, n);
    if (lane == 4) {
      task.start.packed =
          start.array() == FactorTask::Array::kDiagonal && system.packed_diagonal != 0;
    }
  } else if (lane == 6) {
    task.out = At(listed.out, system, n);
    task.row_stride = listed.across ? n : 1;
    task.column_stride = listed.across ? 1 : n;
  } else if (lane < 9) {
    (lane == 7 ? shared.kept : shared.transposed) =
        At(lane == 7 ? listed.kept : listed.transposed, system, n);
  } else if (lane == 9) {
    task.row0 = listed.row0, task.column0 = listed.column0;
    task.negative = listed.negative, task.lower = listed.lower, task.whole = listed.whole;
    task.factor = false;
    shared.system = &system;
    shared.failed = -1;
  }
}

// The last warp waits for counters; the others for it, at the next barrier.
__device__ inline void Await(const Shared& shared, int first, int end) {
  const int wait = first + Lane();
  if (WarpIndex() != kThreads / kWarp - 1 || wait >= end) return;
  const FactorTask::Wait w = shared.listed.waits[wait];
  WaitFor(shared.counters + w.counter, static_cast<unsigned>(w.count));
}
template <typename Tile>
__device__ inline void Sum(const TileTask<Real, kTile, Tile>& work, const Shared& shared,
                           Real* memory, Tile& tile) {
  work.Start(tile);
  const FactorTask& listed = shared.listed;
  if (listed.num_waits > listed.start_waits) {
    Await(shared, listed.start_waits, listed.num_waits);
    __syncthreads();
  }
  const Task<Real>& task = shared.task;
  if (task.first.depth + task.second.depth > 0) tile.Add(task.first, task.second, memory);
}

template <typename Tile>
__device__ inline void Form(int n, const Shared& shared, Real* memory) {
  const TileTask<Real, kTile, Tile> work(shared.task, n, memory);
  Tile tile;
  Sum(work, shared, memory, tile);
  work.Lay(tile);
  work.Store();
  if (shared.kept) work.StoreInverseTile(shared.task.out, shared.kept);
}

__device__ inline void Invert(int n, Shared& shared, Real* memory) {
  const TileTask<Real, kTile, Wide> work(shared.task, n, memory);
  work.InvertStart(&shared.failed);
  const FactorTask& listed = shared.listed;
  if (threadIdx.x == 0) {
    NoteFailure(shared.system->info + listed.segment, listed.rows_before == 0, listed.rows_before,
                shared.failed);
  }
  const int j = listed.row0 / kTile;
  work.StoreFactor(j, shared.task.out, nullptr, nullptr);
  SyncToSignal();
  if (threadIdx.x == 0) Signal(shared.counters + listed.signals[0]);
  work.StoreFactor(j, nullptr, nullptr, shared.kept);
  if (shared.transposed) work.StoreFactor(j, nullptr, shared.transposed, nullptr);
}

__device__ inline void Grow(int n, const Shared& shared) {
  const FactorTask& listed = shared.listed;
  DiagonalSource<Real> diagonal = shared.task.start;
  diagonal.n = n;
  const int first = listed.column0, end = first + kTile < n ? first + kTile : n;
  GrowthMeter<Real, kThreads / kWarp, 4>(shared.kept, diagonal, first, end, first, nullptr)
      .Note(shared.system->info + listed.segment);
}

// A strip of a coupling block.
__device__ inline void Copy(int n, const Shared& shared, Real* memory) {
  const CouplingSource<Real> source = {shared.task.first.a.data, n, 1};
#pragma unroll 1
  for (int column0 = 0; column0 < n; column0 += FactorTask::kCopiedRows) {
    if (column0 > 0) __syncthreads();
    CopySquare<kThreads>(source, n, shared.task.row0, column0, memory, shared.task.out);
  }
}

__global__ void BLOCKD_LAUNCH_BOUNDS(kThreads, kResident)
    EliminateTasksKernel(const BLOCKD_KERNEL_ARGUMENT EliminateTasksArgs given) {
  const EliminateTasksArgs& args = InPlace(given);
  BLOCKD_DYNAMIC_SHARED(unsigned char, dynamic, 128);
  __shared__ __align__(16) unsigned char space[sizeof(Shared)];
  Real* const memory = reinterpret_cast<Real*>(dynamic);
  Shared& shared = reinterpret_cast<Shared&>(space);
  ClearStale(args.stale, args.stale_words);
  if (threadIdx.x == 0) shared.ticket = atomicAdd(args.ticket, 1u);
  __syncthreads();
  const unsigned index = shared.ticket / args.num_systems;
  const unsigned system = shared.ticket - index * args.num_systems;
  constexpr int kWords = sizeof(FactorTask) / sizeof(uint32_t);
  if (threadIdx.x < kWords) {
    reinterpret_cast<uint32_t*>(&shared.listed)[threadIdx.x] =
        reinterpret_cast<const uint32_t*>(args.tasks + index)[threadIdx.x];
  }
  if (threadIdx.x == 0) shared.counters = args.counters + system * args.num_counters;
  __syncthreads();
  if (WarpIndex() == 1) Resolve(args.systems[system], args.n, shared);
  Await(shared, 0, shared.listed.start_waits);
  __syncthreads();
  const FactorTask::Kind kind = shared.listed.kind;
  if (kind == FactorTask::Kind::kWide) {
    Form<Wide>(args.n, shared, memory);
  } else if (kind == FactorTask::Kind::kNarrow) {
    Form<Narrow>(args.n, shared, memory);
  } else if (kind == FactorTask::Kind::kInvert) {
    Invert(args.n, shared, memory);
  } else if (kind == FactorTask::Kind::kGrowth) {
    Grow(args.n, shared);
  } else {
    Copy(args.n, shared, memory);
  }
  SyncToSignal();
  if (threadIdx.x != 0) return;
  for (int i = kind == FactorTask::Kind::kInvert ? 1 : 0; i < FactorTask::kMostSignals; ++i) {
    if (shared.listed.signals[i] >= 0) Signal(shared.counters + shared.listed.signals[i]);
  }
}

}  // namespace

LaunchResult PrepareFactor(const DeviceLimits& limits) {
  static_assert(kSharedBytes == kFactorSharedBytes && sizeof(Shared) + 128 <= kFactorDeclaredBytes);
  if (kFactorSharedBytes + kFactorDeclaredBytes > limits.block_shared_bytes) return {};
  return {AllowShared(EliminateTasksKernel, kSharedBytes), "EliminateTasks"};
}

LaunchResult Eliminate(const EliminateTasksArgs& args, Stream stream) {
  return {LaunchKernel(EliminateTasksKernel, dim3(args.num_tasks * args.num_systems), kThreads,
                       kSharedBytes, stream, false, args),
          "EliminateTasks"};
}

}  // namespace blockd::gpu::task_list
