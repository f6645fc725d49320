// What every call has, whatever it does: who asks, since when, how it ended; its line in the log
// and its place in the metrics; and whether the server still accepts work.
//
// ServiceState is shared by all calls and thread-safe. A CallRecord belongs to one call and is used
// by one thread at a time.
#ifndef BLOCKD_SERVER_CALL_H_
#define BLOCKD_SERVER_CALL_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "google/protobuf/message_lite.h"
#include "server/core/budget.h"
#include "server/core/metrics.h"
#include "server/core/solver_core.h"
#include "server/host_budget.h"
#include "server/identity/identities.h"
#include "server/options.h"

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
  ActiveCall(const ActiveCall&) = delete;
  ActiveCall& operator=(const ActiveCall&) = delete;

 private:
  CallTracker* const tracker_;
};

struct ServiceState {
  ServiceState(SolverCore* core, Metrics* metrics, const ServerOptions& options,
               const ServerIdentity& identity, const Identities* identities)
      : core(core),
        metrics(metrics),
        options(options),
        identity(identity),
        identities(identities),
        host_budget(options.max_inflight_request_bytes, options.core.retry_delay),
        start(absl::Now()) {}

  // UNAVAILABLE with ServerDraining once the server drains.
  absl::Status CheckAcceptsWork() const;
  // RESOURCE_EXHAUSTED with LimitExceeded for one over --max_message_bytes.
  absl::Status CheckMessageSize(const grpc::ByteBuffer& message) const;

  SolverCore* const core;
  Metrics* const metrics;
  const ServerOptions options;
  const ServerIdentity identity;
  const Identities* const identities;
  HostBudget host_budget;
  CallTracker tracker;
  const absl::Time start;
};

class CallRecord {
 public:
  // Reads the caller, the deadline and the request id.
  CallRecord(ServiceState* state, Method method, grpc::CallbackServerContext* rpc);
  // One request of a stream, under the stream's context.
  CallRecord(ServiceState* state, Method method, ContextPtr context);

  const ContextPtr& context() const { return context_; }
  // UNAUTHENTICATED or PERMISSION_DENIED: nobody to work for.
  const absl::Status& allowed() const { return allowed_; }
  // For the log.
  void SetShape(const Shape& shape, int64_t systems);
  void SetSolve(const Handle& handle, int64_t num_rhs);
  void SetCost(const Cost& cost) { cost_ = cost; }

  // The answer is known: stops the time.
  void SetOutcome(const absl::Status& status);
  // Metrics and log; after SetOutcome.
  void Publish() const;

 private:
  ServiceState* const state_;
  const Method method_;
  const ContextPtr context_;
  const absl::Time start_;
  absl::Status allowed_;
  absl::Duration total_;
  absl::Status status_;
  std::string subject_;  // shape or handle
  int64_t items_ = 0;
  Cost cost_;
};

// Why gRPC cancelled a call: DEADLINE_EXCEEDED if its deadline has passed, else CANCELLED.
absl::Status CancellationOf(const RequestContext& context);

// The request id goes back in the initial metadata. A call that fails before it has sent any says
// it in its trailing metadata instead: without initial metadata the status is in the answer's first
// frame, which is where a router looks that tries failed calls elsewhere.
void EchoRequestId(const RequestContext& context, grpc::CallbackServerContext* rpc);
grpc::Status FailBeforeAnswer(const absl::Status& status, const RequestContext& context,
                              grpc::CallbackServerContext* rpc);
// Says `status` on the wire, with the retry delay as trailing metadata where there is one.
grpc::Status FinalStatus(const absl::Status& status, grpc::CallbackServerContext* rpc);

// A unary call: parses its request, runs, answers. Deletes itself when the call is over. After
// Succeed or Fail the object may be gone.
class UnaryCall : public grpc::ServerUnaryReactor {
 public:
  UnaryCall(ServiceState* state, Method method, grpc::CallbackServerContext* rpc,
            const grpc::ByteBuffer* request, grpc::ByteBuffer* reply);

  // Once, before the reactor is returned to gRPC.
  void Begin();

 protected:
  virtual google::protobuf::MessageLite* request() = 0;
  // The request is parsed and its bytes are counted.
  virtual void Start() = 0;

  void Succeed(grpc::ByteBuffer reply);
  void Fail(const absl::Status& status);

  ServiceState* state() { return state_; }
  SolverCore& core() { return *state_->core; }
  CallRecord& record() { return record_; }
  // Counts more bytes for this call.
  absl::Status TakeHostBytes(int64_t bytes);

 private:
  void OnCancel() override { record_.context()->cancelled = true; }
  void OnDone() override;

  ServiceState* const state_;
  const ActiveCall active_;
  grpc::CallbackServerContext* const rpc_;
  const grpc::ByteBuffer* const request_bytes_;
  grpc::ByteBuffer* const reply_bytes_;
  CallRecord record_;
  Reservation host_bytes_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CALL_H_
