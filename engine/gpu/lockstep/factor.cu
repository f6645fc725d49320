// Blocks that are too large for one thread block's shared memory: all segments of a level, and all
// systems, move in lock-step, one block a step. Every thread block forms a tile, a sum of products
// A B' of whatever depth is due (the left-looking order), so that a tile is written once. A step k,
// with its block D:
//
//     column j    L~(i,j) = D(i,j) - C(i,:) C(j,:)' - L(i,:j) L(j,:j)', C of the block before;
//                 inv(L)(j,j) from the tile on the diagonal; P(j,l) = L(j,:j) inv(L)(:j,l)
//     scale j     L(i,j) = L~(i,j) inv(L)(j,j)', inv(L)(j,l) = -inv(L)(j,j) P(j,l)
//     multiply    C = E inv(L)', W = S inv(L)', and the block's growth
//     carry       what the next step does beside its columns, on another stream: S = -W C', the
//                 left separator's block -= W W', and where a segment has ended, its target's
//     prepare     D - C C', for all columns at once, where there are few thread blocks
//     transpose   E' to where S comes, on the other stream too: S of a segment's first block, and
//                 E of the segment that runs from right to left
#include "engine/gpu/lockstep/launch.h"
#include "engine/gpu/lockstep/sizes.h"
#include "engine/gpu/lockstep/step_work.h"

namespace blockd::gpu::lockstep {
namespace {

template <typename T, int kTile, Step kStep, bool kNarrow>
__global__ void BLOCKD_LAUNCH_BOUNDS((TileOf<T, kTile, kStep, kNarrow>::kThreads),
                                     (TileOf<T, kTile, kStep, kNarrow>::kResident))
    EliminateLockstepKernel(const BLOCKD_KERNEL_ARGUMENT EliminateArgs given, int tasks, int k,
                            int j, bool flag) {
  const EliminateArgs& args = InPlace(given);
  BLOCKD_DYNAMIC_SHARED(double, shared, 16);
  __shared__ int failed;
  __shared__ double task_space[(sizeof(Task<T>) + 7) / 8];
  Task<T>& task = reinterpret_cast<Task<T>&>(task_space);
  if (threadIdx.x == 0) failed = -1;
  const int first = kStep == Step::kTranspose ? j : 0;
  StepWork<T, kTile, kStep, kNarrow> work(args, tasks, first, k, reinterpret_cast<T*>(shared),
                                          &failed);
  if constexpr (kStep == Step::kTranspose) {
    work.Transpose();
  } else {
    if (kStep == Step::kMultiply && work.Grow(flag)) return;
    work.Work(j, flag, task);
  }
}

template <typename T, int kTile>
class Launcher {
  static constexpr int kColumns = SharedLayout<T, kTile>::kColumns;

 public:
  Launcher(const EliminateArgs& args, const FactorContext& context)
      : args_(args),
        context_(context),
        tiles_(static_cast<int>((args.level.n + kTile - 1) / kTile)) {}

  LaunchResult Run() {
    const LevelShape& level = args_.level;
    const int64_t ends = Maximum(level.first_length, level.last_length);
    const int64_t middles = level.longest_middle(), steps = Maximum(ends, middles);
    for (int64_t k = 0; k <= steps && result_.ok(); ++k) {
      if (context_.stop && context_.stop->load(std::memory_order_relaxed)) break;
      // The ends go on alone after the others.
      segments_ = k <= middles ? level.segments() : level.separators > 0 ? 2 : 1;
      k_ = static_cast<int>(k);
      Step(k == steps);
    }
    return result_;
  }

 private:
  static int64_t Maximum(int64_t a, int64_t b) { return a > b ? a : b; }

  // Tiles of a square, and of a lower triangle, in pieces of some columns.
  int Square(int columns) const {
    return tiles_ * ((static_cast<int>(args_.level.n) + columns - 1) / columns);
  }
  int Triangle(int columns) const { return tiles_ * (tiles_ + 1) / 2 * (kTile / columns); }

  // True if some segment's separators are at its end now.
  bool SomeEnd() const {
    const LevelShape& level = args_.level;
    return level.separators > 0 &&
           (k_ == level.first_length || k_ == level.last_length ||
            (level.separators > 1 &&
             (k_ == level.middle_length || (level.longer > 0 && k_ == level.middle_length + 1))));
  }

