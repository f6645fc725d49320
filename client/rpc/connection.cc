#include "client/rpc/connection.h"

#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "blockd/client/backoff.h"
#include "blockd/client/errors.h"
#include "client/base/check_options.h"
#include "client/base/detached_thread.h"
#include "client/base/random.h"
#include "client/base/target.h"
#include "client/rpc/lost.h"

namespace blockd::client {
namespace {

constexpr char kRouteKey[] = "blockd-route";
constexpr int kMostReleased = 10000;  // in one call; the server's limit
constexpr absl::Duration kReleaseTime = absl::Seconds(10);
// Longer than this, a timeout is none: neither gRPC nor the wire counts so far.
constexpr absl::Duration kLongestTimeout = absl::Hours(24 * 365 * 30);

std::shared_ptr<grpc::ChannelCredentials> Credentials(const ClientOptions& options) {
  if (!options.tls.has_value()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions ssl;
  ssl.pem_root_certs = options.tls->root_certificates;
  ssl.pem_private_key = options.tls->private_key;
  ssl.pem_cert_chain = options.tls->certificate;
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::SslCredentials(ssl);
  if (options.token.empty()) return credentials;
  return grpc::CompositeChannelCredentials(credentials,
                                           grpc::AccessTokenCredentials(options.token));
}

// An attempt that its deadline cut short says nothing; the attempt before it does.
absl::Status AfterRefusal(absl::Status status, const absl::Status& refused) {
  if (refused.ok() || !absl::IsDeadlineExceeded(status)) return status;
  return absl::DeadlineExceededError(
      absl::StrCat(status.message(), "; the attempt before: ", refused.ToString()));
}

// The sizes of HTTP/2: how much it sends as one frame, how far ahead of its reader it sends, and
// how much it gives to the socket at once.
struct WireSizes {
  int frame, window, write;
};
// A message of some hundred KiB waits neither for a window nor for the head of its next frame;
// others on the connection wait for no more than a frame.
constexpr WireSizes kCallSizes = {1 << 20, 4 << 20, 1 << 20};
constexpr WireSizes kBulkSizes = {(16 << 20) - 1, 16 << 20, 4 << 20};

grpc::ChannelArguments Arguments(const std::string& target, const ClientOptions& options,
                                 const WireSizes& sizes) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, sizes.frame);
  args.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, sizes.window);
  args.SetInt(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, sizes.write);
  args.SetMaxReceiveMessageSize(-1);
  args.SetMaxSendMessageSize(-1);
  // No table of headers: gRPC 1.51 keeps each deadline that differs from those before, looks
  // through all of them at every call, and forgets one only where the table has forgotten it first.
  args.SetInt(GRPC_ARG_HTTP2_HPACK_TABLE_SIZE_ENCODER, 0);
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // ours know what may be repeated
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  if (options.tls.has_value() && !options.tls->server_name.empty()) {
    args.SetSslTargetNameOverride(options.tls->server_name);
  }
  // No proxy reaches this host, and none sees a token in plain text.
  if (StaysOnThisHost(target)) args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (!options.share_connection) args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return args;
}

// A TCP connection of its own, for streams.
grpc::ChannelArguments StreamArguments(const std::string& target, const ClientOptions& options,
                                       const WireSizes& sizes) {
  grpc::ChannelArguments args = Arguments(target, options, sizes);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // With a keepalive (rarer than what servers object to) the kernel also gives up on a peer that
  // stops reading, so that lent memory comes back within the keepalive's timeout.
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 6 * 60 * 1000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20 * 1000);
  return args;
}

}  // namespace

void KeepCallbackThreads() {
  struct Kept {
    Kept() {
      stub.UnaryCall(&context, "/", {}, &request, &reply, [](const grpc::Status&) {});
    }
    grpc::GenericStub stub{
        grpc::CreateChannel("", nullptr)};  // without credentials every call fails
    grpc::ClientContext context;
    grpc::Slice nothing;
    grpc::ByteBuffer request{&nothing, 1}, reply;
    WaitsInGrpc threads;
  };
  [[gnu::used]] static const auto* const kept = new Kept;  // used: where leak checkers find it
}

std::shared_ptr<Connection> Connection::Make(const std::string& target,
                                             const ClientOptions& options) {
  return std::shared_ptr<Connection>(new Connection(target, options));
}

