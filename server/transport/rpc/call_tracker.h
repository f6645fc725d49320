// Who is under way while the server drains. Thread-safe.
#ifndef BLOCKD_SERVER_TRANSPORT_RPC_CALL_TRACKER_H_
#define BLOCKD_SERVER_TRANSPORT_RPC_CALL_TRACKER_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace blockd::server {

// A stream that stays open while nothing is asked of it, and so must be told to end.
class DrainableStream {
 public:
  virtual ~DrainableStream() = default;
  virtual void OnDrain() = 0;  // ends once what it has accepted is answered
};

// Counts calls under way and says when work is no longer accepted.
class CallTracker {
 public:
  void Begin();
  void End();
  void Add(DrainableStream* stream, std::weak_ptr<DrainableStream> weak);
  void Remove(DrainableStream* stream);

  int64_t active();  // calls under way, streams included
  bool draining() const { return draining_.load(std::memory_order_acquire); }
  void StartDrain();
  // False if calls are still under way after `timeout`.
  bool WaitUntilIdle(absl::Duration timeout);

 private:
  std::atomic<bool> draining_{false};
  absl::Mutex mutex_;
  int64_t active_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<DrainableStream*, std::weak_ptr<DrainableStream>> streams_
      ABSL_GUARDED_BY(mutex_);
};

// RAII place among the calls under way. The first member of a call, so that all that the call took
// from the server is back when the server learns that the call is over.
class ActiveCall {
 public:
  explicit ActiveCall(CallTracker* tracker) : tracker_(tracker) { tracker_->Begin(); }
  ~ActiveCall() { tracker_->End(); }
  CallTracker* tracker() const { return tracker_; }
  ActiveCall(const ActiveCall&) = delete;
  ActiveCall& operator=(const ActiveCall&) = delete;

 private:
  CallTracker* const tracker_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_RPC_CALL_TRACKER_H_
