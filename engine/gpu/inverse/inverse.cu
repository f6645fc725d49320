// A selected inverse: walks through all segments of a level go in lock-step, from their ends to
// their beginnings, a thread block a tile. A step is two launches, for Z(j,r) and Z(j,l), then for
// Z(j,j); what does not wait for other steps, V = inv(L)' and the gains G and H, is made for some
// steps at once. Small blocks go another way (segments.cu).
#include "engine/gpu/inverse/launch.h"
#include "engine/gpu/inverse/step_work.h"

namespace blockd::gpu::inverse {
namespace {

constexpr int kCopyThreads = 256, kSide = 64;

__device__ inline int CopyTiles(int64_t n) { return static_cast<int>((n + kSide - 1) / kSide); }

template <typename T>
constexpr int kCopyShared = kSide*(kSide + 1) * static_cast<int>(sizeof(T));

// Thread blocks (i, s): the i-th square of 64 rows of the s-th segment's blocks.
template <typename T>
__global__ void __launch_bounds__(kCopyThreads)
    BeginInverseKernel(const BLOCKD_KERNEL_ARGUMENT InverseArgs given) {
  const InverseArgs& args = InPlace(given);
  BLOCKD_DYNAMIC_SHARED(double, space, 16);
  T* const shared = reinterpret_cast<T*>(space);
  const Places<T> places(args, blockIdx.y, 0, 0);
  const SegmentRange& range = places.range();
  const int n = static_cast<int>(args.level.n), across = CopyTiles(n);
  const int row0 = static_cast<int>(blockIdx.x) % across * kSide;
  const int column0 = static_cast<int>(blockIdx.x) / across * kSide;
  if (range.right >= 0) {
    const int64_t block = range.first + range.count;
    const T* const from = places.Above(range.right);
    if (T* const out = places.Wanted(block)) {
      CopySquare<kCopyThreads>(CouplingSource<T>{from, 1, n}, n, row0, column0, shared, out);
      __syncthreads();
    }
    T* const entries = places.Entries(block);
    const int row = row0 + static_cast<int>(threadIdx.x);
    if (entries && column0 == 0 && threadIdx.x < kSide && row < n) {
      entries[row] = from[static_cast<int64_t>(row) * (n + 1)];
    }
  }
  if (!range.has_fill() || !places.WalksAtAll()) return;
  const T* const between = places.Between();
  CopySquare<kCopyThreads>(CouplingSource<T>{between, 1, n}, n, row0, column0, shared,
                           places.Zrl());
  __syncthreads();
  CopySquare<kCopyThreads>(CouplingSource<T>{between, n, 1}, n, row0, column0, shared,
                           places.Zlr());
}

// Thread blocks (i, s, z): the i-th square of V of the s-th segment in the z-th step from `step`
// on.
template <typename T>
__global__ void __launch_bounds__(kCopyThreads)
    TransposeInverseKernel(const BLOCKD_KERNEL_ARGUMENT InverseArgs given, int64_t step) {
  const InverseArgs& args = InPlace(given);
  BLOCKD_DYNAMIC_SHARED(double, space, 16);
  T* const shared = reinterpret_cast<T*>(space);
  const Places<T> places(args, blockIdx.y, step + blockIdx.z, blockIdx.z);
  if (!places.IsDue()) return;
  constexpr int kLead = kSide + 1;
  const int n = static_cast<int>(args.level.n), across = CopyTiles(n);
  const int row0 = static_cast<int>(blockIdx.x) % across * kSide;
  const int column0 = static_cast<int>(blockIdx.x) / across * kSide;
  const T* const stored = places.Inverse();
  T* const out = places.Upper();
  // Row c of V is column c of inv(L), whose entries lie side by side from its panel's first row on.
#pragma unroll 4
  for (int i = threadIdx.x; i < kSide * kSide; i += kCopyThreads) {
    const int k = column0 + i % kSide, c = row0 + i / kSide;
    T value = 0;
    if (c <= k && k < n) {
      const int64_t panel = c / kPanelColumns, first = panel * kPanelColumns;
      value = stored[PanelOffset(n, panel) + (c - first) * (n - first) + k - first];
    }
    shared[i / kSide * kLead + i % kSide] = value;
  }
  __syncthreads();
#pragma unroll 4
  for (int i = threadIdx.x; i < kSide * kSide; i += kCopyThreads) {
    const int c = row0 + i % kSide, k = column0 + i / kSide;
    if (c < n && k < n)
      out[static_cast<int64_t>(k) * n + c] = shared[i % kSide * kLead + i / kSide];
  }
}

template <typename T, int kTile, Phase kPhase>
using WorkOf = StepWork<T, kTile, kPhase>;

// Thread blocks (i, z), i in `tasks` for each segment: the z-th step from `step` on, whose gains
// are the z-th from `slot` on.
template <typename T, int kTile, Phase kPhase>
__global__ void BLOCKD_LAUNCH_BOUNDS((WorkOf<T, kTile, kPhase>::TileType::kThreads),
                                     (WorkOf<T, kTile, kPhase>::TileType::kResident))
    InverseStepKernel(const BLOCKD_KERNEL_ARGUMENT InverseArgs given, int tasks, int64_t step,
                      int64_t slot) {
  const InverseArgs& args = InPlace(given);
  BLOCKD_DYNAMIC_SHARED(double, shared, 16);
  using Work = WorkOf<T, kTile, kPhase>;
  using Task = typename Work::Task;
  __shared__ double task_space[(sizeof(Task) + 7) / 8];
  Task& task = reinterpret_cast<Task&>(task_space);
  const Places<T> places(args, static_cast<int>(blockIdx.x) / tasks, step + blockIdx.y,
                         slot + blockIdx.y);
  const Work work(places, args.level.n);
  if (threadIdx.x == 0) work.Find(static_cast<int>(blockIdx.x) % tasks, task);
  __syncthreads();
  work.Work(task, reinterpret_cast<T*>(shared));
}

template <typename T, int kTile>
class Launcher {
  using Tile = TileOf<T, kTile>;

