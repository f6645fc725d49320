// Device code: a segment of blocks of up to 4 rows, by one warp. A lane has a row of something: of
// C, of W twice, or a column of inv(L). Every lane factors D and divides its own row, and what the
// lanes make of the rows goes round by shared memory, where blocks come to several steps ahead.
#ifndef BLOCKD_ENGINE_GPU_SEGMENT_TINY_SEGMENT_H_
#define BLOCKD_ENGINE_GPU_SEGMENT_TINY_SEGMENT_H_

#include "engine/gpu/segment/sizes.h"
#include "engine/gpu/segment/small_segment.h"

namespace blockd::gpu {

template <typename T, bool kFull>
class TinySegment : SmallSegment<T, 4, kFull> {
  static constexpr int kTile = 4;
  using Base = SmallSegment<T, kTile, kFull>;
  using Base::assignment_, Base::range_, Base::outcome_;
  using Base::HasNext, Base::n;
  static constexpr int kSquare = kTile * kTile, kDepth = segment::kTinyDepth;
  // Scalars of a step: E by rows, D by columns, and what is added to D.
  static constexpr int kStepScalars = 3 * kSquare;
  static constexpr int kDoubles = static_cast<int>(sizeof(double) / sizeof(T));
  // The matrix of which a lane has a row (kInverse: a column); kLeft: W once more.
  enum Role { kC, kW, kInverse, kLeft };

 public:
  static constexpr int kSharedScalars = 4 * kSquare * kDoubles + kDepth * kStepScalars;

  __device__ TinySegment(const EliminateSegmentsArgs& args, const Assignment& assignment, T* shared,
                         Outcome* outcome, int thread)
      : Base(args, assignment, outcome, thread),
        role_(static_cast<Role>(Lane() / kTile % 4)),
        row_(Lane() % kTile),
        d_(reinterpret_cast<double*>(shared)),
        s_(d_ + kSquare),
        rows_(s_ + kSquare),
        steps_(shared + 4 * kSquare * kDoubles) {
    // This lane copies one entry of each step's E or D.
    const int i = Lane() % kSquare, r = i % kTile, c = i / kTile;
    copies_d_ = Lane() >= kSquare;
    has_second_ = copies_d_ && assignment_.second != 0;
    if (copies_d_) {
      from_ = assignment_.packed ? c * n() - c * (c + 1) / 2 + r : c * n() + r;
      to_ = kSquare + c * kTile + r;
    } else {
      from_ = assignment_.across ? r * n() + c : c * n() + r;
      to_ = r * kTile + c;
    }
    walk_ = copies_d_ ? assignment_.diagonal : assignment_.coupling;
    if (walk_.at != nullptr) {
      walk_.at += from_ * static_cast<int>(sizeof(T)) + (copies_d_ ? walk_.step : 0);
    }
    // An interior without a next one has nothing to copy, a reversed segment's last one no next D.
    const int count = static_cast<int>(range_.count);
    copied_ = range_.target() < 0 || (copies_d_ && range_.reversed) ? count - 1 : count;
    if (Lane() >= 2 * kSquare || r >= n() || c >= n() || (copies_d_ && c > r)) copied_ = 0;
  }

  __device__ void Run() {
    if (range_.count > 0) Eliminate();
    this->Release();
  }

 private:
  using Row = double[kTile];

