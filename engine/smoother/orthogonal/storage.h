// Memory of one computation: arrays of plain numbers that grow, and a model's arrays padded to
// packs.
#ifndef BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_STORAGE_H_
#define BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_STORAGE_H_

#include <cstdint>
#include <cstring>
#include <new>

#include "engine/smoother/orthogonal/numbers.h"
#include "engine/smoother/orthogonal/system.h"

namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE {

// Numbers that are zero at first. They move when they grow.
template <typename T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t size) { Append(size); }
  ~Buffer() { Free(); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }
  int64_t size() const { return size_; }
  void Clear() {
    if (size_ > 0) std::memset(static_cast<void*>(data_), 0, Bytes(size_));
  }

  // As many, zero.
  void Resize(int64_t size) {
    size_ = 0;
    Append(size);
  }
  // The place of so many more.
  int64_t Append(int64_t count) {
    const int64_t first = size_;
    if (size_ + count > capacity_) Grow(size_ + count);
    size_ += count;
    if (count > 0) std::memset(static_cast<void*>(data_ + first), 0, Bytes(count));
    return first;
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  static size_t Bytes(int64_t count) { return static_cast<size_t>(count) * sizeof(T); }
  void Grow(int64_t least) {
    const int64_t capacity = least > 2 * capacity_ ? least : 2 * capacity_;
    T* const more = static_cast<T*>(operator new(Bytes(capacity), kAlignment));
    if (size_ > 0) std::memcpy(static_cast<void*>(more), data_, Bytes(size_));
    Free();
    data_ = more;
    capacity_ = capacity;
  }
  void Free() {
    if (data_ != nullptr) operator delete(data_, kAlignment);
  }

  T* data_ = nullptr;
  int64_t size_ = 0, capacity_ = 0;
};

// The numbers of a matrix that are not zero, line after line: of a model's F, B and H most are.
class SparseLines {
 public:
  struct Entry {
    int32_t place;
    double value;
  };
  // `at(line, place)`.
  template <typename At>
  void Load(int64_t lines, int64_t length, const At& at) {
    entries_.Resize(0);
    ends_.Resize(lines + 1);
    for (int64_t i = 0; i < lines; ++i) {
      for (int64_t j = 0; j < length; ++j) {
        const double value = at(i, j);
        if (value != 0) entries_[entries_.Append(1)] = {static_cast<int32_t>(j), value};
      }
      ends_[i + 1] = entries_.size();
    }
  }
  const Entry* begin(int64_t line) const { return entries_.data() + ends_[line]; }
  const Entry* end(int64_t line) const { return entries_.data() + ends_[line + 1]; }

 private:
  Buffer<Entry> entries_;
  Buffer<int64_t> ends_;
};

// first + the sum of a line's numbers times those of `v`.
template <typename Sum, typename P>
BLOCKD_INLINE P AddLine(const P& first, const SparseLines& lines, int64_t line, const P* v) {
  Sum sum(first);
  const SparseLines::Entry* const end = lines.end(line);
  for (const SparseLines::Entry* e = lines.begin(line); e != end; ++e)
    sum.Add(e->value, v[e->place]);
  return sum.value();
}
// to += factor times a line.
template <typename Sum, typename P>
BLOCKD_INLINE void AddLineTo(const SparseLines& lines, int64_t line, const P& factor, P* to) {
  const SparseLines::Entry* const end = lines.end(line);
  for (const SparseLines::Entry* e = lines.begin(line); e != end; ++e) {
    Sum sum(to[e->place]);
    sum.Add(e->value, factor);
    to[e->place] = sum.value();
  }
}

// A model's arrays at one step after another. For columns that are packs of rows F and B are padded
// with zeros, column by column, and H row by row; for right-hand sides they are lines of numbers.
class StepArrays {
 public:
  explicit StepArrays(const System& system)
      : system_(system),
        packs_(PacksOf(system.state_size)),
        transition_(system.state_size * packs_),
        factor_(system.transition_factor.most_columns * packs_),
        factor_low_(system.transition_factor.most_columns * packs_),
        observation_(system.observation_size * packs_) {}

