// Reflections and products of coordinates. Coordinate c of some is a vector of packs, at
// `first + c * stride`: a column of X, a row of the covariance's factor, or four right-hand sides'
// number.
#ifndef BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_REFLECTION_H_
#define BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_REFLECTION_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "engine/smoother/orthogonal/numbers.h"
#include "engine/smoother/orthogonal/storage.h"

namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE {

// Theta of some coordinates: the pivot and the first change places, then I - tau w w', then the
// first changes its sign if it `flips`. It turns the row that it was made of into (scale, 0, ...,
// 0).
template <typename N>
struct Reflection {
  int64_t first = 0, count = 0;
  int64_t pivot = 0;    // from `first` on
  int64_t weights = 0;  // where w is
  typename N::Scalar tau{}, scale{};
  bool flips = false;

  void MakePositive() {
    flips = High(scale) < 0;
    if (flips) scale = -scale;
  }
};

template <typename P>
BLOCKD_INLINE void SwapPacks(P* a, P* b, int64_t packs) {
  for (int64_t i = 0; i < packs; ++i) {
    const P kept = a[i];
    a[i] = b[i];
    b[i] = kept;
  }
}

template <typename P>
BLOCKD_INLINE void NegatePacks(P* a, int64_t packs) {
  for (int64_t i = 0; i < packs; ++i) a[i] = -a[i];
}

template <typename N, int kPacks>
void ReflectPacks(typename N::Pack* v, int64_t stride, int64_t count,
                  const typename N::Scalar* weights, const typename N::Pack& minus_tau) {
  using P = typename N::Pack;
  constexpr int kChains = kPacks == 1 ? 4 : 2;  // sums that do not wait for one another
  P sums[kChains][kPacks] = {};
  int64_t c = 0;
  for (; c + kChains <= count; c += kChains) {
    for (int k = 0; k < kChains; ++k) {
      const P weight = Spread(weights[c + k]);
      for (int i = 0; i < kPacks; ++i) {
        sums[k][i] = Accumulate(sums[k][i], weight, v[(c + k) * stride + i]);
      }
    }
  }
  for (int k = 0; c < count; ++c, ++k) {
    const P weight = Spread(weights[c]);
    for (int i = 0; i < kPacks; ++i) sums[k][i] = Accumulate(sums[k][i], weight, v[c * stride + i]);
  }
  P factor[kPacks];
  for (int i = 0; i < kPacks; ++i) {
    factor[i] = sums[0][i];
    for (int k = 1; k < kChains; ++k) factor[i] = factor[i] + sums[k][i];
    factor[i] = factor[i] * minus_tau;
  }
  for (c = 0; c < count; ++c) {
    const P weight = Spread(weights[c]);
    for (int i = 0; i < kPacks; ++i) {
      v[c * stride + i] = Accumulate(v[c * stride + i], weight, factor[i]);
    }
  }
}

// v_c -= tau w_c sum w v.
template <typename N>
void Reflect(typename N::Pack* v, int64_t stride, int64_t packs, int64_t count,
             const typename N::Scalar* weights, const typename N::Scalar& tau) {
  const typename N::Pack minus_tau = Spread(-tau);
  int64_t i = 0;
  for (; i + 3 < packs; i += 4) ReflectPacks<N, 4>(v + i, stride, count, weights, minus_tau);
  switch (packs - i) {
    case 3:
      return ReflectPacks<N, 3>(v + i, stride, count, weights, minus_tau);
    case 2:
      return ReflectPacks<N, 2>(v + i, stride, count, weights, minus_tau);
    case 1:
      return ReflectPacks<N, 1>(v + i, stride, count, weights, minus_tau);
    default:
      return;
  }
}

// Makes the reflection of a row of `count` coordinates; the row becomes w. False if it is zero.
template <typename N>
bool MakeReflection(typename N::Scalar* row, int64_t count, Reflection<N>* reflection) {
  using S = typename N::Scalar;
  S squares{};
  double most = -1;
  for (int64_t c = 0; c < count; ++c) {
    const double size = std::fabs(High(row[c]));
    if (size > most) {
      most = size;
      reflection->pivot = c;
    }
    squares = Accumulate(squares, row[c], row[c]);
  }
  reflection->count = count;
  if (!(most > 0)) return false;
  constexpr double kSmall = 0x1p-450, kLarge = 0x1p450;  // whose squares, of many, a double holds
  if (most < kSmall || most > kLarge) {
    const double unit = std::ldexp(1.0, std::ilogb(most));
    for (int64_t c = 0; c < count; ++c) row[c] = row[c] * N::Of(1 / unit);
    const bool made = MakeReflection(row, count, reflection);
    reflection->scale = reflection->scale * N::Of(unit);
    return made;
  }
  const S pivot = row[reflection->pivot];
  row[reflection->pivot] = row[0];
  S scale = Root(squares);
  if (High(pivot) > 0) scale = -scale;
  row[0] = pivot - scale;
  reflection->scale = scale;
  reflection->tau = N::Of(1.0) / (-(scale * row[0]));
  return true;
}

// Columns of A to those of A Theta, or y to Theta' y.
template <typename N>
BLOCKD_INLINE void Turn(const Reflection<N>& theta, const typename N::Scalar* weights,
                        typename N::Pack* v, int64_t stride, int64_t packs) {
  typename N::Pack* const first = v + theta.first * stride;
  if (theta.pivot != 0) SwapPacks(first, first + theta.pivot * stride, packs);
  Reflect<N>(first, stride, packs, theta.count, weights + theta.weights, theta.tau);
  if (theta.flips) NegatePacks(first, packs);
}
// y to Theta y.
template <typename N>
BLOCKD_INLINE void TurnBack(const Reflection<N>& theta, const typename N::Scalar* weights,
                            typename N::Pack* v, int64_t stride, int64_t packs) {
  typename N::Pack* const first = v + theta.first * stride;
  if (theta.flips) NegatePacks(first, packs);
  Reflect<N>(first, stride, packs, theta.count, weights + theta.weights, theta.tau);
  if (theta.pivot != 0) SwapPacks(first, first + theta.pivot * stride, packs);
}

template <typename P>
BLOCKD_INLINE P DotPacks(const P* a, const P* b, int64_t packs) {
  P sum{};
  for (int64_t i = 0; i < packs; ++i) sum = Accumulate(sum, a[i], b[i]);
  return sum;
}
template <typename P>
BLOCKD_INLINE auto Dot(const P* a, const P* b, int64_t packs) {
  return SumOf(DotPacks(a, b, packs));
}

template <typename N, int kPacks, int kColumns, typename A, typename Factor>
void MultiplyTile(int64_t inner, const A* a, int64_t stride, const Factor& factor, int64_t column,
                  typename N::Pack* to, int64_t to_stride) {
  using P = typename N::Pack;
  P sums[kColumns][kPacks] = {};
  for (int64_t c = 0; c < inner; ++c) {
    for (int j = 0; j < kColumns; ++j) {
      const P weight = Spread(factor(c, column + j));
      for (int i = 0; i < kPacks; ++i) {
        sums[j][i] = Accumulate(sums[j][i], weight, N::Of(a[c * stride + i]));
      }
    }
  }
  for (int j = 0; j < kColumns; ++j) {
    for (int i = 0; i < kPacks; ++i) to[(column + j) * to_stride + i] += sums[j][i];
  }
}

template <typename N, int kPacks, typename A, typename Factor>
void MultiplyRows(int64_t inner, int64_t columns, const A* a, int64_t stride, const Factor& factor,
                  typename N::Pack* to, int64_t to_stride) {
  constexpr int kColumns = 4;
  int64_t j = 0;
  for (; j + kColumns <= columns; j += kColumns) {
    MultiplyTile<N, kPacks, kColumns>(inner, a, stride, factor, j, to, to_stride);
  }
  for (; j < columns; ++j) {
    MultiplyTile<N, kPacks, 1>(inner, a, stride, factor, j, to, to_stride);
  }
}

// to_j += sum a_c factor(c, j) for all c < inner, j < columns; `a` in the precision or in double.
template <typename N, typename A, typename Factor>
void AddProducts(int64_t packs, int64_t inner, int64_t columns, const A* a, int64_t stride,
                 const Factor& factor, typename N::Pack* to, int64_t to_stride) {
  int64_t i = 0;
  for (; i + 1 < packs; i += 2) {
    MultiplyRows<N, 2>(inner, columns, a + i, stride, factor, to + i, to_stride);
  }
  if (i < packs) MultiplyRows<N, 1>(inner, columns, a + i, stride, factor, to + i, to_stride);
}

// A A' of columns of packed rows, rows x rows numbers; the scratch has room for so many columns.
template <typename N>
void WriteSquare(int64_t rows, int64_t columns, const typename N::Pack* a,
                 typename N::Pack* scratch, double* to) {
  const int64_t packs = PacksOf(rows);
  const auto factor = [&](int64_t c, int64_t j) { return N::Get(a + c * packs, j); };
  for (int64_t i = 0; i < rows * packs; ++i) scratch[i] = typename N::Pack{};
  AddProducts<N>(packs, columns, rows, a, packs, factor, scratch, packs);
  for (int64_t j = 0; j < rows; ++j) {
    for (int64_t i = 0; i <= j; ++i) {
      to[j * rows + i] = to[i * rows + j] = High(N::Get(scratch + j * packs, i));
    }
  }
}

// Columns of packed rows from a matrix, high + low, of so many rows; low may be nullptr.
template <typename N>
void SetColumns(int64_t rows, int64_t columns, const double* high, const double* low,
                typename N::Pack* to, int64_t stride) {
  for (int64_t j = 0; j < columns; ++j) {
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t at = j * rows + i;
      N::Set(to + j * stride, i, N::Of(high[at], low == nullptr ? 0 : low[at]));
    }
  }
}

