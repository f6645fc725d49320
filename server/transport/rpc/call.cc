#include "server/transport/rpc/call.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "server/base/steady_time.h"
#include "server/log/logging.h"
#include "server/net/peer.h"
#include "server/transport/wire/raw_message.h"
#include "server/transport/wire/solve_many.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {
namespace {

constexpr char kRequestIdKey[] = "x-request-id";
constexpr char kTraceParentKey[] = "traceparent";
constexpr char kPushbackKey[] = "grpc-retry-pushback-ms";
constexpr size_t kMaxRequestIdBytes = 128;
constexpr int64_t kMaxReleasedHandles = 10'000;  // by one call

std::string_view Metadata(const grpc::ServerContextBase& rpc, const char* key) {
  const auto& all = rpc.client_metadata();
  const auto found = all.find(key);
  if (found == all.end()) return {};
  return {found->second.data(), found->second.size()};
}

bool IsPrintable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

// https://www.w3.org/TR/trace-context: "00", a trace of 32 digits, a span of 16 and flags of 2,
// lower case and hexadecimal. What a later version adds follows a fourth dash.
constexpr size_t kTraceAt = 3, kTraceDigits = 32, kSpanAt = 36, kSpanDigits = 16;
constexpr size_t kTraceParentBytes = 55, kMaxTraceParentBytes = 256;

bool IsTraceParent(std::string_view text) {
  if (text.size() < kTraceParentBytes || text.size() > kMaxTraceParentBytes) return false;
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  const std::string_view pattern = "xx-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx";
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == 'x' ? !is_digit(text[i]) : text[i] != '-') return false;
  }
  const auto is_zero = [&](size_t at, size_t digits) {
    return text.substr(at, digits).find_first_not_of('0') == std::string_view::npos;
  };
  if (is_zero(kTraceAt, kTraceDigits) || is_zero(kSpanAt, kSpanDigits)) return false;
  const std::string_view version = text.substr(0, 2), more = text.substr(kTraceParentBytes);
  if (version == "ff") return false;
  return more.empty() || (version != "00" && more[0] == '-' && IsPrintable(more));
}

ContextPtr MakeContext(grpc::ServerContextBase* rpc) {
  auto context = std::make_shared<RequestContext>();
  const std::string_view id = Metadata(*rpc, kRequestIdKey);
  context->request_id = id.empty() || id.size() > kMaxRequestIdBytes || !IsPrintable(id)
                            ? NewRequestId()
                            : std::string(id);
  const std::string_view trace = Metadata(*rpc, kTraceParentKey);
  if (IsTraceParent(trace)) context->traceparent = trace;
  if (rpc->deadline() != std::chrono::system_clock::time_point::max()) {
    context->deadline = ToSteady(absl::FromChrono(rpc->deadline()));
  }
  return context;
}

}  // namespace

absl::Status ServiceState::CheckAcceptsWork() const {
  if (tracker.draining()) return DrainingError(identity.name, options.core.retry_delay);
  return absl::OkStatus();
}

absl::Status ServiceState::CheckMessageSize(size_t message_bytes) const {
  const auto bytes = static_cast<int64_t>(message_bytes);
  if (bytes <= options.max_message_bytes) return absl::OkStatus();
  return LimitExceededError("the message", {.limit = "max_message_bytes",
                                            .asked_bytes = bytes,
                                            .limit_bytes = options.max_message_bytes});
}

absl::Status ServiceState::CheckMessage(const grpc::ByteBuffer& message) const {
  if (absl::Status status = CheckMessageSize(message.Length()); !status.ok()) return status;
  // Frames of those who mean well are longer by far, on the slowest of ways too.
  constexpr size_t kMostShort = 1024, kLeastBytes = 64;
  if (message.Length() <= kMostShort) return absl::OkStatus();
  const size_t pieces = NumPieces(message), most = kMostShort + message.Length() / kLeastBytes;
  if (pieces <= most) return absl::OkStatus();
  return InvalidFieldError("", absl::StrCat("a message in ", pieces, " pieces"),
                           absl::StrCat("at most ", most, " for ", message.Length(), " bytes"));
}

bool ServiceState::IsIdentified(const grpc::ServerContextBase& rpc) const {
  const absl::StatusOr<Principal> user = identities->Identify(PeerOf(rpc, *identities));
  return user.ok() && !IsSelfNamed(user->tenant);
}

std::vector<ElementLimit> ServiceState::ElementLimits(const ServerOptions& options) {
  return {{"blockd.v1.ReleaseRequest.handle", kMaxReleasedHandles},
          {"blockd.v1.FactorRequest.system", options.core.max_systems},
          {"blockd.v1.FactorOptions.handle", options.core.max_systems},
          {"blockd.v1.FactorSolveManyRequest.handle", options.core.max_systems},
          {"blockd.v1.SolveManyRequest.num_rhs", kMaxSolves},
          {"blockd.v1.SolveManyRequest.rhs_bytes", kMaxSolves},
          {"blockd.v1.Palette.diagonal_index", kMaxRows},
          {"blockd.v1.Palette.coupling_index", kMaxRows}};
}

