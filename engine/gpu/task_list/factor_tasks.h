// The work of a factorization of few large blocks, as tasks that the host lists once for a plan:
// each forms a tile of 128 rows, wide (128 columns) or narrow (32), and comes after those it waits
// for. Of a block D = L L' with tiles (i,j), E and S its couplings to the next block and to the
// left separator, C and W of the block before with a dash:
//
//     A(i,j) = D(i,j) - C'(i,:) C'(j,:)'
//     inv(L)(j,j) from A(j,j) - L(j,:j) L(j,:j)'
//     L(i,j) = (A(i,j) - L(i,:j) L(j,:j)') inv(L)(j,j)'
//     Y(r,j) = E(r,j) - C(r,:j) L(j,:j)',   C(r,j) = Y(r,j) inv(L)(j,j)';   W from S likewise
//     S = -W' C'',  and to the left separator  - W W'
//     inv(L)(j,l) = -inv(L)(j,j) sum L(j,m) inv(L)(m,l), which is only kept
//
// A block's chain is the inverses on the diagonal, L between them, and the last columns of C; all
// else comes beside that.
#ifndef BLOCKD_ENGINE_GPU_TASK_LIST_FACTOR_TASKS_H_
#define BLOCKD_ENGINE_GPU_TASK_LIST_FACTOR_TASKS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "engine/gpu/plan/level.h"

namespace blockd::gpu {

// What a segment's tasks have in scratch, of all levels' segments with the same number.
BLOCKD_HOST_DEVICE inline int64_t FewScratchScalars(int64_t n) {
  return 7 * n * n + 2 * FactorTask::kTile * n;
}

class FactorTasks {
 public:
  // Tasks for each tile of a block, about the most that a plan has on average; of a row, tiles.
  static constexpr int64_t kMostOfATile = 28, kMostTiles = 6;
  static_assert(kMostTiles + 2 <= FactorTask::kMostWaits);

  // levels: as EliminateLarge has them, with any systems. lanes: thread blocks for a system.
  // busy: all tasks are wide, which take the least time together. The bits are the same.
  FactorTasks(const std::vector<EliminateArgs>& levels, bool superdiagonal, int64_t lanes,
              bool busy)
      : levels_(levels),
        superdiagonal_(superdiagonal),
        lanes_(lanes),
        busy_(busy),
        n_(levels[0].level.n),
        tiles_((n_ + kTile - 1) / kTile) {
    slots_.resize(levels[0].level.segments());
    int64_t blocks = 0;
    for (const EliminateArgs& level : levels) blocks += level.level.interiors();
    tasks_.reserve(blocks * tiles_ * tiles_ * kMostOfATile);
    for (size_t l = 0; l < levels.size(); ++l) {
      const LevelShape& shape = levels[l].level;
      narrow_ = shape.segments() * 10 * tiles_ * tiles_ <= 3 * lanes_;
      std::vector<Separator> above(shape.separators);
      for (Separator& s : above) {
        for (std::vector<Object>* part : {&s.parts[0], &s.parts[1], &s.coupling}) {
          part->resize(tiles_ * tiles_);
        }
      }
      for (int64_t s = 0; s < shape.segments(); ++s) Eliminate(l, s, above);
      below_ = std::move(above);
    }
    Order();
  }

  int64_t num_tasks() const { return static_cast<int64_t>(tasks_.size()); }
  // Writes num_tasks() of them, in order.
  void Write(FactorTask* out) const {
    for (const int32_t i : order_) *out++ = tasks_[i];
  }
  int64_t num_counters() const { return num_counters_; }

 private:
  static constexpr int64_t kTile = FactorTask::kTile, kPiece = FactorTask::kPiece;
  using Place = FactorTask::Place;
  using Array = FactorTask::Array;
  using Kind = FactorTask::Kind;
  using Wait = FactorTask::Wait;

