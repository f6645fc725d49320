// Device code: rows of R = B - A X. A thread block reads 32 rows of A once for up to 32 columns:
// tiles of 32 x 32 come along the memory and stand in shared memory, as the lower triangle of a
// diagonal block serves both sides of it. A warp has an eighth of a tile's columns, a lane a row.
#ifndef BLOCKD_ENGINE_GPU_VECTORS_RESIDUAL_ROWS_H_
#define BLOCKD_ENGINE_GPU_VECTORS_RESIDUAL_ROWS_H_

#include <cmath>
#include <cstdint>

#include "engine/gpu/arch/arch.h"
#include "engine/gpu/tile/chain.h"

namespace blockd::gpu {

// The larger one; a NaN anywhere shows.
BLOCKD_HOST_DEVICE inline double LargerOrNaN(double a, double b) { return a != a || a > b ? a : b; }

template <typename T>
struct ResidualVectors {
  const T* x;
  const T* b;
  T* r;
  int64_t num_rhs;  // columns that the vectors have
  int64_t first;    // of these, the first of this thread block's
  int columns;      // and how many it has
};

// Sums are in double, in the same order for any number of columns.
template <typename T, int kColumns>
class ResidualRows {
 public:
  static constexpr int kRows = 32, kTeams = 8, kThreads = kTeams * kTeam;
  // In shared memory.
  struct Memory {
    T a[kRows * (kRows + 1)];
    T x[kColumns * (kRows + 1)];
    double sums[kTeams * kTeams * (kRows + 1)];
  };

  __device__ ResidualRows(const MatrixArgs& args, const ResidualVectors<T>& vectors, Memory& memory)
      : reader_{args.matrix, args.n, -1},
        num_blocks_(args.num_blocks),
        n_(static_cast<int>(args.n)),
        vectors_(vectors),
        memory_(memory) {}

  // Rows row0 to row0 + 31 of block row i.
  __device__ void Form(int64_t i, int row0) {
    double y[kColumns] = {}, absolute = 0;
    for (int k0 = 0; k0 < n_; k0 += kRows) {
      LoadDiagonal(reader_.Diagonal(i), row0, k0);
      Add(i, k0, y, absolute);
    }
    if (i > 0) AddCoupling(reader_.Coupling(i - 1, false), i - 1, row0, y, absolute);
    if (i + 1 < num_blocks_) AddCoupling(reader_.Coupling(i, true), i + 1, row0, y, absolute);
    Finish(i, row0, y, absolute);
  }

