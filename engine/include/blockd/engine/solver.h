// The solver: factors batches of SPD block-tridiagonal systems and solves for right-hand sides.
//
// One Solver drives one Backend. Any thread may call. Work goes on the backend's two tracks
// (backend.h): Factor, with the estimates and searches that belong to it, is on the factor track;
// Solve, LogDeterminant and Read are on the solve track, and so never wait for a factorization. On
// each track one call runs at a time; Write is on none. All pointers in items are host memory that
// the caller keeps until the call returns. Memory on the device comes from the backend's pool; when
// it does not fit, the call or the item fails with RESOURCE_EXHAUSTED and nothing is left behind.
//
// Results are bitwise the same from run to run, for any number of threads, and for any batch that
// an item happens to share: batching never changes an answer.
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

// The first leading minor of the whole matrix that is not positive, as LAPACK's potrf counts.
struct NotPositiveDefinite {
  int64_t block = 0;  // 0-based
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

struct FactorItem {
  BlockTridiagonalView matrix;     // host memory, unless `staged` is set
  StagedMatrix* staged = nullptr;  // a matrix that is on the device already; moved from if kept
  bool keep_matrix = false;        // keep the matrix on the device, for residuals
  Accuracy accuracy = Accuracy::kStandard;
  bool estimate_condition = false;  // some ten solves more
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

struct SolveItem {
  std::shared_ptr<const Factorization> factorization;
  const void* rhs = nullptr;  // Nn x num_rhs, column-major
  void* solution = nullptr;   // the same shape; may be the same memory as rhs
  int64_t num_rhs = 1;
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
  // factorization refines. NaN or infinity if x or b is not finite.
  std::optional<double> backward_error;
  // What can be promised of it: what was measured and its own rounding, else BackwardErrorBound.
  double backward_error_bound = 0;
  int32_t refinements = 0;  // the most steps that a column of x has taken
};

inline constexpr int32_t kMaxRefinements = 10;

// What the whole call took, seconds.
struct Phases {
  double upload_seconds = 0;
  double compute_seconds = 0;
  double download_seconds = 0;
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
  // residual: a residual or refinement is asked for, or the factorization refines.
  int64_t SolveWorkspaceBytes(const EliminationPlan& plan, int64_t num_rhs, bool residual) const;
  // The pieces, in the order in which they are taken, that Factor takes for one system and Solve
  // for one item; bytes.
  std::vector<int64_t> FactorPieces(const EliminationPlan& plan, const FactorItem& item) const;
  std::vector<int64_t> SolvePieces(const EliminationPlan& plan, int64_t num_rhs,
                                   bool residual) const;

  // Memory on the device for a matrix that arrives piece by piece; Write puts bytes at an offset in
  // the buffer as StagedMatrix counts it, and they are there when it returns. Palette indices are
  // not checked: the caller checks them (CheckView) before they are written.
  absl::StatusOr<StagedMatrix> Stage(const MatrixForm& form);
  absl::Status Write(StagedMatrix& staged, int64_t offset, std::span<const std::byte> bytes);
  // What was written, back in host memory.
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

  absl::StatusOr<double> LogDeterminant(const Factorization& factorization);

 private:
  struct FactorWork;
  struct Group;
  static constexpr int64_t kRefinementVectors = 4;  // x, b, r and the x that is tried
  static constexpr size_t kMaxCachedPlans = 4096;
  static constexpr int64_t kMaxCachedPlansBytes = int64_t{256} << 20;
  static constexpr int64_t kMostPlannedBatch = int64_t{1} << 20;  // which fills any device

  // Whether Factor takes memory for its matrix.
  bool TakesMatrix(const FactorItem& item) const;
  absl::Status Prepare(const EliminationPlan& plan, FactorWork& work);
  absl::Status Keep(const std::shared_ptr<const EliminationPlan>& plan, FactorWork& work,
                    const FactorReport& report);
  void Finish(const std::shared_ptr<const EliminationPlan>& plan, FactorWork& work,
              const FactorReport& report, const DeviceBuffer& scratch);

  static std::vector<Group> MakeGroups(std::span<const SolveItem> items,
                                       std::vector<SolveOutcome>& outcomes);
  absl::Status Load(Track track, std::span<const SolveItem> items, MemoryPool& pool, Group& group);
  absl::Status Refine(Track track, std::span<const SolveItem> items, Group& group,
                      std::vector<SolveOutcome>& outcomes);
  absl::Status Store(Track track, std::span<const SolveItem> items, const Group& group);

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
