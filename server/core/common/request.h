// Requests of the core, and their answers: plain data.
#ifndef BLOCKD_SERVER_CORE_COMMON_REQUEST_H_
#define BLOCKD_SERVER_CORE_COMMON_REQUEST_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "blockd/engine/solver.h"
#include "server/core/common/errors.h"
#include "server/core/common/handle.h"
#include "server/core/common/metrics.h"
#include "server/core/common/tenant.h"

namespace blockd::server {

// Who asks, until when. Shared by the handler, which may cancel, and the core, which looks.
struct RequestContext {
  std::string caller;       // the tenant: handles belong to it; empty is one like any other
  TenantPtr tenant;         // of that name; null: the core looks it up
  std::string request_id;   // for the log
  std::string traceparent;  // as the W3C's Trace Context has it; empty: none
  absl::Time deadline = absl::InfiniteFuture();
  // A class above the tenant's highest is lowered to it. REALTIME needs a deadline.
  PriorityClass priority = PriorityClass::kInteractive;
  std::atomic<bool> cancelled{false};  // by SolverCore::Cancel, or the deadline; work looks at it
  // The label of the metrics; absent: Factor, Solve or FactorSolve.
  std::optional<Method> method;
  // The calling thread may run a short request itself (Lane::Options::max_inline).
  bool may_run_here = false;
  // The core refused it: its tenant sends more requests than its quota allows.
  bool is_over_rate = false;

  bool ended(absl::Time now) const {
    return deadline <= now || cancelled.load(std::memory_order_relaxed);
  }
  // Why it was to stop. The deadline first: whoever cancels because of the deadline means that.
  absl::Status EndStatus(absl::Time now) const {
    return deadline <= now ? absl::DeadlineExceededError("the deadline has passed")
                           : absl::CancelledError("the request was cancelled");
  }
  absl::Status CheckOngoing(absl::Time now) const {
    return ended(now) ? EndStatus(now) : absl::OkStatus();
  }
};
using ContextPtr = std::shared_ptr<RequestContext>;

struct Cost {
  absl::Duration queue;
  int64_t batch_requests = 0;
  int64_t batch_items = 0;
  absl::Duration upload, compute, download;

  // True if the thread that ran the batch gives its few answers itself, because passing them on
  // would take longer.
  bool answers_are_few() const { return 0 < batch_requests && batch_requests <= 2; }
  // The longer wait, and the sums of the rest.
  void Add(const Cost& more) {
    queue = std::max(queue, more.queue);
    batch_requests += more.batch_requests;
    batch_items += more.batch_items;
    upload += more.upload;
    compute += more.compute;
    download += more.download;
  }
};

// With an idempotency key. It names a content, for one caller. A Factor whose key is that of held
// factorizations, or of a Factor under way, factors nothing: `found` is set, and the reply has the
// same handles and the same systems that were not positive definite, but is otherwise what this
// call asked for. Its pin and its lease are added to what the factorizations have, a
// log-determinant that is not known yet is computed (on the calling thread, once the device is
// free); another shape or number of systems, or a matrix that was not kept, is refused with
// InvalidField. The content that comes with it is not looked at, but for check_finite.
//
// A Factor that ends without factorizations leaves its key free: those that wait for it then share
// its answer if that is that the matrices are not positive definite, and else go on as if they had
// come first. So they do for a first one that was cancelled, late, refused or failed.
//
// A key is kept if every system was factored or is not positive definite, and at least one was
// factored; so a repetition never factors the good ones of a batch again. Where the device or its
// memory failed for some systems, a repetition factors all of them.
struct FactorParams {
  MatrixForm form;
  int64_t num_systems = 0;
  std::vector<Handle> handles;  // to refactor; empty: new ones
  bool overwrite = false;
  std::string idempotency_key;
  bool keep_matrix = false;
  bool check_finite = false;
  absl::Duration lease = absl::ZeroDuration();  // zero: the default
  bool pin = false;
  bool log_determinant = false;
  Accuracy accuracy = Accuracy::kStandard;
  bool condition_estimate = false;

