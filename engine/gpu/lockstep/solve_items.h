// The work of a solve with large blocks, cut into items and put in an order.
//
// A block of a segment is two phases, in each direction: y = inv(L) b, then C y and W y; backward
// t = y - C' x - W' x, then inv(L)' t. An item is some rows of one phase of one segment. Items are
// numbered step after step of a level. A phase waits for the one before, of its own segment only;
// the first of a segment for those segments of the pass before that it takes vectors from.
#ifndef BLOCKD_ENGINE_GPU_LOCKSTEP_SOLVE_ITEMS_H_
#define BLOCKD_ENGINE_GPU_LOCKSTEP_SOLVE_ITEMS_H_

#include "engine/gpu/plan/solve_part.h"
#include "engine/gpu/tile/register_stream.h"

namespace blockd::gpu::lockstep {

// Strips of an item times its slices along the vectors: its warps.
inline constexpr int kLogSlots = 3, kSlots = 1 << kLogSlots;

// out = (start) +- the sum of the products. All vectors: column stride n, first row of the block.
template <typename T>
struct Item {
  static constexpr int kStrip = kWideStrip<T>;
  enum Kind { kWork, kEmpty, kEnd };
  Kind kind = kEmpty;
  bool triangle = false, forward = false;
  int row0 = 0, log_strips = 0;  // rows (columns) of the matrices
  int columns = 0;
  int matrices = 0;
  const T* matrix[2] = {};
  const T* vector[2] = {};
  int64_t vector_added = 0;  // to vector[0], as Part::x_right
  const T* start = nullptr;
  int64_t start_added = 0;
  T* out = nullptr;
  bool negative = false;
  T* copy_to = nullptr;  // where its rows of vector[0] go besides
  // Each of `waits` counters from `wait` on has to reach the target.
  const unsigned* wait = nullptr;
  int waits = 0;
  unsigned target = 0;
  // The counter that the item raises when it is done, and by how much.
  unsigned* count = nullptr;
  unsigned weight = 1;

  // A warp calls these: each lane has some of the counters.
  __device__ bool IsReady() const {
    bool ready = true;
    for (int i = Lane(); kind == kWork && i < waits; i += kWarp) {
      ready &= HasReached(wait + i, target);
    }
    return AllLanes(ready);
  }
  __device__ void Await() const {
    const int counters = kind == kWork ? waits : 0;
    const unsigned* const first = wait;
    const unsigned enough = target;
    for (int i = Lane(); i < counters; i += kWarp) {
      while (!HasReached(first + i, enough)) {
      }
    }
  }
  __device__ int strips() const { return 1 << log_strips; }
  // The range along the vectors that the item's products need.
  __device__ int Begin() const { return triangle && !forward ? row0 : 0; }
  __device__ int End(int n) const {
    const int rows = row0 + strips() * kStrip;
    return triangle && forward && rows < n ? rows : n;
  }
};

// Steps of a pass in which the same segments are active, and the items of each: phase 0 of the
// ends, then of the segments between, then phase 1.
struct Zone {
  uint32_t first = 0;     // number of the first item
  uint32_t of_steps = 0;  // items of all steps
  uint32_t steps = 0;
  int32_t step = 0;  // k, in the order of elimination, of the step that comes first
  int32_t pass = 0;
  uint32_t ends = 0, middles = 0;  // segments
  uint32_t next = 0;               // forward: whether the ends lead to a next block
};
// A pass has no more: its zones end where the first, the last, the shorter and the longer of the
// segments between do, and before the base's last block.
inline constexpr int kMostZones = 5;

// Finds items by their numbers. SolveCalls keeps these below 2^32.
template <typename T>
class ItemTable {
 public:
  __device__ ItemTable(const SolveArgs& args, Zone* zones)
      : args_(args),
        zones_(zones),
        num_zones_(kMostZones * args.num_passes()),
        units_(static_cast<uint32_t>(args.num_systems * args.num_panels)),
        panels_(static_cast<uint32_t>(args.num_panels)),
        tiles_(static_cast<uint32_t>((args.n + Item<T>::kStrip - 1) / Item<T>::kStrip)) {}