  // What tasks wait for: all that have signalled it so far.
  struct Object {
    int16_t counter = FactorTask::kNone;
    uint16_t count = 0;
  };
  // What a level leaves on one: its two segments' parts of the diagonal block, by tiles, and the
  // coupling to the separator before.
  struct Separator {
    std::vector<Object> parts[2], coupling;
  };
  // Scratch of the segments with one number; what uses it, of the last two blocks.
  struct Slot {
    Object users[2];
    int64_t blocks = 0;
  };
  // What is known of a block that is being eliminated. Rows count their tiles from the left.
  struct Block {
    Object inverse;  // counts tiles on the diagonal
    std::vector<Object>
        transposed;             // of these, the transposes: each after its inverse, in any order
    std::vector<Object> lower;  // A, by tiles
    std::vector<Object> rows_of_l, rows_of_c, rows_of_w;
    std::vector<Object> y, z;  // Y and what W is made of, by tiles
  };

  int64_t Square() const { return n_ * n_; }
  int64_t Size(int64_t tile) const { return std::min(kTile, n_ - tile * kTile); }
  int64_t Index(int64_t i, int64_t j) const { return i * tiles_ + j; }

  // Of a slot's scratch: A, Y, Z; then twice inv(L), with the transposes of its tiles on the
  // diagonal, and L.
  Place Scratch(int64_t slot, int64_t at) const {
    return Place::In(Array::kScratch, slot * FewScratchScalars(n_) + at);
  }
  Place Lower(int64_t slot) const { return Scratch(slot, 0); }
  Place Y(int64_t slot, bool fill) const { return Scratch(slot, (fill ? 2 : 1) * Square()); }
  Place Half(int64_t slot, int64_t parity, int64_t at) const {
    return Scratch(slot, 3 * Square() + parity * (2 * Square() + kTile * n_) + at);
  }

  static void WaitFor(FactorTask& task, const Object& object) {
    if (object.count == 0) return;
    for (int i = 0; i < task.num_waits; ++i) {
      if (task.waits[i].counter == object.counter) {
        task.waits[i].count = std::max(task.waits[i].count, object.count);
        return;
      }
    }
    task.waits[task.num_waits++] = {object.counter, object.count};
  }
  // What `start` waits for comes first.
  static void WaitToStart(FactorTask& task, const Object& object) {
    WaitFor(task, object);
    task.start_waits = task.num_waits;
  }
  int16_t Signalled(Object& object) {
    if (object.counter < 0) object.counter = static_cast<int16_t>(num_counters_++);
    ++object.count;
    return object.counter;
  }

  FactorTask Tile(const Place& out, int64_t i, int64_t j) const {
    FactorTask task;
    task.out = out;
    task.row0 = static_cast<int16_t>(i * kTile), task.column0 = static_cast<int16_t>(j * kTile);
    return task;
  }
  // A tile of a matrix, or several in a row.
  struct Operand {
    Place matrix;
    int64_t row_tile, column_tile;
  };
  // The p-th product is A B'.
  void Multiply(FactorTask& task, int p, const Operand& a, const Operand& b, int64_t depth) const {
    const auto place = [&](const Operand& o) {
      return o.matrix.Plus((o.column_tile * n_ + o.row_tile) * kTile);
    };
    task.a[p] = place(a), task.b[p] = place(b);
    task.row_of_a[p] = static_cast<int16_t>(a.row_tile * kTile);
    task.row_of_b[p] = static_cast<int16_t>(b.row_tile * kTile);
    task.depth[p] = static_cast<int16_t>(depth);
  }

  void Add(const FactorTask& task, Object& object, Object* users) {
    tasks_.push_back(task);
    tasks_.back().signals[0] = Signalled(object);
    if (users) tasks_.back().signals[1] = Signalled(*users);
  }
  // The tile as one task or as narrow ones. triangular: B is a tile of inv(L) on the diagonal,
  // whose rows end there.
  void AddTile(FactorTask task, bool narrow, bool triangular, Object& object, Object* users) {
    if (!narrow || busy_) return Add(task, object, users);
    task.kind = Kind::kNarrow;
    const int64_t size = std::min(kTile, n_ - task.column0), depth = task.depth[0];
    for (int64_t column = 0; column < size; column += kPiece) {
      if (triangular) task.depth[0] = static_cast<int16_t>(std::min(depth, column + kPiece));
      Add(task, object, users);
      task.column0 = static_cast<int16_t>(task.column0 + kPiece);
      for (int p = 0; p < 2; ++p) {
        task.row_of_b[p] = static_cast<int16_t>(task.row_of_b[p] + kPiece);
        task.b[p] = task.b[p].Plus(kPiece);
      }
    }
  }

