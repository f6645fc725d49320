// The inside of SolverCore. Private to the core.
//
// Threads: callers admit (validate, pin, reserve) and queue. The device thread takes batches and
// runs them; a caller with a small Solve runs it itself when nothing else runs or waits, which
// saves a change of threads. `device_busy_` says that one of them is at it. The watch thread ends
// tasks whose deadline passes, in the queue or, through their context's flag, while they run, and
// lets idle factorizations expire.
//
// Locks: mutex_ is never held while a task is answered or destroyed, nor while the budget, the
// cache or the solver is called.
#ifndef BLOCKD_SERVER_CORE_SOLVER_CORE_IMPL_H_
#define BLOCKD_SERVER_CORE_SOLVER_CORE_IMPL_H_

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "server/core/batcher.h"
#include "server/core/factorization_cache.h"
#include "server/core/memory_budget.h"
#include "server/core/solver_core.h"
#include "server/core/solver_core_tasks.h"

namespace blockd::server {

class SolverCore::Impl {
 public:
  Impl(std::unique_ptr<Solver> solver, const CoreLimits& limits, const ServerIdentity& server,
       Metrics* metrics, Clock* clock);
  ~Impl();

  // solver_core_factor.cc
  void Factor(ContextPtr context, const FactorParams& params,
              std::vector<BlockTridiagonalView> matrices, FactorDone done);
  // solver_core_factor_solve.cc
  void FactorSolve(ContextPtr context, const FactorSolveParams& params, SolveDone done);
  // solver_core_upload.cc
  absl::StatusOr<std::variant<std::unique_ptr<FactorUpload>, FactorReply>> BeginUpload(
      ContextPtr context, const FactorParams& params, std::span<const uint32_t> palette_diagonal,
      std::span<const uint32_t> palette_coupling);
  void FinishUpload(std::unique_ptr<FactorUpload> upload, FactorDone done);
  // solver_core_admission.cc
  absl::StatusOr<PlanReply> Plan(const MatrixForm& form, int64_t num_systems, int64_t num_rhs);
  // solver_core_solve.cc
  void Solve(ContextPtr context, const SolveParams& params, SolveDone done);
  // solver_core_threads.cc
  void Drain() ABSL_LOCKS_EXCLUDED(mutex_);
  void OnUnhealthy(absl::AnyInvocable<void(const absl::Status&)> callback)
      ABSL_LOCKS_EXCLUDED(mutex_);
  bool healthy() const ABSL_LOCKS_EXCLUDED(mutex_);
  GaugeSample Sample() const ABSL_LOCKS_EXCLUDED(mutex_);

  const CoreLimits limits_;
  const std::string server_name_;
  Metrics* const metrics_;
  Clock* const clock_;
  const std::unique_ptr<Solver> solver_;
  MemoryBudget budget_;  // outlives the cache, whose entries hold reservations
  FactorizationCache cache_;

 private:
  class Upload;
  // A matrix in the host's memory or, if `staged` is set, in the device's.
  struct MatrixSource {
    BlockTridiagonalView host = {};
    const StagedMatrix* staged = nullptr;
    const BlockTridiagonalView& view() const { return staged ? staged->view() : host; }
  };
  // A batch, or a piece of one, that ran.
  struct Piece {
    absl::Time started;
    int64_t requests = 0;
    int64_t items = 0;  // systems, or right-hand sides
    Phases phases;
  };