  BLOCKD_HOST_DEVICE static int64_t Bytes(const SolveArgs& args) {
    return kMostZones * args.num_passes() * static_cast<int64_t>(sizeof(Zone));
  }

  // All threads call it. A thread makes the zones of a pass, then one numbers them.
  __device__ void Make() {
    for (int p = threadIdx.x; p < args_.num_passes(); p += blockDim.x) MakeZones(p);
    __syncthreads();
    if (threadIdx.x == 0) {
      uint32_t first = 0;
      for (int z = 0; z < num_zones_; ++z) {
        zones_[z].first = first;
        first += zones_[z].of_steps;
      }
    }
    __syncthreads();
  }

  __device__ Item<T> At(uint32_t number, int panel_columns) const {
    // The last zone that begins at the number or before; those without items are passed over.
    int low = 0, high = num_zones_;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (zones_[middle].first <= number ? low : high) = middle;
    }
    const Zone zone = zones_[low];
    if (number - zone.first >= zone.of_steps) {
      Item<T> end;
      end.kind = Item<T>::kEnd;
      return end;
    }
    Position position;
    position.pass = zone.pass;
    position.forward = args_.is_forward(zone.pass);
    position.level = &args_.levels[args_.level_of(zone.pass)];
    const uint32_t groups = Groups(*position.level);
    const uint32_t of_step = zone.of_steps / zone.steps;
    const uint32_t steps_before = (number - zone.first) / of_step;
    uint32_t index = number - zone.first - steps_before * of_step;
    position.step = position.forward ? zone.step + steps_before : zone.step - steps_before;
    // Items of one unit; and of each of its segments, at the ends and between.
    uint32_t items = groups * (zone.ends + zone.middles), of_end = groups, of_middle = groups;
    if (index >= items * units_) {
      index -= items * units_;
      position.phase = 1;
      if (position.forward) of_end = groups * zone.next, of_middle = 2 * groups;
      items = of_end * zone.ends + of_middle * zone.middles;
    }
    if (units_ > 1) {
      position.unit = index / items;
      index -= position.unit * items;
    }
    const LevelShape& shape = position.level->shape;
    if (index < of_end * zone.ends) {
      const bool second = index >= of_end;
      if (second) index -= of_end;
      position.segment = second || position.step >= shape.first_length ? shape.separators : 0;
    } else {
      index -= of_end * zone.ends;
      const uint32_t segment = index / of_middle;
      index -= segment * of_middle;
      position.segment = 1 + segment;
    }
    return MakeItem(position, index, groups, panel_columns);
  }

 private:
  struct Position {
    int32_t pass = 0;
    bool forward = true;
    int phase = 0;
    uint32_t unit = 0;
    int64_t segment = 0, step = 0;
    const SolveLevel* level = nullptr;
  };

  __device__ uint32_t Groups(const SolveLevel& level) const {
    return (tiles_ + (1u << level.log_strips) - 1) >> level.log_strips;
  }

  __device__ void MakeZones(int32_t pass) {
    const SolveLevel& level = args_.levels[args_.level_of(pass)];
    const LevelShape& shape = level.shape;
    const bool forward = args_.is_forward(pass);
    const int32_t first = static_cast<int32_t>(shape.first_length);
    const int32_t last = static_cast<int32_t>(shape.last_length);
    const int32_t middle = static_cast<int32_t>(shape.separators < 2 ? 0 : shape.middle_length);
    const int32_t longest = static_cast<int32_t>(shape.longest_middle());
    const int32_t base = shape.separators == 0 ? first - 1 : first;
    int32_t steps = first > last ? first : last;
    if (longest > steps) steps = longest;
    if (!args_.has_pass(pass)) steps = 0;
    Zone* const zones = zones_ + kMostZones * pass;
    int32_t from = 0;
    for (int z = 0; z < kMostZones; ++z) {
      Zone zone;
      if (from < steps) {
        int32_t to = steps;
        for (const int32_t end : {first, last, middle, longest, base}) {
          if (end > from && end < to) to = end;
        }
        zone.pass = pass;
        zone.steps = to - from;
        zone.step = forward ? from : to - 1;
        zone.ends = (from < first) + (from < last);
        if (from < longest) {
          zone.middles = static_cast<uint32_t>(from < middle ? shape.separators - 1 : shape.longer);
        }
        zone.next = from < base || shape.separators > 0;
        const uint32_t all = zone.ends + zone.middles;
        const uint32_t later = forward ? zone.ends * zone.next + 2 * zone.middles : all;
        zone.of_steps = zone.steps * units_ * Groups(level) * (all + later);
        from = to;
      }
      zones[forward ? z : kMostZones - 1 - z] = zone;
    }
  }