  bool may_keep_matrix() const { return keep_matrix || accuracy == Accuracy::kGuaranteed; }
  // True if room for a pinned matrix is reserved before the refactor. A matrix that may turn out
  // not to be kept needs that only where reserving later would be too late.
  bool must_pin_matrix() const {
    return keep_matrix || (overwrite && accuracy == Accuracy::kGuaranteed);
  }
};

struct FactoredSystem {
  absl::Status status;
  Conditioning conditioning;  // this and the next two if status is OK
  double backward_error_bound = 0;
  bool matrix_kept = false;
  Handle handle;                          // if status is OK
  std::optional<double> log_determinant;  // if asked for, and status is OK
};

struct FactorReply {
  std::vector<FactoredSystem> systems;
  int64_t factor_bytes = 0;  // held for each, the most where only some keep their matrix
  bool found = false;        // the idempotency key found them
  Cost cost;
};
using FactorDone = absl::AnyInvocable<void(absl::StatusOr<FactorReply>)>;

struct SolveParams {
  Handle handle;
  int64_t num_rhs = 0;
  std::span<const std::byte> rhs;
  std::span<std::byte> solution;  // as long as rhs
  bool residual = false;
  int32_t max_refinements = 0;
  bool check_finite = false;  // the right-hand sides
};

struct SolveReply {
  std::optional<double> backward_error;
  double backward_error_bound = 0;
  int32_t refinements = 0;
  Cost cost;
};
using SolveDone = absl::AnyInvocable<void(absl::StatusOr<SolveReply>)>;

// Many solves that are asked for together. Each is checked, and fails, by itself.
struct SolveManyParams {
  struct Columns {
    int64_t num_rhs = 0;
    std::span<const std::byte> rhs;  // aligned as its scalars
    std::span<std::byte> solution;   // as long as rhs; may be the same memory
  };
  std::vector<Handle> handles;  // of each solve
  std::vector<Columns> solves;  // as many
  // For all solves, as in SolveParams.
  bool residual = false;
  int32_t max_refinements = 0;
  bool check_finite = false;

  bool needs_matrix() const { return residual || max_refinements > 0; }
};

// Where no solve succeeds because the request is late or cancelled, that is the status instead.
struct SolveManyReply {
  std::vector<SolveOutcome> outcomes;  // one a solve, in order
  Cost cost;                           // the longest wait in the queue, and the sums of the rest
};
using SolveManyDone = absl::AnyInvocable<void(absl::StatusOr<SolveManyReply>)>;

// Blocks of inv(A), to host memory: the sizes are InverseItem's (blockd/engine/solver.h).
struct SelectedInverseParams {
  Handle handle;
  InverseParts parts = InverseParts::kDiagonalBlocks;
  int64_t first_block = 0;
  int64_t num_blocks = 0;
  std::span<std::byte> diagonal, coupling;  // aligned as their scalars
  std::span<std::byte> border, corner;      // these of a border; empty: not wanted

  // INVALID_ARGUMENT for blocks that the shape does not have. num_blocks 0 becomes all that follow.
  absl::Status Resolve(const Shape& shape);
};

// Samples of N(0, inv(A)), (Nn + p) x num_samples, to host memory.
struct SampleParams {
  Handle handle;
  uint64_t seed = 0;
  uint64_t first_sample = 0;
  int64_t num_samples = 1;
  std::span<std::byte> samples;  // aligned as its scalars
};
// The answer to either.
struct CostReply {
  Cost cost;
};
using CostDone = absl::AnyInvocable<void(absl::StatusOr<CostReply>)>;

// Options of systems that are factored and solved for in one request.
struct FactorSolveOptions {
  bool overwrite = false;  // these two with a handle, as FactorParams has them
  bool keep_matrix = false;
  bool residual = false;
  int32_t max_refinements = 0;
  bool check_finite = false;  // the matrix
  bool check_finite_rhs = false;
  bool log_determinant = false;
  Accuracy accuracy = Accuracy::kStandard;