  // --- solver_core_admission.cc: what a request must be, and the memory for it.
  absl::Status CheckForm(const MatrixForm& form) const;
  absl::Status CheckFactor(const FactorParams& params) const;
  absl::Status CheckLease(absl::Duration lease) const;
  absl::Status CheckRhs(const Shape& shape, int64_t num_rhs, int64_t rhs_bytes,
                        int64_t solution_bytes, int32_t max_refinements) const;
  absl::Status CheckPalette(const MatrixForm& form, std::span<const uint32_t> diagonal_index,
                            std::span<const uint32_t> coupling_index) const;
  absl::Status CheckMatrices(std::span<const BlockTridiagonalView> matrices, const MatrixForm& form,
                             bool check_finite) const;
  // The plan, refused with RESOURCE_EXHAUSTED before it is made if even its blocks exceed the
  // memory.
  absl::StatusOr<std::shared_ptr<const EliminationPlan>> PlanFor(const MatrixForm& form,
                                                                 int64_t systems);
  // Pins what is to be refactored, makes the plan, reserves. `staged`: matrices come to the device
  // first and stay there until the end.
  absl::Status AdmitFactor(FactorTask& task, bool staged);
  absl::Status PinRefactored(FactorTask& task);
  absl::Status AdmitFactorSolve(FactorSolveTask& task);
  // Device memory for all systems of an upload, and the palette's indices in it.
  absl::Status StageAll(FactorTask& task, std::span<const uint32_t> palette_diagonal,
                        std::span<const uint32_t> palette_coupling);
  // What one held system is charged; bytes.
  static int64_t FactorCharge(const EliminationPlan& plan);
  static int64_t MatrixCharge(const MatrixForm& form);
  // Evicts idle entries, oldest first, until a piece of `bytes` may fit into the pool. False if
  // nothing could be evicted.
  bool Defragment(int64_t bytes);

  // --- solver_core_factor.cc
  struct FactorRun;  // one system of a batch
  // Finds the key, waits for it or owns it; admits unless that is done; queues.
  void SubmitFactor(std::unique_ptr<FactorTask> task);
  void RunFactors(std::span<FactorTask* const> tasks);
  void PrepareOverwrite(FactorTask& task, int64_t system, FactorRun& run);
  std::vector<FactorOutcome> FactorWithRetry(const std::shared_ptr<const EliminationPlan>& plan,
                                             std::span<const FactorItem> items, Phases* phases);
  absl::StatusOr<FactorReply> KeepFactors(FactorTask& task, std::span<FactorRun> runs);
  void KeepNew(FactorTask& task, std::vector<Holding> holdings, FactorReply& reply);
  // What a reply says of a factorization beside its handle.
  static void Describe(const Factorization& factorization, FactoredSystem& system);
  absl::Status OutcomeStatus(const Task& task, const MatrixSource& matrix, int64_t system,
                             const FactorOutcome& outcome);
  // Gives its memory back, answers, and lets those go that wait for its key.
  void AnswerFactor(FactorTask& task, absl::StatusOr<FactorReply> reply);

  // --- solver_core_not_spd.cc
  absl::Status NotSpdStatus(const MatrixSource& matrix, int64_t system,
                            const NotPositiveDefinite& where);
  enum class MatrixPart { kDiagonal, kCoupling, kDiagonalIndex, kCouplingIndex };
  absl::Status ReadPart(const MatrixSource& matrix, MatrixPart part, int64_t offset,
                        std::span<std::byte> out);
  // "field: place", or empty.
  absl::StatusOr<std::string> WhereNotFinite(const MatrixSource& matrix, int64_t system,
                                             int64_t block);

  // --- solver_core_factor_solve.cc
  void RunFactorSolves(std::span<FactorSolveTask* const> tasks);
  void AnswerFactorSolve(FactorSolveTask& task, FactorOutcome factored, const SolveOutcome& solved,
                         const Piece& piece);

  // --- solver_core_solve.cc
  bool RunsAtOnce(const SolveTask& task) const;
  int64_t SolveWorkspace(const SolveTask& task) const;
  void RunSolves(std::span<SolveTask* const> tasks);
  struct SolvedPiece : Piece {
    std::vector<SolveOutcome> outcomes;
  };
  // On the caller's thread, which has the device.
  void SolveAtOnce(SolveTask& task);
  SolvedPiece SolvePiece(std::span<SolveTask* const> tasks, Reservation workspace);
  std::vector<SolveOutcome> SolveWithRetry(std::span<const SolveItem> items,
                                           int64_t workspace_bytes, Phases* phases);
  void AnswerSolve(SolveTask& task, const SolveOutcome& outcome, const Cost& cost);

