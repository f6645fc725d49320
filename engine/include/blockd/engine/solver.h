// The solver: factors batches of SPD block-tridiagonal systems and solves for right-hand sides.
//
// One Solver drives one Backend. Any thread may call. Work goes on the backend's two tracks
// (backend.h): Factor, with the estimates and searches that belong to it, and SelectedInverse are
// on the factor track; Solve, LogDeterminant and Read are on the solve track, and so never wait for
// a factorization. On each track one call runs at a time; Write is on none. All pointers in items
// are host memory that the caller keeps until the call returns. Memory on the device comes from the
// backend's pool; when it does not fit, the call or the item fails with RESOURCE_EXHAUSTED and
// nothing is left behind.
//
// With one plan, results are bitwise the same from run to run, for any number of threads, and for
// any batch that an item shares. Plan may choose another order for other numbers of systems.
#ifndef BLOCKD_ENGINE_SOLVER_H_
#define BLOCKD_ENGINE_SOLVER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "blockd/engine/backend.h"
#include "blockd/engine/factorization.h"

namespace blockd {

// The first leading minor of the whole matrix that is not positive, as LAPACK's potrf counts. A
// pivot that is a subnormal number, or whose reciprocal is, counts as one that is not positive.
struct NotPositiveDefinite {
  int64_t block = 0;  // 0-based; N: the border
  int64_t row = 0;    // in the block, 0-based
  int64_t minor = 0;  // order of the leading minor, 1-based: block * n + row + 1
  // False where rounding let the natural order succeed: then block and row are those of
  // the pivot that failed in the plan's own order.
  bool natural_order = true;
};

// How close to the goal of 4 n eps (BackwardErrorGoal) solves must come.
enum class Accuracy : uint8_t {
  kStandard,    // as close as the growth of the factorization lets them; they say how close
  kGuaranteed,  // all the way: the matrix is kept where the growth makes refinement necessary
};

// A matrix with a border is not kept, its accuracy not guaranteed and its condition not estimated:
// INVALID_ARGUMENT where that is asked for.
struct FactorItem {
  BlockTridiagonalView matrix;     // host memory, unless `staged` is set
  StagedMatrix* staged = nullptr;  // a matrix that is on the device already; moved from if kept
  // The matrix is made of it on the device; `matrix` then has its form alone, matrix() of this.
  const InformationForm* information = nullptr;
  bool keep_matrix = false;  // keep the matrix on the device, for residuals
  Accuracy accuracy = Accuracy::kStandard;
  bool estimate_condition = false;  // at most 15 solves more
  DeviceBuffer* recycle = nullptr;  // memory of an old factor of the same plan, to overwrite
  const std::atomic<bool>* cancelled =
      nullptr;  // looked at between steps; the item then is CANCELLED
};

struct FactorOutcome {
  // INVALID_ARGUMENT with not_positive_definite set; CANCELLED; RESOURCE_EXHAUSTED; INTERNAL.
  absl::Status status;
  std::optional<NotPositiveDefinite> not_positive_definite;
  std::shared_ptr<Factorization> factorization;  // if status is OK
};

// With a border, y = inv(L) b1, x2 = inv(S) (b2 - Y' y) and x1 = inv(L)' (y - Y x2), as Border has
// them; half a solve is that of the whole matrix's factor.
struct SolveItem {
  std::shared_ptr<const Factorization> factorization;
  const void* rhs = nullptr;  // (Nn + p) x num_rhs, column-major
  void* solution = nullptr;   // the same shape; may be the same memory as rhs
  int64_t num_rhs = 1;
  // The same for all items of a call. Halves have no residual and are not refined: INVALID_ARGUMENT
  // where one is asked for.
  SolvePart part = SolvePart::kWhole;
  // Both need a kept matrix: FAILED_PRECONDITION otherwise.
  bool residual = false;
  // Steps of iterative refinement, r = b - A x, x += solve(r), for each column while a step halves
  // its error. Where Factorization::refines(), up to kMaxRefinements are taken without being asked,
  // for columns that have not reached BackwardErrorGoal.
  int32_t max_refinements = 0;
  const std::atomic<bool>* cancelled = nullptr;
};

struct SolveOutcome {
  absl::Status status;
  // ||b - A x|| / (||A|| ||x|| + ||b||), infinity norms, the largest of the columns, as it was
  // measured for the x that is returned: where a residual or a refinement was asked for, or the
  // factorization refines. NaN or infinity if x, b or A x is not finite.
  std::optional<double> backward_error;
  // A bound on the backward error: the measured error plus the rounding of its measurement, or
  // BackwardErrorBound if it was not measured. For a half solve, the bound of both halves together.
  // It holds where the largest number of each column of b and of x is normal or 0.
  double backward_error_bound = 0;
  int32_t refinements = 0;  // the most steps that a column of x has taken
};

inline constexpr int32_t kMaxRefinements = 10;

// Bytes of the blocks Z(i,i), or of their diagonals, and of the blocks Z(i+1,i) between them.
int64_t InverseDiagonalBytes(const Shape& shape, InverseParts parts, int64_t num_blocks);
int64_t InverseCouplingBytes(const Shape& shape, InverseParts parts, int64_t num_blocks);

// Some blocks of Z = inv(A), the covariance of N(0, inv(A)). With a border, and H = inv(L)' Y
// inv(T)', they are those of the whole inverse: inv(A)(i,j) + H(i) H(j)'.
struct InverseItem {
  std::shared_ptr<const Factorization> factorization;
  InverseParts parts = InverseParts::kDiagonalBlocks;
  int64_t first_block = 0;
  int64_t num_blocks = 0;
  const std::atomic<bool>* cancelled = nullptr;