  void Step(bool is_last) {
    const bool fills = segments_ > 2, carries = k_ > 0 && fills, ends = k_ > 0 && SomeEnd();
    // Segments whose E is transposed: all for their first blocks; later only the one from right to
    // left, which is launched second.
    const int transposed = is_last || args_.level.separators == 0 ? 0 : k_ == 0 ? segments_ : 1;
    const bool aside = !is_last && (carries || ends || transposed > 0);
    if (aside && result_.ok()) result_ = Order(context_.stream, context_.fork, context_.side);
    if (transposed > 0) {
      const int across = static_cast<int>((args_.level.n + 63) / 64);
      Launch<lockstep::Step::kTranspose, false>(across * across, transposed, k_ == 0 ? 0 : 1, false,
                                                context_.side, "EliminateLockstep transpose");
    }
    const auto carried = [&](int columns) {
      return (carries ? Square(columns) + Triangle(columns) : 0) + (ends ? Triangle(columns) : 0);
    };
    if (is_last) {
      LaunchPieces<lockstep::Step::kCarry>(carried, 0, !fills, context_.stream,
                                           "EliminateLockstep carry");
      return;
    }
    // Beside columns there is time; wide tiles leave them alone on more multiprocessors.
    Launch<lockstep::Step::kCarry, false>(carried(kColumns), segments_, 0, !fills, context_.side,
                                          "EliminateLockstep carry");
    const bool prepared = k_ > 0 && tiles_ > 1 && AreFew(tiles_);
    if (prepared) {
      LaunchPieces<lockstep::Step::kPrepare>([&](int columns) { return Triangle(columns); }, 0,
                                             false, context_.stream, "EliminateLockstep prepare");
    }
    for (int j = 0; j < tiles_; ++j) {
      Launch<lockstep::Step::kColumn, false>(tiles_, segments_, j, prepared, context_.stream,
                                             "EliminateLockstep column");
      LaunchPieces<lockstep::Step::kScale>(
          [&](int columns) { return (tiles_ - 1) * (kTile / columns); }, j, false, context_.stream,
          "EliminateLockstep scale");
    }
    if (aside && result_.ok()) result_ = Order(context_.side, context_.join, context_.stream);
    LaunchPieces<lockstep::Step::kMultiply>(
        [&](int columns) { return (fills ? 2 : 1) * Square(columns) + (tiles_ > 1 ? tiles_ : 0); },
        0, fills, context_.stream, "EliminateLockstep multiply");
  }

  // True if so many thread blocks a segment leave multiprocessors idle.
  bool AreFew(int64_t tasks) const {
    return tasks * segments_ * args_.num_systems < context_.parallelism;
  }

  // tasks(columns): thread blocks a segment, of tiles of so many columns.
  template <lockstep::Step kStep, typename Tasks>
  void LaunchPieces(const Tasks& tasks, int j, bool flag, Stream stream, const char* name) {
    const int wide = tasks(kColumns);
    if constexpr (kCanBeNarrow<T, kTile>) {
      if (AreFew(wide)) {
        return Launch<kStep, true>(tasks(NarrowLayout<T>::kColumns), segments_, j, flag, stream,
                                   name);
      }
    }
    Launch<kStep, false>(wide, segments_, j, flag, stream, name);
  }

  template <lockstep::Step kStep, bool kNarrow>
  void Launch(int tasks, int64_t segments, int j, bool flag, Stream stream, const char* name) {
    if (tasks <= 0 || !result_.ok()) return;
    const dim3 grid(static_cast<unsigned>(tasks * segments),
                    static_cast<unsigned>(args_.num_systems));
    // Many thread blocks that wait for the kernel before would only keep others out.
    const bool early = context_.early && stream == context_.stream && AreFew(tiles_);
    result_ = {LaunchKernel(EliminateLockstepKernel<T, kTile, kStep, kNarrow>, grid,
                            TileOf<T, kTile, kStep, kNarrow>::kThreads,
                            SharedBytes<T, kTile, kStep, kNarrow>(), stream, early, args_, tasks,
                            k_, j, flag),
               name};
  }

  const EliminateArgs& args_;
  const FactorContext& context_;
  const int tiles_;
  int64_t segments_ = 0;
  int k_ = 0;
  LaunchResult result_;
};

template <typename T, int kTile, Step kStep, bool kNarrow>
Error AllowStep() {
  return AllowShared(EliminateLockstepKernel<T, kTile, kStep, kNarrow>,
                     SharedBytes<T, kTile, kStep, kNarrow>());
}
template <typename T, int kTile, bool kNarrow>
LaunchResult AllowPieces() {
  for (const Error error : {AllowStep<T, kTile, Step::kScale, kNarrow>(),
                            AllowStep<T, kTile, Step::kMultiply, kNarrow>(),
                            AllowStep<T, kTile, Step::kCarry, kNarrow>(),
                            AllowStep<T, kTile, Step::kPrepare, kNarrow>()}) {
    if (error != kSuccess) return {error, "EliminateLockstep"};
  }
  return {};
}
template <typename T, int kTile>
LaunchResult Allow(const DeviceLimits& limits) {
  if (MostShared<T, kTile>() > limits.block_shared_bytes) return {};
  for (const Error error : {AllowStep<T, kTile, Step::kColumn, false>(),
                            AllowStep<T, kTile, Step::kTranspose, false>()}) {
    if (error != kSuccess) return {error, "EliminateLockstep"};
  }
  const LaunchResult result = AllowPieces<T, kTile, false>();
  if constexpr (kCanBeNarrow<T, kTile>) {
    if (result.ok()) return AllowPieces<T, kTile, true>();
  }
  return result;
}

}  // namespace

LaunchResult PrepareFactor(const DeviceLimits& limits, bool* early) {
  static_assert(MostShared<double, 128>() == WideTileBytes(false) &&
                MostShared<float, 128>() == WideTileBytes(true));
  for (const LaunchResult& result : {Allow<double, 128>(limits), Allow<double, 64>(limits),
                                     Allow<float, 128>(limits), Allow<float, 64>(limits)}) {
    if (!result.ok()) return result;
  }
  return {QueryEarly(EliminateLockstepKernel<double, 64, Step::kColumn, false>, early),
          "EliminateLockstep"};
}

template <typename T>
LaunchResult Eliminate(const EliminateArgs& args, const FactorContext& context) {
  return context.tile == 128 ? Launcher<T, 128>(args, context).Run()
                             : Launcher<T, 64>(args, context).Run();
}

template LaunchResult Eliminate<double>(const EliminateArgs&, const FactorContext&);
template LaunchResult Eliminate<float>(const EliminateArgs&, const FactorContext&);

}  // namespace blockd::gpu::lockstep
