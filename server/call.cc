#include "server/call.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/logging.h"
#include "server/peer.h"
#include "server/raw_message.h"
#include "server/wire.h"

namespace blockd::server {
namespace {

constexpr char kRequestIdKey[] = "x-request-id";
constexpr char kPushbackKey[] = "grpc-retry-pushback-ms";
constexpr size_t kMaxRequestIdBytes = 128;

std::string NewRequestId() {
  static const auto& process = *new std::string([] {
    absl::BitGen bits;
    return absl::StrCat(absl::Hex(absl::Uniform<uint32_t>(bits), absl::kZeroPad8), "-");
  }());
  static std::atomic<uint64_t> next{1};
  return absl::StrCat(process, next.fetch_add(1, std::memory_order_relaxed));
}

std::string_view Metadata(const grpc::CallbackServerContext& rpc, const char* key) {
  const auto& all = rpc.client_metadata();
  const auto found = all.find(key);
  if (found == all.end()) return {};
  return {found->second.data(), found->second.size()};
}

bool IsPrintable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

// Who asks, and may: every call is a use of the solver.
absl::StatusOr<Principal> UserOf(const grpc::CallbackServerContext& rpc, const Identities& who) {
  absl::StatusOr<Principal> user = who.Identify(PeerOf(rpc, who.rules().client_certificates));
  if (!user.ok()) return user;
  if (absl::Status status = CheckRole(*user, Role::kUse); !status.ok()) return status;
  return user;
}

ContextPtr MakeContext(grpc::CallbackServerContext* rpc) {
  auto context = std::make_shared<RequestContext>();
  const std::string_view id = Metadata(*rpc, kRequestIdKey);
  context->request_id = id.empty() || id.size() > kMaxRequestIdBytes || !IsPrintable(id)
                            ? NewRequestId()
                            : std::string(id);
  if (rpc->deadline() != std::chrono::system_clock::time_point::max()) {
    context->deadline = absl::FromChrono(rpc->deadline());
  }
  return context;
}

}  // namespace

void CallTracker::Begin() {
  absl::MutexLock lock(&mutex_);
  ++active_;
}

void CallTracker::End() {
  absl::MutexLock lock(&mutex_);
  --active_;
}

void CallTracker::Add(DrainableStream* stream, std::weak_ptr<DrainableStream> weak) {
  absl::MutexLock lock(&mutex_);
  streams_.emplace(stream, std::move(weak));
}

void CallTracker::Remove(DrainableStream* stream) {
  absl::MutexLock lock(&mutex_);
  streams_.erase(stream);
}

void CallTracker::StartDrain() {
  draining_.store(true, std::memory_order_release);
  std::vector<std::shared_ptr<DrainableStream>> streams;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [key, weak] : streams_) {
      if (auto stream = weak.lock()) streams.push_back(std::move(stream));
    }
  }
  for (const auto& stream : streams) stream->OnDrain();
}

bool CallTracker::WaitUntilIdle(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto idle = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return active_ == 0; };
  return mutex_.AwaitWithTimeout(absl::Condition(&idle), timeout);
}

absl::Status ServiceState::CheckAcceptsWork() const {
  if (!tracker.draining()) return absl::OkStatus();
  return DrainingError(identity.name, options.core.retry_delay);
}

absl::Status ServiceState::CheckMessageSize(const grpc::ByteBuffer& message) const {
  const auto bytes = static_cast<int64_t>(message.Length());
  if (bytes <= options.max_message_bytes) return absl::OkStatus();
  return LimitExceededError("the message", {.limit = "max_message_bytes",
                                            .asked_bytes = bytes,
                                            .limit_bytes = options.max_message_bytes});
}

CallRecord::CallRecord(ServiceState* state, Method method, grpc::CallbackServerContext* rpc)
    : CallRecord(state, method, MakeContext(rpc)) {
  absl::StatusOr<Principal> user = UserOf(*rpc, *state->identities);
  if (user.ok()) context_->caller = std::move(user->tenant);
  allowed_ = user.status();
}

CallRecord::CallRecord(ServiceState* state, Method method, ContextPtr context)
    : state_(state), method_(method), context_(std::move(context)), start_(absl::Now()) {}

void CallRecord::SetShape(const Shape& shape, int64_t systems) {
  subject_ = ToString(shape);
  items_ = systems;
}