  __device__ void Eliminate() {
    const int count = static_cast<int>(range_.count);
    const bool fill = range_.has_fill();
    // Beyond n rows, and where nothing is added, zeros stay.
    for (int i = Lane(); i < kDepth * kStepScalars; i += kWarp) steps_[i] = 0;
    SyncWarp();
    this->Await();
#pragma unroll 1
    for (int k = 0; k + 1 < kDepth; ++k) Fetch(k);
    this->FindOthers();
    Begin(fill);
    // Lanes that are left over do as others do, and store nothing.
    const bool mine = Lane() < 4 * kTile && row_ < n();
    const bool stores = mine && role_ != kLeft && (role_ != kW || fill);
    // To the factor, where inv(L) is whole: zeros are above its diagonal.
    const Walk kept = role_ == kInverse ? assignment_.inverse
                      : role_ == kW     ? assignment_.fill
                                        : assignment_.next;
    T* out = kept.template At<T>(0) + (role_ == kInverse ? row_ * n() : row_);
    const int stride = role_ == kInverse ? 1 : n();
    const int further = kept.step / static_cast<int>(sizeof(T));
    Row left = {};
    uint32_t growth = 0;
#pragma unroll 1
    for (int k = 0; k < count; ++k) {
      const bool last = k + 1 == count, has_next = HasNext(last);
      Fetch(k + kDepth - 1);
      CopyWaitBut<kDepth - 1>();
      SyncWarp();
      const T* const step = steps_ + k % kDepth * kStepScalars;
      double a[kTile][kTile];
      Row x;
      double diagonal = 0;
#pragma unroll
      for (int r = 0; r < kTile; ++r) {
#pragma unroll
        for (int c = 0; c <= r; ++c) a[r][c] = d_[r * kTile + c];
        if (r == row_) diagonal = a[r][r];
      }
#pragma unroll
      for (int j = 0; j < kTile; ++j) {
        const double e = static_cast<double>(step[row_ * kTile + j]), s = s_[row_ * kTile + j];
        x[j] = role_ == kC ? e : role_ == kInverse ? (j == row_ ? 1.0 : 0.0) : s;
      }
      const int bad = DivideByFactor<T>(a, x);
      if (bad < kTile) {
        if (threadIdx.x == 0) outcome_->value = 1 + int64_t{k} * n() + bad;
        break;
      }
      if (stores && (has_next || role_ == kInverse)) {
#pragma unroll
        for (int j = 0; j < kTile; ++j) {
          if (kFull || j < n()) out[j * stride] = static_cast<T>(x[j]);
        }
      }
      out += further;
      double squares = 0;
#pragma unroll
      for (int j = 0; j < kTile; ++j) squares = fma(x[j], x[j], squares);
      const uint32_t upper = UpperWord(squares * diagonal);
      if (mine && role_ == kInverse && upper > growth) growth = upper;
      if (!has_next) break;
      if (Lane() < 2 * kTile) {
#pragma unroll
        for (int j = 0; j < kTile; j += 2) {
          const double pair[2] = {x[j], x[j + 1]};
          StoreVector(rows_ + Lane() * kTile + j, pair);
        }
      }
      SyncWarp();
      // C C', W C' or W W'.
      const double* const others = rows_ + (role_ == kLeft ? kSquare : 0);
      Row product;
#pragma unroll
      for (int j = 0; j < kTile; ++j) {
        double sum = 0;
#pragma unroll
        for (int l = 0; l < kTile; l += 2) {
          double pair[2];
          LoadVector(pair, others + j * kTile + l);
          sum = fma(x[l + 1], pair[1], fma(x[l], pair[0], sum));
        }
        product[j] = sum;
        left[j] -= sum;
      }
      const T* const next = step + kSquare + row_;
      if (last) {
        Finish(fill, mine, next, product, left);
        break;
      }
      if (Lane() < kTile) {
#pragma unroll
        for (int j = 0; j < kTile; ++j) {
          const bool there = row_ < n() || j != row_;
          d_[row_ * kTile + j] = there ? Next(next, j) - product[j] : 1;
        }
      } else if (Lane() < 2 * kTile) {
#pragma unroll
        for (int j = 0; j < kTile; ++j) s_[row_ * kTile + j] = -product[j];
      }
      SyncWarp();
    }
    CopyWait();
    NoteLargest(&outcome_->growth, static_cast<float>(FromUpperWord<double>(growth)));
  }

  // The first D, and its coupling to the left separator.
  __device__ void Begin(bool fill) const {
    const DiagonalSource<T> source = this->Diagonal(0);
    for (int i = Lane(); i < kSquare; i += kWarp) {
      const int row = i % kTile, column = i / kTile;
      const bool there = row < n() && column < n();
      double d = row == column ? 1 : 0, s = 0;
      if (there) d = static_cast<double>(source.At(row, column));
      if (there && fill) s = static_cast<double>(*this->LeftCoupling().At(row, column));
      d_[row * kTile + column] = d;
      s_[row * kTile + column] = s;
    }
  }

  // Starts the copies of a step's blocks: E of the k-th interior and the next D, in two parts. Of
  // nothing, if there are none.
  __device__ void Fetch(int k) const {
    if (k < copied_) {
      const T* from = walk_.template At<const T>(k);
      if (walk_.at == nullptr) {
        from = from_ + (copies_d_ ? this->Diagonal(k + 1).first : this->NextCoupling(k).data);
      }
      T* const to = steps_ + k % kDepth * kStepScalars + to_;
      CopyAsync(to, from);
      if (has_second_) CopyAsync(to + kSquare, from + n() * n());
    }
    CopyCommit();
  }
  // This row's j-th entry of the next D.
  __device__ static double Next(const T* next, int j) {
    return static_cast<double>(next[j * kTile] + next[kSquare + j * kTile]);
  }

  // All that the last interior leaves on the separators.
  __device__ void Finish(bool fill, bool mine, const T* next, const Row& product,
                         const Row& left) const {
    if (!mine || role_ == kInverse || (role_ != kC && !fill)) return;
    const int n = this->n();
    T* const out = role_ == kC ? this->Target() : role_ == kW ? this->Left(2) : this->Left(1);
#pragma unroll
    for (int j = 0; j < kTile; ++j) {
      if (role_ == kW) {
        if (j < n) out[row_ * n + j] = static_cast<T>(-product[j]);
      } else if (j <= row_) {
        const double before = role_ == kC && !range_.reversed ? Next(next, j) : 0;
        out[j * n + row_] = static_cast<T>(role_ == kC ? before - product[j] : left[j]);
      }
    }
  }

  const Role role_;
  const int row_;
  // In double: D and S by rows, and the rows of C and W.
  double* const d_;
  double* const s_;
  double* const rows_;
  T* const steps_;
  // This lane's copies: where its entry is in a block and in a step, and the number of steps.
  Walk walk_;
  bool copies_d_, has_second_;
  int from_, to_, copied_;
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_SEGMENT_TINY_SEGMENT_H_
