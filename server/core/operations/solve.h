// Solve and SolveMany on one device: run with others of their plan. solve_requests.h is what comes
// before.
//
// Thread-safe.
#ifndef BLOCKD_SERVER_CORE_OPERATIONS_SOLVE_H_
#define BLOCKD_SERVER_CORE_OPERATIONS_SOLVE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/core/operations/kept_factorization.h"
#include "server/core/shard/shard.h"
#include "server/core/shard/task.h"

namespace blockd::server {

// The request of one message. It has a task for each plan of each device; the last task that ends
// answers.
struct SolveRequest {
  // To whoever asked, once no task is left.
  void Answer();

  SolveManyParams params;
  SolveManyDone done;
  std::vector<SolveOutcome> outcomes;  // one a solve; each written by the task that it is of
  std::atomic<int> unanswered{0};      // tasks
  absl::Mutex mutex;
  Cost cost ABSL_GUARDED_BY(mutex);
};

// One of the solves of a task.
struct SolvePart {
  size_t solve = 0;  // in the request
  FactorizationPin pin;
  SolveManyParams::Columns columns;
  int64_t solved = 0;  // columns; all of them where it failed
  SolveOutcome outcome;

  int64_t left() const { return columns.num_rhs - solved; }
};

// The solves of a request whose factorizations are on one device and have one plan.
struct SolveTask : Task {
  SolveTask(Operation* operation, Method method, ContextPtr context, Permit permit,
            absl::Time accepted, std::shared_ptr<SolveRequest> request)
      : Task(operation, method, std::move(context), std::move(permit), accepted),
        request(std::move(request)) {
    requests = 0;  // of its parts
  }

  const EliminationPlan& plan() const { return parts[0].pin->plan(); }

  const std::shared_ptr<SolveRequest> request;
  std::vector<SolvePart> parts;  // at least one
  int64_t columns = 0;           // of all parts
  int64_t left = 0;              // of them, not solved yet
  size_t first_left = 0;         // no part before it has any left
  RanBatch ran;                  // where it runs in pieces
};

// Workspace is at hand before anything runs: of the reserve, which nothing else takes, as far as it
// suffices, else of the memory that happens to be free. A batch that fits neither runs in halves,
// and one request that does not in some columns after others, with the same bits. So a Solve on a
// handle that is held is refused for memory only where one column does not fit the reserve.
//
// A batch that the device was given is in flight until its completion. Several batches may be in
// flight, as far as workspace goes: a thread that finds none free waits for those in flight first.
//
// Where others wait, a long request runs in pieces too, of some solves or of some columns of one,
// and they go between.
class SolveOperation final : public Operation {
 public:
  explicit SolveOperation(Shard* shard) : shard_(shard) {}

  // Queues a task that is complete but for its ticket, or answers it.
  void Submit(std::unique_ptr<SolveTask> task);
  Completion Run(const std::vector<TaskPtr>& batch) override;
  void Fail(TaskPtr task, const absl::Status& status) override;

 private:
  // Memory for a batch's workspace.
  struct Room {
    MemoryPool* pool = nullptr;  // null: there is none
    Reservation reservation;     // if it is not of the reserve
  };
  // The next columns of a part.
  struct Slice {
    SolveTask* task = nullptr;
    SolvePart* part = nullptr;
    int64_t columns = 0;
  };
  using Slices = std::vector<Slice>;

  Room FindRoom(int64_t bytes);
  void AwaitFlights();
  std::vector<SolveItem> ItemsOf(const Slices& slices) const;
  int64_t Workspace(const Slices& slices) const;
  // The next slices of the task, up to so many columns.
  static Slices NextOf(SolveTask& task, int64_t most);
  std::vector<SolveOutcome> Solve(const Slices& slices, MemoryPool* pool, Phases* phases);
  // False if it found no room, and so is left as it was.
  static bool Take(const Slice& slice, SolveOutcome outcome);

  // A batch that was given to the device.
  struct Flight;
  Completion RunTogether(std::span<SolveTask* const> tasks, Room room);
  void Land(Flight& flight);
  // Up to `most` columns, some after others; those fail that have no room for one.
  void RunInPieces(SolveTask& task, int64_t most);
  SolveOutcome SolveAfterEviction(const Slice& slice);
  // Writes the scheduler's ticket of the rest of the task.
  void WriteTicket(SolveTask& task) const;
  double PredictedSeconds(const SolveTask& task, int64_t columns) const;
  // How many columns take no longer than that, as predicted; at least one.
  int64_t ColumnsWithin(const SolveTask& task, double seconds) const;
  // For a batch that stands before a device which failed meanwhile.
  void AnswerOutOfService(const std::vector<TaskPtr>& batch);
  void Answer(SolveTask& task, const Cost& cost);

  Shard* const shard_;
  absl::Mutex flights_mutex_;
  int flights_ ABSL_GUARDED_BY(flights_mutex_) = 0;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_OPERATIONS_SOLVE_H_