// Products of columns of packed rows with right-hand sides, whose numbers are a pack each:
// to_i += sum_c A(i,c) v_c, and to_c += sign sum_i A(i,c) v_i.
template <typename N>
void AddToRows(int64_t rows, int64_t columns, const typename N::Pack* a, int64_t stride,
               const typename N::Pack* v, typename N::Pack* to) {
  constexpr int64_t kRows = 4;
  for (int64_t first = 0; first < rows; first += kRows) {
    const int64_t count = rows - first < kRows ? rows - first : kRows;
    typename N::Sum sums[kRows];
    for (int64_t i = 0; i < count; ++i) sums[i] = typename N::Sum(to[first + i]);
    for (int64_t c = 0; c < columns; ++c) {
      const typename N::Pack* const column = a + c * stride + first / kLanes;
      for (int64_t i = 0; i < kRows; ++i) sums[i].Add(N::Get(column, i), v[c]);
    }
    for (int64_t i = 0; i < count; ++i) to[first + i] = sums[i].value();
  }
}
template <typename N>
void AddToColumns(double sign, int64_t rows, int64_t columns, const typename N::Pack* a,
                  int64_t stride, const typename N::Pack* v, typename N::Pack* to) {
  constexpr int64_t kColumns = 4;
  const auto add = [&](int64_t first, auto count) {
    typename N::Sum sums[count.value];
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t c = 0; c < count.value; ++c) {
        sums[c].Add(N::Get(a + (first + c) * stride, i), v[i]);
      }
    }
    for (int64_t c = 0; c < count.value; ++c) {
      to[first + c] = Accumulate(to[first + c], Spread(N::Of(sign)), sums[c].value());
    }
  };
  int64_t first = 0;
  for (; first + kColumns <= columns; first += kColumns) {
    add(first, std::integral_constant<int64_t, kColumns>());
  }
  for (; first < columns; ++first) add(first, std::integral_constant<int64_t, 1>());
}
template <typename N>
typename N::Pack DotScalars(int64_t count, const typename N::Scalar* a, const typename N::Pack* v) {
  typename N::Sum even, odd;
  int64_t c = 0;
  for (; c + 1 < count; c += 2) {
    even.Add(a[c], v[c]);
    odd.Add(a[c + 1], v[c + 1]);
  }
  if (c < count) even.Add(a[c], v[c]);
  return even.value() + odd.value();
}