  // Bytes of the blocks Z(i,i), or of their diagonals, and of the num_blocks - 1 blocks Z(i+1,i).
  int64_t diagonal_bytes() const;
  int64_t coupling_bytes() const;
};

// Where they go, in host memory.
struct InverseOutput {
  void* diagonal = nullptr;  // InverseItem::diagonal_bytes()
  void* coupling = nullptr;  // coupling_bytes(); used only where couplings are wanted
  // With a border, or null: not wanted.
  void* border =
      nullptr;  // Z(i,border) = -H(i) inv(T) of the blocks: num_blocks n x p, column-major
  void* corner = nullptr;  // inv(S), p x p, both triangles
};

// OUT_OF_RANGE unless the system has the item's blocks, of which there is one at least.
absl::Status CheckInverseRange(const InverseItem& item);

// The same on the device, as InverseRequest lays it out.
struct InverseBlocks {
  DeviceBuffer buffer;
  void* diagonal = nullptr;
  void* coupling = nullptr;  // null: not wanted
};

// Samples of N(0, inv(A)): inv(L)' z, with z of StandardNormals (samples.h).
struct SampleItem {
  std::shared_ptr<const Factorization> factorization;
  uint64_t seed = 0;
  uint64_t first_sample = 0;
  int64_t num_samples = 1;
  const std::atomic<bool>* cancelled = nullptr;
};

// Seconds of the whole call.
struct Phases {
  double upload_seconds = 0;
  double compute_seconds = 0;
  double download_seconds = 0;
};

// Solves that the device has been given. Movable. One that was not awaited waits when it goes.
class PendingSolve {
 public:
  struct State;  // engine/solver/solver_solve.cc

  PendingSolve();  // of no items
  explicit PendingSolve(std::unique_ptr<State> state);
  PendingSolve(PendingSolve&& other) noexcept;
  PendingSolve& operator=(PendingSolve&& other) noexcept;
  ~PendingSolve();

  // True if the device has nothing left to do, so that Await would not wait.
  bool is_done() const;
  // Once, from any thread: waits until the solutions are there, gives the workspace back, and
  // returns one outcome an item, in order.
  std::vector<SolveOutcome> Await(Phases* phases = nullptr);

 private:
  std::unique_ptr<State> state_;
};

class Solver {
 public:
  explicit Solver(std::unique_ptr<Backend> backend);

  Backend& backend() { return *backend_; }

  // The plan for `batch` systems of this shape; made once, then looked up. Batches grow in steps,
  // 1, 2, 4, 8 and so on, so that another batch seldom needs another plan. Plans that were
  // forgotten are made again, equal to what they were.
  absl::StatusOr<std::shared_ptr<const EliminationPlan>> Plan(const Shape& shape,
                                                              int64_t batch = 1);

