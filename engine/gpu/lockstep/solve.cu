// Solves for more than 128 rows: thread blocks take items, some rows of one product, in an order in
// which nothing waits for long. The next items are known while one is in work, so that the next
// one's matrices are under way, and it starts, without a pause.
#include "engine/gpu/lockstep/item_worker.h"
#include "engine/gpu/lockstep/launch.h"

namespace blockd::gpu::lockstep {
namespace {

template <typename T>
__device__ void CountItem(const Item<T>& item) {
  if (item.kind == Item<T>::kWork) Signal(item.count, item.weight);
}

// The next kMadeTogether items of this thread block, made by as many lanes: it takes a while. Not
// inlined, or what it needs takes registers from all the others.
template <typename T>
__device__ __noinline__ void MakeItems(const ItemTable<T>* table, int first, int panel_columns,
                                       Item<T>* items) {
  const int i = first + Lane();
  items[i % kItems] = table->At(blockIdx.x + i * gridDim.x, panel_columns);
}

// All thread blocks run at the same time. Each has every gridDim.x-th item, in order. While the
// vectors of the one in work come, a warp watches what the next item waits for, and a thread of
// another says that the item before is done; or says so at once, if the next one has to wait.
template <typename T, int kSets, bool kWhole>
__global__ void BLOCKD_LAUNCH_BOUNDS(kThreads, 2)
    SubstituteLockstepKernel(const BLOCKD_KERNEL_ARGUMENT SolveArgs given) {
  const SolveArgs& args = InPlace(given);
  BLOCKD_DYNAMIC_SHARED(unsigned char, memory, 128);
  __shared__ __align__(16) unsigned char item_memory[kItems * sizeof(Item<T>)];
  Item<T>* const items = reinterpret_cast<Item<T>*>(item_memory);
  constexpr int kPanel = kSets * kColumns;
  __shared__ bool ready;
  const bool maker = threadIdx.x < kMadeTogether;
  const bool counter = threadIdx.x == kThreads - 1, watcher = WarpIndex() == kSlots - 2;
  bool counted = true;
  ClearStale(args.stale, args.stale_words);
  ItemTable<T> table(args, reinterpret_cast<Zone*>(memory));
  table.Make();
  if (maker) MakeItems(&table, 0, kPanel, items);
  __syncthreads();
  ItemWorker<T, kSets, kWhole> worker(args, items, memory + args.table_bytes);
  worker.Publish(1);
  worker.Fill();
  worker.Prepare(items[0]);
  if (watcher) items[0].Await();
  for (int i = 0;; ++i) {
    __syncthreads();
    const Item<T>& item = items[i % kItems];
    if (item.kind == Item<T>::kEnd) return;
    const Item<T>& next = items[(i + 1) % kItems];
    worker.Publish(i + 2);
    const auto beside = [&] {
      if (counter && !counted) CountItem(items[(i + kItems - 1) % kItems]);
      if (watcher) {
        // Few segments: most likely it is not, and to look takes longer than to load vectors.
        const bool is_ready = item.log_strips > 0 && next.IsReady();
        if (Lane() == 0) ready = next.kind != Item<T>::kEnd && is_ready;
      }
    };
    if (item.kind == Item<T>::kWork) {
      worker.Work(item, beside, ready);
    } else {
      beside();
    }
    SyncToSignal();
    // The places of item i and of the items after it are in use, of kItems in all.
    const bool makes = i % kMadeTogether == 1;
    if (counter) {
      counted = !ready || makes;
      if (counted) CountItem(item);
    }
    worker.Fill();
    if (makes && maker) MakeItems(&table, i - 1 + kMadeTogether, kPanel, items);
    worker.Prepare(next);
    if (watcher && !ready) next.Await();
  }
}

int64_t Minimum(int64_t a, int64_t b) { return a < b ? a : b; }

// Strips of an item: fewer where a level has few segments, so that all thread blocks have one, or
// in float32 every second, as items are short. The order of sums follows from it, so neither other
// columns nor other systems may change it.
template <typename T>
int32_t LogStripsOf(const SolveArgs& args, const SolveLevel& level, int64_t multiprocessors) {
  const int64_t tiles = (args.n + kWideStrip<T> - 1) / kWideStrip<T>;
  int32_t log = kLogSlots;
  const int64_t enough = (sizeof(T) == 4 ? 1 : 2) * multiprocessors;
  while (log > 0 && level.shape.segments() * ((tiles + (1 << log) - 1) >> log) < enough) {
    --log;
  }
  return log;
}

// Items of one system and panel in the busiest row, at most.
template <typename T>
int64_t MostItems(const SolveArgs& args) {
  const int64_t tiles = (args.n + kWideStrip<T> - 1) / kWideStrip<T>;
  int64_t most = 0;
  for (int32_t l = 0; l < args.num_levels; ++l) {
    const SolveLevel& level = args.levels[l];
    const int64_t items = level.shape.segments() * 2 * tiles;
    most = items > most ? items : most;
  }
  return most;
}

// Shared memory that a thread block has besides its vectors and sums.
template <typename T>
inline constexpr int64_t kOther = kItems * sizeof(Item<T>) + 1024 + 128;

template <typename T, int kSets>
LaunchResult Launch(SolveArgs args, const DeviceLimits& limits, Stream stream) {
  constexpr int64_t kSums = kSumBytes<T, kSets>;
  args.table_bytes = (ItemTable<T>::Bytes(args) + 127) / 128 * 128;
  const int64_t fixed = kSums + kOther<T> + args.table_bytes;
  const int64_t row_bytes = args.most_columns * static_cast<int64_t>(sizeof(T));
  const int64_t rows = (args.n + 31) / 32 * 32;
  // Two thread blocks share a multiprocessor, if that leaves enough for the vectors.
  constexpr int64_t kEnoughRows = 256;
  const int64_t half = limits.shared_bytes / 2;
  const bool two = fixed + row_bytes * (kEnoughRows + 8) <= half;
  const int64_t fit = ((two ? half : limits.block_shared_bytes) - fixed) / row_bytes - 8;
  args.vector_rows = rows <= fit ? rows : fit / 256 * 256;
  const size_t shared =
      static_cast<size_t>(args.table_bytes + kSums + row_bytes * (args.vector_rows + 8));
  const auto kernel = args.n % kStep == 0 ? SubstituteLockstepKernel<T, kSets, true>
                                          : SubstituteLockstepKernel<T, kSets, false>;
  int resident = 0;
  const Error error = CountResident(kernel, kThreads, shared, &resident);
  if (error != kSuccess) return {error, "SubstituteLockstep"};
  const int64_t blocks = resident * limits.multiprocessors;
  for (int32_t l = 0; l < args.num_levels; ++l) {
    args.levels[l].log_strips = LogStripsOf<T>(args, args.levels[l], limits.multiprocessors);
  }
  const int64_t most = MostItems<T>(args) * args.num_systems * args.num_panels;
  return {LaunchTogether(kernel, dim3(static_cast<unsigned>(Minimum(most, blocks))), kThreads,
                         shared, stream, args),
          "SubstituteLockstep"};
}

template <typename T, int kSets>
Error Allow(size_t bytes) {
  const Error error = AllowShared(SubstituteLockstepKernel<T, kSets, true>, bytes);
  return error == kSuccess ? AllowShared(SubstituteLockstepKernel<T, kSets, false>, bytes) : error;
}

}  // namespace

LaunchResult PrepareSolve(const DeviceLimits& limits) {
  const size_t bytes = static_cast<size_t>(limits.block_shared_bytes - kOther<double>);
  Error error = Allow<double, 1>(bytes);
  if (error == kSuccess) error = Allow<double, 2>(bytes);
  if (error == kSuccess) error = Allow<float, 1>(bytes);
  if (error == kSuccess) error = Allow<float, 2>(bytes);
  return {error, "SubstituteLockstep"};
}

template <typename T>
LaunchResult Substitute(const SolveArgs& args, const DeviceLimits& limits, Stream stream) {
  return args.panel_columns == kColumns ? Launch<T, 1>(args, limits, stream)
                                        : Launch<T, 2>(args, limits, stream);
}

template LaunchResult Substitute<double>(const SolveArgs&, const DeviceLimits&, Stream);
template LaunchResult Substitute<float>(const SolveArgs&, const DeviceLimits&, Stream);

}  // namespace blockd::gpu::lockstep
