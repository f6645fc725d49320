#include "server/transport/shm/shm_port.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/base/steady_time.h"
#include "server/base/thread_name.h"
#include "server/log/logging.h"
#include "server/transport/wire/wire.h"

namespace blockd::server {
namespace {

constexpr size_t kMostGuests = 64;         // who have not said yet what they want
constexpr int kMakers = 2;                 // threads: one may wait for the driver
constexpr int64_t kLeastDescriptors = 16;  // that stay free
constexpr uint64_t kMostDataBytes = uint64_t{1} << 46;

// A welcome, then a status where it refuses; with the descriptor where it does not.
void Send(int socket, v1::ShmWelcome welcome, const std::string& status, int fd) {
  std::memcpy(welcome.magic, v1::kShmMagic, sizeof(welcome.magic));
  welcome.version = v1::kShmVersion;
  welcome.status_bytes = static_cast<uint32_t>(status.size());
  std::string bytes(reinterpret_cast<const char*>(&welcome), sizeof(welcome));
  bytes += status;
  iovec part{.iov_base = bytes.data(), .iov_len = bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(head), &fd, sizeof(fd));
  }
  // There is room: nothing has been sent on it. Where it fails the client is gone.
  (void)sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

// The user of the process at the other end.
std::optional<uid_t> UserAt(int socket) {
  ucred user{};
  socklen_t size = sizeof(user);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &user, &size) != 0) return std::nullopt;
  return user.uid;
}

absl::Status CheckHello(const v1::ShmHello& hello) {
  if (std::memcmp(hello.magic, v1::kShmMagic, sizeof(hello.magic)) != 0) {
    return absl::InvalidArgumentError("this is no shared-memory session's hello");
  }
  if (hello.version != v1::kShmVersion) {
    return InvalidFieldError("version", absl::StrCat(hello.version), absl::StrCat(v1::kShmVersion));
  }
  if (hello.slots < v1::kShmMinSlots || hello.slots > v1::kShmMaxSlots ||
      !std::has_single_bit(hello.slots)) {
    return InvalidFieldError(
        "slots", absl::StrCat(hello.slots),
        absl::StrCat("a power of two from ", v1::kShmMinSlots, " to ", v1::kShmMaxSlots));
  }
  if (hello.data_bytes < 1 || hello.data_bytes > kMostDataBytes) {
    return InvalidFieldError("data_bytes", absl::StrCat(hello.data_bytes),
                             absl::StrCat("1 to ", kMostDataBytes));
  }
  if (hello.caller_bytes > sizeof(hello.caller) || hello.token_bytes > sizeof(hello.token)) {
    return InvalidFieldError(
        "caller_bytes, token_bytes", absl::StrCat(hello.caller_bytes, ", ", hello.token_bytes),
        absl::StrCat("at most ", sizeof(hello.caller), ", ", sizeof(hello.token)));
  }
  return absl::OkStatus();
}

}  // namespace

