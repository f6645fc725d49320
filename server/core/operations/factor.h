// Factor: one call or an upload, new handles or a refactor, with or without an idempotency key.
//
// Thread-safe. request.h has the contract of keys.
#ifndef BLOCKD_SERVER_CORE_OPERATIONS_FACTOR_H_
#define BLOCKD_SERVER_CORE_OPERATIONS_FACTOR_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "server/core/operations/factor_upload.h"
#include "server/core/operations/kept_factorization.h"
#include "server/core/shard/shards.h"
#include "server/core/shard/task.h"
#include "server/core/tenants/admission.h"

namespace blockd::server {

struct FactorTask : Task {
  FactorTask(Operation* operation, ContextPtr context, Permit permit, absl::Time accepted,
             FactorParams params, FactorDone done)
      : Task(operation, Method::kFactor, std::move(context), std::move(permit), accepted),
        params(std::move(params)),
        done(std::move(done)) {}

  FactorParams params;
  FactorDone done;
  Shard* shard = nullptr;                       // where it goes; null: not placed yet
  std::shared_ptr<const EliminationPlan> plan;  // null: not admitted yet
  std::vector<BlockTridiagonalView> matrices;   // host memory, or
  std::vector<StagedMatrix> staged;             // device memory
  absl::Duration received;                      // how long its upload took
  std::vector<FactorizationPin> pins;           // what is refactored
  std::vector<int64_t> factor_reserved;         // of permit.device, for each system's factor; bytes
  bool owns_key = false;                        // others with its idempotency key wait for it
};
using FactorTaskPtr = std::unique_ptr<FactorTask>;

// One for all devices, since a key is one of all of them. All systems of a call go to one device.
class FactorOperation final : public Operation {
 public:
  // `host` is the budget of what an upload keeps of itself on the host. All outlive it.
  FactorOperation(Admission* admission, Shards* shards, Budget* host)
      : admission_(admission), shards_(shards), host_(host) {}

  // As SolverCore says them.
  void Start(ContextPtr context, const FactorParams& params,
             std::vector<BlockTridiagonalView> matrices, FactorDone done);
  absl::StatusOr<std::variant<std::unique_ptr<FactorUpload>, FactorReply>> BeginUpload(
      ContextPtr context, const FactorParams& params, std::span<const uint32_t> palette_diagonal,
      std::span<const uint32_t> palette_coupling);
  void FinishUpload(std::unique_ptr<FactorUpload> upload, FactorDone done);

  Completion Run(const std::vector<TaskPtr>& batch) override;
  void Fail(TaskPtr task, const absl::Status& status) override;

  // Answer tasks that wait for another one with their key: the cancelled, and the late.
  void Cancel(const RequestContext* context) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Time EndExpired(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class Upload;
  struct FactorRun;  // one system of a batch

  // Pins what is to be refactored, takes what the tenant's quotas are of, and places the task where
  // there is room: `staged` as DeviceBytes has it; `take` has the last word, for the bytes that it
  // needs there.
  using Take = absl::FunctionRef<absl::Status(FactorTask& task, int64_t bytes)>;
  absl::Status Admit(FactorTask& task, bool staged, Take take);
  // The devices that it may go to, the best first.
  absl::StatusOr<std::vector<Shard*>> Candidates(FactorTask& task, bool staged);
  absl::Status AdmitOn(Shard& shard, FactorTask& task, bool staged, Take take);
  // How much device memory an admitted task needs. `staged`: matrices come to the device first and
  // stay there until the end.
  int64_t DeviceBytes(FactorTask& task, bool staged);
  // How much more would be pinned or leased.
  int64_t PinnedBytes(const FactorTask& task) const;
  absl::Status PinRefactored(FactorTask& task);
  // Device memory for all systems of an upload, and the palette's indices in it.
  absl::Status StageAll(FactorTask& task, std::span<const uint32_t> palette_diagonal,
                        std::span<const uint32_t> palette_coupling);
  // Finds the key, waits for it or owns it; admits unless that is done; queues.
  void Submit(FactorTaskPtr task);
  void PrepareOverwrite(FactorTask& task, int64_t system, FactorRun& run);
  // Moves what succeeded into the cache, each with its part of the task's reservations. With one
  // system, its failure is the whole request's.
  absl::StatusOr<FactorReply> Keep(FactorTask& task, std::span<FactorRun> runs);
  void KeepNew(FactorTask& task, std::vector<KeptObjectPtr> made, FactorReply& reply);
  // Gives what it had back, answers, and lets those go that wait for its key.
  void Answer(FactorTask& task, absl::StatusOr<FactorReply> reply);

  // factor_keys.cc: the answer of a held key to this request; nullopt if the key is not held.
  absl::StatusOr<std::optional<FactorReply>> FindKey(const RequestContext& context,
                                                     const FactorParams& params);
  // Factors with one idempotency key. The first runs, the others wait here until it is answered,
  // and then go on as if they had just come.
  using Key = std::pair<std::string, std::string>;  // caller, idempotency key
  using FactorTasks = std::vector<FactorTaskPtr>;
  // True if the task is the first; else it is kept here, to wait.
  bool OwnKeyOrWait(FactorTaskPtr& task) ABSL_LOCKS_EXCLUDED(mutex_);
  void ReleaseKey(const FactorTask& task, const absl::StatusOr<FactorReply>& reply)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Lets those go on that waited for a key which is free or held now.
  void ResumeWaiters() ABSL_LOCKS_EXCLUDED(mutex_);
  static void KeepKey(const FactorParams& params, const FactorReply& reply,
                      Cache::EntryOptions& options);

  Admission* const admission_;
  Shards* const shards_;
  Budget* const host_;
  absl::Mutex mutex_;
  absl::flat_hash_map<Key, FactorTasks> keys_ ABSL_GUARDED_BY(mutex_);
  std::deque<FactorTaskPtr> resumed_ ABSL_GUARDED_BY(mutex_);  // waited for a key
  bool resuming_ ABSL_GUARDED_BY(mutex_) = false;              // a thread takes them from resumed_
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_OPERATIONS_FACTOR_H_
