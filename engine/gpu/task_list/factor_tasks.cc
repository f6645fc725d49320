#include "engine/gpu/task_list/factor_tasks.h"

#include <algorithm>
#include <utility>

#include "engine/gpu/task_list/task_builder.h"
#include "engine/gpu/task_list/task_order.h"

namespace blockd::gpu {
namespace {

using Address = FactorTask::Address;
using Array = FactorTask::Array;
using Kind = FactorTask::Kind;

// Makes the tasks, each after those that it waits for.
class TaskMaker : public TaskBuilder {
 public:
  TaskMaker(const std::vector<EliminateArgs>& levels, bool superdiagonal, int64_t lanes, bool busy)
      : TaskBuilder(levels[0].level.n, busy),
        levels_(levels),
        superdiagonal_(superdiagonal),
        kept_tiles_(tiles_ * tiles_) {
    slots_.resize(levels[0].level.segments());
    int64_t blocks = 0;
    for (const EliminateArgs& level : levels) blocks += level.level.interiors();
    Reserve(blocks * tiles_ * tiles_ * FactorTasks::kMostOfATile);
    for (size_t l = 0; l < levels.size(); ++l) {
      const LevelShape& shape = levels[l].level;
      narrow_ = shape.segments() * 10 * tiles_ * tiles_ <= 3 * lanes;
      std::vector<Separator> above(shape.separators);
      for (Separator& s : above) {
        for (std::vector<Object>* part : {&s.parts[0], &s.parts[1], &s.coupling}) {
          part->resize(tiles_ * tiles_);
        }
      }
      for (int64_t s = 0; s < shape.segments(); ++s) Eliminate(l, s, above);
      below_ = std::move(above);
    }
  }

 private:
  // The objects that a level leaves on a separator: its two segments' parts of the diagonal block,
  // by tiles, and the coupling to the separator before.
  struct Separator {
    std::vector<Object> parts[2], coupling;
  };
  // Scratch of the segments with one number; what uses it, of the last two blocks.
  struct Slot {
    Object users[2];
    int64_t blocks = 0;
  };
  // The state of a block that is being eliminated. Rows count their tiles from the left.
  struct Block {
    Object inverse;  // counts tiles on the diagonal
    std::vector<Object>
        transposed;             // of these, the transposes: each after its inverse, in any order
    std::vector<Object> lower;  // A, by tiles
    std::vector<Object> rows_of_l, rows_of_c, rows_of_w;
    std::vector<Object> y, z;  // Y and what W is made of, by tiles
  };

  // An address in a slot's scratch, which has A, Y, Z; then twice inv(L), with the transposes of
  // its tiles on the diagonal, and L.
  Address Scratch(int64_t slot, int64_t at) const {
    return Address::In(Array::kScratch, slot * FactorTasks::ScratchScalars(n_) + at);
  }
  Address Lower(int64_t slot) const { return Scratch(slot, 0); }
  Address Y(int64_t slot, bool fill) const { return Scratch(slot, (fill ? 2 : 1) * Square()); }
  Address Half(int64_t slot, int64_t parity, int64_t at) const {
    return Scratch(slot, 3 * Square() + parity * (2 * Square() + kTile * n_) + at);
  }

  Address Chain(const EliminateArgs& level, bool next, int64_t separator, int64_t part) const {
    return Address::In(Array::kChains, (next ? level.next_chain_offset : level.chain_offset) +
                                           (separator * 3 + part) * Square());
  }
  // A task begins with a tile of a chain's diagonal block.
  void StartFrom(size_t l, int64_t block, int64_t i, int64_t j, FactorTask& task) const {
    task.negative = true;
    if (l == 0) {
      task.start[0] = Address::In(Array::kDiagonal, block * Square());
      return;
    }
    for (int part = 0; part < 2; ++part) {
      task.start[part] = Chain(levels_[l], false, block, part);
      WaitToStart(task, below_[block].parts[part][Index(i, j)]);
    }
  }

