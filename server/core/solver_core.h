// The service without its wire: validates, reserves memory, batches, solves, keeps factorizations.
//
// No gRPC, no protobuf, no GPU; time comes from an injected Clock. All methods are thread-safe and
// return at once: long work runs on the core's lanes (lane.h), and `done` is called exactly once,
// from a lane's thread or, where the answer is known at once, from the caller's. `done` must not
// block.
//
// Memory that a task points to (matrices, right-hand sides, solutions) stays valid until `done`.
// Errors are absl::Status with a detail from errors.h.
#ifndef BLOCKD_SERVER_CORE_SOLVER_CORE_H_
#define BLOCKD_SERVER_CORE_SOLVER_CORE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "blockd/engine/solver.h"
#include "blockd/engine/step_pool.h"
#include "server/base/clock.h"
#include "server/core/common/errors.h"
#include "server/core/common/handle.h"
#include "server/core/common/metrics.h"
#include "server/core/common/request.h"
#include "server/core/common/smooth_request.h"
#include "server/core/operations/factor.h"
#include "server/core/operations/factor_solve.h"
#include "server/core/operations/factor_solve_requests.h"
#include "server/core/operations/factor_upload.h"
#include "server/core/operations/inverse.h"
#include "server/core/operations/kept_factorization.h"
#include "server/core/operations/solve.h"
#include "server/core/operations/solve_requests.h"
#include "server/core/shard/shards.h"
#include "server/core/smooth/smooth_operation.h"
#include "server/core/tenants/admission.h"
#include "server/core/tenants/budget.h"
#include "server/core/tenants/tenants.h"

namespace blockd::server {

class SolverCore {
 public:
  // One solver a device, 1 to kMaxShards. `metrics` and `clock` outlive the core. `server` is in
  // every handle that it makes.
  SolverCore(std::vector<std::unique_ptr<Solver>> solvers, const CoreLimits& limits,
             const ServerIdentity& server, Metrics* metrics, Clock* clock);
  SolverCore(std::unique_ptr<Solver> solver, const CoreLimits& limits, const ServerIdentity& server,
             Metrics* metrics, Clock* clock);  // on one device
  ~SolverCore();                               // drains
  SolverCore(const SolverCore&) = delete;
  SolverCore& operator=(const SolverCore&) = delete;

  // Who may have what; may be configured again at any time.
  Tenants& tenants();

  // Host memory that requests under way may have: their bytes as they came, and their solutions.
  Budget& host();

  // Ends the request of this context. Waiting work is answered before this returns, with CANCELLED
  // or, after the deadline, DEADLINE_EXCEEDED; running work stops at its next look; later work of
  // the context is not accepted.
  void Cancel(RequestContext& context);

  // Matrices in host memory: K views of one form.
  void Factor(ContextPtr context, const FactorParams& params,
              std::vector<BlockTridiagonalView> matrices, FactorDone done);

  // The same in pieces. BeginUpload validates, and refuses what does not fit; a FactorReply comes
  // instead where the idempotency key finds held factorizations. `palette_diagonal` and
  // `palette_coupling` are copied; empty if the form has no palette.
  absl::StatusOr<std::variant<std::unique_ptr<FactorUpload>, FactorReply>> BeginUpload(
      ContextPtr context, const FactorParams& params, std::span<const uint32_t> palette_diagonal,
      std::span<const uint32_t> palette_coupling);
  // INVALID_ARGUMENT if bytes are missing.
  void FinishUpload(std::unique_ptr<FactorUpload> upload, FactorDone done);

  void Solve(ContextPtr context, const SolveParams& params, SolveDone done);
  // One request for the scheduler, or, where the factorizations have several plans or are on
  // several devices, one for each of them. INVALID_ARGUMENT without a solve.
  void SolveMany(ContextPtr context, SolveManyParams params, SolveManyDone done);
  // Shape, expected bytes of the right-hand sides: what a stream needs before it accepts chunks.
  // NOT_FOUND as Solve says it; does not count as a use.
  absl::StatusOr<BorderedShape> ShapeOf(const std::string& caller, const Handle& handle);

  // One request for the scheduler. INVALID_ARGUMENT without a system, and for a handle given twice.
  void FactorSolve(ContextPtr context, FactorSolveParams params, FactorSolveDone done);

  // Blocks of inv(A) of a held factorization, and samples of N(0, inv(A)).
  void SelectedInverse(ContextPtr context, const SelectedInverseParams& params, CostDone done);
  void Sample(ContextPtr context, const SampleParams& params, CostDone done);

  // Smooths, as smooth_request.h says. Assembles on the calling thread, which others help; what has
  // to be assembled again, since its factorization was lost meanwhile, goes to `post`. What the
  // parameters and the results point to stays until `done` and, if that was given one, until
  // PendingSmooth is gone; `done` is as cheap as others, and Finish is for a thread that has time.
  void Smooth(ContextPtr context, const MeasuredSmooth& measured, const KeepModel& kept,
              const SmoothResults& results, PostWork post, SmoothDone done);

  absl::StatusOr<int64_t> Release(const std::string& caller, std::span<const Handle> handles);
  absl::StatusOr<FactorizationStats> Get(const std::string& caller, const Handle& handle);
  // All devices, and what they hold of all tenants, for whoever runs the server.
  Shards& shards();
  // The caller's, in the order of their handles, after `after` if given, at most `limit`.
  std::vector<FactorizationStats> List(const std::string& caller, std::optional<Handle> after,
                                       int64_t limit);

  // Nothing is reserved and nothing runs. RESOURCE_EXHAUSTED for what could never fit.
  absl::StatusOr<PlanReply> Plan(const MatrixForm& form, int64_t num_systems, int64_t num_rhs);

  // Sums over the devices in service.
  struct MemoryStats {
    int64_t total_bytes = 0, free_bytes = 0, evictable_bytes = 0, factorizations = 0;
    int64_t solve_reserve_bytes = 0;  // of the pool, beside total_bytes
    PoolStats pool;
  };
  MemoryStats memory();
  const CoreLimits& limits() const;
  Backend& backend();  // of the first device in service
  // Where right-hand sides and solutions are best kept, for the device reads and writes them where
  // they lie; null: anywhere. It may outlive the core.
  std::shared_ptr<MemoryPool> host_memory();

  // False once every device, or a library on it, failed (INTERNAL): health then says NOT_SERVING.
  bool healthy() const;
  // Called for each device that fails, one after another, and at once for those that have failed.
  // It must not set another.
  void OnDeviceFailure(std::function<void(const DeviceFailure&)> callback);

  // New work is refused with UNAVAILABLE from now on; returns when the accepted work is done. An
  // upload that has begun is accepted work, until it was finished and answered, or destroyed.
  void Drain();

 private:
  // Members are destroyed in reverse order. Lanes run what is left, which needs the operations:
  // these go last but for what they use.
  Metrics* const metrics_;
  Tenants tenants_;
  Budget host_;
  Admission admission_;
  Shards shards_;
  const std::shared_ptr<MemoryPool> host_memory_;
  StepPool steps_;
  FactorOperation factor_;
  std::deque<SolveOperation> solve_on_;  // these four: one a device
  std::deque<FactorSolveOperation> factor_solve_on_;
  std::deque<InverseOperation> inverse_on_;
  std::deque<SmoothOperation> smooth_on_;
  SolveRequests solve_;
  FactorSolveRequests factor_solve_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_SOLVER_CORE_H_
