// The work of a solve with large blocks, cut into items and put in an order.
//
// A block of a segment is two phases, in each direction: y = inv(L) b, then C y and W y; backward
// t = y - C' x - W' x, then inv(L)' t. An item is some rows of one phase of one segment. The ends
// of a level are longer than what is between, so their phases are spread over the others' evenly:
// all of a level ends together. A phase waits for the one before, of its own segment only.
#ifndef BLOCKD_ENGINE_GPU_SOLVE_ITEMS_H_
#define BLOCKD_ENGINE_GPU_SOLVE_ITEMS_H_

#include "blockd/engine/gpu/stream.h"
#include "blockd/engine/gpu/substitute.h"

namespace blockd::gpu {

// Strips of an item times its slices along the vectors: its warps.
inline constexpr int kLogSlots = 3, kSlots = 1 << kLogSlots;

// out = (start) +- the sum of the products. All vectors: column stride n, first row of the block.
template <typename T>
struct Item {
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
  const T* copy_from = nullptr;  // rows to be copied besides
  T* copy_to = nullptr;
  const unsigned* wait = nullptr;
  unsigned target = 0;
  unsigned* done = nullptr;  // counts items of the segment
  unsigned last = 0;         // its number before the segment's last item is counted
  unsigned* pass_done = nullptr;

  __device__ bool HasToWait() const { return kind == kWork && wait != nullptr; }
  __device__ int strips() const { return 1 << log_strips; }
  // The range along the vectors that the item's products need.
  __device__ int Begin() const { return triangle && !forward ? row0 : 0; }
  __device__ int End(int n) const {
    const int rows = row0 + strips() * kStrip;
    return triangle && forward && rows < n ? rows : n;
  }
};

// Items of a level that are alike: the ends' or those between, one phase of one step.
struct Row {
  bool ends = false;
  int64_t step = 0;  // k, in the order of elimination
  int phase = 0;
  uint32_t active = 0;  // segments
  uint32_t items = 0;   // of one segment
  uint32_t all = 0;     // of all segments and units
};

// Walks the rows of a solve in the order of its items' numbers. These are fewer than 2^32: each
// stands for 2 KiB of a factor, or of right-hand sides, at least.
class ItemOrder {
 public:
  __device__ explicit ItemOrder(const SolveArgs& args)
      : args_(args),
        units_(static_cast<uint32_t>(args.num_systems * args.num_panels)),
        panels_(static_cast<uint32_t>(args.num_panels)),
        pass_(args.first_pass) {
    StartPass();
  }

  // Numbers must rise.
  template <typename T>
  __device__ void At(uint32_t number, int panel_columns, Item<T>* item) {
    while (number - passed_ >= row_.all) {
      passed_ += row_.all;
      if (!NextRow()) {
        row_ = {};  // and so for all numbers after this one
        item->kind = Item<T>::kEnd;
        return;
      }
    }
    uint32_t index = number - passed_, unit = 0;
    if (units_ > 1) {
      const uint32_t of_unit = row_.active * row_.items;
      unit = index / of_unit;
      index -= unit * of_unit;
    }
    const uint32_t active = index / row_.items;
    *item = Make<T>(unit, SegmentOf(active), index - active * row_.items, panel_columns);
  }

 private:
  __device__ const SolveLevel& level() const { return level_; }
  __device__ bool forward() const { return forward_; }
  __device__ uint32_t Groups() const { return groups_; }
  __device__ static int64_t Larger(int64_t a, int64_t b) { return a > b ? a : b; }

  __device__ void StartPass() {
    if (pass_ >= args_.end_pass) return;
    level_ = args_.levels[args_.level_of(pass_)];
    forward_ = args_.is_forward(pass_);
    const uint32_t tiles = static_cast<uint32_t>((args_.n + kStrip - 1) / kStrip);
    groups_ = (tiles + (1u << level_.log_strips) - 1) >> level_.log_strips;
    const LevelShape& shape = level().shape;
    end_phases_ = 2 * Larger(shape.first_length, shape.last_length);
    middle_phases_ = 2 * shape.longest_middle();
    next_end_ = next_middle_ = 0;
  }