  // A coupling block as products want it; if it has to be copied for that, to `copy`, of which
  // `tiles` says what is there.
  Address Coupling(size_t l, int64_t index, bool transpose, const Address& copy,
                   std::vector<Object>& tiles, const Object& free, Object& users) {
    const Address stored = l == 0 ? Address::In(Array::kCoupling, index * Square())
                                  : Chain(levels_[l], false, index, 2);
    const auto wait_for = [&](int64_t i, int64_t j) -> const Object& {
      return below_[index + 1].coupling[Index(i, j)];
    };
    if ((l == 0 && superdiagonal_) == transpose) {
      for (int64_t t = 0; l > 0 && t < tiles_ * tiles_; ++t) {
        tiles[t] = wait_for(t / tiles_, t % tiles_);
      }
      return stored;
    }
    for (int64_t i = 0; i < tiles_; ++i) {
      Object row;
      for (int64_t row0 = i * kTile; row0 < std::min(n_, (i + 1) * kTile);
           row0 += FactorTask::kCopiedRows) {
        FactorTask task;
        task.kind = Kind::kCopy;
        task.out = copy;
        task.row0 = static_cast<int32_t>(row0);
        task.a[0] = stored;
        WaitFor(task, free);
        // Transposed, if it comes from a chain.
        for (int64_t j = 0; l > 0 && j < tiles_; ++j) WaitFor(task, wait_for(j, i));
        task.start_waits = task.num_waits;
        Add(task, row, &users);
      }
      for (int64_t j = 0; j < tiles_; ++j) tiles[Index(i, j)] = row;
    }
    return copy;
  }

  void Eliminate(size_t l, int64_t segment, std::vector<Separator>& above) {
    const EliminateArgs& level = levels_[l];
    const SegmentRange range = level.level.segment(segment);
    Slot& slot = slots_[segment];
    Block before;
    for (int64_t k = 0; k < range.count; ++k) {
      Block block;
      for (std::vector<Object>* tiles : {&block.lower, &block.y, &block.z}) {
        tiles->resize(tiles_ * tiles_);
      }
      for (std::vector<Object>* rows :
           {&block.transposed, &block.rows_of_l, &block.rows_of_c, &block.rows_of_w}) {
        rows->resize(tiles_);
      }
      EliminateBlock(l, segment, range, k, before, block);
      const bool last = k + 1 == range.count;
      if (range.has_fill()) UpdateLeft(level, range, k, last, block, above[range.left]);
      if (last && range.target() >= 0) UpdateTarget(l, range, k, block, above);
      before = std::move(block);
      ++slot.blocks;
    }
  }

  Address Next(const EliminateArgs& level, const SegmentRange& range, int64_t k) const {
    return Address::In(Array::kFactor, level.next_offset + (range.slot + k) * level.next_stride);
  }
  Address Fill(const EliminateArgs& level, const SegmentRange& range, int64_t k) const {
    return Address::In(Array::kFactor,
                       level.fill_offset + (range.fill_slot + k) * level.fill_stride);
  }

  // A block under elimination: where it stands, and what its tasks share.
  struct Step {
    size_t l;
    int64_t segment;
    const SegmentRange& range;
    int64_t k;
    bool has_next;  // C leads somewhere
    Block& before;
    Block& block;
    Object& users;                 // of this half of the scratch
    Object old_users, last_users;  // of the block before the last one, and of the last one
    Address lower, inverse, transposed, l_place, c_before, kept;
    Address e, s;  // as products want them
    std::vector<Object> e_tiles, s_tiles;
  };
  const EliminateArgs& LevelOf(const Step& step) const { return levels_[step.l]; }
  int32_t SegmentOf(const Step& step) const {
    return static_cast<int32_t>(LevelOf(step).segments_before + step.segment);
  }
  int64_t final() const { return tiles_ - 1; }

  void EliminateBlock(size_t l, int64_t segment, const SegmentRange& range, int64_t k,
                      Block& before, Block& block) {
    const EliminateArgs& level = levels_[l];
    Slot& slot = slots_[segment];
    const int64_t parity = slot.blocks % 2;
    Step step = {.l = l,
                 .segment = segment,
                 .range = range,
                 .k = k,
                 .has_next = k + 1 < range.count || range.target() >= 0,
                 .before = before,
                 .block = block,
                 .users = slot.users[parity],
                 .old_users = std::exchange(slot.users[parity], Object()),
                 .last_users = slot.users[1 - parity],
                 .lower = Lower(segment),
                 .inverse = Half(segment, parity, 0),
                 .transposed = Half(segment, parity, Square()),
                 .l_place = Half(segment, parity, Square() + kTile * n_),
                 .c_before = k > 0 ? Next(level, range, k - 1) : Address{},
                 .kept = Address::In(Array::kFactor, level.inverse_offset +
                                                         (range.slot + k) * level.inverse_stride),
                 .e = {},
                 .s = {},
                 .e_tiles = std::vector<Object>(tiles_ * tiles_),
                 .s_tiles = std::vector<Object>(tiles_ * tiles_)};
    FormLower(step);
    FindCouplings(step);
    for (int64_t j = 0; j < tiles_; ++j) {
      UpdateColumn(step, j);
      InvertTile(step, j);
      if (step.has_next) MakeNext(step, j);
      if (range.has_fill()) MakeFill(step, j);
      KeepRow(j, step.inverse, step.transposed, step.l_place, step.kept, block, step.users);
    }
    NoteGrowth(step);
  }

