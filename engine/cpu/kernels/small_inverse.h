// A segment's selected inverse for blocks of at most kPanel rows, in registers: as invert.h, with
// whole blocks for tiles.
#ifndef BLOCKD_ENGINE_CPU_KERNELS_SMALL_INVERSE_H_
#define BLOCKD_ENGINE_CPU_KERNELS_SMALL_INVERSE_H_

#include <cstdint>

#include "engine/cpu/kernels/inverse_task.h"
#include "engine/cpu/kernels/small_blocks.h"
#include "engine/cpu/kernels/vectors.h"

namespace blockd::cpu::BLOCKD_KERNEL_NAMESPACE {

template <typename T, int kN>
class SmallInverter {
  using Column = SmallColumn<T, kN>;
  static constexpr int kWidth = Column::kWidth;
  static constexpr int64_t kSquare = kN * kN;
  using Vec = typename Column::Vec;

 public:
  explicit SmallInverter(const InverseTask<T>& task) : task_(task), segment_(*task.segment) {}

  void Run() {
    const bool fill = segment_.has_fill();
    if (task_.last == segment_.count) return;
    if (task_.Target() != nullptr) zrr_ = Loaded(task_.Target());
    if (fill) {
      zll_ = Loaded(task_.left);
      zrl_ = Loaded(task_.between);
      zlr_ = Transposed(zrl_);
    }
    for (int64_t k = segment_.count - 1; k >= task_.last; --k) {
      if (task_.IsStopped()) return;
      if (k % 256 == 0) task_.MakeWay();
      fill ? Step<true>(k) : Step<false>(k);
    }
  }

 private:
  struct Block {
    Vec column[kWidth] = {};
  };

  static Block Loaded(const T* in) {
    Block block;
    BLOCKD_UNROLL(8)
    for (int k = 0; k < kN; ++k) block.column[k] = Column::LoadRows(in + k * kN);
    return block;
  }
  static void Store(const Block& block, T* out) {
    BLOCKD_UNROLL(8)
    for (int k = 0; k < kN; ++k) Column::StoreRows(out + k * kN, block.column[k]);
  }
  static Block Transposed(Block block) {
    Transpose<T, kWidth>(block.column);
    return block;
  }
  // sum += kSign A B'.
  template <int kSign>
  static inline __attribute__((always_inline)) void Add(const Block& a, const Block& b,
                                                        Block& sum) {
    BLOCKD_UNROLL(8)
    for (int k = 0; k < kN; ++k) {
      const Vec rows = kSign > 0 ? a.column[k] : -a.column[k];
      BLOCKD_UNROLL(8)
      for (int j = 0; j < kN; ++j) {
        sum.column[j] = MultiplyAdd<T, kWidth>(rows, b.column[k][j], sum.column[j]);
      }
    }
  }

  template <bool kFill>
  void Step(int64_t k) {
    const bool has_next = task_.HasNext(k);
    const Block v = Transposed(Loaded(task_.inverse + k * kSquare));
    Block g, h, zjr, zjl, zjj;
    if (has_next) Add<1>(v, Loaded(task_.next + k * kSquare), g);
    if (has_next) Add<-1>(g, zrr_, zjr);
    if constexpr (kFill) {
      Add<1>(v, Loaded(task_.fill + k * kSquare), h);
      Add<-1>(h, zrl_, zjr);
      Add<-1>(g, zlr_, zjl);
      Add<-1>(h, zll_, zjl);
    }
    Add<1>(v, v, zjj);
    if (has_next) Add<-1>(g, zjr, zjj);
    if constexpr (kFill) Add<-1>(h, zjl, zjj);
    zrr_ = Symmetric(zjj);
    StoreStep<kFill>(k, has_next, zjr, zjl);
    if constexpr (kFill) {
      zrl_ = zjl;
      zlr_ = Transposed(zjl);
    }
  }

  // The lower triangle counts.
  static Block Symmetric(const Block& block) {
    const Block across = Transposed(block);
    Block both = block;
    BLOCKD_UNROLL(8)
    for (int j = 1; j < kN; ++j) {
      BLOCKD_UNROLL(8)
      for (int i = 0; i < j; ++i) both.column[j][i] = across.column[j][i];
    }
    return both;
  }

  template <bool kFill>
  void StoreStep(int64_t k, bool has_next, const Block& zjr, const Block& zjl) {
    const int64_t block = segment_.block(k);
    if (T* const out = task_.out.Diagonal(block)) Store(zrr_, out);
    if (T* const out = task_.out.Entries(block)) {
      for (int i = 0; i < kN; ++i) out[i] = zrr_.column[i][i];
    }
    bool transposed = false;
    if (T* const out = has_next ? task_.NextCoupling(k, &transposed) : nullptr) {
      Store(transposed ? Transposed(zjr) : zjr, out);
    }
    if (!kFill || k > 0) return;
    if (T* const out = task_.LeftCoupling()) Store(zjl, out);
  }

  const InverseTask<T>& task_;
  const Segment& segment_;
  Block zrr_, zrl_, zlr_, zll_;
};

}  // namespace blockd::cpu::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_CPU_KERNELS_SMALL_INVERSE_H_
