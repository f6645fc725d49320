// Solves in float32 of systems with few blocks of more than 128 rows, where what counts is how soon
// a vector that one thread block has made is with those that wait for it. Vectors are zero before
// the launch, and no scalar that is stored in one has all bits zero: who needs a vector reads it
// until that is so of all of it. There is no counter, no fence and no second trip to memory.
//
// A thread block has every gridDim-th item, 32 rows of a task, in order. The first matrix of the
// next one comes while its vector is waited for.
#include "engine/gpu/plan/solve_part.h"
#include "engine/gpu/task_list/launch.h"
#include "engine/gpu/task_list/solve_task.h"
#include "engine/gpu/tile/fragments.h"
#include "engine/gpu/tile/span.h"

namespace blockd::gpu::task_list {
namespace {

constexpr int kTeams = 8, kThreads = kTeams * kTeam;
constexpr int kRows = SolveTask::kItemRows;
constexpr int kMadeTogether = 16;          // items
constexpr int kItems = 2 * kMadeTogether;  // that are known at once

struct TasksArgs {
  const SolveTask* tasks;
  const SolveEntry* systems;
  float* vectors;  // of the first unit, a system's panel of columns
  unsigned* stale;
  int64_t first_panel;
  int64_t unit_scalars, vector_scalars;
  unsigned stale_words;
  unsigned items, units, panels, tiles;
  int n, panel_columns, most_columns;
};

// An item: 32 rows of a task. Vectors: column stride n.
struct TaskRows {
  const float* matrix[2];
  const float* vector[2][2];
  const float* start[2];
  float* out;
  float* solution;
  int row0, columns, matrices;
  bool forward, triangle;
  bool vector_is_x, start_is_x;
};

// A thread's part of 32 rows of M, or of 32 of M', whose columns: eight units of four scalars side
// by side in memory. Forward, the unit i is rows 4 (lane % 8) on of the column 8 slot + i, of which
// a warp has four slots. Backward, it is of the column 4 warp + i / 2, rows 4 lane + 128 (i % 2)
// on.
struct Tile {
  float v[8][4];
};

__device__ inline int Slot() { return 4 * Team() + (TeamLane() >> 3); }
// Which of a lane's four sums it has after Fold: a row of its unit, backward a column of its warp.
__device__ inline int Folded() { return (TeamLane() >> 4) * 2 + (TeamLane() >> 3 & 1); }

__device__ inline const float* EntryOf(const TaskRows& item, int g, int row, int column, int n) {
  const int first = item.triangle ? column & -kPanelColumns : 0;
  return item.matrix[g] + TriangleOffset(row, column, first, n);
}

__device__ inline void LoadTile(Tile& tile, const TaskRows& item, int g, int n) {
  const int column = item.forward ? kPanelColumns * Slot() : item.row0 + 4 * Team();
  const int row = item.forward ? item.row0 + 4 * (TeamLane() & 7) : 4 * TeamLane();
  const int first = item.triangle ? column & -kPanelColumns : 0;
  const float* const at = EntryOf(item, g, row, column, n);
  const int lead = n - first;
  const int even = item.forward ? 2 * lead : lead, odd = item.forward ? lead : 128;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int c = column + (item.forward ? i : i / 2), r = row + (item.forward ? 0 : i % 2 * 128);
    const bool stored = c < n && r < n && r >= first;
    float4 unit = {0, 0, 0, 0};
    if (stored) unit = __ldg(reinterpret_cast<const float4*>(at + i / 2 * even + i % 2 * odd));
    tile.v[i][0] = unit.x, tile.v[i][1] = unit.y, tile.v[i][2] = unit.z, tile.v[i][3] = unit.w;
  }
}

// Sums over the lanes that differ in bits 3 and 4, of which each keeps one of four.
__device__ inline float Fold(const float (&a)[4]) {
  const bool upper = (TeamLane() & 16) != 0, odd = (TeamLane() & 8) != 0;
  const float first = upper ? a[2] : a[0], second = upper ? a[3] : a[1];
  const float low = first + Shuffle(upper ? a[0] : a[2], Lane() ^ 16);
  const float high = second + Shuffle(upper ? a[1] : a[3], Lane() ^ 16);
  return (odd ? high : low) + Shuffle(odd ? low : high, Lane() ^ 8);
}

// Sums over the lanes that differ in bits 0 to 2, of which each keeps that of column lane / 2 % 4.
__device__ inline float FoldColumns(const float (&a)[4]) {
  const bool upper = (TeamLane() & 4) != 0, odd = (TeamLane() & 2) != 0;
  const float first = upper ? a[2] : a[0], second = upper ? a[3] : a[1];
  const float low = first + Shuffle(upper ? a[0] : a[2], Lane() ^ 4);
  const float high = second + Shuffle(upper ? a[1] : a[3], Lane() ^ 4);
  const float sum = (odd ? high : low) + Shuffle(odd ? low : high, Lane() ^ 2);
  return sum + Shuffle(sum, Lane() ^ 1);
}
// The same of one column, for all of them.
__device__ inline float FoldColumns(const float (&a)[1]) {
  float sum = a[0];
#pragma unroll
  for (int distance = 4; distance > 0; distance /= 2) sum += Shuffle(sum, Lane() ^ distance);
  return sum;
}

__device__ inline bool AreThere(const uint32_t (&bits)[4]) {
  return bits[0] != 0 && bits[1] != 0 && bits[2] != 0 && bits[3] != 0;
}

// kTogether: columns that are multiplied at once: 1, where there is no other, or 4.
template <int kTogether>
class TaskWorker {
 public:
  // Scalars of a thread block's vectors and of the parts of its sums.
  BLOCKD_HOST_DEVICE static int64_t VectorScalars(int64_t n, int64_t columns) {
    return (columns + kTogether - 1) / kTogether * kTogether * n;
  }
  BLOCKD_HOST_DEVICE static int64_t PartScalars(int64_t columns) {
    return (columns + kTogether - 1) / kTogether * kTogether * kThreads;
  }