  // The next row, of the ends or of the others, whichever is less far.
  __device__ bool NextRow() {
    while (pass_ < args_.end_pass && next_end_ == end_phases_ && next_middle_ == middle_phases_) {
      ++pass_;
      StartPass();
    }
    if (pass_ >= args_.end_pass) return false;
    row_.ends = next_middle_ == middle_phases_ ||
                (next_end_ < end_phases_ &&
                 (2 * next_end_ + 1) * middle_phases_ <= (2 * next_middle_ + 1) * end_phases_);
    const int64_t phases = row_.ends ? end_phases_ : middle_phases_;
    const int64_t at = row_.ends ? next_end_++ : next_middle_++;
    row_.step = forward() ? at / 2 : phases / 2 - 1 - at / 2;
    row_.phase = static_cast<int>(at % 2);
    const LevelShape& shape = level().shape;
    if (row_.ends) {
      row_.active = (row_.step < shape.first_length) + (row_.step < shape.last_length);
    } else {
      row_.active = static_cast<uint32_t>(row_.step < shape.middle_length ? shape.separators - 1
                                                                          : shape.longer);
    }
    row_.items = Groups() * Products();
    row_.all = row_.active * row_.items * units_;
    return true;
  }
  // How many products of a row's phase are items of their own.
  __device__ uint32_t Products() const {
    if (!forward() || row_.phase == 0) return 1;
    if (!row_.ends) return 2;
    return level().shape.separators > 0 || row_.step + 1 < level().shape.first_length;
  }
  __device__ int64_t SegmentOf(int64_t active) const {
    const LevelShape& shape = level().shape;
    if (!row_.ends) return 1 + active;
    return active == 1 || row_.step >= shape.first_length ? shape.separators : 0;
  }

  template <typename T>
  __device__ Item<T> Make(uint32_t unit, int64_t segment, uint32_t index, int panel_columns) const {
    Item<T> item;
    const uint32_t system = panels_ > 1 ? unit / panels_ : unit;
    const Part<T> part(args_, level(), system, segment,
                       args_.first_panel + (unit - system * panels_), panel_columns);
    if (part.columns <= 0) return item;
    const uint32_t groups = Groups();
    item.kind = Item<T>::kWork;
    item.columns = part.columns;
    item.forward = forward();
    item.log_strips = level().log_strips;
    item.row0 = static_cast<int>(index < groups ? index : index - groups) * item.strips() * kStrip;
    Count(item, part, unit, segment);
    if (!forward()) {
      row_.phase == 0 ? BackwardUpdate(item, part) : BackwardDivide(item, part);
    } else if (row_.phase == 0) {
      ForwardDivide(item, part);
    } else {
      index < groups ? ForwardNext(item, part) : ForwardFill(item, part);
    }
    Shift(item);
    return item;
  }

  // What the item waits for and what it counts.
  template <typename T>
  __device__ void Count(Item<T>& item, const Part<T>& part, int64_t unit, int64_t segment) const {
    const int64_t levels = args_.num_levels, all = args_.separators + levels;
    unsigned* counters = args_.counters + unit * (2 * levels + 2 * all);
    const PassCounter passes = {counters};
    item.pass_done = passes.Of(pass_);
    item.done = counters + 2 * levels + (forward() ? 0 : all) + level().next_separators_before +
                args_.level_of(pass_) + segment;
    const int64_t groups = Groups(), updates = forward() ? (part.run.has_fill() ? 2 : 1) : 1;
    const int64_t steps_before = forward() ? row_.step : part.run.count - 1 - row_.step;
    const int64_t before = groups * (steps_before * (1 + updates) + row_.phase);
    int64_t total = groups * part.run.count * (1 + updates);
    if (forward() && part.run.target() < 0) total -= groups;
    item.last = static_cast<unsigned>(total - 1);
    item.wait = before == 0 ? passes.Before(args_, pass_) : item.done;
    item.target = static_cast<unsigned>(before);
    if (before == 0 && item.wait != nullptr) item.target = PassCounter::Target(args_, pass_);
  }

