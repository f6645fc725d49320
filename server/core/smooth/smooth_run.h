// One Smooth from its start to its answer: its systems, the groups in which devices work on them,
// and its results. Private to this folder.
//
// Thread-safe.
#ifndef BLOCKD_SERVER_CORE_SMOOTH_SMOOTH_RUN_H_
#define BLOCKD_SERVER_CORE_SMOOTH_SMOOTH_RUN_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "blockd/engine/doubles.h"
#include "blockd/engine/smoother.h"
#include "server/core/common/smooth_request.h"
#include "server/core/smooth/smooth.h"
#include "server/core/smooth/smooth_operation.h"
#include "server/core/tenants/permit.h"

namespace blockd::server {

class SmoothRun final : public PendingSmooth, public std::enable_shared_from_this<SmoothRun> {
 public:
  SmoothRun(const SmoothDevices& devices, ContextPtr context, Permit permit,
            const MeasuredSmooth& measured, std::unique_ptr<Smoother> smoother,
            const KeepModel& kept, const SmoothResults& results, PostWork post, SmoothDone done)
      : devices_(devices),
        measured_(measured),
        admission_(devices.admission),
        shards_(devices.shards),
        solves_(devices.solves),
        operations_(devices.operations),
        pool_(devices.pool),
        context_(std::move(context)),
        permit_(std::move(permit)),
        smoother_(std::move(smoother)),
        params_(smoother_->params()),
        kept_(kept),
        results_(results),
        post_(std::move(post)),
        done_(std::move(done)),
        systems_(smoother_->systems()),
        most_systems_(MostSystems()),
        most_running_(shards_->size() + 1) {
    for (int64_t k = 0; k < params_.num_series; ++k) {
      systems_[smoother_->patterns().system_of_series[k]].series.push_back(k);
    }
  }

  // Each group of systems ends with a status of its own.
  void Start();
  absl::StatusOr<SmoothReply> Finish() override;

 private:
  struct System {
    std::vector<int64_t> series;
    SystemMatrix matrix;      // or
    WhitenedSystem whitened;  // where the device makes it
    bool made = false;        // one of the two
    std::string key;          // with keep
    Handle handle;            // of what is kept
    bool found = false;       // it was kept before
    double log_determinant = 0;
    double growth = 1;
    Doubles blocks, variances;                      // of the inverse, where they are no result
    std::shared_ptr<const Doubles> kept_variances;  // of what was kept before
    bool has_no_factorization = false;              // in double
  };
  // Systems that a device works on at once: of some that are kept there, or of others.
  struct Group {
    std::vector<size_t> systems;
    bool found = false;
  };

  static std::span<double> Part(std::span<double> all, int64_t first, int64_t count) {
    return all.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
  }
  int64_t BlockScalars() const { return params_.state_size * params_.state_size; }
  int64_t SeriesScalars() const { return params_.state_size * params_.num_steps; }
  bool needs_blocks() const { return params_.residuals || params_.lag_one; }
  bool inverts() const {
    return params_.covariances != SmoothedCovariances::kNone || needs_blocks();
  }
  bool IsForDevice() const {
    return smoother_->IsForDevice() && !shards_->front().solver().backend().reads_host_memory();
  }
  Shape shape() const { return {params_.num_steps, params_.state_size, Scalar::kFloat64}; }
  // The most systems of one group.
  size_t MostSystems() const;
  absl::Duration Lease() const { return admission_->limits().Lease(kept_.lease); }

  // Blocks, or their diagonals.
  std::span<double> CovariancesOf(size_t s) const {
    const int64_t size = params_.covariances == SmoothedCovariances::kFull
                             ? params_.num_steps * BlockScalars()
                             : SeriesScalars();
    return Part(results_.covariances, static_cast<int64_t>(s) * size, size);
  }
  std::span<double> MeansOf(int64_t series) const {
    return Part(results_.means, series * SeriesScalars(), SeriesScalars());
  }
  void TouchResults();
  // The kept factorization of a system, if there is one.
  absl::Status FindKept(size_t s);

  // Begins as many groups as may be under way. On a thread that has time to assemble.
  void StartGroups();
  // nullopt: none waits, or enough are under way.
  std::optional<Group> NextGroup();
  // Under the mutex: the request is not over, so nothing is posted once it is.
  void PostGroups() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Begin(const Group& group);
  // Right-hand sides, and the matrices of those that are not kept.
  absl::Status Prepare(const Group& group);
  // Its permit counts for no request.
  Permit PartPermit() const;
  // The means alone, of factorizations that are kept.
  void Solve(const Group& group);
  void OnSolved(const Group& group, absl::StatusOr<SolveManyReply> reply);
  std::unique_ptr<SmoothTask> MakeTask(const Group& group, size_t shard);
  SmoothPart MakePart(size_t s);
  // A group of systems that are kept.
  void BeginKept(Group group);
  absl::Status Place(const Group& group);
  // Takes what it asked the device for and queues it; the task is the caller's still if it is
  // refused.
  absl::Status Submit(Shard& shard, std::unique_ptr<SmoothTask>& task);
  void OnRan(const Group& group, Shard& shard, SmoothTask& task);
  absl::Status Keep(Shard& shard, SmoothTask& task, SmoothPart& part);

  // The group is over.
  void End(const Group& group, const absl::Status& status);
  // True if its systems wait again, for there was no room for them: in smaller groups, and until
  // nothing else of the request takes any.
  bool WaitsForRoom(const Group& group);
  // They wait again, since what was kept of them is gone.
  void Lose(std::span<const size_t> systems);
  void EndAll(const absl::Status& status);
  void FinishSystem(size_t s, SmoothReply& reply);
  // Handles of which the caller does not hear.
  void ReleaseNew();
  Smoother::Variances VariancesOf(size_t s) const;
  std::shared_ptr<const Doubles> CopyVariances(size_t s) const;  // nx x T
  // Estimates of a system's numbers, as the device gave them.
  SmoothErrors ErrorsOf(size_t s) const;
  bool IsGood(size_t s, const SmoothReply& reply) const;
  // The growth and the bound of a factorization that is solved with.
  void AddQuality(size_t s, const Factorization& factorization);
  void AddCost(const Cost& cost);

  const SmoothDevices devices_;
  const MeasuredSmooth measured_;
  Admission* const admission_;
  Shards* const shards_;
  SolveRequests* const solves_;
  std::deque<SmoothOperation>* const operations_;
  StepPool* const pool_;
  const ContextPtr context_;
  Permit permit_;  // of all groups
  const std::unique_ptr<Smoother> smoother_;
  const SmoothParams& params_;
  const KeepModel kept_;
  const SmoothResults results_;
  const PostWork post_;
  SmoothDone done_;
  std::vector<System> systems_;  // each used by its group alone

  absl::Mutex mutex_;
  std::deque<size_t> waiting_ ABSL_GUARDED_BY(mutex_);  // systems of no group
  size_t most_systems_ ABSL_GUARDED_BY(mutex_);         // of a group
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;          // groups, of which so many may:
  size_t most_running_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // the first failure
  Cost cost_ ABSL_GUARDED_BY(mutex_);
  double growth_ ABSL_GUARDED_BY(mutex_) = 1;
  double backward_error_bound_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_SMOOTH_SMOOTH_RUN_H_