  __device__ TaskWorker(const TasksArgs& args, float* memory)
      : n_(args.n),
        turn_scalars_(static_cast<int>(VectorScalars(args.n, args.most_columns))),
        parts_(memory),
        vectors_(memory + PartScalars(args.most_columns)) {}

  __device__ void Load(const TaskRows& item, int g) { LoadTile(tile_, item, g, n_); }

  // Waits for what the g-th product multiplies.
  __device__ void Await(const TaskRows& item, int g) {
    turn_ ^= 1;
    const float* const first = item.vector[g][0];
    const float* const second = item.vector[g][1];
    float* const to = vectors_ + turn_ * turn_scalars_;
    const int units = item.columns * n_ / 4;
#pragma unroll 1
    for (int unit = static_cast<int>(threadIdx.x); unit < units; unit += kUnits * kThreads) {
      uint32_t a[kUnits][4], b[kUnits][4];
      bool there = false;
      while (!there) {
        there = true;
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
          const int at = unit + u * kThreads;
          if (at >= units) continue;
          Peek(a[u], first + 4 * at);
          if (second != nullptr) Peek(b[u], second + 4 * at);
        }
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
          if (unit + u * kThreads >= units) continue;
          there &= AreThere(a[u]) && (second == nullptr || AreThere(b[u]));
        }
        there |= item.vector_is_x;
      }
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const int at = unit + u * kThreads;
        if (at >= units) continue;
        float sum[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sum[i] = __uint_as_float(a[u][i]);
          if (second != nullptr) sum[i] += __uint_as_float(b[u][i]);
        }
        StoreVector(to + 4 * at, sum);
      }
    }
  }

  // Sets the thread's sums of the item to zero and reads what they start from, as far as it is
  // there.
  __device__ void Begin(const TaskRows& item) {
#pragma unroll
    for (int e = 0; e < kEntries; ++e) {
      sum_[e] = 0;
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        start_[e][s] = 0;
        if (item.start[s] != nullptr && Has(item, e)) start_[e][s] = Peek(StartOf(item, e, s));
      }
    }
  }
  // The threads' vectors are seen by all.
  __device__ void Multiply(const TaskRows& item) {
    const float* v = vectors_ + turn_ * turn_scalars_;
#pragma unroll 1
    for (int c = 0; c < item.columns; c += kTogether, v += kTogether * n_) {
      float value[kTogether];
      item.forward ? MultiplyTile<true>(value, v) : MultiplyTile<false>(value, v);
      if (item.forward) {
        float* const part = parts_ + Team() * kRows + 4 * (TeamLane() & 7) + Folded();
#pragma unroll
        for (int i = 0; i < kTogether; ++i) part[(c + i) * kThreads] = value[i];
      } else {
        const float sum = FoldColumns(value);
#pragma unroll
        for (int e = 0; e < kEntries; ++e) {
          if (Column(item, e) / kTogether == c / kTogether) sum_[e] += sum;
        }
      }
    }
  }
  // Forward, the parts are seen by all.
  __device__ void Finish(const TaskRows& item) {
#pragma unroll
    for (int e = 0; e < kEntries; ++e) {
      if (!Has(item, e)) continue;
      float sum = sum_[e];
      if (item.forward) {
        const float* const part = parts_ + Column(item, e) * kThreads + Row(item);
        float pair[kTeams / 2];
#pragma unroll
        for (int w = 0; w < kTeams / 2; ++w) {
          pair[w] = part[2 * w * kRows] + part[(2 * w + 1) * kRows];
        }
        sum = (pair[0] + pair[1]) + (pair[2] + pair[3]);
      }
      if (!item.triangle) sum = Start(item, e) - sum;
      const int at = Column(item, e) * n_ + item.row0 + Row(item);
      constexpr uint32_t kMinusZero = 0x80000000;
      const uint32_t bits = __float_as_uint(sum);
      Show(item.out + at, bits == 0 ? kMinusZero : bits);
      if (item.solution != nullptr) item.solution[at] = sum;
    }
  }

 private:
  // Units of a vector that a thread waits for at once, and entries of an item that it has.
  static constexpr int kUnits = kTogether == 1 ? 1 : 2;
  static constexpr int kEntries = kTogether == 1 ? 1 : 2;

  // The row and the column of the thread's e-th entry.
  __device__ static int Row(const TaskRows& item) {
    return item.forward ? TeamLane() : 4 * Team() + Folded();
  }
  __device__ static int Column(const TaskRows& item, int e) {
    // Backward, as FoldColumns leaves them.
    const int first =
        kTogether == 1 ? TeamLane() & 7 : 4 * (TeamLane() & 1) + (TeamLane() >> 1 & 3);
    return (item.forward ? Team() : first) + 8 * e;
  }
  __device__ bool Has(const TaskRows& item, int e) const {
    return Column(item, e) < item.columns && item.row0 + Row(item) < n_;
  }
  __device__ const float* StartOf(const TaskRows& item, int e, int s) const {
    return item.start[s] + Column(item, e) * n_ + item.row0 + Row(item);
  }
  __device__ float Start(const TaskRows& item, int e) {
    float start = 0;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      if (item.start[s] == nullptr) continue;
      while (start_[e][s] == 0 && !item.start_is_x) start_[e][s] = Peek(StartOf(item, e, s));
      start += __uint_as_float(start_[e][s]);
    }
    return start;
  }

  // Four scalars of a column from row `row` on, zeros if that is below the last.
  __device__ void Read(float (&q)[4], const float* column, int row) const {
    q[0] = q[1] = q[2] = q[3] = 0;
    if (row < n_) LoadVector(q, column + row);
  }
  // A lane's units are, forward, of one block of four rows, which have a sum each and take one
  // scalar of q for a unit; backward of four columns, which have a sum each and take all of q.
  template <bool kForward>
  __device__ void MultiplyTile(float (&value)[kTogether], const float* v) const {
#pragma unroll
    for (int c = 0; c < kTogether; ++c) {
      float a[4] = {};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float q[4];
        Read(q, v + c * n_, kForward ? kPanelColumns * Slot() + 4 * h : 4 * TeamLane() + 128 * h);
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          const int outer = i / 4, inner = i % 4, sum = kForward ? inner : outer;
          a[sum] = fmaf(tile_.v[kForward ? 4 * h + outer : 2 * outer + h][inner],
                        q[kForward ? outer : inner], a[sum]);
        }
      }
      value[c] = Fold(a);
    }
  }

  const int n_, turn_scalars_;
  float* const parts_;
  float* const vectors_;  // of two products in turn
  int turn_ = 0;
  Tile tile_;
  uint32_t start_[kEntries][2];
  float sum_[kEntries];
};