absl::Status ServiceState::Parse(const grpc::ByteBuffer& bytes, const RequestContext& context,
                                 google::protobuf::Message* message, Reservation* share) {
  if (bytes.Length() <= kTinyMessageBytes && ParseMessage(bytes, message)) return absl::OkStatus();
  const std::atomic<bool>* const stop = StopsReading(bytes, context);
  int64_t unknown = 0;
  absl::StatusOr<int64_t> needed =
      ParsedBytes(bytes, *message, element_limits_, core->host().total(), &unknown, stop);
  if (absl::IsCancelled(needed.status())) return CancellationOf(context);
  if (!needed.ok()) return needed.status();
  absl::Status status = core->host().Extend(context.tenant, *needed, share);
  if (!status.ok()) return status;
  if (ParseScanned(bytes, unknown, message, stop)) return absl::OkStatus();
  if (stop != nullptr && stop->load(std::memory_order_relaxed)) return CancellationOf(context);
  return InvalidFieldError("", "bytes that are not the request's message",
                           absl::StrCat("a ", message->GetTypeName()));
}

CallRecord::CallRecord(ServiceState* state, Method method, grpc::ServerContextBase* rpc,
                       RoleSet roles)
    : CallRecord(state, method, MakeContext(rpc)) {
  allowed_ = Authorize(*state, PeerOf(*rpc, *state->identities), roles, context_.get());
}

CallRecord::CallRecord(ServiceState* state, Method method, ContextPtr context)
    : state_(state), method_(method), context_(std::move(context)), start_(SteadyNow()) {}

void CallRecord::SetShape(const Shape& shape, int64_t systems) {
  subject_ = ToString(shape);
  items_ = systems;
}

void CallRecord::SetSolve(const Handle& handle, int64_t num_rhs) {
  subject_ = absl::StrCat("handle:", handle.hex(4));
  items_ = num_rhs;
}

void CallRecord::SetSolves(int64_t solves, int64_t items) {
  subject_ = absl::StrCat("solves:", solves);
  items_ = items;
}

void CallRecord::SetOutcome(const absl::Status& status) {
  status_ = status;
  total_ = SteadyNow() - start_;
  // Not when the line is written: a level that is set after the caller has the answer would hold
  // for this call too, or not.
  is_logged_ = LogEnabled(Level());
}

void CallRecord::Count() const {
  state_->metrics->RecordRequest(method_, status_.code(), total_);
  if (context_->tenant == nullptr) return;
  context_->tenant->CountAnswer(absl::IsResourceExhausted(status_) &&
                                QuotaExceededOf(status_).has_value());
}

LogLevel CallRecord::Level() const {
  if (status_.ok()) return LogLevel::kInfo;
  return absl::IsInternal(status_) ? LogLevel::kError : LogLevel::kWarn;
}

void CallRecord::Publish() const {
  Count();
  if (!is_logged_ || !AdmitRequestLine(status_.ok())) return;
  LogLine line(Level(), "request");
  line.Add("request_id", context_->request_id);
  if (const std::string_view trace = context_->traceparent; !trace.empty()) {
    line.Add("trace_id", std::string(trace.substr(kTraceAt, kTraceDigits)))
        .Add("parent_span_id", std::string(trace.substr(kSpanAt, kSpanDigits)));
  }
  line.Add("method", MethodName(method_))
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

std::string NewRequestId() {
  static const auto& process = *new std::string([] {
    absl::BitGen bits;
    return absl::StrCat(absl::Hex(absl::Uniform<uint32_t>(bits), absl::kZeroPad8), "-");
  }());
  static std::atomic<uint64_t> next{1};
  return absl::StrCat(process, next.fetch_add(1, std::memory_order_relaxed));
}

absl::Status Authorize(const ServiceState& state, const Peer& peer, RoleSet roles,
                       RequestContext* context) {
  absl::StatusOr<Principal> user = state.identities->Identify(peer);
  if (!user.ok()) return user.status();
  context->caller = user->tenant;
  if (absl::Status status = CheckRole(*user, roles); !status.ok()) return status;
  absl::StatusOr<TenantPtr> tenant = state.core->tenants().Get(context->caller);
  if (!tenant.ok()) return tenant.status();
  context->tenant = *std::move(tenant);
  return absl::OkStatus();
}

ContextPtr ContextOfRequest(const RequestContext& stream, absl::Time deadline) {
  auto context = std::make_shared<RequestContext>();
  context->caller = stream.caller;
  context->tenant = stream.tenant;
  context->request_id = stream.request_id;
  context->traceparent = stream.traceparent;
  context->method = stream.method;
  context->deadline = std::min(stream.deadline, deadline);
  return context;
}

absl::Status CancellationOf(const RequestContext& context) {
  return context.deadline <= SteadyNow() ? absl::DeadlineExceededError("the deadline has passed")
                                         : absl::CancelledError("the call was cancelled");
}

void EchoIds(const RequestContext& context, grpc::ServerContextBase* rpc) {
  rpc->AddInitialMetadata(kRequestIdKey, context.request_id);
  if (!context.traceparent.empty()) {
    rpc->AddInitialMetadata(kTraceParentKey, context.traceparent);
  }
}

grpc::Status FailBeforeAnswer(const absl::Status& status, const RequestContext& context,
                              grpc::ServerContextBase* rpc) {
  rpc->AddTrailingMetadata(kRequestIdKey, context.request_id);
  if (!context.traceparent.empty()) {
    rpc->AddTrailingMetadata(kTraceParentKey, context.traceparent);
  }
  return FinalStatus(status, rpc);
}

grpc::Status FinalStatus(const absl::Status& status, grpc::ServerContextBase* rpc) {
  if (auto delay = RetryAfterOf(status)) {
    rpc->AddTrailingMetadata(kPushbackKey, absl::StrCat(absl::ToInt64Milliseconds(*delay)));
  }
  return ToGrpcStatus(status);
}

}  // namespace blockd::server