  __device__ Item<T> MakeItem(const Position& position, uint32_t index, uint32_t groups,
                              int panel_columns) const {
    Item<T> item;
    const uint32_t system = panels_ > 1 ? position.unit / panels_ : position.unit;
    const Part<T> part(args_, *position.level, system, position.segment,
                       args_.first_panel + (position.unit - system * panels_), panel_columns);
    if (part.columns <= 0) return item;
    item.kind = Item<T>::kWork;
    item.columns = part.columns;
    item.forward = position.forward;
    item.log_strips = position.level->log_strips;
    item.row0 =
        static_cast<int>(index < groups ? index : index - groups) * item.strips() * item.kStrip;
    Count(item, part, position, groups);
    if (!position.forward) {
      position.phase == 0 ? BackwardUpdate(item, part, position.step)
                          : BackwardDivide(item, part, position.step);
    } else if (position.phase == 0) {
      ForwardDivide(item, part, position.step);
    } else {
      index < groups ? ForwardNext(item, part, position.step)
                     : ForwardFill(item, part, position.step);
    }
    Shift(item);
    return item;
  }

  // Sets the counters that the item waits for and the one that it raises. A segment has one counter
  // for its last phase, where the segments that wait for it look, and one for all other phases.
  __device__ void Count(Item<T>& item, const Part<T>& part, const Position& position,
                        int64_t groups) const {
    unsigned* const counter = Counter(position.unit, position.pass, position.segment);
    const bool two_products = position.forward && part.range.has_fill();
    const int64_t phase_items = groups * (two_products ? 2 : 1);
    const int64_t steps_before =
        position.forward ? position.step : part.range.count - 1 - position.step;
    const int64_t before =
        (groups + phase_items) * steps_before + (position.phase == 0 ? 0 : groups);
    item.count = counter;
    if (steps_before == part.range.count - 1 &&
        (position.phase == 1 || (position.forward && part.range.target() < 0))) {
      item.count = counter + 2 * Segments();
      // The same sum for all segments.
      if (!two_products) item.weight = 2;
    }
    if (before > 0) {
      item.wait = counter;
      item.waits = 1;
      item.target = static_cast<unsigned>(before);
    } else if (position.pass > args_.first_pass) {
      int64_t first = 0, last = 0;
      Sources(part.range, position, first, last);
      item.wait = Counter(position.unit, position.pass - 1, first) + 2 * Segments();
      item.waits = static_cast<int>(last - first) + 1;
      item.target = 2 * Groups(args_.levels[args_.level_of(position.pass - 1)]);
    }
  }

  // The segments of the pass before that leave something for a segment.
  __device__ void Sources(const SegmentRange& range, const Position& position, int64_t& first,
                          int64_t& last) const {
    const int64_t level = args_.level_of(position.pass);
    if (position.forward) {
      // Block b of this chain is what the segments b and b + 1 of the level before leave.
      first = range.first;
      last = range.first + range.count + (!range.reversed && range.right >= 0);
    } else if (level + 1 < args_.num_levels) {
      // Separators of this level are blocks of the next one's chain.
      const LevelShape& above = args_.levels[level + 1].shape;
      first = last = above.segment_of(range.left >= 0 ? range.left : range.right);
      if (range.left >= 0 && range.right >= 0) last = above.segment_of(range.right);
    }
  }