  Place Chain(const EliminateArgs& level, bool next, int64_t separator, int64_t part) const {
    return Place::In(Array::kChains, (next ? level.next_chain_offset : level.chain_offset) +
                                         (separator * 3 + part) * Square());
  }
  // A task begins with a tile of a chain's diagonal block.
  void StartFrom(size_t l, int64_t block, int64_t i, int64_t j, FactorTask& task) const {
    task.negative = true;
    if (l == 0) {
      task.start[0] = Place::In(Array::kDiagonal, block * Square());
      return;
    }
    for (int part = 0; part < 2; ++part) {
      task.start[part] = Chain(levels_[l], false, block, part);
      WaitToStart(task, below_[block].parts[part][Index(i, j)]);
    }
  }

  // A coupling block as products want it; if it has to be copied for that, to `copy`, of which
  // `tiles` says what is there.
  Place Coupling(size_t l, int64_t index, bool transpose, const Place& copy,
                 std::vector<Object>& tiles, const Object& free, Object& users) {
    const Place stored =
        l == 0 ? Place::In(Array::kCoupling, index * Square()) : Chain(levels_[l], false, index, 2);
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
    const Run run = level.level.run(segment);
    Slot& slot = slots_[segment];
    Block before;
    for (int64_t k = 0; k < run.count; ++k) {
      Block block;
      for (std::vector<Object>* tiles : {&block.lower, &block.y, &block.z}) {
        tiles->resize(tiles_ * tiles_);
      }
      for (std::vector<Object>* rows :
           {&block.transposed, &block.rows_of_l, &block.rows_of_c, &block.rows_of_w}) {
        rows->resize(tiles_);
      }
      EliminateBlock(l, segment, run, k, before, block);
      const bool last = k + 1 == run.count;
      if (run.has_fill()) UpdateLeft(level, run, k, last, block, above[run.left]);
      if (last && run.target() >= 0) UpdateTarget(l, run, k, block, above);
      before = std::move(block);
      ++slot.blocks;
    }
  }

  Place Next(const EliminateArgs& level, const Run& run, int64_t k) const {
    return Place::In(Array::kFactor, level.next_offset + (run.slot + k) * level.next_stride);
  }
  Place Fill(const EliminateArgs& level, const Run& run, int64_t k) const {
    return Place::In(Array::kFactor, level.fill_offset + (run.fill_slot + k) * level.fill_stride);
  }

  void EliminateBlock(size_t l, int64_t segment, const Run& run, int64_t k, Block& before,
                      Block& block) {
    const EliminateArgs& level = levels_[l];
    Slot& slot = slots_[segment];
    const int64_t parity = slot.blocks % 2;
    Object& users = slot.users[parity];
    // Of the last block with this half of the scratch, and of the one after it.
    const Object old_users = users, last_users = slot.users[1 - parity];
    users = Object();
    const Place lower = Lower(segment), inverse = Half(segment, parity, 0),
                transposed = Half(segment, parity, Square()),
                l_place = Half(segment, parity, Square() + kTile * n_);
    const Place c_before = k > 0 ? Next(level, run, k - 1) : Place{};
    const Place kept =
        Place::In(Array::kFactor, level.inverse_offset + (run.slot + k) * level.inverse_stride);
    const int64_t chain_block = run.block(k), final = tiles_ - 1;

    // A. What the last columns of C leave of its first tile comes last, and soon.
    for (int64_t i = 0; i < tiles_; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        const bool first = i == 0 && j == 0;
        if (k == 0 && i == j) continue;  // D, as long as it is not needed
        FactorTask task = Tile(lower, i, j);
        task.lower = true;
        StartFrom(l, chain_block, i, j, task);
        if (k == 0) {
          WaitToStart(task, last_users);
        } else {
          Multiply(task, 0, Operand{c_before, i, 0}, Operand{c_before, j, 0},
                   first ? final * kTile : n_);
          WaitFor(task, first ? before_final_ : before.rows_of_c[i]);
          if (!first) WaitFor(task, before.rows_of_c[j]);
        }
        Object& tile = block.lower[Index(i, j)];
        AddTile(task, narrow_, false, tile, &users);
        if (k == 0 || !first) continue;
        task = Tile(lower, i, j);
        task.lower = task.negative = true;
        task.start[0] = lower;
        WaitToStart(task, tile);
        Multiply(task, 0, Operand{c_before, i, final}, Operand{c_before, j, final}, Size(final));
        WaitFor(task, before.rows_of_c[0]);
        AddTile(task, true, false, tile, &users);
      }
    }

