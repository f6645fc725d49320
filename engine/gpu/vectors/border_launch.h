// Starts the kernels for the border of an arrowhead. Each function returns the first error of its
// launches and the kernel's name. None waits, allocates or copies. All sums are made in double,
// each entry's in an order that the chain's shape and p alone determine.
#ifndef BLOCKD_ENGINE_GPU_VECTORS_BORDER_LAUNCH_H_
#define BLOCKD_ENGINE_GPU_VECTORS_BORDER_LAUNCH_H_

#include <cstdint>

#include "engine/gpu/arch/launch_result.h"

namespace blockd::gpu {

// Has the driver load the kernels; once, before all else.
LaunchResult PrepareBorder();

// Y with p columns and V with d, of `blocks` blocks of n rows, packed [block][column][n].
struct BorderArgs {
  int64_t blocks, n, p, d;
};

// Y' V in tiles of kBorderTile rows and as many columns as BorderTileColumns says, column-major,
// one after another down the columns of tiles. What is outside of Y' V is zero.
inline constexpr int64_t kBorderTile = 32;
inline int64_t BorderTileColumns(int64_t d) { return d == 1 ? 1 : d <= 8 ? 8 : kBorderTile; }
// The chain's rows are summed in parts, and these then together.
inline int64_t BorderParts(const BorderArgs& args) {
  constexpr int64_t kMostParts = 128, kRowsAPart = 128;
  const int64_t parts = (args.blocks * args.n + kRowsAPart - 1) / kRowsAPart;
  return parts < kMostParts ? parts : kMostParts;
}
// Tiles [first, first + tiles) to `products`; `partial` has as much for each part.
template <typename T>
LaunchResult MultiplyBorder(const BorderArgs& args, const T* y, const T* v, int64_t first,
                            int64_t tiles, double* partial, double* products, Stream stream);

// V = Y X, V += Y X if `add`; X is p x d, column-major.
template <typename T>
LaunchResult AddBorder(const BorderArgs& args, const T* y, const double* x, T* v, bool add,
                       Stream stream);

// Z(i,i) += H(i) H(i)' of args.blocks blocks H(i), n x p; `diagonal` has the blocks' diagonals
// alone if `entries`. Z(i+1,i) += H(i+1) H(i)' unless `coupling` is null.
template <typename T>
LaunchResult AddBorderSquares(const BorderArgs& args, const T* h, bool entries, T* diagonal,
                              T* coupling, Stream stream);

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_VECTORS_BORDER_LAUNCH_H_