// The items of this thread block from the first-th on, one a lane. Not inlined, or what it needs
// takes registers from all the others.
__device__ __noinline__ void MakeItems(const TasksArgs& args, unsigned first, unsigned count,
                                       TaskRows* items) {
  const unsigned index = first + TeamLane(), number = blockIdx.x + index * gridDim.x;
  if (static_cast<unsigned>(TeamLane()) >= count || number >= args.items) return;
  const unsigned of_task = args.units * args.tiles, rest = number % of_task;
  const unsigned unit = rest / args.tiles, tile = rest % args.tiles;
  const SolveTask task = args.tasks[number / of_task];
  const unsigned system = unit / args.panels;
  const SolveEntry entry = args.systems[system];
  int64_t skip = (args.first_panel + (unit - system * args.panels)) * args.panel_columns;
  int64_t columns = entry.num_rhs - skip;
  if (columns > args.panel_columns) columns = args.panel_columns;
  // The task's part of them.
  const int64_t of_part = (columns + task.parts - 1) / task.parts, before = task.part * of_part;
  skip += before, columns -= before;
  if (columns > of_part) columns = of_part;
  TaskRows item;
  item.columns = static_cast<int>(columns);
  item.matrices = columns > 0 ? task.matrices : 0;
  item.row0 = static_cast<int>(tile) * kRows;
  item.forward = task.forward, item.triangle = task.triangle;
  item.vector_is_x = task.vector[0][0] < SolveTask::kNone;
  item.start_is_x = task.start[0] < SolveTask::kNone;
  float* const x = static_cast<float*>(entry.x) + skip * args.n;
  float* const vectors = args.vectors + unit * args.unit_scalars + before * args.n;
  const auto vector = [&](int32_t v) -> float* {
    if (v >= 0) return vectors + v * args.vector_scalars;
    if (v == SolveTask::kNone) return nullptr;
    return x + (SolveTask::BlockOfX(0) - v) * args.n * entry.num_rhs;
  };
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    item.matrix[i] = static_cast<const float*>(entry.factor) + task.matrix[i];
    item.start[i] = vector(task.start[i]);
    item.vector[i][0] = vector(task.vector[i][0]), item.vector[i][1] = vector(task.vector[i][1]);
  }
  item.out = vector(task.out);
  item.solution = task.solution < 0 ? nullptr : vector(SolveTask::BlockOfX(task.solution));
  items[index % kItems] = item;
}