    // E and S, as far as they are there already.
    const bool has_next = k + 1 < run.count || run.target() >= 0;
    Place e, s;
    std::vector<Object> e_tiles(tiles_ * tiles_), s_tiles(tiles_ * tiles_);
    if (has_next) {
      e = Coupling(l, run.reversed ? chain_block - 1 : chain_block, run.reversed, Y(segment, false),
                   e_tiles, last_users, users);
    }
    if (run.has_fill() && k == 0) {
      s = Coupling(l, run.first - 1, true, Y(segment, true), s_tiles, last_users, users);
    }

    if (run.has_fill() && k > 0) {
      s = Y(segment, true);
      for (int64_t r = 0; r < tiles_; ++r) {
        for (int64_t j = 0; j < tiles_; ++j) {
          FactorTask task = Tile(s, r, j);
          task.negative = true;
          Multiply(task, 0, Operand{Fill(level, run, k - 1), r, 0}, Operand{c_before, j, 0}, n_);
          WaitFor(task, before.rows_of_w[r]);
          WaitFor(task, before.rows_of_c[j]);
          AddTile(task, narrow_, false, block.z[Index(r, j)], &users);
        }
      }
    }

    for (int64_t j = 0; j < tiles_; ++j) {
      for (int64_t i = j; i < tiles_ && j > 0; ++i) {
        FactorTask task = Tile(lower, i, j);
        task.lower = task.negative = true;
        if (k == 0 && i == j) {
          StartFrom(l, chain_block, i, j, task);
        } else {
          task.start[0] = lower;
          WaitToStart(task, block.lower[Index(i, j)]);
        }
        Multiply(task, 0, Operand{l_place, i, 0}, Operand{l_place, j, 0}, j * kTile);
        WaitFor(task, block.rows_of_l[i]);
        WaitFor(task, block.rows_of_l[j]);
        AddTile(task, i == j || narrow_, false, block.lower[Index(i, j)], &users);
      }
      FactorTask inverted = Tile(inverse, j, j);
      inverted.kind = Kind::kInvert;
      if (k == 0 && j == 0) {
        StartFrom(l, chain_block, j, j, inverted);
        WaitToStart(inverted, last_users);
      } else {
        inverted.start[0] = lower;
        WaitToStart(inverted, block.lower[Index(j, j)]);
      }
      WaitToStart(inverted, old_users);
      inverted.segment = static_cast<int32_t>(level.segments_before + segment);
      inverted.rows_before = static_cast<int32_t>(k * n_ + j * kTile);
      inverted.kept = kept;
      if (j < final) inverted.transposed = transposed;
      Add(inverted, block.inverse, &block.transposed[j]);
      for (int64_t i = j + 1; i < tiles_; ++i) {
        FactorTask task = Tile(l_place, i, j);
        Multiply(task, 0, Operand{lower, i, j}, Operand{inverse, j, j}, Size(j));
        WaitFor(task, block.lower[Index(i, j)]);
        WaitFor(task, block.inverse);
        AddTile(task, true, true, block.rows_of_l[i], &users);
      }
      if (has_next) {
        if (j == final) before_final_ = block.rows_of_c[0];
        const bool narrow = narrow_ || j == final;
        for (int64_t r = 0; r < tiles_; ++r) {
          Object& y = j == 0 ? e_tiles[Index(r, 0)] : block.y[Index(r, j)];
          if (j > 0) {
            const Object there = e_tiles[Index(r, j)];
            SubtractLeft(Y(segment, false), e, Next(level, run, k), l_place, r, j, narrow_, there,
                         k > 0 ? before.rows_of_c[r] : Object(), block.rows_of_c[r],
                         block.rows_of_l[j], y, users);
          }
          MakeColumns(j == 0 ? e : Y(segment, false), Next(level, run, k), inverse, r, j, narrow, y,
                      block.inverse, block.rows_of_c[r], users);
        }
      }
      if (run.has_fill()) {
        const bool narrow = narrow_ || k + 1 == run.count;
        for (int64_t r = 0; r < tiles_; ++r) {
          Object& z = k == 0 ? s_tiles[Index(r, j)] : block.z[Index(r, j)];
          if (j > 0) {
            const Object there = std::exchange(z, Object());
            SubtractLeft(Y(segment, true), s, Fill(level, run, k), l_place, r, j, narrow, there,
                         Object(), block.rows_of_w[r], block.rows_of_l[j], z, users);
          }
          MakeColumns(j == 0 ? s : Y(segment, true), Fill(level, run, k), inverse, r, j, narrow, z,
                      block.inverse, block.rows_of_w[r], users);
        }
      }
      KeepRow(j, inverse, transposed, l_place, kept, block, users);
    }
  }

