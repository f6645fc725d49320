#include "server/net/listener.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "server/base/steady_time.h"

namespace blockd::server {
namespace {

// How long another server that starts is waited for.
constexpr absl::Duration kLockTime = absl::Seconds(2), kLockRetry = absl::Milliseconds(1);

struct Address {
  sockaddr_storage bytes{};
  socklen_t size = 0;

  int family() const { return bytes.ss_family; }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
  in_port_t& port() {
    return family() == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bytes)->sin6_port
                                : reinterpret_cast<sockaddr_in*>(&bytes)->sin_port;
  }
  bool IsWildcard() const {
    if (family() == AF_INET6) {
      return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(&bytes)->sin6_addr);
    }
    return reinterpret_cast<const sockaddr_in*>(&bytes)->sin_addr.s_addr == INADDR_ANY;
  }
};

absl::StatusOr<std::vector<Address>> Resolve(const std::string& address, int port) {
  absl::string_view name = address;
  if (absl::ConsumePrefix(&name, "[")) absl::ConsumeSuffix(&name, "]");
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failure =
      getaddrinfo(std::string(name).c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (failure != 0) return absl::UnavailableError(gai_strerror(failure));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  std::vector<Address> addresses;
  for (; found != nullptr; found = found->ai_next) {
    Address one;
    if (found->ai_family != AF_INET && found->ai_family != AF_INET6) continue;
    std::memcpy(&one.bytes, found->ai_addr, found->ai_addrlen);
    one.size = found->ai_addrlen;
    addresses.push_back(one);
  }
  return addresses;
}

// :: on a socket of both kinds, and 0.0.0.0 for a machine without IPv6.
std::vector<Address> EveryAddress(int port) {
  Address v6, v4;
  v6.bytes.ss_family = AF_INET6;
  v6.size = sizeof(sockaddr_in6);
  v4.bytes.ss_family = AF_INET;
  v4.size = sizeof(sockaddr_in);
  v6.port() = v4.port() = htons(static_cast<uint16_t>(port));
  return {v6, v4};
}

// NOT_FOUND where the machine has no such address; a name may stand for one of a kind it lacks.
absl::Status Failure() {
  const bool absent = errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL;
  return {absent ? absl::StatusCode::kNotFound : absl::StatusCode::kUnavailable,
          std::strerror(errno)};
}

void Set(int fd, int level, int name, int value) {
  setsockopt(fd, level, name, &value, sizeof(value));
}

// Listens on `address`, whose port it fills in.
absl::StatusOr<FileDescriptor> ListenOn(Address* address, absl::Duration silence) {
  FileDescriptor socket_fd(
      socket(address->family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int fd = socket_fd.get();
  if (fd < 0) return Failure();
  Set(fd, SOL_SOCKET, SO_REUSEADDR, 1);  // a port of connections that have ended is free
  if (address->family() == AF_INET6) Set(fd, IPPROTO_IPV6, IPV6_V6ONLY, !address->IsWildcard());
  // Accepted sockets inherit both.
  Set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  Set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT,
      static_cast<int>(std::min<int64_t>(absl::ToInt64Milliseconds(silence), INT32_MAX)));
  if (bind(fd, address->get(), address->size) != 0) return Failure();
  if (listen(fd, SOMAXCONN) != 0) return Failure();
  if (getsockname(fd, address->get(), &address->size) != 0) return Failure();
  return socket_fd;
}

// True if the file is a socket where nobody listens, left by a server that has ended.
bool IsLeft(const sockaddr_un& name) {
  struct stat file {};
  if (lstat(name.sun_path, &file) != 0 || !S_ISSOCK(file.st_mode)) return false;
  const FileDescriptor caller(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  return connect(caller.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0 &&
         errno == ECONNREFUSED;
}

ino_t InodeOf(const std::string& path) {
  struct stat file {};
  return lstat(path.c_str(), &file) == 0 ? file.st_ino : 0;
}

absl::Status Unavailable() { return absl::UnavailableError(std::strerror(errno)); }

// Until it is closed no other server looks in the folder of `path` for sockets that nobody listens
// on: between bind and listen one would look so.
absl::StatusOr<FileDescriptor> LockFolder(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path();
  FileDescriptor lock(
      open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock.get() < 0) return Unavailable();
  const absl::Time end = SteadyNow() + kLockTime;
  while (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return Unavailable();
    if (SteadyNow() > end) return absl::UnavailableError("another program locks its folder");
    absl::SleepFor(kLockRetry);
  }
  return lock;
}

}  // namespace

SocketFile::SocketFile(std::string path) : path_(std::move(path)), inode_(InodeOf(path_)) {}

void SocketFile::Remove() {
  if (!path_.empty() && InodeOf(path_) == inode_) unlink(path_.c_str());
}

std::string HostPort(const std::string& address, int port) {
  const bool ipv6 = absl::StrContains(address, ":") && !absl::StartsWith(address, "[");
  return ipv6 ? absl::StrCat("[", address, "]:", port) : absl::StrCat(address, ":", port);
}

absl::StatusOr<Listener> Listen(const std::string& address, int port, absl::Duration silence) {
  absl::StatusOr<std::vector<Address>> addresses = Resolve(address, port);
  if (!addresses.ok()) return addresses.status();
  const bool every = std::any_of(addresses->begin(), addresses->end(),
                                 [](const Address& one) { return one.IsWildcard(); });
  if (every) addresses = EveryAddress(port);
  Listener listener;
  listener.port = port;
  absl::Status failure = absl::UnavailableError("it has no address");
  for (Address& one : *addresses) {
    one.port() = htons(static_cast<uint16_t>(listener.port));
    absl::StatusOr<FileDescriptor> socket_fd = ListenOn(&one, silence);
    if (absl::IsNotFound(socket_fd.status())) {
      failure = absl::UnavailableError(socket_fd.status().message());
      continue;
    }
    if (!socket_fd.ok()) return socket_fd.status();
    listener.port = ntohs(one.port());
    listener.sockets.push_back(*std::move(socket_fd));
    if (every) break;
  }
  if (listener.sockets.empty()) return failure;
  return listener;
}

absl::StatusOr<Listener> ListenOnUnixSocket(const std::string& path, mode_t mode) {
  sockaddr_un name{};
  static_assert(sizeof(name.sun_path) == kMaxSocketPath + 1);
  name.sun_family = AF_UNIX;
  if (path.empty() || path.size() > kMaxSocketPath) {
    return absl::UnavailableError(
        absl::StrCat("expected a path of 1 to ", kMaxSocketPath, " bytes"));
  }
  path.copy(name.sun_path, path.size());
  const absl::StatusOr<FileDescriptor> lock = LockFolder(path);
  if (!lock.ok()) return lock.status();
  FileDescriptor socket_fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int fd = socket_fd.get();
  // Nobody sends a descriptor whose end the thread that receives has to wait for. Kernels before
  // 6.16 cannot refuse that.
  constexpr int kPassRights = 83, kNo = 0;  // SO_PASSRIGHTS
  (void)setsockopt(fd, SOL_SOCKET, kPassRights, &kNo, sizeof(kNo));
  const auto bind_it = [&] {
    return bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0;
  };
  // The file never has more than `mode`: bind gives it what the socket has, less the umask.
  if (fd < 0 || fchmod(fd, mode) != 0) return Unavailable();
  if (!bind_it()) {
    const int failure = errno;
    if (failure != EADDRINUSE || !IsLeft(name)) {
      return absl::UnavailableError(std::strerror(failure));
    }
    if (unlink(path.c_str()) != 0 || !bind_it()) return Unavailable();
  }
  Listener listener;
  listener.file = SocketFile(path);
  // Undoes the umask before anybody can connect.
  if (fchmodat(AT_FDCWD, path.c_str(), mode, AT_SYMLINK_NOFOLLOW) != 0) return Unavailable();
  if (listen(fd, SOMAXCONN) != 0) return Unavailable();
  listener.sockets.push_back(std::move(socket_fd));
  return listener;
}

}  // namespace blockd::server