// All thread blocks run at the same time.
template <int kTogether>
__global__ void BLOCKD_LAUNCH_BOUNDS(kThreads, kTogether == 1 ? 3 : 2)
    SubstituteTasksKernel(const BLOCKD_KERNEL_ARGUMENT TasksArgs given) {
  const TasksArgs& args = InPlace(given);
  BLOCKD_DYNAMIC_SHARED(unsigned char, memory, 128);
  __shared__ __align__(16) unsigned char item_memory[kItems * sizeof(TaskRows)];
  TaskRows* const items = reinterpret_cast<TaskRows*>(item_memory);
  const unsigned count = (args.items - blockIdx.x + gridDim.x - 1) / gridDim.x;
  if (Team() == 0) MakeItems(args, 0, kItems, items);
  __syncthreads();
  TaskWorker<kTogether> worker(args, reinterpret_cast<float*>(memory));
  ClearStale(args.stale, args.stale_words);
#pragma unroll 1
  for (unsigned i = 0; i < count; ++i) {
    if (i % kMadeTogether == 0 && i > 0) {
      __syncthreads();
      if (Team() == 0) MakeItems(args, i + kMadeTogether, kMadeTogether, items);
      __syncthreads();
    }
    const TaskRows& item = items[i % kItems];
#pragma unroll 1
    for (int g = 0; g < item.matrices; ++g) {
      worker.Load(item, g);
      if (g == 0) worker.Begin(item);
      worker.Await(item, g);
      __syncthreads();
      worker.Multiply(item);
    }
    if (item.forward) __syncthreads();
    if (item.matrices > 0) worker.Finish(item);
  }
}