void CallRecord::SetSolve(const Handle& handle, int64_t num_rhs) {
  subject_ = absl::StrCat("handle:", handle.hex().substr(0, 8));
  items_ = num_rhs;
}

void CallRecord::SetOutcome(const absl::Status& status) {
  status_ = status;
  total_ = absl::Now() - start_;
}

void CallRecord::Publish() const {
  state_->metrics->RecordRequest(method_, status_.code(), total_);
  const LogLevel level = status_.ok()                ? LogLevel::kInfo
                         : absl::IsInternal(status_) ? LogLevel::kError
                                                     : LogLevel::kWarn;
  if (!LogEnabled(level) || !AdmitRequestLine(status_.ok())) return;
  LogLine line(level, "request");
  line.Add("request_id", context_->request_id)
      .Add("method", MethodName(method_))
      .Add("caller", context_->caller)
      .Add("status", absl::StatusCodeToString(status_.code()));
  if (!status_.ok()) line.Add("message", std::string(status_.message()));
  if (!subject_.empty()) line.Add("subject", subject_).Add("items", items_);
  line.AddSeconds("total_seconds", total_);
  if (cost_.batch_requests > 0) {
    line.Add("batch_requests", cost_.batch_requests)
        .AddSeconds("queue_seconds", cost_.queue)
        .AddSeconds("upload_seconds", cost_.upload)
        .AddSeconds("compute_seconds", cost_.compute)
        .AddSeconds("download_seconds", cost_.download);
  }
  line.WriteOrdinary();
}

absl::Status CancellationOf(const RequestContext& context) {
  return context.deadline <= absl::Now() ? absl::DeadlineExceededError("the deadline has passed")
                                         : absl::CancelledError("the call was cancelled");
}

void EchoRequestId(const RequestContext& context, grpc::CallbackServerContext* rpc) {
  rpc->AddInitialMetadata(kRequestIdKey, context.request_id);
}

grpc::Status FailBeforeAnswer(const absl::Status& status, const RequestContext& context,
                              grpc::CallbackServerContext* rpc) {
  rpc->AddTrailingMetadata(kRequestIdKey, context.request_id);
  return FinalStatus(status, rpc);
}

grpc::Status FinalStatus(const absl::Status& status, grpc::CallbackServerContext* rpc) {
  if (auto delay = RetryAfterOf(status)) {
    rpc->AddTrailingMetadata(kPushbackKey, absl::StrCat(absl::ToInt64Milliseconds(*delay)));
  }
  return ToGrpcStatus(status);
}

UnaryCall::UnaryCall(ServiceState* state, Method method, grpc::CallbackServerContext* rpc,
                     const grpc::ByteBuffer* request, grpc::ByteBuffer* reply)
    : state_(state),
      active_(&state->tracker),
      rpc_(rpc),
      request_bytes_(request),
      reply_bytes_(reply),
      record_(state, method, rpc) {}

void UnaryCall::Begin() {
  if (!record_.allowed().ok()) return Fail(record_.allowed());
  if (absl::Status status = state_->CheckMessageSize(*request_bytes_); !status.ok()) {
    return Fail(status);
  }
  if (absl::Status status = TakeHostBytes(static_cast<int64_t>(request_bytes_->Length()));
      !status.ok()) {
    return Fail(status);
  }
  if (!ParseMessage(*request_bytes_, request())) {
    return Fail(InvalidFieldError("", "bytes that are not the request's message",
                                  absl::StrCat("a ", request()->GetTypeName())));
  }
  // The message holds copies: give the transport's memory back now. gRPC's own object is not const.
  const_cast<grpc::ByteBuffer*>(request_bytes_)->Clear();
  Start();
}

absl::Status UnaryCall::TakeHostBytes(int64_t bytes) {
  return state_->host_budget.Take(bytes, &host_bytes_);
}

void UnaryCall::Succeed(grpc::ByteBuffer reply) {
  record_.SetOutcome(absl::OkStatus());
  EchoRequestId(*record_.context(), rpc_);
  reply_bytes_->Swap(&reply);
  Finish(grpc::Status::OK);
}

void UnaryCall::Fail(const absl::Status& status) {
  record_.SetOutcome(status);
  Finish(FailBeforeAnswer(status, *record_.context(), rpc_));
}

void UnaryCall::OnDone() {
  record_.Publish();
  delete this;
}

}  // namespace blockd::server
