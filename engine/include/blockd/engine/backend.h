// What a backend does: it factors, and solves with, a batch of systems of one plan. The plan says
// what is eliminated after what (elimination_plan.h); how a device walks through it is the
// backend's.
//
// Work goes on two tracks, each a sequence of its own: factorizations on one, solves on the other,
// which runs beside the first and is served before it. Calls of one track come from one thread at a
// time, the Solver's; the two tracks, and Write, may be used by several threads at once. Work may
// be asynchronous between the calls of a track; Synchronize ends it. Pointers called "device" are
// in the memory of pool() or, for the CPU, anywhere.
#ifndef BLOCKD_ENGINE_BACKEND_H_
#define BLOCKD_ENGINE_BACKEND_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockd/engine/block_tridiagonal.h"
#include "blockd/engine/elimination_plan.h"
#include "blockd/engine/memory_pool.h"

namespace blockd {

struct DeviceInfo {
  std::string backend;  // "cpu", "cuda", "rocm"
  std::string name;     // as the driver or the processor says it
  int64_t memory_bytes = 0;
  int32_t parallelism = 0;  // threads or multiprocessors
};

// One system of a batch that is being factored.
struct FactorSystem {
  BlockTridiagonalView matrix;  // device addresses; a CPU reads the caller's own memory
  void* factor = nullptr;       // plan.factor_bytes()
  void* chains = nullptr;       // plan.chain_scalars() scalars
};

struct FactorBatch {
  const EliminationPlan* plan = nullptr;
  std::span<const FactorSystem> systems;
  void* scratch = nullptr;                  // FactorScratchBytes(plan, systems.size())
  const std::atomic<bool>* stop = nullptr;  // when it turns true, work may end early with garbage
};

// A pivot that was not positive, where the elimination met it.
struct PivotFailure {
  int64_t block = 0;  // index in the system's own order, 0-based
  int64_t row = 0;    // in that block, 0-based
};

// The larger one, as norms and growths are combined: NaN, which says that nothing is known, is
// larger than all.
constexpr double LargerOrNaN(double a, double b) { return a > b || a != a ? a : b; }

// What became of one system of a batch.
struct FactorReport {
  // The first failure in the order of the plan. The factor then holds garbage.
  std::optional<PivotFailure> failure;
  // How much inv(L) may magnify rounding errors: the largest ||L(i,:)|| ||inv(L)(:,i)||, 2-norms,
  // of all rows i of all diagonal blocks that were factored. It is at least 1, does not change when
  // rows and columns of A are scaled, and its square is the largest D(i,i) inv(D)(i,i) of the
  // blocks D = L L'. Never less than that; a device that sums in parts may say more.
  double growth = 1;
};

// Right-hand sides of one factorization, solved together: x holds B on entry and X at the end, its
// blocks one after another, in each the columns one after another: [block][column][n].
struct SolveSystem {
  const void* factor = nullptr;
  void* x = nullptr;
  int64_t num_rhs = 0;
  void* chains = nullptr;  // plan.solve_chain_scalars(num_rhs)
};

struct SolveBatch {
  const EliminationPlan* plan = nullptr;
  std::span<const SolveSystem> systems;
  const std::atomic<bool>* stop = nullptr;
};

// Factor is of the factor track. All that has a track as its first argument can be on either.
enum class Track : uint8_t { kFactor, kSolve };
inline constexpr int kTracks = 2;

class Backend {
 public:
  virtual ~Backend() = default;

  virtual const DeviceInfo& device() const = 0;
  // What work on systems of this shape costs.
  virtual CostModel costs(const Shape& shape) const = 0;
  virtual MemoryPool& pool() = 0;
  // True if the device reads host memory where it lies, so that no upload is needed.
  virtual bool reads_host_memory() const = 0;

  // A copy that no track waits for, from any thread: it is there when the call returns.
  virtual absl::Status Write(void* device, const void* host, int64_t bytes) = 0;

  // Copies in the order of the track. Host memory of an Upload has been read when it returns, that
  // of a Download has been written at the latest after Synchronize.
  virtual absl::Status Upload(Track track, void* device, const void* host, int64_t bytes) = 0;
  virtual absl::Status Download(Track track, void* host, const void* device, int64_t bytes) = 0;
  // `columns` columns of `rows` rows, n rows a block, between a column-major matrix (leading
  // dimension `rows`) and the batched layout [block][column][n] that has `total_columns` columns,
  // from column `first_column` on.
  virtual absl::Status PackColumns(Track track, Scalar scalar, void* packed, const void* columns_in,
                                   int64_t n, int64_t rows, int64_t columns, int64_t first_column,
                                   int64_t total_columns) = 0;
  virtual absl::Status UnpackColumns(Track track, Scalar scalar, void* columns_out,
                                     const void* packed, int64_t n, int64_t rows, int64_t columns,
                                     int64_t first_column, int64_t total_columns) = 0;
  virtual absl::Status Synchronize(Track track) = 0;

  // What Factor needs beside factors and chains; more for more systems of one plan.
  virtual int64_t FactorScratchBytes(const EliminationPlan& plan, int64_t systems) const = 0;

  // Factors: D and E of each level's chain become inv(L), C and W of its interiors and the next
  // level's chain. Returns what became of each system, in order, when the device is done. CANCELLED
  // once `wanted`, which is asked where work can end, says no; the device may then still be at
  // work.
  virtual absl::StatusOr<std::vector<FactorReport>> Factor(const FactorBatch& batch,
                                                           absl::FunctionRef<bool()> wanted) = 0;

  // Solves: forward through the levels, base last, then backward, base first. Asynchronous.
  // CANCELLED once `wanted` says no, as Factor.
  virtual absl::Status Solve(Track track, const SolveBatch& batch,
                             absl::FunctionRef<bool()> wanted) = 0;

  // log det A of a factor, device memory. Synchronizes.
  virtual absl::StatusOr<double> LogDeterminant(Track track, const EliminationPlan& plan,
                                                const void* factor) = 0;

  // R = B - A X for one system, all device memory and packed [block][column][n]; for float32 the
  // products are summed in double. Then, synchronized, norms[c] for each column, NaN or infinite
  // where there is one in it. What becomes of a column does not depend on the others.
  struct ResidualNorms {
    double residual = 0;  // ||r||, infinity norms all
    double matrix = 0;    // ||A||
    double solution = 0;  // ||x||
    double rhs = 0;       // ||b||
    // ||r|| / (||A|| ||x|| + ||b||): 0 if all are 0, NaN or infinity if one is not finite.
    double backward_error() const;
  };
  virtual absl::StatusOr<std::vector<ResidualNorms>> Residual(Track track,
                                                              const BlockTridiagonalView& matrix,
                                                              const void* x, const void* b, void* r,
                                                              int64_t num_rhs) = 0;
  // to(:, c) = from(:, c) for the columns c that are true: packed, as many columns as `columns`
  // has.
  virtual absl::Status CopyColumns(Track track, const Shape& shape, void* to, const void* from,
                                   const std::vector<bool>& columns) = 0;
  // y += x, `scalars` long.
  virtual absl::Status Add(Track track, Scalar scalar, void* y, const void* x, int64_t scalars) = 0;
};

}  // namespace blockd

#endif  // BLOCKD_ENGINE_BACKEND_H_