  // Y(r,j) = E(r,j) - C(r,:j) L(j,:j)', or the same of S and W. `there`: E is; `free`: so is Y's
  // place.
  void SubtractLeft(const Place& to, const Place& from, const Place& columns, const Place& l_place,
                    int64_t r, int64_t j, bool narrow, const Object& there, const Object& free,
                    const Object& row, const Object& row_of_l, Object& tile, Object& users) {
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
  void MakeColumns(const Place& from, const Place& to, const Place& inverse, int64_t r, int64_t j,
                   bool narrow, const Object& ready, const Object& inverted, Object& row,
                   Object& users) {
    FactorTask task = Tile(to, r, j);
    Multiply(task, 0, Operand{from, r, j}, Operand{inverse, j, j}, Size(j));
    WaitFor(task, ready);
    WaitFor(task, inverted);
    AddTile(task, narrow, true, row, &users);
  }

  // inv(L)(j,l), l < j.
  void KeepRow(int64_t j, const Place& inverse, const Place& transposed, const Place& l_place,
               const Place& kept, Block& block, Object& users) {
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

  void UpdateLeft(const EliminateArgs& level, const Run& run, int64_t k, bool last, Block& block,
                  Separator& left) {
    const Place w = Fill(level, run, k);
    for (int64_t i = 0; i < tiles_; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        Object& tile = left.parts[1][Index(i, j)];
        FactorTask task = Tile(Chain(level, true, run.left, 1), i, j);
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

  void UpdateTarget(size_t l, const Run& run, int64_t k, Block& block,
                    std::vector<Separator>& above) {
    const EliminateArgs& level = levels_[l];
    const Place c = Next(level, run, k), w = run.has_fill() ? Fill(level, run, k) : Place{};
    Separator& to = above[run.reversed ? run.left : run.right];
    for (int64_t i = 0; i < tiles_; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        FactorTask task = Tile(
            Chain(level, true, run.reversed ? run.left : run.right, run.reversed ? 1 : 0), i, j);
        task.lower = task.negative = true;
        if (!run.reversed) StartFrom(l, run.target(), i, j, task);
        Multiply(task, 0, Operand{c, i, 0}, Operand{c, j, 0}, n_);
        WaitFor(task, block.rows_of_c[i]);
        WaitFor(task, block.rows_of_c[j]);
        AddTile(task, narrow_ || i == 0, false, to.parts[run.reversed ? 1 : 0][Index(i, j)],
                nullptr);
      }
    }
    if (!run.has_fill()) return;
    for (int64_t i = 0; i < tiles_; ++i) {
      for (int64_t j = 0; j < tiles_; ++j) {
        FactorTask task = Tile(Chain(level, true, run.left, 2), i, j);
        task.negative = true;
        Multiply(task, 0, Operand{c, i, 0}, Operand{w, j, 0}, n_);
        WaitFor(task, block.rows_of_c[i]);
        WaitFor(task, block.rows_of_w[j]);
        AddTile(task, narrow_, false, above[run.right].coupling[Index(i, j)], nullptr);
      }
    }
  }

  // About how long a task takes, in microseconds on an H200.
  static double Duration(const FactorTask& task) {
    const double depth = (task.depth[0] + task.depth[1]) / double{kTile};
    switch (task.kind) {
      case Kind::kWide:
        return 3 + 4.5 * depth;
      case Kind::kNarrow:
        return 2 + 1.5 * depth;
      case Kind::kInvert:
        return 18;
      case Kind::kCopy:
        return 4;
    }
    return 0;
  }

  // The order in which lanes_ thread blocks would begin the tasks, if each took, of those that are
  // ready, the one with the longest way to the end.
  void Order() {
    const auto count = static_cast<int32_t>(tasks_.size());
    std::vector<float> to_end(count), after(num_counters_);
    std::vector<uint8_t> missing(count);
    // Who waits for a counter: waiting[first_waiting[counter]] and so on.
    std::vector<int32_t> first_waiting(num_counters_ + 1), reached(num_counters_);
    for (int32_t i = count; i-- > 0;) {
      const FactorTask& task = tasks_[i];
      for (const int16_t signal : task.signals) {
        if (signal >= 0) to_end[i] = std::max(to_end[i], after[signal]);
      }
      to_end[i] += static_cast<float>(Duration(task));
      missing[i] = task.num_waits;
      for (int w = 0; w < task.num_waits; ++w) {
        const int16_t counter = task.waits[w].counter;
        after[counter] = std::max(after[counter], to_end[i]);
        ++first_waiting[counter + 1];
      }
    }
    for (int64_t c = 0; c < num_counters_; ++c) first_waiting[c + 1] += first_waiting[c];
    std::vector<std::pair<uint16_t, int32_t>> waiting(first_waiting.back());
    std::vector<int32_t> end = first_waiting;
    for (int32_t i = 0; i < count; ++i) {
      for (int w = 0; w < tasks_[i].num_waits; ++w) {
        const Wait& wait = tasks_[i].waits[w];
        waiting[end[wait.counter]++] = {wait.count, i};
      }
    }

    for (int64_t c = 0; c < num_counters_; ++c) {
      std::sort(waiting.begin() + first_waiting[c], waiting.begin() + first_waiting[c + 1]);
    }

    using Entry = std::pair<float, int32_t>;
    // By the way to the end: inversions, then others. Of two inversions in a row one would wait for
    // the other, for they come to the same multiprocessor.
    std::priority_queue<Entry> ready[2];
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> running;  // by when they end
    const auto is_ready = [&](int32_t i) {
      ready[tasks_[i].kind != Kind::kInvert].push({to_end[i], i});
    };
    for (int32_t i = 0; i < count; ++i) {
      if (missing[i] == 0) is_ready(i);
    }
    int64_t free = std::max<int64_t>(lanes_, 1);
    float now = 0;
    bool others = true;  // the last one was no inversion
    order_.reserve(count);
    for (;;) {
      while (free > 0 && !(ready[0].empty() && ready[1].empty())) {
        others = ready[0].empty() || (!others && !ready[1].empty());
        const int32_t i = ready[others].top().second;
        ready[others].pop();
        order_.push_back(i);
        running.push({now + static_cast<float>(Duration(tasks_[i])), i});
        --free;
      }
      if (running.empty()) break;
      now = running.top().first;
      const FactorTask& ended = tasks_[running.top().second];
      running.pop();
      ++free;
      for (const int16_t signal : ended.signals) {
        if (signal < 0) continue;
        ++reached[signal];
        int32_t& next = first_waiting[signal];
        for (; next < end[signal] && waiting[next].first == reached[signal]; ++next) {
          const int32_t i = waiting[next].second;
          if (--missing[i] == 0) is_ready(i);
        }
      }
    }
  }

  const std::vector<EliminateArgs>& levels_;
  const bool superdiagonal_;
  const int64_t lanes_;
  const bool busy_;
  const int64_t n_, tiles_;
  bool narrow_ = false;  // this level's tiles
  std::vector<Slot> slots_;
  std::vector<Separator> below_;  // the level's chain, but for the first level
  Object before_final_;           // of C's first row, all but its last columns
  std::vector<Object> kept_tiles_ = std::vector<Object>(tiles_ * tiles_);
  std::vector<FactorTask> tasks_;
  std::vector<int32_t> order_;
  int64_t num_counters_ = 0;
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_TASK_LIST_FACTOR_TASKS_H_