template <int kTogether>
LaunchResult Launch(const SolveArgs& solve, const DeviceLimits& limits, Stream stream) {
  TasksArgs args = {};
  args.tasks = solve.tasks;
  args.systems = solve.systems;
  args.vectors = reinterpret_cast<float*>(solve.counters);
  args.stale = solve.stale;
  args.stale_words = solve.stale_words;
  args.first_panel = solve.first_panel;
  args.vector_scalars = solve.n * solve.most_columns;
  args.unit_scalars = solve.num_vectors * args.vector_scalars;
  args.panels = static_cast<unsigned>(solve.num_panels);
  args.units = static_cast<unsigned>(solve.num_systems) * args.panels;
  args.tiles = static_cast<unsigned>((solve.n + kRows - 1) / kRows);
  args.items = static_cast<unsigned>(solve.num_tasks) * args.units * args.tiles;
  args.n = static_cast<int>(solve.n);
  args.panel_columns = static_cast<int>(solve.panel_columns);
  args.most_columns = static_cast<int>(solve.most_columns);
  using Work = TaskWorker<kTogether>;
  const auto shared = static_cast<size_t>((Work::PartScalars(solve.most_columns) +
                                           2 * Work::VectorScalars(solve.n, solve.most_columns)) *
                                          int64_t{sizeof(float)});
  int resident = 0;
  const Error error = CountResident(SubstituteTasksKernel<kTogether>, kThreads, shared, &resident);
  if (error != kSuccess) return {error, "SubstituteTasks"};
  const auto blocks = static_cast<unsigned>(resident * limits.multiprocessors);
  return {LaunchTogether(SubstituteTasksKernel<kTogether>,
                         dim3(args.items < blocks ? args.items : blocks), kThreads, shared, stream,
                         args),
          "SubstituteTasks"};
}

}  // namespace

LaunchResult PrepareSolve() {
  constexpr int64_t kMostRows = SolveTask::kMostRows, kMostPanel = SolveTask::kMostColumns;
  const auto bytes = static_cast<size_t>((TaskWorker<4>::PartScalars(kMostPanel) +
                                          2 * TaskWorker<4>::VectorScalars(kMostRows, kMostPanel)) *
                                         int64_t{sizeof(float)});
  Error error = Load(SubstituteTasksKernel<1>);
  if (error == kSuccess) error = AllowShared(SubstituteTasksKernel<4>, bytes);
  return {error, "SubstituteTasks"};
}

LaunchResult Substitute(const SolveArgs& args, const DeviceLimits& limits, Stream stream) {
  return args.most_columns == 1 ? Launch<1>(args, limits, stream) : Launch<4>(args, limits, stream);
}

}  // namespace blockd::gpu::task_list
