// A backend factors a batch of systems of one plan and solves with them. The plan says what is
// eliminated after what (elimination_plan.h); the backend decides how its device walks through it.
//
// Work goes on two tracks, each a sequence of its own: factorizations on one, solves on the other,
// which runs beside the first and is served before it. Calls of one track come from one thread at a
// time, the Solver's; the two tracks, Write and Await may be used by several threads at once. Work
// may be asynchronous between the calls of a track; Synchronize, or a Mark that was awaited, ends
// it. Pointers called "device" are in the memory of pool() or, for the CPU, anywhere.
#ifndef BLOCKD_ENGINE_BACKEND_H_
#define BLOCKD_ENGINE_BACKEND_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockd/engine/block_tridiagonal.h"
#include "blockd/engine/elimination_plan.h"
#include "blockd/engine/information_form.h"
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

// The outcome of factoring one system of a batch.
struct FactorReport {
  // The first failure in the order of the plan. The factor then holds garbage.
  std::optional<PivotFailure> failure;
  // How much inv(L) may magnify rounding errors: the largest ||L(i,:)|| ||inv(L)(:,i)||, 2-norms,
  // of all rows i of all diagonal blocks that were factored. It is at least 1, does not change when
  // rows and columns of A are scaled, and its square is the largest D(i,i) inv(D)(i,i) of the
  // blocks D = L L'. Never less than that; a device that sums in parts may say more. Above
  // kMostGrowth some blocks of the factor hold -L.
  double growth = 1;
};

// Right-hand sides of one factorization, solved together: x holds B on entry and X at the end, its
// blocks one after another, in each the columns one after another: [block][column][n].
struct SolveSystem {
  const void* factor = nullptr;
  void* x = nullptr;
  int64_t num_rhs = 0;
  void* chains = nullptr;    // plan.solve_chain_scalars(num_rhs)
  bool substitutes = false;  // whether the factor has blocks that hold -L
};

// A = L L' with blocks in the plan's order. A vector's blocks stay where they are: block i of
// inv(L) b is that of the elimination of block i, so what a half gives depends on the plan.
enum class SolvePart : uint8_t {
  kWhole,     // x = inv(A) b
  kForward,   // y = inv(L) b, so that y' y = b' inv(A) b
  kBackward,  // x = inv(L)' z, of covariance inv(A) where z has covariance I
};

struct SolveBatch {
  const EliminationPlan* plan = nullptr;
  std::span<const SolveSystem> systems;
  const std::atomic<bool>* stop = nullptr;
  SolvePart part = SolvePart::kWhole;
};

// The entries of Z = inv(A) that a caller wants.
enum class InverseParts : uint8_t {
  kDiagonalEntries,  // Z's diagonal
  kDiagonalBlocks,   // Z(i,i)
  kWithCouplings,    // and Z(i+1,i)
};

// A selected inverse of one system: of blocks [first_block, first_block + num_blocks), blocks n x n
// and column-major, both triangles of Z(i,i).
struct InverseRequest {
  const EliminationPlan* plan = nullptr;
  const void* factor = nullptr;
  InverseParts parts = InverseParts::kDiagonalBlocks;
  int64_t first_block = 0;
  int64_t num_blocks = 0;
  void* diagonal = nullptr;  // num_blocks blocks; of entries n scalars each
  void* coupling = nullptr;  // with couplings: num_blocks - 1 blocks
  void* scratch = nullptr;   // InverseScratchBytes of this plan and these blocks
  const std::atomic<bool>* stop = nullptr;
};

// Columns of a right-hand side or a solution: in host memory column-major, as many rows as the
// shape has; and in a batch, packed [block][column][n], from `first_column` of its `total_columns`
// on.
struct HostColumns {
  // PackColumns reads it only. It may be in the backend's pool too, as other device memory is used.
  void* host = nullptr;
  void* packed = nullptr;  // device; the batch's first column
  int64_t columns = 0;
  int64_t first_column = 0, total_columns = 0;
};

// Columns of one shape in device memory, packed [block][column][n]: what Border has.
struct BorderColumns {
  Shape shape;
  const void* data = nullptr;
  int64_t columns = 0;  // p
};

// Seconds of device time between two marks, on devices that measure it.
struct TrackTimes {
  double pack_seconds = 0;     // the last PackColumns
  double compute_seconds = 0;  // from its end until the last UnpackColumns
  double unpack_seconds = 0;
};

// A piece of host memory on its way to the device.
struct HostCopy {
  void* device = nullptr;
  const void* host = nullptr;
  int64_t bytes = 0;
};

// Factor is of the factor track. All that has a track as its first argument can be on either.
enum class Track : uint8_t { kFactor, kSolve };
inline constexpr int kTracks = 2;

class Backend {
 public:
  using HostPiece = std::span<const std::byte>;

  virtual ~Backend() = default;

  virtual const DeviceInfo& device() const = 0;
  // The costs of work on systems of this shape.
  virtual CostModel costs(const Shape& shape) const = 0;
  virtual MemoryPool& pool() = 0;
  // True if the device reads host memory where it lies, so that no upload is needed.
  virtual bool reads_host_memory() const = 0;

  // A copy of pieces of host memory, one behind the other, that no track waits for, from any
  // thread; several go at once. The pieces have been read when it returns, but the bytes may still
  // be on their way: nothing else may use the device memory, nor may it go back to the pool, before
  // AwaitWrites. Costs little more for many pieces than for one.
  virtual absl::Status Write(void* device, std::span<const HostPiece> pieces) = 0;
  // Waits until the device has all bytes of the Writes that have returned. Thread-safe; waits for
  // some 32 MiB at most, even if other threads go on writing.
  virtual absl::Status AwaitWrites() = 0;

