#include "engine/cpu/border.h"

#include <algorithm>
#include <vector>

#include "absl/functional/function_ref.h"
#include "engine/cpu/kernels/kernels.h"

namespace blockd::cpu {
namespace {

// Columns of Y, and of V, that one task multiplies.
constexpr int64_t kTile = 32;

// Calls run(begin, end) for some blocks a task.
void ForBlocks(ThreadPool& threads, int64_t blocks,
               absl::FunctionRef<void(int64_t begin, int64_t end)> run) {
  const int64_t tasks = std::min<int64_t>(4 * threads.threads(), blocks);
  threads.Run(tasks, [&](int64_t task, int32_t) {
    run(blocks * task / tasks, blocks * (task + 1) / tasks);
  });
}

// Parts of the chain that are summed one by one and then together: as many whatever V is. Their
// sums, for kTile columns of V, take 8 MiB at most.
int64_t Parts(const BorderColumns& y) {
  constexpr int64_t kMostParts = 64, kMostSums = int64_t{1} << 20;
  const int64_t fit = std::max<int64_t>(1, kMostSums / (y.columns * kTile));
  return std::min({kMostParts, fit, y.shape.num_blocks});
}

template <typename T>
void Multiply(ThreadPool& threads, const BorderColumns& y, const T* v, int64_t columns,
              double* products) {
  const int64_t n = y.shape.block_size, blocks = y.shape.num_blocks, p = y.columns;
  const int64_t parts = Parts(y), tiles = (p + kTile - 1) / kTile;
  std::vector<double> sums(parts * p * std::min(columns, kTile));
  for (int64_t j = 0; j < columns; j += kTile) {
    const int64_t width = std::min(kTile, columns - j);
    threads.Run(parts * tiles, [&](int64_t i, int32_t) {
      const int64_t part = i / tiles, first = i % tiles * kTile;
      const int64_t begin = blocks * part / parts, end = blocks * (part + 1) / parts;
      BorderProductsTask<T> task;
      task.n = n;
      task.blocks = end - begin;
      task.y = static_cast<const T*>(y.data) + (begin * p + first) * n;
      task.v = v + (begin * columns + j) * n;
      task.y_block = p * n;
      task.v_block = columns * n;
      task.y_columns = std::min(kTile, p - first);
      task.v_columns = width;
      task.products = sums.data() + part * p * width + first;
      task.products_stride = p;
      SelectKernels<T>().multiply_border(task);
    });
    double* const to = products + j * p;
    std::copy_n(sums.data(), p * width, to);
    for (int64_t part = 1; part < parts; ++part) {
      const double* const more = sums.data() + part * p * width;
      for (int64_t i = 0; i < p * width; ++i) to[i] += more[i];
    }
  }
}

template <typename T>
void Add(ThreadPool& threads, const BorderColumns& y, const double* x, T* v, int64_t columns,
         bool add) {
  const int64_t n = y.shape.block_size;
  ForBlocks(threads, y.shape.num_blocks, [&](int64_t begin, int64_t end) {
    BorderUpdateTask<T> task;
    task.n = n;
    task.p = y.columns;
    task.columns = columns;
    task.add = add;
    task.x = x;
    for (int64_t block = begin; block < end; ++block) {
      task.y = static_cast<const T*>(y.data) + block * n * y.columns;
      task.v = v + block * n * columns;
      SelectKernels<T>().add_border(task);
    }
  });
}

template <typename T>
void AddSquares(ThreadPool& threads, const BorderColumns& h, InverseParts parts, T* diagonal,
                T* coupling) {
  const int64_t n = h.shape.block_size, square = n * n, blocks = h.shape.num_blocks;
  const auto of_block = [&](int64_t b) {
    return static_cast<const T*>(h.data) + b * n * h.columns;
  };
  ForBlocks(threads, blocks, [&](int64_t begin, int64_t end) {
    BorderUpdateTask<T> task;
    task.n = n;
    task.p = h.columns;
    task.columns = n;
    task.add = true;
    task.diagonal = parts == InverseParts::kDiagonalEntries;
    for (int64_t b = begin; b < end; ++b) {
      task.y = task.of_block = of_block(b);
      task.v = diagonal + b * (task.diagonal ? n : square);
      SelectKernels<T>().add_border(task);
      if (parts != InverseParts::kWithCouplings || b + 1 == blocks) continue;
      task.y = of_block(b + 1);
      task.v = coupling + b * square;
      SelectKernels<T>().add_border(task);
    }
  });
}

}  // namespace

void MultiplyBorder(ThreadPool& threads, const BorderColumns& y, const void* v, int64_t columns,
                    double* products) {
  y.shape.scalar == Scalar::kFloat64
      ? Multiply(threads, y, static_cast<const double*>(v), columns, products)
      : Multiply(threads, y, static_cast<const float*>(v), columns, products);
}

void AddBorder(ThreadPool& threads, const BorderColumns& y, const double* x, void* v,
               int64_t columns, bool add) {
  y.shape.scalar == Scalar::kFloat64 ? Add(threads, y, x, static_cast<double*>(v), columns, add)
                                     : Add(threads, y, x, static_cast<float*>(v), columns, add);
}

void AddBorderSquares(ThreadPool& threads, const BorderColumns& h, InverseParts parts,
                      void* diagonal, void* coupling) {
  h.shape.scalar == Scalar::kFloat64
      ? AddSquares(threads, h, parts, static_cast<double*>(diagonal),
                   static_cast<double*>(coupling))
      : AddSquares(threads, h, parts, static_cast<float*>(diagonal), static_cast<float*>(coupling));
}

}  // namespace blockd::cpu
