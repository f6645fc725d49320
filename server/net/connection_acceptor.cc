#include "server/net/connection_acceptor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/steady_time.h"
#include "server/base/thread_name.h"
#include "server/log/logging.h"

namespace blockd::server {
namespace {

constexpr int kAcceptedAtOnce = 64;
constexpr int kRetryMilliseconds = 50;  // where the machine has no descriptor or memory
constexpr int kFullMilliseconds = 250;  // how often a full server looks whether it still is
constexpr absl::Duration kFullTime = absl::Milliseconds(kFullMilliseconds);
constexpr absl::Duration kSayEvery = absl::Seconds(1);

}  // namespace

ConnectionAcceptor::ConnectionAcceptor(Listener listener, const ConnectionLimits& limits,
                                       HandOver hand_over, OnFull on_full)
    : limits_(limits),
      hand_over_(std::move(hand_over)),
      on_full_(std::move(on_full)),
      port_(listener.port),
      listener_(std::move(listener)),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void ConnectionAcceptor::Start() {
  thread_ = std::thread([this] { Loop(); });
}

void ConnectionAcceptor::Stop() {
  (void)eventfd_write(stop_.get(), 1);
  if (thread_.joinable()) thread_.join();
  listener_.file = SocketFile();
  listener_.sockets.clear();
}

int64_t ConnectionAcceptor::open() {
  absl::MutexLock lock(&mutex_);
  return table_.Count();
}

void ConnectionAcceptor::End(const std::string& peer, const std::string& why) {
  {
    absl::MutexLock lock(&mutex_);
    if (!table_.End(peer)) return;
    ++ended_;
  }
  LogLine(LogLevel::kWarn, "connection_ended").Add("peer", peer).Add("why", why).Write();
}

bool ConnectionAcceptor::EndOldest() {
  absl::MutexLock lock(&mutex_);
  if (!table_.EndOldest()) return false;
  ++ended_;
  return true;
}

int64_t ConnectionAcceptor::ended() const {
  absl::MutexLock lock(&mutex_);
  return ended_;
}

int64_t ConnectionAcceptor::refused() const {
  absl::MutexLock lock(&mutex_);
  return refused_;
}

void ConnectionAcceptor::Loop() {
  NameThread("accept");
  std::vector<pollfd> watched = {{.fd = stop_.get(), .events = POLLIN, .revents = 0}};
  for (const FileDescriptor& socket_fd : listener_.sockets) {
    watched.push_back({.fd = socket_fd.get(), .events = POLLIN, .revents = 0});
  }
  bool exhausted = false;
  while (true) {
    // Sockets that would be ready at once are left alone while nothing can be accepted.
    const int timeout = exhausted              ? kRetryMilliseconds
                        : full_ || unsaid_ > 0 ? kFullMilliseconds
                                               : -1;
    (void)poll(watched.data(), exhausted ? 1 : watched.size(), timeout);
    if (watched[0].revents != 0) return;
    exhausted = false;
    for (size_t i = 1; i < watched.size(); ++i) exhausted |= !AcceptSome(watched[i].fd);
    if (full_ && SteadyNow() - refused_at_ >= kFullTime && HasRoomForOneMore()) SetFull(false);
    SayRefused();
  }
}

// False if the machine has nothing left to accept with.
bool ConnectionAcceptor::AcceptSome(int listening_fd) {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    sockaddr_storage peer{};
    socklen_t peer_bytes = sizeof(peer);
    FileDescriptor socket_fd(accept4(listening_fd, reinterpret_cast<sockaddr*>(&peer), &peer_bytes,
                                     SOCK_NONBLOCK | SOCK_CLOEXEC));
    const int fd = socket_fd.get();
    if (fd < 0) {
      if (errno == EAGAIN) return true;
      // All others are about one connection, which is gone.
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) continue;
      Refuse(std::strerror(errno));
      return false;
    }
    if (!HasRoom(fd)) continue;
    std::string name = PeerName(peer);
    {
      absl::MutexLock lock(&mutex_);
      table_.Add(fd, name);
    }
    hand_over_({.listening_fd = listening_fd,
                .fd = socket_fd.Release(),
                .is_unix = peer.ss_family == AF_UNIX,
                .peer = std::move(name)});
  }
  return true;
}

// Refuses it where not.
bool ConnectionAcceptor::HasRoom(int fd) {
  if (fd >= limits_.descriptors) {
    Refuse(absl::StrCat("more than ", limits_.descriptors, " file descriptors are open"));
    return false;
  }
  if (HasPlace() || (limits_.ends_oldest && EndOldest())) return true;
  Refuse(absl::StrCat(limits_.name, "=", limits_.connections));
  return false;
}

bool ConnectionAcceptor::HasPlace() {
  absl::MutexLock lock(&mutex_);
  if (table_.AtMost() < limits_.connections) return true;
  // A tenth of the time at most goes into counting.
  const absl::Time start = SteadyNow();
  if (start < next_count_) return false;
  const bool has_place = table_.Count() < limits_.connections;
  const absl::Time end = SteadyNow();
  next_count_ = end + 9 * (end - start);
  return has_place;
}

bool ConnectionAcceptor::HasRoomForOneMore() {
  const FileDescriptor next(fcntl(stop_.get(), F_DUPFD_CLOEXEC, 0));
  return next.get() >= 0 && next.get() < limits_.descriptors && open() < limits_.connections;
}

void ConnectionAcceptor::Refuse(const std::string& why) {
  {
    absl::MutexLock lock(&mutex_);
    ++refused_;
  }
  ++unsaid_;
  why_ = why;
  refused_at_ = SteadyNow();
  SetFull(true);
}

void ConnectionAcceptor::SetFull(bool full) {
  if (full == full_) return;
  full_ = full;
  on_full_(full);
}

void ConnectionAcceptor::SayRefused() {
  const absl::Time now = SteadyNow();
  if (unsaid_ == 0 || now - said_ < kSayEvery) return;
  LogLine(LogLevel::kWarn, "connections_refused")
      .Add("count", std::exchange(unsaid_, 0))
      .Add("port", port_)
      .Add("open", open())
      .Add("why", why_)
      .Write();
  said_ = now;
}

}  // namespace blockd::server
