// The common part of all calls: the caller, the start, the outcome, the line in the log and the
// place in the metrics; and the check that the server still accepts work.
//
// ServiceState is shared by all calls and thread-safe. A CallRecord belongs to one call and is used
// by one thread at a time.
#ifndef BLOCKD_SERVER_TRANSPORT_RPC_CALL_H_
#define BLOCKD_SERVER_TRANSPORT_RPC_CALL_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "google/protobuf/message.h"
#include "server/base/steady_time.h"
#include "server/core/common/metrics.h"
#include "server/core/solver_core.h"
#include "server/core/tenants/budget.h"
#include "server/identity/identities.h"
#include "server/log/logging.h"
#include "server/options/options.h"
#include "server/transport/rpc/call_tracker.h"
#include "server/transport/rpc/executor.h"
#include "server/transport/rpc/health.h"
#include "server/transport/upload/open_upload.h"
#include "server/transport/wire/wire_scan.h"

namespace blockd::server {

// The longest message that a serving thread reads itself: a longer one keeps other calls waiting.
constexpr size_t kShortMessageBytes = 256 << 10;

// The flag that ends the reading of a long message: the call's cancellation. Null for a short one,
// which takes effect even if it is cancelled, as it would if it were cancelled a little later.
inline const std::atomic<bool>* StopsReading(const grpc::ByteBuffer& message,
                                             const RequestContext& context) {
  return message.Length() > kShortMessageBytes ? &context.cancelled : nullptr;
}

class AdminService;
class Reflection;

struct ServiceState {
  ServiceState(SolverCore* core, Metrics* metrics, const ServerOptions& options,
               const ServerIdentity& identity, const Identities* identities)
      : core(core),
        metrics(metrics),
        options(options),
        identity(identity),
        identities(identities),
        start(SteadyNow()),
        work("work", options.copy_threads),
        replies("replies", options.serving_threads, options.core.poll),
        copies("copies", options.copy_threads),
        element_limits_(ElementLimits(options)) {}

  // UNAVAILABLE with ServerDraining once the server drains.
  absl::Status CheckAcceptsWork() const;
  // RESOURCE_EXHAUSTED with LimitExceeded for one over --max_message_bytes.
  absl::Status CheckMessageSize(size_t message_bytes) const;
  // The same, and INVALID_ARGUMENT for one that was sent in so many short frames that what is known
  // of each would need more memory than they have bytes. Looks at each piece.
  absl::Status CheckMessage(const grpc::ByteBuffer& message) const;
  // Takes the memory from the host's budget that `message` will need once it is parsed, and parses
  // it. INVALID_ARGUMENT for bytes that are no such message, what the budget says, and CANCELLED
  // once StopsReading says so.
  absl::Status Parse(const grpc::ByteBuffer& bytes, const RequestContext& context,
                     google::protobuf::Message* message, Reservation* share);

  // True if the caller is known by more than a name that callers give themselves.
  bool IsIdentified(const grpc::ServerContextBase& rpc) const;

  SolverCore* const core;
  Metrics* const metrics;
  const ServerOptions options;
  const ServerIdentity identity;
  const Identities* const identities;
  CallTracker tracker;
  HealthBoard health;
  // Set before the first call, where they are served.
  const AdminService* admin = nullptr;
  Reflection* reflection = nullptr;
  const absl::Time start;
  OpenUploads uploads;
  // `work` does what takes long, `replies` sends answers that the core gives on its own threads,
  // and `copies` copies the bytes of uploads, so that uploads hold up nothing else.
  Executor work, replies, copies;

 private:
  static std::vector<ElementLimit> ElementLimits(const ServerOptions& options);

  const std::vector<ElementLimit> element_limits_;
};

class CallRecord {
 public:
  // Reads the caller, the deadline and the request id. The caller needs one of `roles`.
  CallRecord(ServiceState* state, Method method, grpc::ServerContextBase* rpc,
             RoleSet roles = {Role::kUse});
  // One request of a stream, under the stream's context.
  CallRecord(ServiceState* state, Method method, ContextPtr context);

  const ContextPtr& context() const { return context_; }
  // UNAUTHENTICATED or PERMISSION_DENIED: nobody to work for.
  const absl::Status& allowed() const { return allowed_; }
  // For the log.
  void SetShape(const Shape& shape, int64_t systems);
  void SetSolve(const Handle& handle, int64_t num_rhs);
  void SetSolves(int64_t solves, int64_t items);
  void SetCost(const Cost& cost) { cost_ = cost; }

  // The answer is known: stops the time, and the log's level of now decides about its line.
  void SetOutcome(const absl::Status& status);
  const absl::Status& status() const { return status_; }
  // Metrics and log; after SetOutcome.
  void Publish() const;
  // The metrics alone, of the server and of the tenant.
  void Count() const;

 private:
  LogLevel Level() const;

  ServiceState* const state_;
  const Method method_;
  const ContextPtr context_;
  const absl::Time start_;
  absl::Status allowed_;
  absl::Duration total_;
  absl::Status status_;
  bool is_logged_ = false;
  std::string subject_;  // shape or handle
  int64_t items_ = 0;
  Cost cost_;
};

// A new id for the log, unlike all others.
std::string NewRequestId();

// Sets the caller and the tenant. UNAUTHENTICATED or PERMISSION_DENIED: nobody to work for; the
// caller needs one of `roles`.
absl::Status Authorize(const ServiceState& state, const Peer& peer, RoleSet roles,
                       RequestContext* context);

// The context of one request of a stream: it is cancelled by itself, or with the stream.
ContextPtr ContextOfRequest(const RequestContext& stream, absl::Time deadline);

// Why gRPC cancelled a call: DEADLINE_EXCEEDED if its deadline has passed, else CANCELLED.
absl::Status CancellationOf(const RequestContext& context);

// The request id, and the trace's, go back in the initial metadata. A call that fails before it has
// sent any says them in its trailing metadata instead: without initial metadata the status is in
// the answer's first frame, which is where a router looks that tries failed calls elsewhere.
void EchoIds(const RequestContext& context, grpc::ServerContextBase* rpc);
grpc::Status FailBeforeAnswer(const absl::Status& status, const RequestContext& context,
                              grpc::ServerContextBase* rpc);
// Says `status` on the wire, with the retry delay as trailing metadata where there is one.
grpc::Status FinalStatus(const absl::Status& status, grpc::ServerContextBase* rpc);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_RPC_CALL_H_