  // For the step from t to t+1, if there is one, and the observations of t.
  void LoadTransition(int64_t t) {
    const bool first = !loaded_transition_;
    loaded_transition_ = true;
    if (first || system_.transition.is_per_step()) LoadF(t);
    if (first || system_.transition_factor.matrices.is_per_step()) LoadB(t);
  }
  void LoadObservation(int64_t t) {
    if (loaded_observation_ && !system_.observation.is_per_step()) return;
    loaded_observation_ = true;
    const int64_t n = system_.state_size, ny = system_.observation_size;
    const double* const h = system_.observation.at(t);
    auto* const rows = reinterpret_cast<double*>(observation_.data());
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < ny; ++i) rows[i * packs_ * kLanes + j] = h[j * ny + i];
    }
    h_rows_.Load(ny, n, [&](int64_t i, int64_t j) { return h[j * ny + i]; });
  }

  int64_t noises() const { return columns_; }  // of the transition
  const Four* f(int64_t column) const { return transition_.data() + column * packs_; }
  const Four* b(int64_t column) const { return factor_.data() + column * packs_; }
  const Four* b_low(int64_t column) const { return factor_low_.data() + column * packs_; }
  const Four* h(int64_t row) const { return observation_.data() + row * packs_; }
  const SparseLines& f_rows() const { return f_rows_; }
  const SparseLines& f_columns() const { return f_columns_; }
  // first + a row of B times v, or a column of it.
  template <typename Sum, typename P>
  BLOCKD_INLINE P AddFactorRow(const P& first, int64_t row, const P* v) const {
    return AddLine<Sum>(AddLine<Sum>(first, b_lines_.rows, row, v), b_low_lines_.rows, row, v);
  }
  template <typename Sum, typename P>
  BLOCKD_INLINE P AddFactorColumn(const P& first, int64_t column, const P* v) const {
    return AddLine<Sum>(AddLine<Sum>(first, b_lines_.columns, column, v), b_low_lines_.columns,
                        column, v);
  }
  const SparseLines& h_rows() const { return h_rows_; }
  static const double* Doubles(const Four* packs) { return reinterpret_cast<const double*>(packs); }

 private:
  struct FactorLines {
    SparseLines rows, columns;
  };

  void LoadF(int64_t t) {
    const int64_t n = system_.state_size;
    const double* const f = system_.transition.at(t);
    Pad(f, n, &transition_);
    f_rows_.Load(n, n, [&](int64_t i, int64_t j) { return f[j * n + i]; });
    f_columns_.Load(n, n, [&](int64_t j, int64_t i) { return f[j * n + i]; });
  }
  void LoadB(int64_t t) {
    const int64_t n = system_.state_size;
    columns_ = system_.transition_factor.columns_at(t);
    const auto load = [&](const double* b, Buffer<Four>* padded, FactorLines* lines) {
      Pad(b, columns_, padded);
      lines->rows.Load(n, columns_, [&](int64_t i, int64_t j) { return b[j * n + i]; });
      lines->columns.Load(columns_, n, [&](int64_t j, int64_t i) { return b[j * n + i]; });
    };
    load(system_.transition_factor.matrices.at(t), &factor_, &b_lines_);
    load(system_.transition_factor.low.at(t), &factor_low_, &b_low_lines_);
  }
  void Pad(const double* from, int64_t columns, Buffer<Four>* to) {
    const int64_t n = system_.state_size;
    auto* const numbers = reinterpret_cast<double*>(to->data());
    for (int64_t j = 0; j < columns; ++j) {
      std::memcpy(numbers + j * packs_ * kLanes, from + j * n,
                  static_cast<size_t>(n) * sizeof(double));
    }
  }

  const System& system_;
  const int64_t packs_;
  int64_t columns_ = 0;
  bool loaded_transition_ = false, loaded_observation_ = false;
  Buffer<Four> transition_, factor_, factor_low_, observation_;
  SparseLines f_rows_, f_columns_, h_rows_;
  FactorLines b_lines_, b_low_lines_;
};

}  // namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_STORAGE_H_
