// Solve: pins a factorization, queues, runs with others of its plan.
//
// Thread-safe.
#ifndef BLOCKD_SERVER_CORE_OPERATIONS_SOLVE_H_
#define BLOCKD_SERVER_CORE_OPERATIONS_SOLVE_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "server/core/factorization_cache.h"
#include "server/core/shard.h"
#include "server/core/task.h"

namespace blockd::server {

struct SolveTask : Task {
  SolveTask(Operation* operation, ContextPtr context, Permit permit, absl::Time accepted,
            const SolveParams& params, SolveDone done)
      : Task(operation, Method::kSolve, std::move(context), std::move(permit), accepted),
        params(params),
        done(std::move(done)) {}

  SolveParams params;
  FactorizationCache::Pin pin;
  SolveDone done;
  // What ran of it, where it runs in parts.
  int64_t solved_columns = 0;
  SolveOutcome outcome;
  RanBatch ran;
};

// Workspace is at hand before anything runs: of the reserve, which nothing else takes, as far as it
// suffices, else of the memory that happens to be free. A batch that fits neither runs in halves,
// and one request that does not in some columns after others, with the same bits. So a Solve on a
// handle that is held is refused for memory only where one column does not fit the reserve.
//
// Where others wait, a long request runs in parts too, and they go between.
class SolveOperation final : public Operation {
 public:
  explicit SolveOperation(Shard* shard) : shard_(shard) {}

  void Start(ContextPtr context, const SolveParams& params, SolveDone done);
  void Run(const std::vector<TaskPtr>& batch) override;
  void Fail(TaskPtr task, const absl::Status& status) override;

 private:
  // Memory for a batch's workspace.
  struct Room {
    MemoryPool* pool = nullptr;  // null: there is none
    Reservation reservation;     // if it is not of the reserve
  };
  Room FindRoom(int64_t bytes);
  int64_t Workspace(const SolveTask& task, int64_t num_rhs) const;
  void RunTogether(std::span<SolveTask* const> tasks, Room room);
  // Some columns after others, up to `end`; refused if there is no room for one.
  void RunInParts(SolveTask& task, int64_t end);
  // What the scheduler should know of the columns from `solved_columns` on.
  void WriteTicket(SolveTask& task) const;
  // How many columns take no longer than that, as predicted; at least one.
  int64_t ColumnsWithin(const SolveTask& task, double seconds) const;
  SolveOutcome SolveAfterEviction(const SolveTask& task, int64_t column, int64_t bytes);
  SolveOutcome SolveColumns(const SolveTask& task, int64_t first, int64_t columns, MemoryPool* pool,
                            Phases* phases);
  void Answer(SolveTask& task, const SolveOutcome& outcome, const Cost& cost);

  Shard* const shard_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_OPERATIONS_SOLVE_H_