  bool measures() const { return residual || max_refinements > 0; }
  bool may_keep_matrix() const {
    return keep_matrix || measures() || accuracy == Accuracy::kGuaranteed;
  }
  bool must_pin_matrix() const {  // as FactorParams'
    return keep_matrix || (overwrite && accuracy == Accuracy::kGuaranteed);
  }
};

// Systems of one form, each of which fails by itself. They are one task of the scheduler, have one
// plan, and are factored and solved for together.
//
// Where handles are given, a handle's factorization is replaced by the one that was solved with, if
// that succeeds. If it fails, at whichever step, the old one stays in force; with `overwrite` the
// handle may end, with the reason FAILED_REFACTOR.
//
// Requests of one handle that are under way at once take effect one after another, each with the
// solution of its own matrix.
struct FactorSolveParams : FactorSolveOptions {
  MatrixForm form;
  std::vector<BlockTridiagonalView> matrices;    // at least one, of that form
  std::vector<SolveManyParams::Columns> solves;  // one a system
  std::vector<Handle> handles;  // one a system, no two alike; empty: nothing is kept
  // Where these are some of a message's systems: which; empty: all of them. Errors say it.
  std::vector<size_t> places;

  int64_t PlaceOf(size_t system) const {
    return static_cast<int64_t>(places.empty() ? system : places[system]);
  }
};

struct FactorSolveOutcome {
  SolveOutcome solve;
  double growth = 1;  // these three if the status is OK
  bool matrix_kept = false;
  std::optional<double> log_determinant;  // if asked for
};
// Where no system succeeds because the request is late or cancelled, that is the status instead.
struct FactorSolveReply {
  std::vector<FactorSolveOutcome> systems;  // in order
  Cost cost;
};
using FactorSolveDone = absl::AnyInvocable<void(absl::StatusOr<FactorSolveReply>)>;

// The plan of a Factor of some systems, and the costs of it and of a Solve.
struct PlanReply {
  std::shared_ptr<const EliminationPlan> plan;
  int64_t factor_bytes = 0;            // of each system
  int64_t factor_workspace_bytes = 0;  // for all systems, while they are factored
  int64_t solve_workspace_bytes = 0;
  double factor_flops = 0;  // of all systems
  double solve_flops = 0;
  double factor_seconds = 0;  // of all systems, as the cost model predicts
  double solve_seconds = 0;
};

struct CoreLimits {
  int64_t max_queued_requests = 1024;  // and uploads; then UNAVAILABLE
  int64_t max_batch_requests = 256;
  int64_t max_batch_bytes = int64_t{256} << 20;  // right-hand sides, or matrices, of one batch
  int64_t max_batch_rhs = 1024;
  absl::Duration max_batch_delay = absl::ZeroDuration();  // waits for company so long at most
  // How long a thread that waits for requests goes on looking once it had some, before it sleeps.
  // Negative: not at all, or, of a server's options, what fits the machine.
  absl::Duration poll = -absl::Microseconds(1);
  // A Solve or Factor on a CPU that waits for nobody and is predicted to take no longer is run and
  // answered by the thread that brings it, where that may (lane.h): to wake another one takes
  // longer.
  absl::Duration max_inline_solve = absl::ZeroDuration();
  absl::Duration default_lease = absl::ZeroDuration();
  absl::Duration max_lease = absl::Hours(1);
  absl::Duration Lease(absl::Duration asked) const {
    return asked > absl::ZeroDuration() ? asked : default_lease;
  }
  absl::Duration idle_expiry = absl::InfiniteDuration();  // released after so long without use
  absl::Duration retry_delay = absl::Milliseconds(50);    // said with UNAVAILABLE
  // Host memory of requests under way, in the core and before it; 0: no limit.
  int64_t max_inflight_request_bytes = 0;
  int64_t tombstones = 65536;  // handles whose end is remembered, so that NOT_FOUND can say why
  int64_t max_systems = 4096;  // K of one request
  // Bytes of the pool for the workspace of Solves alone; 0: a sixteenth of the pool; -1: none.
  int64_t solve_reserve_bytes = 0;
  int64_t max_handles = int64_t{1} << 20;  // factorizations held
  // The part of the queue, of handles, of host memory and of pinned memory that one tenant without
  // a quota may have while no other tenant has any (budget.h).
  double tenant_share = 0.75;
  // A batch takes no longer, as predicted, where several tenants ask; but one work may.
  absl::Duration max_shared_batch = absl::Milliseconds(1);
  int64_t max_tenants = 1024;  // beside those of the tenants file
  int64_t max_rhs = 65536;     // d of one request
  // Threads that assemble the models of Smooths, one of their callers included; 0: one.
  int32_t model_threads = 0;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_COMMON_REQUEST_H_