  // Stores the norms over all rows so far: partial[c * stride + e] of column c, e: ||r||, ||A||,
  // ||x||, ||b||.
  __device__ void StoreNorms(double* partial, int64_t stride) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const double mine[4] = {norms_[g][0], matrix_, norms_[g][1], norms_[g][2]};
      const int column = g * kTeams + Team();
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        memory_.sums[Place(0, Team())] = mine[e];
        __syncthreads();
        if (TeamLane() == 0 && column < vectors_.columns) {
          double most = 0;
          for (int lane = 0; lane < kRows; ++lane) {
            most = LargerOrNaN(memory_.sums[Place(0, Team()) + lane], most);
          }
          partial[column * stride + e] = most;
        }
        __syncthreads();
      }
    }
  }

 private:
  static constexpr int kLead = kRows + 1, kDeep = kRows / kTeams;
  // Columns that a thread finishes: its warp's, and every eighth after that.
  static constexpr int kGroups = (kColumns + kTeams - 1) / kTeams;

  __device__ static int Place(int column, int warp) {
    return (column * kTeams + warp) * kLead + TeamLane();
  }
  // The place of column c of a block.
  __device__ int64_t At(int64_t block, int64_t c) const {
    return (block * vectors_.num_rhs + vectors_.first + c) * n_;
  }

  // memory_.a[k * kLead + row] = entry(row, k) of the tile. along: its rows lie along the memory.
  template <typename Entry>
  __device__ void LoadTile(bool along, int row0, int k0, const Entry& entry) const {
#pragma unroll
    for (int u = 0; u < kDeep; ++u) {
      const int slow = Team() + u * kTeams, fast = TeamLane();
      const int row = along ? fast : slow, k = along ? slow : fast;
      const bool inside = row0 + row < n_ && k0 + k < n_;
      memory_.a[k * kLead + row] = inside ? entry(row0 + row, k0 + k) : T{0};
    }
  }
  __device__ void LoadDiagonal(const DiagonalSource<T>& source, int row0, int k0) const {
    LoadTile(k0 <= row0, row0, k0, [&](int64_t row, int64_t k) { return source.At(row, k); });
  }
  __device__ void AddCoupling(const CouplingSource<T>& source, int64_t block, int row0,
                              double (&y)[kColumns], double& absolute) const {
    for (int k0 = 0; k0 < n_; k0 += kRows) {
      LoadTile(source.row_stride == 1, row0, k0,
               [&](int64_t row, int64_t k) { return *source.At(row, k); });
      Add(block, k0, y, absolute);
    }
  }

  // y += the tile times its rows of a block of x.
  __device__ void Add(int64_t block, int k0, double (&y)[kColumns], double& absolute) const {
    for (int c = Team(); c < kColumns; c += kTeams) {
      const bool inside = c < vectors_.columns && k0 + TeamLane() < n_;
      memory_.x[c * kLead + TeamLane()] =
          inside ? vectors_.x[At(block, c) + k0 + TeamLane()] : T{0};
    }
    __syncthreads();
    [[maybe_unused]] constexpr int kTogether = kColumns > 8 ? 1 : kDeep;  // as registers allow
#pragma unroll kTogether
    for (int u = 0; u < kDeep; ++u) {
      const int k = Team() * kDeep + u;
      const double a = static_cast<double>(memory_.a[k * kLead + TeamLane()]);
      absolute += fabs(a);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        y[c] = fma(a, static_cast<double>(memory_.x[c * kLead + k]), y[c]);
      }
    }
    __syncthreads();
  }

  // The sum of what the warps have of a column of this warp's, in order.
  __device__ double Sum(int column) const {
    double sum = 0;
#pragma unroll
    for (int w = 0; w < kTeams; ++w) sum += memory_.sums[Place(column, w)];
    return sum;
  }
  __device__ void Finish(int64_t i, int row0, const double (&y)[kColumns], double absolute) {
    const int row = row0 + TeamLane();
    memory_.sums[Place(0, Team())] = absolute;
    __syncthreads();
    if (row < n_) matrix_ = LargerOrNaN(Sum(0), matrix_);
    __syncthreads();
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int c = 0; c < kTeams && g * kTeams + c < kColumns; ++c) {
        memory_.sums[Place(c, Team())] = y[g * kTeams + c];
      }
      __syncthreads();
      const int column = g * kTeams + Team();
      if (column < vectors_.columns && row < n_) {
        const int64_t at = At(i, column) + row;
        const double b = static_cast<double>(vectors_.b[at]), residual = b - Sum(Team());
        const double x = static_cast<double>(vectors_.x[at]);
        vectors_.r[at] = static_cast<T>(residual);
        norms_[g][0] = LargerOrNaN(fabs(residual), norms_[g][0]);
        norms_[g][1] = LargerOrNaN(fabs(x), norms_[g][1]);
        norms_[g][2] = LargerOrNaN(fabs(b), norms_[g][2]);
      }
      __syncthreads();
    }
  }

  const ChainReader<T> reader_;
  const int64_t num_blocks_;
  const int n_;
  const ResidualVectors<T>& vectors_;
  Memory& memory_;
  double matrix_ = 0, norms_[kGroups][3] = {};
};

}  // namespace blockd::gpu

#endif  // BLOCKD_ENGINE_GPU_VECTORS_RESIDUAL_ROWS_H_