  // Copies in the order of the track. Host memory of an Upload has been read when it returns, that
  // of a Download has been written at the latest after Synchronize.
  virtual absl::Status Upload(Track track, void* device, const void* host, int64_t bytes) = 0;
  virtual absl::Status Download(Track track, void* host, const void* device, int64_t bytes) = 0;
  // As an Upload of each. What lies behind a piece on the device, up to the next multiple of
  // MemoryPool::kAlignment, is nobody's: it may be written too, so that pieces that follow one
  // another go as one.
  virtual absl::Status UploadMany(Track track, std::span<const HostCopy> copies) {
    absl::Status status;
    for (const HostCopy& copy : copies) {
      if (status.ok()) status = Upload(track, copy.device, copy.host, copy.bytes);
    }
    return status;
  }
  // Columns into a batch, and out of it, in the order of the track. Host memory that lies in
  // host_memory(), or was registered, is read and written by the device where it is: until the
  // track is synchronized, or a mark behind it awaited. All other host memory has been read when
  // PackColumns returns, and written when UnpackColumns does.
  virtual absl::Status PackColumns(Track track, const Shape& shape,
                                   std::span<const HostColumns> columns) = 0;
  virtual absl::Status UnpackColumns(Track track, const Shape& shape,
                                     std::span<const HostColumns> columns) = 0;
  // Host memory that the device reads and writes where it lies; null if there is none. It may
  // outlive the backend, with the pieces that are taken of it.
  virtual std::shared_ptr<MemoryPool> host_memory() = 0;

  virtual absl::Status Synchronize(Track track) = 0;
  // A mark behind all that is on the track. Await, from any thread, waits until the device has done
  // that; each mark is awaited once. At most kMostMarks of a track may be waiting to be.
  static constexpr int kMostMarks = 8;
  virtual absl::StatusOr<int64_t> Mark(Track track) = 0;
  virtual absl::StatusOr<std::optional<TrackTimes>> Await(Track track, int64_t mark) = 0;

  // Makes some blocks of a matrix in information form, in the order of the factor track. Each
  // block's sums have an order of their own, whatever is made with it. Asynchronous.
  virtual absl::Status FormInformation(const InformationSteps& steps) = 0;

  // Bytes that Factor needs beside factors and chains. They grow with the number of systems.
  virtual int64_t FactorScratchBytes(const EliminationPlan& plan, int64_t systems) const = 0;

  // Factors: D and E of each level's chain become inv(L), C and W of its interiors and the next
  // level's chain. Returns what became of each system, in order, when the device is done. CANCELLED
  // once `wanted`, which is asked where work can end, says no; the device may then still be at
  // work.
  virtual absl::StatusOr<std::vector<FactorReport>> Factor(const FactorBatch& batch,
                                                           absl::FunctionRef<bool()> wanted) = 0;

  // So many more, or fewer, wait for a solve on its own track: factorizations that need the same
  // processors may pause meanwhile. From any thread.
  virtual void CountPendingSolves(int32_t /*change*/) {}
  // Solves: forward through the levels, base last, then backward, base first; or one of the two
  // alone. Asynchronous. CANCELLED once `wanted` says no, as Factor.
  virtual absl::Status Solve(Track track, const SolveBatch& batch,
                             absl::FunctionRef<bool()> wanted) = 0;

  // out = a factor of the plan with inv(L) where `factor` has -L: what SelectedInverse reads. Both
  // are device memory of plan.factor_bytes(). Asynchronous.
  virtual absl::Status InvertTriangles(Track track, const EliminationPlan& plan, const void* factor,
                                       void* out) = 0;

  // The chains of Z above the first level, and what walks through segments need; for the whole
  // system it is most.
  virtual int64_t InverseScratchBytes(const EliminationPlan& plan, int64_t first_block,
                                      int64_t num_blocks) const = 0;
  // Up the levels, base first, each segment from its end to its beginning. The factor has no -L and
  // stays as it is. Asynchronous. CANCELLED once `wanted`, asked before each level, says no; the
  // device may then still be at work.
  virtual absl::Status SelectedInverse(Track track, const InverseRequest& request,
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

  // Products with a border of p columns; all vectors are packed alike. Sums are made in double, in
  // an order that depends on the shape and p: what becomes of a column of V does not depend on the
  // others.
  // products = Y' V, p x columns, column-major, host memory. Synchronizes.
  virtual absl::Status MultiplyBorder(Track track, const BorderColumns& y, const void* v,
                                      int64_t columns, double* products) = 0;
  // V = Y X, or V += Y X if `add`. X is p x columns, column-major, device memory; V is not Y.
  virtual absl::Status AddBorder(Track track, const BorderColumns& y, const double* x, void* v,
                                 int64_t columns, bool add) = 0;
  // Z(i,i) += H(i) H(i)' and Z(i+1,i) += H(i+1) H(i)' for the blocks H(i), n x p, of a border; Z as
  // an InverseRequest of so many blocks lays it out.
  virtual absl::Status AddBorderSquares(Track track, const BorderColumns& h, InverseParts parts,
                                        void* diagonal, void* coupling) = 0;
};

}  // namespace blockd

#endif  // BLOCKD_ENGINE_BACKEND_H_
