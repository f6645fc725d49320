// Factors W of covariances W W', by rows of packs of columns.
#ifndef BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_COMPRESS_H_
#define BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_COMPRESS_H_

#include <algorithm>
#include <cstdint>

#include "engine/smoother/orthogonal/numbers.h"
#include "engine/smoother/orthogonal/reflection.h"

namespace blockd::orthogonal::BLOCKD_KERNEL_NAMESPACE {

// One row, whose numbers before `done` stay: those behind that become zero. False if all are.
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

#endif  // BLOCKD_ENGINE_SMOOTHER_ORTHOGONAL_COMPRESS_H_