  // Upper bounds on what the calls take from the pool beside the factorizations themselves; bytes.
  // matrices: they are staged or to be kept, or an accuracy is guaranteed, so that what they take,
  // StagedMatrix::BufferBytes each, is counted by whoever holds them.
  int64_t FactorWorkspaceBytes(const EliminationPlan& plan, const MatrixForm& form, int64_t systems,
                               bool matrices = false, bool estimate_condition = false) const;
  // Bytes that Factor takes in addition for an item in information form.
  int64_t InformationBytes(const InformationForm& information) const;
  // residual: a residual or refinement is asked for, or the factorization refines.
  int64_t SolveWorkspaceBytes(const EliminationPlan& plan, int64_t num_rhs, bool residual,
                              int64_t border_rows = 0) const;
  // The pieces, in the order in which they are taken, that Factor takes for one system and Solve
  // for one item; bytes.
  std::vector<int64_t> FactorPieces(const EliminationPlan& plan, const FactorItem& item) const;
  std::vector<int64_t> SolvePieces(const EliminationPlan& plan, int64_t num_rhs, bool residual,
                                   int64_t border_rows = 0) const;

  // Memory on the device for a matrix that arrives piece by piece; Write puts bytes, or pieces
  // one behind the other, at an offset in the buffer as StagedMatrix counts it, from any number of
  // threads at once. They have been read
  // when it returns, but may still be on their way. Factor and Read wait for them; before a matrix
  // is destroyed that was not factored AwaitWrites does. Palette indices are not checked: the
  // caller checks them (CheckView) before they are written.
  absl::StatusOr<StagedMatrix> Stage(const MatrixForm& form);
  absl::Status Write(StagedMatrix& staged, int64_t offset, std::span<const std::byte> bytes);
  absl::Status Write(StagedMatrix& staged, int64_t offset,
                     std::span<const Backend::HostPiece> pieces);
  absl::Status AwaitWrites() { return backend_->AwaitWrites(); }
  // Copies bytes that were written back to host memory.
  absl::Status Read(const StagedMatrix& staged, int64_t offset, std::span<std::byte> bytes);

  // Factors systems of one plan together. One outcome an item, in order.
  std::vector<FactorOutcome> Factor(std::shared_ptr<const EliminationPlan> plan,
                                    std::span<const FactorItem> items, Phases* phases = nullptr);

  // Solves with factorizations of equal plans together; items of one factorization share one pass
  // over it. On the factor track it stands behind factorizations, and is no faster for it than they
  // are: for whoever has just factored, and keeps nothing. `workspace`: a pool of the device's
  // memory that nobody else takes from meanwhile; null: the backend's.
  std::vector<SolveOutcome> Solve(std::span<const SolveItem> items, Phases* phases = nullptr,
                                  Track track = Track::kSolve, MemoryPool* workspace = nullptr);
  // The same, as far as the host has to do with it: returns once the device has been given all of
  // it, where no residual is measured, there is no border and all columns are in memory that the
  // device reaches (Backend::host_memory), and else once it is over. Others may be submitted before
  // it is awaited, of one track at most Backend::kMostMarks - 1. The solver outlives what is
  // pending; right-hand sides, solutions and `cancelled` stay until it was awaited.
  PendingSolve Submit(std::vector<SolveItem> items, Track track = Track::kSolve,
                      MemoryPool* workspace = nullptr);

  // log det A, off by at most -rows log(1 - c), where c is backward_error_bound() times A's
  // condition number; unbounded if c >= 1.
  absl::StatusOr<double> LogDeterminant(const Factorization& factorization);

  // b' inv(A) b = ||inv(L) b||^2 of as many columns b as there are values, in one pass, which is
  // half a solve; summed in double. rhs as SolveItem's.
  absl::Status QuadraticForms(std::shared_ptr<const Factorization> factorization, const void* rhs,
                              std::span<double> values,
                              const std::atomic<bool>* cancelled = nullptr,
                              Track track = Track::kSolve);
  // Samples to host memory, (Nn + p) x num_samples, column-major. One has the same bits whatever
  // others are drawn with it. z depends on the seed, the sample and the place; x on L, and so on
  // the plan too.
  absl::Status Sample(const SampleItem& sample, void* samples, Track track = Track::kSolve);

