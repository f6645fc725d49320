// A factorization that comes back: what a FactorHandle with FactorOptions::restore, the values that
// name it and the calls on it have in common. Internal to the client.
//
// One that is lost is factored again once, for all calls that wait for it, on a thread of its own:
// the caller's callback may take its time, and calls that are late end without it. Thread-safe.
// Kept alive by whoever still names it.
#ifndef BLOCKD_CLIENT_CALLS_HEALER_H_
#define BLOCKD_CLIENT_CALLS_HEALER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "blockd/client/results.h"
#include "client/rpc/connection.h"
#include "client/rpc/lost.h"

namespace blockd::client {

// The status of a call whose timeout passed before the factorization, lost by `why`, was restored.
absl::Status RestoreIsLate(const absl::Status& why);

class Healer : public std::enable_shared_from_this<Healer> {
 public:
  struct Current {
    Factorization factorization;  // without a healer
    int64_t generation = 0;       // one more with each restoration
  };
  // Once, on any thread; must not block.
  using Done = std::function<void(const absl::Status&)>;

  // `options` are those of the Factor that made `first`, as system `index` of its request.
  Healer(std::shared_ptr<Connection> connection, const FactorOptions& options, size_t index,
         const SystemView& system, Factorization first);

  // The most restorations of one request, and of all requests within the window.
  int max_restores() const { return restore_.max_restores; }
  Current current() const;
  RestoreCounters counters() const;

  // True if calling again with what Restore leads to mends `status`, which a call on the
  // factorization of `seen` got: that was lost, or given up by a restoration meanwhile.
  bool Mends(int64_t seen, const absl::Status& status) const;

  // The factorization of `seen` was lost, as `why` says. `done` gets OK when there is a newer one,
  // else what went wrong: the restoration's failure, or `why` where no more may be tried.
  void Restore(int64_t seen, const absl::Status& why, Done done);
  // The same, waiting. DEADLINE_EXCEEDED at the deadline.
  absl::Status AwaitRestored(int64_t seen, const absl::Status& why, absl::Time deadline);

  // A refactor of `seen` has succeeded: from now on these are the values that are restored, and so
  // are what it asked for. False if `seen` was replaced meanwhile: what replaced it is the old one.
  bool Refactored(int64_t seen, const SystemView& system, const FactorOptions& options);

  // Nobody restores it any more, and no callback begins. What is to be released.
  Factorization Retire();

 private:
  void Run();
  absl::StatusOr<Factorization> FactorAgain(int64_t* version);
  absl::Status Admit(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  struct Waiter {
    absl::Status why;
    Done done;
  };

  const std::shared_ptr<Connection> connection_;
  const RestoreOptions restore_;
  const size_t index_;

  mutable absl::Mutex mutex_;
  FactorOptions options_ ABSL_GUARDED_BY(mutex_);
  Current current_ ABSL_GUARDED_BY(mutex_);
  std::optional<OwnedSystem> copy_ ABSL_GUARDED_BY(mutex_);
  int64_t version_ ABSL_GUARDED_BY(mutex_) = 0;  // of the values
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  bool retired_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Waiter> waiters_ ABSL_GUARDED_BY(mutex_);
  std::deque<absl::Time> started_ ABSL_GUARDED_BY(mutex_);  // within the window
  RestoreCounters counters_ ABSL_GUARDED_BY(mutex_);
};

// Calls with what the factorization stands for now, and again after each restoration, until it
// succeeds or fails for good.
absl::Status CallHealing(const Factorization& factorization, absl::Time deadline,
                         absl::FunctionRef<absl::Status(const Factorization& now)> call);

// A refactor in place, in the same way. The new values are those that are restored from then on.
absl::StatusOr<v1::FactorReply> RefactorHealing(Connection& connection,
                                                std::span<const SystemView> systems,
                                                std::span<const Factorization> factorizations,
                                                const FactorOptions& options);

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_CALLS_HEALER_H_