  template <typename T>
  __device__ void ForwardDivide(Item<T>& item, const Part<T>& part) const {
    item.triangle = true;
    item.matrices = 1;
    item.matrix[0] = part.inverse + row_.step * TriangleSize(part.n);
    item.vector[0] = part.x.At(part.run.block(row_.step));
    if (row_.step == 0) item.vector_added = part.x_right;
    item.out = part.scratch;
  }
  // y comes to its place in x here, where nobody reads b any more.
  template <typename T>
  __device__ void ForwardNext(Item<T>& item, const Part<T>& part) const {
    const bool last = part.IsLast(row_.step);
    item.matrices = 1;
    item.matrix[0] = part.next + row_.step * part.n * part.n;
    item.vector[0] = part.scratch;
    item.negative = true;
    item.copy_from = part.scratch;
    item.copy_to = part.x.At(part.run.block(row_.step));
    if (!part.AddsToNext(row_.step)) {
      item.out = part.from_right.At(part.run.left);
      return;
    }
    T* next = part.Next(row_.step);
    item.out = last ? part.from_left.At(part.run.right) : next;
    item.start = next;
    item.start_added = part.x_right;
  }
  template <typename T>
  __device__ void ForwardFill(Item<T>& item, const Part<T>& part) const {
    item.matrices = 1;
    item.matrix[0] = part.fill + row_.step * part.n * part.n;
    item.vector[0] = part.scratch;
    item.negative = true;
    item.out = part.from_right.At(part.run.left);
    if (row_.step > 0) item.start = item.out;
  }
  template <typename T>
  __device__ void BackwardUpdate(Item<T>& item, const Part<T>& part) const {
    const int64_t square = static_cast<int64_t>(part.n) * part.n, k = row_.step;
    if (part.HasNext(k)) {
      item.matrix[0] = part.next + k * square;
      item.vector[0] = part.x.At(part.run.block(k + 1));
      if (part.IsLast(k)) {
        item.vector[0] = part.TargetSolution();
        // A separator is the right one of one segment, which brings its solution down.
        if (!part.run.reversed) {
          item.copy_from = item.vector[0];
          item.copy_to = part.x.At(part.run.target());
        }
      }
      item.matrices = 1;
    }
    if (part.run.has_fill()) {
      item.matrix[item.matrices] = part.fill + k * square;
      item.vector[item.matrices++] = part.from_left.At(part.run.left);
    }
    item.negative = true;
    // The base's last y has not left the scratch.
    item.start = part.HasNext(k) ? part.x.At(part.run.block(k)) : part.scratch;
    item.out = part.scratch;
  }
  template <typename T>
  __device__ void BackwardDivide(Item<T>& item, const Part<T>& part) const {
    item.triangle = true;
    item.matrices = 1;
    item.matrix[0] = part.inverse + row_.step * TriangleSize(part.n);
    item.vector[0] = part.scratch;
    item.out = part.x.At(part.run.block(row_.step));
  }
  // What is indexed by the item's own rows starts at the first of them.
  template <typename T>
  __device__ static void Shift(Item<T>& item) {
    item.out += item.row0;
    if (item.start != nullptr) item.start += item.row0;
    if (item.copy_to != nullptr) item.copy_from += item.row0, item.copy_to += item.row0;
  }

  const SolveArgs& args_;
  const uint32_t units_, panels_;
  int32_t pass_;
  SolveLevel level_;  // of this pass
  bool forward_ = true;
  uint32_t groups_ = 0;
  uint32_t passed_ = 0;  // items of the rows before
  int64_t end_phases_ = 0, middle_phases_ = 0, next_end_ = 0, next_middle_ = 0;
  Row row_;
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_SOLVE_ITEMS_H_
