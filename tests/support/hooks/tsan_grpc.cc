// Tells ThreadSanitizer about gRPC's hand-overs between threads. The distribution's gRPC is not
// instrumented, so its atomics order nothing that the sanitizer sees: without this, the next
// callback of a call, or its end, would seem to race with the one before.
//
// As in tsan_absl.cc, each definition does what the library's does and says which order that makes.
// It says no more than gRPC promises: what our own code does wrong between its threads stays seen.
#include <dlfcn.h>
#include <grpc/grpc.h>
#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/support/server_callback.h>

#include <cstdlib>

extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}

namespace {

// The library's own definition.
template <typename Function>
Function* Real(const char* name) {
  void* const found = dlsym(RTLD_NEXT, name);
  if (found == nullptr) std::abort();  // another gRPC than this file knows
  return reinterpret_cast<Function*>(found);
}

}  // namespace

// ---------------------------------------------------------------------------------------------------
// Completion queues: whoever starts a batch, or asks for a call, is ordered before whoever is told
// of its end.

extern "C" {

grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops, size_t count, void* tag,
                                      void* reserved) {
  static auto* const real = Real<decltype(grpc_call_start_batch)>("grpc_call_start_batch");
  __tsan_release(tag);
  return real(call, ops, count, tag, reserved);
}

grpc_call_error grpc_server_request_call(grpc_server* server, grpc_call** call,
                                         grpc_call_details* details, grpc_metadata_array* metadata,
                                         grpc_completion_queue* bound,
                                         grpc_completion_queue* notified, void* tag) {
  static auto* const real = Real<decltype(grpc_server_request_call)>("grpc_server_request_call");
  __tsan_release(tag);
  return real(server, call, details, metadata, bound, notified, tag);
}

grpc_event grpc_completion_queue_next(grpc_completion_queue* queue, gpr_timespec deadline,
                                      void* reserved) {
  static auto* const real =
      Real<decltype(grpc_completion_queue_next)>("grpc_completion_queue_next");
  const grpc_event event = real(queue, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(event.tag);
  return event;
}

grpc_event grpc_completion_queue_pluck(grpc_completion_queue* queue, void* tag,
                                       gpr_timespec deadline, void* reserved) {
  static auto* const real =
      Real<decltype(grpc_completion_queue_pluck)>("grpc_completion_queue_pluck");
  const grpc_event event = real(queue, tag, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(tag);
  return event;
}

}  // extern "C"

// And whoever sets an alarm before whoever is told of it, by a tag that the library hides.
namespace grpc {

void Alarm::SetInternal(CompletionQueue* queue, gpr_timespec deadline, void* tag) {
  static auto* const real = Real<void(Alarm*, CompletionQueue*, gpr_timespec, void*)>(
      "_ZN4grpc5Alarm11SetInternalEPNS_15CompletionQueueE12gpr_timespecPv");
  __tsan_release(tag);
  real(this, queue, deadline, tag);
}

CompletionQueue::NextStatus CompletionQueue::AsyncNextInternal(void** tag, bool* ok,
                                                               gpr_timespec deadline) {
  static auto* const real = Real<NextStatus(CompletionQueue*, void**, bool*, gpr_timespec)>(
      "_ZN4grpc15CompletionQueue17AsyncNextInternalEPPvPb12gpr_timespec");
  const NextStatus status = real(this, tag, ok, deadline);
  if (status == GOT_EVENT) __tsan_acquire(*tag);
  return status;
}

}  // namespace grpc

// ---------------------------------------------------------------------------------------------------
// Calls of the server count their callbacks under way; the last one to end, wherever it runs, is
// followed by OnDone. The library's own code decrements the count too, after an OnCancel.

namespace grpc::internal {
namespace {

// The counts are private, so every word of the call: the sanitizer keeps an atomic's order at its
// address.
template <typename Order>
void OrderCounts(ServerCallbackCall* call, Order order) {
  auto* const bytes = reinterpret_cast<char*>(call);
  for (size_t at = 0; at < sizeof(ServerCallbackCall); at += sizeof(int)) order(bytes + at);
}

// Stands for a reactor once, to be cancelled; the count is decremented right after it.
class CancelledReactor final : public ServerReactor {
 public:
  CancelledReactor(ServerCallbackCall* call, ServerReactor* reactor)
      : call_(call), reactor_(reactor) {}
  void OnDone() override {}
  void OnCancel() override {
    OrderCounts(call_, __tsan_acquire);
    reactor_->OnCancel();
    OrderCounts(call_, __tsan_release);
    delete this;
  }

 private:
  ServerCallbackCall* const call_;
  ServerReactor* const reactor_;
};

}  // namespace

// Only for reactors whose InternalInlineable is false; those of other kinds are gRPC's own.
void ServerCallbackCall::CallOnCancel(ServerReactor* reactor) {
  static auto* const real = Real<void(ServerCallbackCall*, ServerReactor*)>(
      "_ZN4grpc8internal18ServerCallbackCall12CallOnCancelEPNS0_13ServerReactorE");
  real(this, new CancelledReactor(this, reactor));
}

void ServerCallbackCall::ScheduleOnDone(bool inline_ondone) {
  static auto* const real = Real<void(ServerCallbackCall*, bool)>(
      "_ZN4grpc8internal18ServerCallbackCall14ScheduleOnDoneEb");
  OrderCounts(this, __tsan_acquire);
  real(this, inline_ondone);
}

}  // namespace grpc::internal