  // Segments of all levels; each has two counters forward and two backward.
  __device__ int64_t Segments() const { return args_.separators + args_.num_levels; }
  __device__ unsigned* Counter(uint32_t unit, int32_t pass, int64_t segment) const {
    const int32_t level = args_.level_of(pass);
    return args_.counters + unit * 4 * Segments() + (args_.is_forward(pass) ? 0 : Segments()) +
           args_.levels[level].next_separators_before + level + segment;
  }

  __device__ void ForwardDivide(Item<T>& item, const Part<T>& part, int64_t k) const {
    item.triangle = true;
    item.matrices = 1;
    item.matrix[0] = part.inverse + k * TriangleSize(part.n);
    item.vector[0] = part.x.At(part.range.block(k));
    if (k == 0) item.vector_added = part.x_right;
    item.out = part.scratch;
  }
  // y comes to its position in x here, where nobody reads b any more.
  __device__ void ForwardNext(Item<T>& item, const Part<T>& part, int64_t k) const {
    const bool last = part.IsLast(k);
    item.matrices = 1;
    item.matrix[0] = part.next + k * part.n * part.n;
    item.vector[0] = part.scratch;
    item.negative = true;
    item.copy_to = part.x.At(part.range.block(k));
    if (!part.AddsToNext(k)) {
      item.out = part.from_right.At(part.range.left);
      return;
    }
    T* next = part.Next(k);
    item.out = last ? part.from_left.At(part.range.right) : next;
    item.start = next;
    item.start_added = part.x_right;
  }
  __device__ void ForwardFill(Item<T>& item, const Part<T>& part, int64_t k) const {
    item.matrices = 1;
    item.matrix[0] = part.fill + k * part.n * part.n;
    item.vector[0] = part.scratch;
    item.negative = true;
    item.out = part.from_right.At(part.range.left);
    if (k > 0) item.start = item.out;
  }
  __device__ void BackwardUpdate(Item<T>& item, const Part<T>& part, int64_t k) const {
    const int64_t square = static_cast<int64_t>(part.n) * part.n;
    if (part.HasNext(k)) {
      item.matrix[0] = part.next + k * square;
      item.vector[0] = part.x.At(part.range.block(k + 1));
      if (part.IsLast(k)) {
        item.vector[0] = part.TargetSolution();
        // A separator is the right one of one segment, which brings its solution down.
        if (!part.range.reversed) item.copy_to = part.x.At(part.range.target());
      }
      item.matrices = 1;
    }
    if (part.range.has_fill()) {
      item.matrix[item.matrices] = part.fill + k * square;
      item.vector[item.matrices++] = part.from_left.At(part.range.left);
    }
    item.negative = true;
    // The base's last y has not left the scratch.
    item.start = part.HasNext(k) ? part.x.At(part.range.block(k)) : part.scratch;
    item.out = part.scratch;
  }
  __device__ void BackwardDivide(Item<T>& item, const Part<T>& part, int64_t k) const {
    item.triangle = true;
    item.matrices = 1;
    item.matrix[0] = part.inverse + k * TriangleSize(part.n);
    item.vector[0] = part.scratch;
    item.out = part.x.At(part.range.block(k));
  }
  // Moves the pointers that are indexed by the item's own rows to the first of these rows.
  __device__ static void Shift(Item<T>& item) {
    item.out += item.row0;
    if (item.start != nullptr) item.start += item.row0;
    if (item.copy_to != nullptr) item.copy_to += item.row0;
  }

  const SolveArgs& args_;
  Zone* const zones_;
  const int num_zones_;
  const uint32_t units_, panels_, tiles_;
};

}  // namespace blockd::gpu::lockstep

#endif  // BLOCKD_ENGINE_GPU_LOCKSTEP_SOLVE_ITEMS_H_