  // A. What the last columns of C leave of its first tile comes last, and soon.
  void FormLower(Step& step) {
    const int64_t k = step.k, chain_block = step.range.block(k);
    for (int64_t i = 0; i < tiles_; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        const bool first = i == 0 && j == 0;
        if (k == 0 && i == j) continue;  // D, as long as it is not needed
        FactorTask task = Tile(step.lower, i, j);
        task.lower = true;
        StartFrom(step.l, chain_block, i, j, task);
        if (k == 0) {
          WaitToStart(task, step.last_users);
        } else {
          Multiply(task, 0, Operand{step.c_before, i, 0}, Operand{step.c_before, j, 0},
                   first ? final() * kTile : n_);
          WaitFor(task, first ? before_final_ : step.before.rows_of_c[i]);
          if (!first) WaitFor(task, step.before.rows_of_c[j]);
        }
        Object& tile = step.block.lower[Index(i, j)];
        AddTile(task, narrow_, false, tile, &step.users);
        if (k == 0 || !first) continue;
        task = Tile(step.lower, i, j);
        task.lower = task.negative = true;
        task.start[0] = step.lower;
        WaitToStart(task, tile);
        Multiply(task, 0, Operand{step.c_before, i, final()}, Operand{step.c_before, j, final()},
                 Size(final()));
        WaitFor(task, step.before.rows_of_c[0]);
        AddTile(task, true, false, tile, &step.users);
      }
    }
  }

  // E and S: as far as they are there already, and S = -W' C''.
  void FindCouplings(Step& step) {
    const SegmentRange& range = step.range;
    const int64_t chain_block = range.block(step.k);
    if (step.has_next) {
      step.e = Coupling(step.l, range.reversed ? chain_block - 1 : chain_block, range.reversed,
                        Y(step.segment, false), step.e_tiles, step.last_users, step.users);
    }
    if (!range.has_fill()) return;
    if (step.k == 0) {
      step.s = Coupling(step.l, range.first - 1, true, Y(step.segment, true), step.s_tiles,
                        step.last_users, step.users);
      return;
    }
    step.s = Y(step.segment, true);
    for (int64_t r = 0; r < tiles_; ++r) {
      for (int64_t j = 0; j < tiles_; ++j) {
        FactorTask task = Tile(step.s, r, j);
        task.negative = true;
        Multiply(task, 0, Operand{Fill(LevelOf(step), range, step.k - 1), r, 0},
                 Operand{step.c_before, j, 0}, n_);
        WaitFor(task, step.before.rows_of_w[r]);
        WaitFor(task, step.before.rows_of_c[j]);
        AddTile(task, narrow_, false, step.block.z[Index(r, j)], &step.users);
      }
    }
  }

  // A(i,j) - L(i,:j) L(j,:j)', i >= j.
  void UpdateColumn(Step& step, int64_t j) {
    for (int64_t i = j; i < tiles_ && j > 0; ++i) {
      FactorTask task = Tile(step.lower, i, j);
      task.lower = task.negative = true;
      if (step.k == 0 && i == j) {
        StartFrom(step.l, step.range.block(0), i, j, task);
      } else {
        task.start[0] = step.lower;
        WaitToStart(task, step.block.lower[Index(i, j)]);
      }
      Multiply(task, 0, Operand{step.l_place, i, 0}, Operand{step.l_place, j, 0}, j * kTile);
      WaitFor(task, step.block.rows_of_l[i]);
      WaitFor(task, step.block.rows_of_l[j]);
      AddTile(task, i == j || narrow_, false, step.block.lower[Index(i, j)], &step.users);
    }
  }

