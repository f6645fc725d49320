#include "engine/gpu/vectors/border_calls.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "engine/gpu/runtime/workspace.h"
#include "engine/gpu/vectors/border_launch.h"

namespace blockd::gpu {
namespace {

BorderArgs ArgsOf(const BorderColumns& y, int64_t columns) {
  return {y.shape.num_blocks, y.shape.block_size, y.columns, columns};
}

bool IsWide(const BorderColumns& y) { return y.shape.scalar == Scalar::kFloat64; }

// Copies a launch's entries of tile `tile` to its place in Y' V.
void StoreTile(const BorderArgs& args, int64_t tile, const double* entries, double* products) {
  const int64_t down = (args.p + kBorderTile - 1) / kBorderTile;
  const int64_t width = BorderTileColumns(args.d);
  const int64_t row = tile % down * kBorderTile, column = tile / down * width;
  const int64_t rows = std::min(kBorderTile, args.p - row);
  for (int64_t c = 0; c < std::min(width, args.d - column); ++c) {
    std::copy_n(entries + c * kBorderTile, rows, products + (column + c) * args.p + row);
  }
}

}  // namespace

template <typename T>
absl::Status BorderCalls::MultiplyAs(const BorderColumns& y, const void* v, int64_t columns,
                                     double* products) {
  const BorderArgs args = ArgsOf(y, columns);
  const int64_t width = BorderTileColumns(args.d), entries = kBorderTile * width;
  const int64_t tiles = (args.p + kBorderTile - 1) / kBorderTile * ((args.d + width - 1) / width);
  const int64_t parts = BorderParts(args);
  constexpr int64_t kMostTiles = 32768, kDoubles = workspace::kCallBytes / int64_t{sizeof(double)};
  const int64_t at_once = std::min(kMostTiles, kDoubles / ((parts + 1) * entries));
  auto* const sums = reinterpret_cast<double*>(device_.call_memory());
  std::vector<double> host(std::min(tiles, at_once) * entries);
  absl::Status status = device_.Begin();
  for (int64_t first = 0; status.ok() && first < tiles; first += at_once) {
    const int64_t some = std::min(at_once, tiles - first);
    status = device_.Launched(MultiplyBorder(args, static_cast<const T*>(y.data),
                                             static_cast<const T*>(v), first, some,
                                             sums + some * entries, sums, device_.stream()));
    if (!status.ok()) break;
    status =
        device_.Download(host.data(), sums, some * entries * static_cast<int64_t>(sizeof(double)));
    for (int64_t t = 0; status.ok() && t < some; ++t) {
      StoreTile(args, first + t, host.data() + t * entries, products);
    }
  }
  return status;
}

absl::Status BorderCalls::Multiply(const BorderColumns& y, const void* v, int64_t columns,
                                   double* products) {
  return IsWide(y) ? MultiplyAs<double>(y, v, columns, products)
                   : MultiplyAs<float>(y, v, columns, products);
}

absl::Status BorderCalls::Add(const BorderColumns& y, const double* x, void* v, int64_t columns,
                              bool add) {
  absl::Status status = device_.Begin();
  if (!status.ok()) return status;
  const BorderArgs args = ArgsOf(y, columns);
  return device_.Launched(IsWide(y) ? AddBorder(args, static_cast<const double*>(y.data), x,
                                                static_cast<double*>(v), add, device_.stream())
                                    : AddBorder(args, static_cast<const float*>(y.data), x,
                                                static_cast<float*>(v), add, device_.stream()));
}

template <typename T>
absl::Status BorderCalls::AddSquaresAs(const BorderColumns& h, InverseParts parts, void* diagonal,
                                       void* coupling) {
  const bool coupled = parts == InverseParts::kWithCouplings;
  return device_.Launched(AddBorderSquares(
      ArgsOf(h, 0), static_cast<const T*>(h.data), parts == InverseParts::kDiagonalEntries,
      static_cast<T*>(diagonal), coupled ? static_cast<T*>(coupling) : nullptr, device_.stream()));
}

absl::Status BorderCalls::AddSquares(const BorderColumns& h, InverseParts parts, void* diagonal,
                                     void* coupling) {
  absl::Status status = device_.Begin();
  if (!status.ok()) return status;
  return IsWide(h) ? AddSquaresAs<double>(h, parts, diagonal, coupling)
                   : AddSquaresAs<float>(h, parts, diagonal, coupling);
}

}  // namespace blockd::gpu