Connection::Connection(const std::string& target, const ClientOptions& options)
    : target_(target),
      options_(options),
      poll_(PollOf(options)),
      proxy_note_(ProxyNote(target)),
      channel_(NewChannel(Arguments(target, options, kCallSizes))),
      stub_(v1::Solver::NewStub(channel_)),
      retry_budget_(options.retry) {}

std::shared_ptr<grpc::Channel> Connection::NewChannel(
    const grpc::ChannelArguments& arguments) const {
  auto channel = grpc::CreateCustomChannel(target_, Credentials(options_), arguments);
  reconnection_.Add(channel);
  return channel;
}

grpc::GenericStub& Connection::bulk(int channel) const {
  absl::MutexLock lock(&mutex_);
  while (std::ssize(bulk_) <= channel) {
    bulk_.push_back(std::make_unique<grpc::GenericStub>(
        NewChannel(StreamArguments(target_, options_, kBulkSizes))));
  }
  return *bulk_[static_cast<size_t>(channel)];
}

absl::Status Connection::OpenSharedMemory() {
  auto link = ShmLink::Open(target_, options_);
  if (!link.ok()) return link.status();
  shared_memory_ = *std::move(link);
  return absl::OkStatus();
}

std::unique_ptr<grpc::GenericStub> Connection::NewSessionStub() const {
  return std::make_unique<grpc::GenericStub>(
      NewChannel(StreamArguments(target_, options_, kCallSizes)));
}

std::string Connection::FullName(const std::string& method) {
  return method.starts_with('/') ? method : absl::StrCat("/blockd.v1.Solver/", method);
}

grpc::Status Connection::TooLarge(size_t bytes) {
  return {grpc::StatusCode::OUT_OF_RANGE,
          absl::StrCat("a message of ", bytes, " bytes, and ", kMostMessageBytes, " at most")};
}

absl::Status Connection::CheckHealth(grpc::ClientContext& context) const {
  // An empty HealthCheckRequest asks for the server as a whole; the reply's field 1 is the status.
  const grpc::Slice nothing;
  const grpc::ByteBuffer request(&nothing, 1);
  grpc::ByteBuffer reply;
  const grpc::Status status = Ask(context, "/grpc.health.v1.Health/Check", request, &reply);
  if (!status.ok()) return EndOf(ToStatus(status));
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (reply.Dump(&slices).ok()) {
    for (const grpc::Slice& slice : slices) bytes.append(slice.begin(), slice.end());
  }
  constexpr std::string_view kServing = "\x08\x01";
  if (bytes == kServing) return absl::OkStatus();
  return absl::UnavailableError("the server is not serving (it drains, or its device failed)");
}

bool Connection::WaitUntilConnected(absl::Time deadline) {
  return channel_->WaitForConnected(absl::ToChronoTime(deadline));
}

absl::Time Connection::Deadline(absl::Duration timeout) const {
  if (timeout == absl::ZeroDuration()) timeout = options_.timeout;
  return timeout > kLongestTimeout ? absl::InfiniteFuture() : absl::Now() + timeout;
}

void Connection::Prepare(grpc::ClientContext& context, absl::Time deadline,
                         const std::string& route) const {
  if (deadline != absl::InfiniteFuture()) context.set_deadline(absl::ToChronoTime(deadline));
  if (!options_.caller.empty()) context.AddMetadata("blockd-caller", options_.caller);
  if (!route.empty()) context.AddMetadata(kRouteKey, route);
  // Over TLS the channel's credentials say it.
  if (!options_.token.empty() && !options_.tls) {
    context.AddMetadata("authorization", absl::StrCat("Bearer ", options_.token));
  }
}

absl::Status TimeIsOver() {
  return absl::DeadlineExceededError("the timeout was over before the call began");
}

absl::Status Connection::Retry(absl::Time deadline,
                               absl::FunctionRef<absl::Status(grpc::ClientContext&)> call,
                               const Factorization* on) const {
  if (absl::Now() >= deadline) return TimeIsOver();
  Backoff backoff(options_.retry, deadline, UniformRandom, retry_budget());
  absl::Status refused;
  while (true) {
    grpc::ClientContext context;
    Prepare(context, deadline, on != nullptr ? on->route : "");
    absl::Status status = EndOf(call(context));
    if (status.ok()) return status;
    const auto wait = backoff.Next(status, absl::Now());
    if (!wait.has_value()) return AfterRefusal(std::move(status), refused);
    if (on != nullptr && on->healer != nullptr && HealsNow(status, backoff.attempts())) {
      return status;
    }
    refused = std::move(status);
    absl::SleepFor(*wait);
  }
}