  // inv(L)(j,j), then L(i,j), i > j.
  void InvertTile(Step& step, int64_t j) {
    FactorTask inverted = Tile(step.inverse, j, j);
    inverted.kind = Kind::kInvert;
    if (step.k == 0 && j == 0) {
      StartFrom(step.l, step.range.block(0), j, j, inverted);
      WaitToStart(inverted, step.last_users);
    } else {
      inverted.start[0] = step.lower;
      WaitToStart(inverted, step.block.lower[Index(j, j)]);
    }
    WaitToStart(inverted, step.old_users);
    inverted.segment = SegmentOf(step);
    inverted.rows_before = static_cast<int32_t>(step.k * n_ + j * kTile);
    inverted.kept = step.kept;
    if (j < final()) inverted.transposed = step.transposed;
    Add(inverted, step.block.inverse, &step.block.transposed[j]);
    for (int64_t i = j + 1; i < tiles_; ++i) {
      FactorTask task = Tile(step.l_place, i, j);
      Multiply(task, 0, Operand{step.lower, i, j}, Operand{step.inverse, j, j}, Size(j));
      WaitFor(task, step.block.lower[Index(i, j)]);
      WaitFor(task, step.block.inverse);
      AddTile(task, true, true, step.block.rows_of_l[i], &step.users);
    }
  }

  // The tiles j of C.
  void MakeNext(Step& step, int64_t j) {
    Block& block = step.block;
    const Address to = Next(LevelOf(step), step.range, step.k), y_place = Y(step.segment, false);
    if (j == final()) before_final_ = block.rows_of_c[0];
    const bool narrow = narrow_ || j == final();
    for (int64_t r = 0; r < tiles_; ++r) {
      Object& y = j == 0 ? step.e_tiles[Index(r, 0)] : block.y[Index(r, j)];
      if (j > 0) {
        const Object there = step.e_tiles[Index(r, j)];
        SubtractLeft(y_place, step.e, to, step.l_place, r, j, narrow_, there,
                     step.k > 0 ? step.before.rows_of_c[r] : Object(), block.rows_of_c[r],
                     block.rows_of_l[j], y, step.users);
      }
      MakeColumns(j == 0 ? step.e : y_place, to, step.inverse, r, j, narrow, y, block.inverse,
                  block.rows_of_c[r], step.users);
    }
  }
  // And of W.
  void MakeFill(Step& step, int64_t j) {
    Block& block = step.block;
    const Address to = Fill(LevelOf(step), step.range, step.k), z_place = Y(step.segment, true);
    const bool narrow = narrow_ || step.k + 1 == step.range.count;
    for (int64_t r = 0; r < tiles_; ++r) {
      Object& z = step.k == 0 ? step.s_tiles[Index(r, j)] : block.z[Index(r, j)];
      if (j > 0) {
        const Object there = std::exchange(z, Object());
        SubtractLeft(z_place, step.s, to, step.l_place, r, j, narrow, there, Object(),
                     block.rows_of_w[r], block.rows_of_l[j], z, step.users);
      }
      MakeColumns(j == 0 ? step.s : z_place, to, step.inverse, r, j, narrow, z, block.inverse,
                  block.rows_of_w[r], step.users);
    }
  }

  // Y(r,j) = E(r,j) - C(r,:j) L(j,:j)', or the same of S and W. `there`: E is; `free`: so is Y's
  // place.
  void SubtractLeft(const Address& to, const Address& from, const Address& columns,
                    const Address& l_place, int64_t r, int64_t j, bool narrow, const Object& there,
                    const Object& free, const Object& row, const Object& row_of_l, Object& tile,
                    Object& users) {
    FactorTask task = Tile(to, r, j);
    task.negative = task.whole = true;
    task.start[0] = from;
    WaitToStart(task, there);
    WaitToStart(task, free);
    Multiply(task, 0, Operand{columns, r, 0}, Operand{l_place, j, 0}, j * kTile);
    WaitFor(task, row);
    WaitFor(task, row_of_l);
    AddTile(task, narrow, false, tile, &users);
  }
  // A tile of C or W.
  void MakeColumns(const Address& from, const Address& to, const Address& inverse, int64_t r,
                   int64_t j, bool narrow, const Object& ready, const Object& inverted, Object& row,
                   Object& users) {
    FactorTask task = Tile(to, r, j);
    Multiply(task, 0, Operand{from, r, j}, Operand{inverse, j, j}, Size(j));
    WaitFor(task, ready);
    WaitFor(task, inverted);
    AddTile(task, narrow, true, row, &users);
  }

