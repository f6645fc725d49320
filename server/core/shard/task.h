// A request that was accepted, on its way through the core. Private to the core.
#ifndef BLOCKD_SERVER_CORE_SHARD_TASK_H_
#define BLOCKD_SERVER_CORE_SHARD_TASK_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "blockd/engine/backend.h"
#include "server/core/common/request.h"
#include "server/core/shard/scheduler.h"
#include "server/core/tenants/permit.h"

namespace blockd::server {

class Task;
using TaskPtr = std::unique_ptr<Task>;

// Runs the tasks of one kind of request, whose checks and reservations have come before. An answer
// is given exactly once, after the task's resources were given back and before the task is
// destroyed.
class Operation {
 public:
  virtual ~Operation() = default;
  // Waits for a batch that the device was given, and answers it.
  using Completion = absl::AnyInvocable<void()>;
  // Runs tasks of one BatchKey, on the thread that feeds the device, and answers them; or returns
  // what will, on the lane's other thread, after those of the batches before. The lane destroys the
  // tasks then. A task that has done a step and has more to do is `unfinished`, with a ticket for
  // the next one of the same lane: it goes back to the queue, from where it runs with whatever is
  // compatible then, or ends with Fail.
  virtual Completion Run(const std::vector<TaskPtr>& batch) = 0;
  // Answers a task that waits. On any thread.
  virtual void Fail(TaskPtr task, const absl::Status& status) = 0;
};

struct EndPendingSolve {
  void operator()(Backend* backend) const { backend->CountPendingSolves(-1); }
};

class Task : public Work {
 public:
  Task(Operation* operation, Method method, ContextPtr context, Permit permit, absl::Time accepted)
      : operation(operation),
        method(context->method.value_or(method)),
        context(std::move(context)),
        permit(std::move(permit)),
        accepted(accepted) {}

  bool ended(absl::Time now) const { return context->ended(now); }
  absl::Status EndStatus(absl::Time now) const { return context->EndStatus(now); }

  Operation* const operation;
  const Method method;
  const ContextPtr context;
  Permit permit;  // destroyed after the memory that it stands for: of derived classes' members
  absl::Time accepted;
  int64_t requests = 1;  // that it stands for: solves of one message
  bool unfinished = false;
  // Set while a Solve is queued or runs: factorizations make way for it.
  std::unique_ptr<Backend, EndPendingSolve> pending_on;
};

// A batch, or a piece of one, that ran.
struct RanBatch {
  absl::Time started;
  int64_t requests = 0;
  int64_t items = 0;  // systems, or right-hand sides
  Phases phases;
};

// As tasks of the operation that they belong to.
template <typename T>
std::vector<T*> TasksOf(const std::vector<TaskPtr>& batch) {
  std::vector<T*> tasks;
  tasks.reserve(batch.size());
  for (const TaskPtr& task : batch) tasks.push_back(static_cast<T*>(task.get()));
  return tasks;
}

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_SHARD_TASK_H_