void Connection::ReleaseLater(const std::shared_ptr<Connection>& self, const Factorization& held) {
  {
    absl::MutexLock lock(&self->mutex_);
    ++self->releases_;
  }
  const auto done = [self] {
    absl::MutexLock lock(&self->mutex_);
    --self->releases_;
  };
  const absl::Time until = absl::Now() + kReleaseTime;
  ShmLink* const link = self->shared_memory();
  if (link != nullptr && link->ReleaseLater(held.handle, until, done)) return;
  {
    absl::MutexLock lock(&self->mutex_);
    self->to_release_.push_back({held.handle, held.route, until});
    if (std::exchange(self->releasing_, true)) return;
  }
  if (!StartDetached([self] { self->ReleaseAll(); }).ok()) {  // the next one may find a thread
    absl::MutexLock lock(&self->mutex_);
    self->releasing_ = false;
  }
}

// Not by callbacks, whose threads would stay and look at every connection (KeepCallbackThreads).
void Connection::ReleaseAll() {
  for (;;) {
    v1::ReleaseRequest request;
    std::string route;
    absl::Time until;
    {
      absl::MutexLock lock(&mutex_);
      if (to_release_.empty()) {
        releasing_ = false;
        return;
      }
      // One call releases handles of one route only.
      route = to_release_.front().route;
      until = to_release_.front().until;
      std::vector<Held> later;
      for (Held& held : to_release_) {
        if (held.route == route && request.handle_size() < kMostReleased) {
          request.add_handle(std::move(held.handle));
        } else {
          later.push_back(std::move(held));
        }
      }
      to_release_ = std::move(later);
    }
    if (absl::Now() < until) {
      v1::ReleaseReply reply;
      grpc::ClientContext context;
      Prepare(context, until, route);
      (void)Ask(context, "Release", request, &reply);
    }
    absl::MutexLock lock(&mutex_);
    releases_ -= request.handle_size();
  }
}

bool Connection::AwaitReleases(absl::Duration limit) {
  const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return releases_ == 0; };
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&none), limit);
}

void Connection::BeginRestore() {
  absl::MutexLock lock(&mutex_);
  ++releases_;
}

void Connection::EndRestore() {
  absl::MutexLock lock(&mutex_);
  --releases_;
}

void Connection::CountRestores(const RestoreCounters& more) {
  absl::MutexLock lock(&mutex_);
  restores_.restores += more.restores;
  restores_.failures += more.failures;
  restores_.refused += more.refused;
  restores_.waited += more.waited;
}

RestoreCounters Connection::restore_counters() {
  absl::MutexLock lock(&mutex_);
  return restores_;
}

absl::Status Connection::EndOf(const absl::Status& status) const {
  absl::Status end = ToStatusOfAnswer(status);
  if (IsGone(end)) reconnection_.GoOn();
  bool detailed = false;
  end.ForEachPayload([&](absl::string_view, const absl::Cord&) { detailed = true; });
  if (!(absl::IsUnavailable(end) || absl::IsDeadlineExceeded(end)) || detailed ||
      absl::EndsWith(end.message(), proxy_note_)) {  // which may be empty
    return end;
  }
  return {end.code(), absl::StrCat(end.message(), proxy_note_)};
}

std::string RouteOf(const grpc::ClientContext& context) {
  const auto& metadata = context.GetServerInitialMetadata();
  const auto found = metadata.find(kRouteKey);
  if (found == metadata.end()) return {};
  return std::string(found->second.data(), found->second.size());
}

absl::Status ToStatusOfAnswer(const absl::Status& status) {
  const bool reset = absl::IsInternal(status) && absl::StrContains(status.message(), "RST_STREAM");
  if (!absl::IsCancelled(status) && !reset) return status;
  return absl::UnavailableError(absl::StrCat("the server ended the call: ", status.message()));
}

absl::Status ToStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return MakeStatus(static_cast<absl::StatusCode>(status.error_code()), status.error_message(),
                    status.error_details());
}

}  // namespace blockd::client