  // inv(L)(j,l), l < j.
  void KeepRow(int64_t j, const Address& inverse, const Address& transposed, const Address& l_place,
               const Address& kept, Block& block, Object& users) {
    for (int64_t l = 0; l < j; ++l) {
      Object product, tile;
      FactorTask task = Tile(inverse, j, l);
      task.across = true;
      Multiply(task, 0, Operand{l_place, j, l}, Operand{transposed, l, 0}, kTile);
      Multiply(task, 1, Operand{l_place, j, l + 1}, Operand{inverse, l, l + 1},
               (j - l - 1) * kTile);
      WaitFor(task, block.rows_of_l[j]);
      WaitFor(task, block.transposed[l]);
      for (int64_t m = l + 1; m < j; ++m) WaitFor(task, kept_tiles_[Index(m, l)]);
      AddTile(task, narrow_, false, product, &users);
      task = Tile(inverse, j, l);
      task.negative = true;
      task.kept = kept;
      Multiply(task, 0, Operand{inverse, j, j}, Operand{inverse, l, j}, Size(j));
      WaitFor(task, block.inverse);
      WaitFor(task, product);
      AddTile(task, narrow_, false, tile, &users);
      kept_tiles_[Index(j, l)] = tile;
    }
  }

  // When all else is done with the block.
  void NoteGrowth(const Step& step) {
    for (int64_t j = 0; j < tiles_; ++j) {
      FactorTask task;
      task.kind = Kind::kGrowth;
      StartFrom(step.l, step.range.block(step.k), 0, 0, task);
      task.kept = step.kept;
      task.column0 = static_cast<int16_t>(j * kTile);
      task.segment = SegmentOf(step);
      WaitToStart(task, step.users);
      WaitToStart(task, step.block.transposed[final()]);
      Add(task);
    }
  }

  void UpdateLeft(const EliminateArgs& level, const SegmentRange& range, int64_t k, bool last,
                  Block& block, Separator& left) {
    const Address w = Fill(level, range, k);
    for (int64_t i = 0; i < tiles_; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        Object& tile = left.parts[1][Index(i, j)];
        FactorTask task = Tile(Chain(level, true, range.left, 1), i, j);
        task.lower = task.negative = true;
        if (k > 0) {
          task.start[0] = task.out;
          WaitToStart(task, tile);
        }
        Multiply(task, 0, Operand{w, i, 0}, Operand{w, j, 0}, n_);
        WaitFor(task, block.rows_of_w[i]);
        WaitFor(task, block.rows_of_w[j]);
        AddTile(task, narrow_ || (last && i == 0), false, tile, nullptr);
      }
    }
  }

  void UpdateTarget(size_t l, const SegmentRange& range, int64_t k, Block& block,
                    std::vector<Separator>& above) {
    const EliminateArgs& level = levels_[l];
    const Address c = Next(level, range, k),
                  w = range.has_fill() ? Fill(level, range, k) : Address{};
    Separator& to = above[range.reversed ? range.left : range.right];
    for (int64_t i = 0; i < tiles_; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        FactorTask task = Tile(
            Chain(level, true, range.reversed ? range.left : range.right, range.reversed ? 1 : 0),
            i, j);
        task.lower = task.negative = true;
        if (!range.reversed) StartFrom(l, range.target(), i, j, task);
        Multiply(task, 0, Operand{c, i, 0}, Operand{c, j, 0}, n_);
        WaitFor(task, block.rows_of_c[i]);
        WaitFor(task, block.rows_of_c[j]);
        AddTile(task, narrow_ || i == 0, false, to.parts[range.reversed ? 1 : 0][Index(i, j)],
                nullptr);
      }
    }
    if (!range.has_fill()) return;
    for (int64_t i = 0; i < tiles_; ++i) {
      for (int64_t j = 0; j < tiles_; ++j) {
        FactorTask task = Tile(Chain(level, true, range.left, 2), i, j);
        task.negative = true;
        Multiply(task, 0, Operand{c, i, 0}, Operand{w, j, 0}, n_);
        WaitFor(task, block.rows_of_c[i]);
        WaitFor(task, block.rows_of_w[j]);
        AddTile(task, narrow_, false, above[range.right].coupling[Index(i, j)], nullptr);
      }
    }
  }

  const std::vector<EliminateArgs>& levels_;
  const bool superdiagonal_;
  bool narrow_ = false;  // this level's tiles
  std::vector<Slot> slots_;
  std::vector<Separator> below_;  // the level's chain, but for the first level
  Object before_final_;           // of C's first row, all but its last columns
  std::vector<Object> kept_tiles_;
};

}  // namespace

FactorTasks::FactorTasks(const std::vector<EliminateArgs>& levels, bool superdiagonal,
                         int64_t lanes, bool busy) {
  TaskMaker maker(levels, superdiagonal, lanes, busy);
  complete_ = maker.complete();
  if (!complete_) return;
  num_counters_ = maker.num_counters();
  tasks_ = maker.TakeTasks();
  order_ = OrderTasks(tasks_, num_counters_, lanes);
}

}  // namespace blockd::gpu
