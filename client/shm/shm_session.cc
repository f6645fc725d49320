#include "client/shm/shm_session.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "blockd/client/errors.h"
#include "blockd/v1/blockd.pb.h"

namespace blockd::client {
namespace {

constexpr uint32_t kSlots = 256;
constexpr int kIndexBits = 16;
constexpr uint64_t kIndexMask = (uint64_t{1} << kIndexBits) - 1;

void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

absl::Status Unavailable(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

v1::ShmHello MakeHello(const ShmSession::Options& options) {
  v1::ShmHello hello{};
  std::memcpy(hello.magic, v1::kShmMagic, sizeof(hello.magic));
  hello.version = v1::kShmVersion;
  hello.slots = kSlots;
  hello.data_bytes = options.bytes;
  hello.caller_bytes = static_cast<uint32_t>(options.caller.size());
  hello.token_bytes = static_cast<uint32_t>(options.token.size());
  std::copy(options.caller.begin(), options.caller.end(), hello.caller);
  std::copy(options.token.begin(), options.token.end(), hello.token);
  return hello;
}

// Makes the next sends and receives wait no longer than until the deadline.
void LimitTo(int socket, absl::Time deadline) {
  timeval limit =
      absl::ToTimeval(std::clamp(deadline - absl::Now(), absl::Milliseconds(1), absl::Hours(1)));
  (void)setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  (void)setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

// All of `bytes`; the descriptor that comes with the first of them is `fd`.
bool Receive(int socket, absl::Time deadline, std::span<char> bytes, int* fd) {
  while (!bytes.empty()) {
    if (absl::Now() >= deadline) return false;
    LimitTo(socket, deadline);
    iovec part{.iov_base = bytes.data(), .iov_len = bytes.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t count = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    if (count <= 0) return false;
    const cmsghdr* const head = CMSG_FIRSTHDR(&message);
    if (head != nullptr && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS) {
      int came;
      std::memcpy(&came, CMSG_DATA(head), sizeof(came));
      const Socket other(std::exchange(*fd, came));
    }
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return true;
}

absl::Status Refusal(int socket, absl::Time deadline, uint32_t bytes) {
  std::string text(std::min<uint32_t>(bytes, 1 << 16), '\0');
  int fd = -1;
  const bool came = Receive(socket, deadline, text, &fd);
  const Socket none(fd);
  v1::RpcStatus status;
  if (!came || !status.ParseFromString(text) || status.code() == 0) {
    return absl::InternalError("the server refuses shared memory and does not say why");
  }
  return ToStatus(status);
}

absl::StatusOr<int> ConnectTo(const std::string& path, absl::Time deadline) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.size() >= sizeof(name.sun_path)) {
    return InvalidFieldError("target", absl::StrCat("a path of ", path.size(), " bytes"),
                             absl::StrCat("at most ", sizeof(name.sun_path) - 1));
  }
  path.copy(name.sun_path, path.size());
  Socket socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return Unavailable("no socket");
  LimitTo(socket.get(), deadline);
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) {
    return Unavailable(absl::StrCat("no server shares memory at ", path));
  }
  return socket.Release();
}

}  // namespace

absl::StatusOr<std::shared_ptr<ShmSession>> ShmSession::Open(const Options& options) {
  const absl::Time deadline = absl::Now() + options.timeout;
  const absl::StatusOr<int> connected = ConnectTo(options.path, deadline);
  if (!connected.ok()) return connected.status();
  Socket socket(*connected);
  const v1::ShmHello hello = MakeHello(options);
  if (send(socket.get(), &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello)) {
    return Unavailable("the server does not listen");
  }
  v1::ShmWelcome welcome{};
  int fd = -1;
  const bool came =
      Receive(socket.get(), deadline, {reinterpret_cast<char*>(&welcome), sizeof(welcome)}, &fd);
  const Socket memory_fd(fd);  // closed once it is mapped
  if (!came) return absl::UnavailableError("the server did not answer the hello");
  if (std::memcmp(welcome.magic, v1::kShmMagic, sizeof(welcome.magic)) != 0 ||
      welcome.version != v1::kShmVersion) {
    return absl::FailedPreconditionError("the server shares memory in another version");
  }
  if (welcome.status_bytes > 0) return Refusal(socket.get(), deadline, welcome.status_bytes);
  auto memory = ShmMemory::Map(fd, welcome);
  if (!memory.ok()) return memory.status();
  return std::shared_ptr<ShmSession>(
      new ShmSession(socket.Release(), *std::move(memory), options.poll));
}

ShmSession::ShmSession(int socket, std::shared_ptr<ShmMemory> memory, absl::Duration poll)
    : socket_(socket), memory_(std::move(memory)), poll_(poll), pending_(memory_->slots()) {
  for (uint32_t i = 0; i < memory_->slots(); ++i) free_.push_back(i);
}

ShmSession::~ShmSession() { close(socket_); }

absl::StatusOr<v1::ShmReply> ShmSession::Call(v1::ShmRequest request, absl::Time deadline) {
  const absl::StatusOr<Pending*> sent = Send(request, deadline);
  if (!sent.ok()) return sent.status();
  Pending& mine = **sent;
  Await(mine, deadline + kPatience);
  if (!mine.done.load(std::memory_order_acquire)) {
    // Its memory may still be written to: nobody gets it any more.
    if (!ended()) End("the server does not answer");
    return EndStatus();
  }
  const v1::ShmReply reply = mine.reply;
  absl::MutexLock lock(&mutex_);
  FreeSlot(mine);
  return reply;
}

absl::StatusOr<ShmSession::Pending*> ShmSession::Send(v1::ShmRequest& request,
                                                      absl::Time deadline) {
  Pending* mine = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    while (free_.empty() && !ended()) {
      if (has_free_.WaitWithDeadline(&mutex_, deadline) && free_.empty()) {
        return absl::DeadlineExceededError("too many calls are under way");
      }
    }
    if (ended()) return absl::UnavailableError(why_);
    mine = &Put(request, deadline);
  }
  WakeServerIfAsleep();
  return mine;
}

ShmSession::Pending& ShmSession::Put(v1::ShmRequest& request, absl::Time deadline) {
  const uint32_t index = free_.back();
  free_.pop_back();
  Pending& mine = pending_[index];
  // Ids begin at 1 << kIndexBits: none is 0.
  mine.id = ((sent_ + 1) << kIndexBits) | index;
  mine.done.store(false, std::memory_order_relaxed);
  request.id = mine.id;
  if (deadline != absl::InfiniteFuture()) {
    request.timeout_nanoseconds =
        std::max<int64_t>(absl::ToInt64Nanoseconds(deadline - absl::Now()), 1);
  }
  std::memcpy(&memory_->request(sent_), &request, sizeof(request));
  memory_->header().requests_end.store(++sent_, std::memory_order_seq_cst);
  return mine;
}

void ShmSession::FreeSlot(const Pending& answered) {
  free_.push_back(static_cast<uint32_t>(answered.id & kIndexMask));
  if (unsent_.empty()) return has_free_.Signal();
  const LaterPtr next = std::move(unsent_.front());
  unsent_.pop_front();
  PutLater(next);
  WakeServerIfAsleep();
}

void ShmSession::WakeServerIfAsleep() {
  v1::ShmHeader& header = memory_->header();
  if (header.server_asleep.load(std::memory_order_seq_cst) == 0) return;
  header.server_asleep.store(0, std::memory_order_relaxed);
  const char wake = 0;
  (void)send(socket_, &wake, sizeof(wake), MSG_DONTWAIT | MSG_NOSIGNAL);
}

// -----------------------------------------------------------------------------------------------------
// Waiting

void ShmSession::Await(Waiter& mine, absl::Time until) {
  const absl::Time spin_end = absl::Now() + poll_;
  while (!mine.done.load(std::memory_order_acquire) && !ended()) {
    if (StartReading()) {
      Read(mine, spin_end, until);
      StopReading();
      if (absl::Now() >= until) return;
      continue;
    }
    if (poll_ > absl::ZeroDuration() && absl::Now() < spin_end) {
      Relax();
      continue;
    }
    if (!AwaitReader(mine, until)) return;
  }
}

// False if the time is over.
bool ShmSession::AwaitReader(Waiter& mine, absl::Time until) {
  absl::MutexLock lock(&mutex_);
  mine.asleep = true;
  ++asleep_;
  bool late = false;
  while (!mine.done.load(std::memory_order_relaxed) && reading_.load() && !ended() && !late) {
    late = mine.wake.WaitWithDeadline(&mutex_, until);
  }
  mine.asleep = false;
  --asleep_;
  // It may have been woken to read, and has no need to.
  if (!reading_.load()) WakeNextReader();
  return !late;
}

bool ShmSession::StartReading() { return !reading_.exchange(true, std::memory_order_acquire); }

void ShmSession::StopReading() {
  absl::MutexLock lock(&mutex_);
  reading_.store(false, std::memory_order_release);
  WakeNextReader();
}

void ShmSession::WakeNextReader() {
  if (asleep_ == 0) return;
  if (thread_.asleep) return thread_.wake.Signal();
  for (Pending& other : pending_) {
    if (!other.asleep || other.done.load(std::memory_order_relaxed)) continue;
    other.wake.Signal();
    return;
  }
}

void ShmSession::Read(Waiter& mine, absl::Time spin_end, absl::Time until) {
  while (!mine.done.load(std::memory_order_acquire) && !ended()) {
    if (TakeReplies()) continue;
    const absl::Time now = absl::Now();
    if (now >= until) return;
    if (now < spin_end) {
      Relax();
    } else {
      Sleep(until);
    }
  }
}

bool ShmSession::TakeReplies() {
  v1::ShmHeader& header = memory_->header();
  const uint64_t end = header.replies_end.load(std::memory_order_acquire);
  if (end == replies_taken_) return false;
  bool broken = end - replies_taken_ > memory_->slots();
  {
    absl::MutexLock lock(&mutex_);
    while (!broken && replies_taken_ != end) {
      const v1::ShmReply reply = memory_->reply(replies_taken_);
      const uint64_t index = reply.id & kIndexMask;
      broken = index >= pending_.size() || pending_[index].id != reply.id ||
               pending_[index].done.load(std::memory_order_relaxed);
      if (broken) break;
      Pending& its = pending_[index];
      its.reply = reply;
      ++replies_taken_;
      // Before its thread may send another.
      header.replies_taken.store(replies_taken_, std::memory_order_release);
      its.done.store(true, std::memory_order_release);
      if (its.asleep) its.wake.Signal();
      if (its.later == nullptr) continue;
      Finish(std::exchange(its.later, nullptr), reply);
      FreeSlot(its);
    }
  }
  if (broken) End("the server's replies are not in order");
  return true;
}

void ShmSession::Sleep(absl::Time until) {
  v1::ShmHeader& header = memory_->header();
  header.caller_asleep.store(1, std::memory_order_seq_cst);
  if (header.replies_end.load(std::memory_order_seq_cst) == replies_taken_) {
    pollfd watched{.fd = socket_, .events = POLLIN, .revents = 0};
    const timespec limit =
        absl::ToTimespec(std::clamp(until - absl::Now(), absl::ZeroDuration(), absl::Hours(1)));
    (void)ppoll(&watched, 1, &limit, nullptr);
  }
  header.caller_asleep.store(0, std::memory_order_relaxed);
  std::array<char, 64> wakes;
  const ssize_t count = recv(socket_, wakes.data(), wakes.size(), MSG_DONTWAIT);
  if (count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR))) return;
  // Answers that the server gave before it ended stand.
  if (header.replies_end.load(std::memory_order_acquire) != replies_taken_) return;
  char reason[sizeof(header.end_reason)];
  std::memcpy(reason, header.end_reason, sizeof(reason));
  const size_t length = strnlen(reason, sizeof(reason));
  End(absl::StrCat("the server has ended the shared-memory session", length > 0 ? ": " : "",
                   absl::string_view(reason, length)));
}

void ShmSession::End(const std::string& why) {
  absl::MutexLock lock(&mutex_);
  if (ended_.exchange(true)) return;
  why_ = why;
  (void)shutdown(socket_, SHUT_RDWR);
  for (Pending& pending : pending_) pending.wake.Signal();
  thread_.wake.Signal();
  has_work_.Signal();
  has_free_.SignalAll();
}

absl::Status ShmSession::EndStatus() {
  absl::MutexLock lock(&mutex_);
  return absl::UnavailableError(why_);
}

}  // namespace blockd::client