 public:
  static constexpr int64_t kShared = sizeof(T) * Tile::kSharedScalars;

  Launcher(const InverseArgs& args, Stream stream)
      : args_(args),
        stream_(stream),
        tiles_(static_cast<int>((args.level.n + kTile - 1) / kTile)),
        pieces_(static_cast<int>((args.level.n + Tile::kColumns - 1) / Tile::kColumns)) {}

  LaunchResult Gains(int64_t step, int64_t steps) const {
    return Start<Phase::kGains>(Squares(), step, 0, steps, "InverseStep gains");
  }
  LaunchResult Walk(int64_t step, int64_t steps) const {
    LaunchResult result;
    for (int64_t slot = 0; slot < steps && result.ok(); ++slot) {
      result = Start<Phase::kCouplings>(Squares(), step + slot, slot, 1, "InverseStep couplings");
      if (!result.ok()) break;
      result = Start<Phase::kDiagonal>(tiles_ * (tiles_ + 1) / 2 * (kTile / Tile::kColumns),
                                       step + slot, slot, 1, "InverseStep diagonal");
    }
    return result;
  }

 private:
  int Squares() const { return (args_.level.separators > 1 ? 2 : 1) * tiles_ * pieces_; }

  template <Phase kPhase>
  LaunchResult Start(int tasks, int64_t step, int64_t slot, int64_t steps, const char* name) const {
    const dim3 grid(static_cast<unsigned>(tasks * args_.num_segments),
                    static_cast<unsigned>(steps));
    return {LaunchKernel(InverseStepKernel<T, kTile, kPhase>, grid, Tile::kThreads, kShared,
                         stream_, false, args_, tasks, step, slot),
            name};
  }

  const InverseArgs& args_;
  const Stream stream_;
  const int tiles_, pieces_;
};

template <typename T, typename Use>
LaunchResult WithLauncher(const InverseArgs& args, int tile, Stream stream, const Use& use) {
  return tile == 128 ? use(Launcher<T, 128>(args, stream)) : use(Launcher<T, 64>(args, stream));
}

dim3 CopyGrid(const InverseArgs& args, int64_t steps) {
  const int64_t across = (args.level.n + kSide - 1) / kSide;
  return dim3(static_cast<unsigned>(across * across), static_cast<unsigned>(args.num_segments),
              static_cast<unsigned>(steps));
}

template <typename T, int kTile>
LaunchResult Allow(const DeviceLimits& limits) {
  constexpr int64_t kShared = Launcher<T, kTile>::kShared;
  if (kShared > limits.block_shared_bytes) return {};
  for (const Error error : {AllowShared(InverseStepKernel<T, kTile, Phase::kGains>, kShared),
                            AllowShared(InverseStepKernel<T, kTile, Phase::kCouplings>, kShared),
                            AllowShared(InverseStepKernel<T, kTile, Phase::kDiagonal>, kShared)}) {
    if (error != kSuccess) return {error, "InverseStep"};
  }
  return {};
}

}  // namespace

LaunchResult Prepare(const DeviceLimits& limits) {
  for (const LaunchResult& result :
       {Allow<double, 64>(limits), Allow<double, 128>(limits), Allow<float, 64>(limits),
        Allow<float, 128>(limits), LaunchResult{Load(BeginInverseKernel<double>), "BeginInverse"},
        LaunchResult{Load(BeginInverseKernel<float>), "BeginInverse"},
        LaunchResult{Load(TransposeInverseKernel<double>), "TransposeInverse"},
        LaunchResult{Load(TransposeInverseKernel<float>), "TransposeInverse"}}) {
    if (!result.ok()) return result;
  }
  return {};
}

template <typename T>
LaunchResult Begin(const InverseArgs& args, Stream stream) {
  return {LaunchKernel(BeginInverseKernel<T>, CopyGrid(args, 1), kCopyThreads, kCopyShared<T>,
                       stream, false, args),
          "BeginInverse"};
}

template <typename T>
LaunchResult MakeGains(const InverseArgs& args, int tile, int64_t step, int64_t steps,
                       Stream stream) {
  const LaunchResult result = {
      LaunchKernel(TransposeInverseKernel<T>, CopyGrid(args, steps), kCopyThreads, kCopyShared<T>,
                   stream, false, args, step),
      "TransposeInverse"};
  if (!result.ok()) return result;
  return WithLauncher<T>(args, tile, stream,
                         [=](const auto& launcher) { return launcher.Gains(step, steps); });
}

template <typename T>
LaunchResult Walk(const InverseArgs& args, int tile, int64_t step, int64_t steps, Stream stream) {
  return WithLauncher<T>(args, tile, stream,
                         [=](const auto& launcher) { return launcher.Walk(step, steps); });
}

template LaunchResult Begin<double>(const InverseArgs&, Stream);
template LaunchResult Begin<float>(const InverseArgs&, Stream);
template LaunchResult MakeGains<double>(const InverseArgs&, int, int64_t, int64_t, Stream);
template LaunchResult MakeGains<float>(const InverseArgs&, int, int64_t, int64_t, Stream);
template LaunchResult Walk<double>(const InverseArgs&, int, int64_t, int64_t, Stream);
template LaunchResult Walk<float>(const InverseArgs&, int, int64_t, int64_t, Stream);

}  // namespace blockd::gpu::inverse