// One row of a factor W of a covariance W W', by rows of packs of columns: its numbers before
// `done` stay: those behind that become zero. False if all are.
template <typename N, typename RowAt>
bool CompressRow(int64_t i, int64_t rows, int64_t done, int64_t columns, const RowAt& row_at,
                 typename N::Scalar* numbers, typename N::Pack* weights) {
  using P = typename N::Pack;
  using S = typename N::Scalar;
  P* const row = row_at(i);
  for (int64_t c = done; c < columns; ++c) numbers[c - done] = N::Get(row, c);
  Reflection<N> theta;
  if (!MakeReflection(numbers, columns - done, &theta)) return false;
  // w where the columns are, in whole packs.
  const int64_t first = done / kLanes, packs = PacksOf(columns) - first;
  std::fill_n(weights, packs, P{});
  for (int64_t c = done; c < columns; ++c) {
    N::Set(weights, c - first * kLanes, numbers[c - done]);
  }
  for (int64_t r = i + 1; r < rows; ++r) {
    P* const other = row_at(r);
    if (theta.pivot != 0) {
      const S kept = N::Get(other, done);
      N::Set(other, done, N::Get(other, done + theta.pivot));
      N::Set(other, done + theta.pivot, kept);
    }
    const P factor = Spread(-(theta.tau * Dot(other + first, weights, packs)));
    for (int64_t k = 0; k < packs; ++k) {
      other[first + k] = Accumulate(other[first + k], factor, weights[k]);
    }
  }
  // Signs of columns are of no consequence; none changes for ever where W converges.
  const bool negative = High(theta.scale) < 0;
  N::Set(row, done, negative ? -theta.scale : theta.scale);
  for (int64_t c = done + 1; c < columns; ++c) N::Set(row, c, S{});
  for (int64_t r = i + 1; negative && r < rows; ++r) {
    N::Set(row_at(r), done, -N::Get(row_at(r), done));
  }
  return true;
}

// W Theta = [W, 0] with no more columns than rows; how many there are. The scratch has room for so
// many numbers, and packs of them, as there are columns.
template <typename N, typename RowAt>
int64_t Compress(int64_t rows, int64_t columns, const RowAt& row_at, typename N::Scalar* numbers,
                 typename N::Pack* weights) {
  if (columns <= rows) return columns;
  int64_t done = 0;
  for (int64_t i = 0; i < rows && done < columns; ++i) {
    if (CompressRow<N>(i, rows, done, columns, row_at, numbers, weights)) ++done;
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t c = done; c < columns; ++c) N::Set(row_at(i), c, typename N::Scalar{});
  }
  return done;
}

}  // namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE

#endif  // BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_REFLECTION_H_