  // --- solver_core_threads.cc
  static Ticket TicketOf(const Task& task);
  using EndedTasks = std::vector<Batcher<TaskPtr>::Ended>;
  // UNAVAILABLE while draining or while the queue is full, after what is over was taken out of it.
  absl::Status RefuseNew(absl::Time now, EndedTasks* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Counts a piece of accepted work. CANCELLED, DEADLINE_EXCEEDED, or UNAVAILABLE while draining or
  // while the queue is full. Finished uncounts it, after it was answered and destroyed.
  absl::Status BeginWork(const RequestContext& context) ABSL_LOCKS_EXCLUDED(mutex_);
  void Finished(int64_t count) ABSL_LOCKS_EXCLUDED(mutex_);
  // Queues counted work, or answers it with UNAVAILABLE.
  void Queue(TaskPtr task) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Push(TaskPtr& task, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Counts and queues a Solve or, with `at_once`, takes the device for the caller's thread if
  // nobody runs or waits; then the result is true, and EndInline gives the device back.
  bool QueueSolve(std::unique_ptr<SolveTask>& task, bool at_once) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndInline() ABSL_LOCKS_EXCLUDED(mutex_);
  void Fail(Task& task, const absl::Status& status);
  // Answers, destroys and uncounts them.
  void FailAll(EndedTasks ended);
  void RunBatch(const std::vector<TaskPtr>& batch);
  void DeviceLoop() ABSL_LOCKS_EXCLUDED(mutex_);
  void WatchLoop() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends what is over; the time of the next deadline.
  absl::Time WatchDeadlines(absl::Time now, EndedTasks* ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WatchBefore(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // INTERNAL: the device or a library failed.
  void Note(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Says what a task's run cost, to the metrics too.
  Cost MakeCost(const Task& task, const Piece& piece,
                absl::Duration received = absl::ZeroDuration());

  // --- solver_core_keys.cc: Factors with one idempotency key. The first runs, the others wait here
  // until it is answered, and then go on as if they had just come.
  using Key = std::pair<std::string, std::string>;  // caller, idempotency key
  // True if the task is the first; else it is kept here, to wait.
  bool OwnKeyOrWait(std::unique_ptr<FactorTask>& task) ABSL_LOCKS_EXCLUDED(mutex_);
  void ReleaseKey(const FactorTask& task, const absl::StatusOr<FactorReply>& reply)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Lets those go on that waited for a key which is free or held now.
  void ResumeWaiters() ABSL_LOCKS_EXCLUDED(mutex_);
  // Answers and destroys a task that never ran.
  void EndFactor(std::unique_ptr<FactorTask> task, absl::StatusOr<FactorReply> reply);
  // What a held key answers to this request; nullopt if it is not held.
  absl::StatusOr<std::optional<FactorReply>> FindKey(const std::string& caller,
                                                     const FactorParams& params);
  absl::Duration LeaseOf(const FactorParams& params) const;
  void KeepKey(const FactorParams& params, const FactorReply& reply,
               FactorizationCache::EntryOptions& options) const;

  mutable absl::Mutex mutex_;
  absl::CondVar work_;      // for the device thread: something is queued, or the device is free
  absl::CondVar watch_;     // for the watch thread: an earlier deadline came
  absl::CondVar finished_;  // for Drain
  Batcher<TaskPtr> batcher_ ABSL_GUARDED_BY(mutex_);
  using FactorTasks = std::vector<std::unique_ptr<FactorTask>>;
  absl::flat_hash_map<Key, FactorTasks> keys_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::unique_ptr<FactorTask>> resumed_ ABSL_GUARDED_BY(mutex_);  // waited for a key
  bool resuming_ ABSL_GUARDED_BY(mutex_) = false;  // a thread takes them from resumed_
  std::vector<Task*> running_ ABSL_GUARDED_BY(mutex_);
  bool device_busy_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);     // the first of the device; OK: healthy
  int64_t outstanding_ ABSL_GUARDED_BY(mutex_) = 0;  // accepted and not finished
  int64_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;      // in keys_ and resumed_
  absl::Time watched_ ABSL_GUARDED_BY(mutex_) =
      absl::InfiniteFuture();  // when the watch looks next
  absl::AnyInvocable<void(const absl::Status&)> on_unhealthy_ ABSL_GUARDED_BY(mutex_);
  std::thread device_thread_;
  std::thread watch_thread_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_SOLVER_CORE_IMPL_H_