ShmPort::ShmPort(ServiceState* state, Listener listener)
    : state_(state),
      listener_(std::move(listener)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      places_(std::make_shared<ShmPlaces>(
          ShmPlaces::Use{.sessions = state->options.shared_memory.max_sessions,
                         .bytes = state->options.shared_memory.max_bytes},
          state->options.core.tenant_share, state->options.core.retry_delay)),
      makers_(std::make_unique<Executor>("shm-make", kMakers)) {
  const SharedMemoryOptions& options = state->options.shared_memory;
  for (int i = 0; i < std::max(1, options.threads); ++i) {
    pollers_.push_back(std::make_unique<ShmPoller>(state->options.core.poll));
  }
  thread_ = std::thread([this] { Loop(); });
}

void ShmPort::EndAll() {
  StopAccepting();
  pollers_.clear();
}

void ShmPort::StopAccepting() {
  if (!thread_.joinable()) return;
  stop_ = true;
  Wake();
  thread_.join();
  for (const auto& opening : openings_) opening->Cancel();
  makers_.reset();
  openings_.clear();
  guests_.clear();
  listener_ = Listener();
}

void ShmPort::Wake() const {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

void ShmPort::CancelAll() {
  for (const auto& poller : pollers_) poller->CancelAll();
}

ShmStats ShmPort::stats() const {
  const ShmPlaces::Use used = places_->used();
  return {.sessions = used.sessions,
          .bytes = used.bytes,
          .refused = refused_,
          .max_bytes = state_->options.shared_memory.max_bytes};
}

// -----------------------------------------------------------------------------------------------------
// Guests

void ShmPort::Loop() {
  NameThread("shm-port");
  while (true) {
    std::vector<pollfd> watched = {{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
    watched.push_back({.fd = listener_.sockets[0].get(), .events = POLLIN, .revents = 0});
    absl::Time next = absl::InfiniteFuture();
    for (const Guest& guest : guests_) {
      watched.push_back({.fd = guest.socket.get(), .events = POLLIN, .revents = 0});
      next = std::min(next, guest.until);
    }
    for (const auto& opening : openings_) {  // what it sends is for its session to read
      const int socket = opening->cancelled() ? -1 : opening->asked.socket.get();
      watched.push_back({.fd = socket, .events = POLLRDHUP, .revents = 0});
    }
    const absl::Duration left = next - SteadyNow();
    const int timeout =
        next == absl::InfiniteFuture()
            ? -1
            : static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(left) + 1, 0, 60'000));
    (void)poll(watched.data(), watched.size(), timeout);
    if (stop_) return;
    uint64_t times;
    if (watched[0].revents != 0) (void)!read(wake_.get(), &times, sizeof(times));
    EndOpenings(watched.data() + 2 + guests_.size());
    const absl::Time now = SteadyNow();
    size_t i = 2;
    std::erase_if(guests_, [&](Guest& guest) {
      if (watched[i++].revents != 0) return !Hear(guest);
      if (now < guest.until) return false;
      Refuse(guest.socket.get(),
             absl::DeadlineExceededError("the hello took longer than handshake_timeout"));
      return true;
    });
    StartOpenings();
    if (watched[1].revents != 0) Accept();
  }
}

void ShmPort::Accept() {
  FileDescriptor socket(
      accept4(listener_.sockets[0].get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket.get() < 0) {
    // Nothing to accept with: others get their turn, and it is tried again.
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM)
      absl::SleepFor(absl::Milliseconds(10));
    return;
  }
  const std::optional<uid_t> user = UserAt(socket.get());
  Guest guest{std::move(socket), SteadyNow() + state_->options.handshake_timeout, user, {}};
  const absl::Status too_many =
      RetryAfterError("too many are connecting", state_->options.core.retry_delay);
  // Each that is on its way takes another one.
  if (guest.socket.get() >= DescriptorLimit() - kLeastDescriptors - std::ssize(openings_)) {
    return Refuse(guest.socket.get(), too_many);
  }
  guests_.push_back(std::move(guest));
  if (guests_.size() <= kMostGuests) return;
  const auto dismissed = OneOfTheMost();
  Refuse(dismissed->socket.get(), too_many);
  guests_.erase(dismissed);
}

// Who says what it wants has no time to become the oldest of its user, however fast others come.
std::vector<ShmPort::Guest>::iterator ShmPort::OneOfTheMost() {
  absl::flat_hash_map<std::optional<uid_t>, size_t> guests;
  for (const Guest& guest : guests_) ++guests[guest.user];
  size_t most = 0;
  for (const auto& [user, count] : guests) most = std::max(most, count);
  return std::find_if(guests_.begin(), guests_.end(),
                      [&](const Guest& guest) { return guests[guest.user] == most; });
}

bool ShmPort::Hear(Guest& guest) {
  char bytes[sizeof(v1::ShmHello) + 1];
  const size_t wanted = sizeof(bytes) - guest.hello.size();
  const ssize_t count = recv(guest.socket.get(), bytes, wanted, MSG_DONTWAIT);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  if (count == 0) return false;
  guest.hello.append(bytes, static_cast<size_t>(count));
  if (guest.hello.size() < sizeof(v1::ShmHello)) return true;
  Greet(guest);
  return false;
}

void ShmPort::Greet(Guest& guest) {
  v1::ShmHello hello;
  absl::Status status;
  if (guest.hello.size() == sizeof(hello)) {
    std::memcpy(&hello, guest.hello.data(), sizeof(hello));
    status = Open(hello, guest);
  } else {
    status = absl::InvalidArgumentError(
        absl::StrCat("expected a hello of ", sizeof(hello), " bytes, and nothing after it"));
  }
  if (!status.ok()) Refuse(guest.socket.get(), status);
}

void ShmPort::Refuse(int socket, const absl::Status& status) {
  ++refused_;
  LogLine(LogLevel::kWarn, "shared_memory_refused")
      .Add("status", absl::StatusCodeToString(status.code()))
      .Add("message", std::string(status.message()))
      .WriteOrdinary();
  Send(socket, {}, ToRpcStatus(status).SerializeAsString(), -1);
}

// -----------------------------------------------------------------------------------------------------
// Sessions

absl::StatusOr<ContextPtr> ShmPort::Identify(const v1::ShmHello& hello, int socket) const {
  const std::string authorization =
      absl::StrCat("Bearer ", absl::string_view(hello.token, hello.token_bytes));
  Peer peer;
  peer.is_unix = true;
  if (hello.token_bytes > 0) peer.authorization.push_back(authorization);
  if (hello.caller_bytes > 0) peer.caller.emplace_back(hello.caller, hello.caller_bytes);
  peer.unix_uid = UserAt(socket);
  // A caller who may be anonymous is so on both sockets, unless the tenants file has its user.
  const Identities& who = *state_->identities;
  if (peer.unix_uid &&
      !who.tenants()->identities.Find(NameKind::kUnixUid, absl::StrCat(*peer.unix_uid))) {
    Peer without = peer;
    without.unix_uid.reset();
    if (who.Identify(without).ok()) peer = without;
  }
  auto context = std::make_shared<RequestContext>();
  context->request_id = NewRequestId();
  absl::Status allowed = Authorize(*state_, peer, {Role::kUse}, context.get());
  if (!allowed.ok()) return allowed;
  return context;
}

absl::Status ShmPort::Open(const v1::ShmHello& hello, Guest& guest) {
  absl::Status status = CheckHello(hello);
  if (!status.ok()) return status;
  absl::StatusOr<ContextPtr> context = Identify(hello, guest.socket.get());
  if (!context.ok()) return context.status();
  status = state_->CheckAcceptsWork();
  if (!status.ok()) return status;
  const uint64_t bytes = ShmMapping::BytesFor(hello.slots, hello.data_bytes);
  // Its part of all limits is taken while the memory is made, too.
  auto place = places_->Take((*context)->tenant, static_cast<int64_t>(bytes));
  if (!place.ok()) return place.status();
  absl::StatusOr<Reservation> reserved =
      state_->core->host().Reserve((*context)->tenant, static_cast<int64_t>(bytes));
  if (!reserved.ok()) return reserved.status();
  openings_.push_back(std::make_shared<ShmOpening>(
      ShmOpening::Asked{.place = *std::move(place),
                        .context = *std::move(context),
                        .host_bytes = *std::move(reserved),
                        .socket = std::move(guest.socket),
                        .slots = hello.slots,
                        .data_bytes = hello.data_bytes},
      state_->core->host_memory() != nullptr, makers_.get(), [this] { Wake(); }));
  return absl::OkStatus();
}

// Ends the openings whose memory is made, or whose callers have gone.
void ShmPort::EndOpenings(const pollfd* watched) {
  for (const auto& opening : openings_) {
    if ((watched++)->revents != 0) opening->Cancel();
  }
  std::erase_if(openings_, [this](const std::shared_ptr<ShmOpening>& opening) {
    if (!opening->started()) return opening->cancelled();
    if (!opening->done()) return false;
    Welcome(*opening);
    return true;
  });
}

// Starts openings so that each tenant has one at a time: a tenant with many takes no more of the
// makers' time than that, and some of its callers, who wait only so long, get their memory.
void ShmPort::StartOpenings() {
  absl::flat_hash_set<const Tenant*> started;
  for (const auto& opening : openings_) {
    if (opening->started()) started.insert(opening->asked.context->tenant.get());
  }
  for (const auto& opening : openings_) {
    if (!opening->started() && started.insert(opening->asked.context->tenant.get()).second) {
      opening->Start();
    }
  }
}

void ShmPort::Welcome(ShmOpening& opening) {
  ShmOpening::Asked& asked = opening.asked;
  if (!opening.mapping().ok()) {
    if (!opening.cancelled()) Refuse(asked.socket.get(), opening.mapping().status());
    return;
  }
  ShmMapping mapping = *std::move(opening.mapping());
  v1::ShmWelcome welcome{};
  welcome.slots = mapping.slots();
  welcome.mapping_bytes = mapping.bytes();
  welcome.requests_offset = mapping.requests_offset();
  welcome.replies_offset = mapping.replies_offset();
  welcome.data_offset = mapping.data_offset();
  Send(asked.socket.get(), welcome, "", mapping.fd());
  mapping.CloseDescriptor();
  // Where the driver refuses, its words are in the log, and what lies there is copied once more.
  const std::optional<absl::Status>& registered = opening.registered();
  LogLine(LogLevel::kInfo, "shared_memory_session")
      .Add("caller", asked.context->caller)
      .Add("bytes", static_cast<int64_t>(welcome.mapping_bytes))
      .Add("registered", !registered        ? "no"
                         : registered->ok() ? "yes"
                                            : std::string(registered->message()))
      .WriteOrdinary();
  // The thread that lets go of it last has other things to do.
  struct Freeing final : Executor::Task {
    void Run() noexcept override { session.reset(); }
    std::unique_ptr<ShmSession> session;
  };
  const std::shared_ptr<ShmSession> session(
      new ShmSession(state_, std::move(asked.context), std::move(mapping),
                     std::move(asked.host_bytes), std::move(asked.socket), std::move(asked.place)),
      [state = state_, freeing = std::make_shared<Freeing>()](ShmSession* last) {
        freeing->session.reset(last);
        state->work.Post(freeing);
      });
  pollers_[next_poller_++ % pollers_.size()]->Add(session);
}

}  // namespace blockd::server