  // Blocks of inv(A) to host memory. The factorization stays as it is. A whole
  // inverse takes one to two times as long as the factorization, so it is on the factor track,
  // where no solve waits for it; a small one may go with the solves. OUT_OF_RANGE for blocks that
  // the system does not have; CANCELLED between two levels.
  absl::Status SelectedInverse(const InverseItem& item, const InverseOutput& output,
                               Track track = Track::kFactor, Phases* phases = nullptr);
  // The same, left on the device: done when it returns.
  absl::StatusOr<InverseBlocks> SelectedInverseOnDevice(const InverseItem& item,
                                                        Track track = Track::kFactor);
  // Most bytes that either call takes from the pool, its result included. A factorization that
  // substitutes takes plan.factor_bytes() more.
  int64_t InverseWorkspaceBytes(const EliminationPlan& plan, InverseParts parts,
                                int64_t first_block, int64_t num_blocks,
                                int64_t border_rows = 0) const;

 private:
  friend class PendingSolve;
  struct FactorWork;
  struct BatchMemory;
  static constexpr int64_t kRefinementVectors = 4;  // x, b, r and the x that is tried
  static constexpr size_t kMaxCachedPlans = 4096;
  static constexpr int64_t kMaxCachedPlansBytes = int64_t{256} << 20;
  static constexpr int64_t kMostPlannedBatch = int64_t{1} << 20;  // which fills any device

  // True if the device reads the item's matrix in host memory.
  bool ReadsMatrix(const FactorItem& item) const;
  // True if Factor takes memory for the item's matrix.
  bool TakesMatrix(const FactorItem& item) const;
  // True if the item's chains, or its uploaded matrix, may lie in the memory of the batch.
  static bool SharesChains(const FactorItem& item);
  bool SharesMatrix(const FactorItem& item) const;
  // One for each item that agrees with the plan; the others have their status.
  static std::vector<FactorWork> BeginWorks(const EliminationPlan& plan,
                                            std::span<const FactorItem> items,
                                            std::vector<FactorOutcome>& outcomes);
  BatchMemory TakeBatchMemory(const EliminationPlan& plan, std::span<const FactorWork> works);
  // Its memory, and what is to be uploaded into it.
  absl::Status Prepare(const EliminationPlan& plan, BatchMemory& memory, FactorWork& work,
                       std::vector<HostCopy>* copies);
  // The copies, and the matrices that are made on the device.
  absl::Status Upload(std::span<const FactorWork> works, std::span<const HostCopy> copies);
  absl::Status Keep(const std::shared_ptr<const EliminationPlan>& plan, FactorWork& work,
                    const FactorReport& report);
  // Factors the border of a chain that is factored. The outcome says if S is not positive definite.
  absl::StatusOr<Border> FactorBorder(const EliminationPlan& plan, const FactorWork& work);
  int64_t BorderWorkspaceBytes(const EliminationPlan& plan, int64_t border_rows) const;
  void Finish(const std::shared_ptr<const EliminationPlan>& plan, FactorWork& work,
              const FactorReport& report, const DeviceBuffer& scratch);

  struct Group;
  static void Allocate(MemoryPool& pool, std::span<Group> groups,
                       std::vector<DeviceBuffer>* memory);
  void Run(PendingSolve::State& state);
  // On a track that is held.
  absl::Status Invert(const InverseItem& item, Track track, void* diagonal, void* coupling);
  absl::StatusOr<InverseBlocks> InvertOnDevice(const InverseItem& item, const InverseOutput& output,
                                               Track track);
  // Makes of the chain's inverse, on the device, what the whole one has there; and `output.border`.
  absl::Status AddBorderTo(const InverseItem& item, Track track, void* diagonal, void* coupling,
                           const InverseOutput& output);
  // T in host memory.
  absl::StatusOr<std::vector<double>> CornerOf(const Factorization& factorization, Track track);
  absl::Status SolveBordered(Track track, std::span<const SolveItem> items, const Group& group);
  absl::Status Refine(Track track, std::span<const SolveItem> items, Group& group,
                      std::vector<SolveOutcome>& outcomes);

  absl::Mutex& TrackMutex(Track track) { return track_mutexes_[static_cast<size_t>(track)]; }

  std::unique_ptr<Backend> backend_;
  std::array<absl::Mutex, kTracks> track_mutexes_;  // each held while the track is in use
  absl::Mutex plans_mutex_;
  absl::flat_hash_map<std::pair<Shape, int64_t>, std::shared_ptr<const EliminationPlan>> plans_
      ABSL_GUARDED_BY(plans_mutex_);
  int64_t plans_bytes_ ABSL_GUARDED_BY(plans_mutex_) = 0;
};

}  // namespace blockd

#endif  // BLOCKD_ENGINE_SOLVER_H_
