#include "server/net/watched_reads.h"

#include <dlfcn.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/base/descriptors.h"
#include "server/base/steady_time.h"
#include "server/log/logging.h"
#include "server/net/frame_counter.h"

namespace blockd::server {
namespace {

constexpr size_t kMostDescriptors = size_t{1} << 20;  // Linux's own limit, if not raised

class Watch;

// All watches. Never destroyed: other threads may read for as long as the process lasts.
struct Watches {
  absl::Mutex mutex;
  absl::flat_hash_set<Watch*> all ABSL_GUARDED_BY(mutex);
  std::atomic<int64_t> ended{0};

  // Whole header blocks that are large, of calls that are not over. Those are forgotten with time
  // whose calls gRPC has answered by itself.
  absl::Mutex large_mutex;
  int64_t large_bytes ABSL_GUARDED_BY(large_mutex) = 0;
  absl::Time drained ABSL_GUARDED_BY(large_mutex) = absl::InfinitePast();

  static Watches& Get() {
    static auto& watches = *new Watches();
    return watches;
  }
  int64_t OpenBlockBytes();
  // False if that would be too many.
  bool AddLargeBlocks(int64_t bytes, absl::Time now);
  void ForgetLargeBlock(int64_t bytes);
};

// One connection: a socket, or the TLS of one.
class Watch {
 public:
  explicit Watch(int fd) : fd_(fd) {
    absl::MutexLock lock(&Watches::Get().mutex);
    Watches::Get().all.insert(this);
  }
  ~Watch() {
    absl::MutexLock lock(&Watches::Get().mutex);
    Watches::Get().all.erase(this);
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // A new connection, which has the number of one that was closed.
  void Begin(std::string peer) {
    absl::MutexLock lock(&mutex_);
    inode_ = InodeOf(fd_);
    peer_ = std::move(peer);
    counter_ = FrameCounter();
    open_block_bytes_ = 0;
    watches_ = true;
    stopped_ = false;
  }

  void Stop(ino_t inode) {
    absl::MutexLock lock(&mutex_);
    if (inode_ == inode) stopped_ = true;
  }
  // Not if the number is another file's by now.
  bool stopped() const { return stopped_ && IsOpen(); }

  // False if the connection is to end.
  bool Read(const char* bytes, size_t count) {
    absl::MutexLock lock(&mutex_);
    if (!watches_) return true;
    const absl::Time now = SteadyNow();
    const bool is_beside = !counter_.Count(bytes, count, now);
    const int64_t large = counter_.TakeLargeBlockBytes();
    const bool is_large = large > 0 && !Watches::Get().AddLargeBlocks(large, now);
    open_block_bytes_ = counter_.open_block_bytes();
    watches_ = counter_.is_http2() && !is_beside && !is_large &&
               (open_block_bytes_ <= kSmallBlockBytes ||
                Watches::Get().OpenBlockBytes() <= kMostOpenBlockBytes);
    if (watches_) return true;
    open_block_bytes_ = 0;
    // The number may be another file's by now, whose bytes mean nothing here.
    if (!counter_.is_http2() || !IsOpen()) return true;
    ++Watches::Get().ended;
    LogLine(LogLevel::kWarn, "connection_ended")
        .Add("peer", peer_)
        .Add("why", is_beside  ? "it sends too many frames that belong to no call"
                    : is_large ? "the metadata of its calls is too large"
                               : "its headers do not end")
        .Write();
    return false;
  }

  // 0 once the connection is closed, which nobody says.
  int64_t open_block_bytes() const {
    const int64_t bytes = open_block_bytes_;
    return bytes > 0 && IsOpen() ? bytes : 0;
  }

 private:
  bool IsOpen() const { return fd_ < 0 || InodeOf(fd_) == inode_; }

  const int fd_;  // -1: TLS
  std::atomic<ino_t> inode_{0};
  std::atomic<int64_t> open_block_bytes_{0};
  std::atomic<bool> stopped_{false};
  absl::Mutex mutex_;
  std::string peer_ ABSL_GUARDED_BY(mutex_);
  FrameCounter counter_ ABSL_GUARDED_BY(mutex_);
  bool watches_ ABSL_GUARDED_BY(mutex_) = true;
};

int64_t Watches::OpenBlockBytes() {
  absl::MutexLock lock(&mutex);
  int64_t bytes = 0;
  for (const Watch* watch : all) bytes += watch->open_block_bytes();
  return bytes;
}

bool Watches::AddLargeBlocks(int64_t bytes, absl::Time now) {
  absl::MutexLock lock(&large_mutex);
  const double seconds = std::min(absl::ToDoubleSeconds(now - drained), 1.0);
  drained = now;
  const auto drain = static_cast<int64_t>(seconds * kMostLargeBlockBytes);
  large_bytes = std::max(large_bytes - drain, int64_t{0});
  if (large_bytes + bytes > kMostLargeBlockBytes) return false;
  large_bytes += bytes;
  return true;
}

void Watches::ForgetLargeBlock(int64_t bytes) {
  absl::MutexLock lock(&large_mutex);
  large_bytes = std::max(large_bytes - bytes, int64_t{0});
}

// By the socket's number. One is used again for the next socket that has its number.
std::array<std::atomic<Watch*>, kMostDescriptors> by_number{};

// Null: it is not watched.
Watch* WatchOf(int fd) {
  if (fd < 0 || static_cast<size_t>(fd) >= by_number.size()) return nullptr;
  return by_number[static_cast<size_t>(fd)].load(std::memory_order_acquire);
}

bool ReadsOn(Watch& watch, const msghdr& message, ssize_t count) {
  auto left = static_cast<size_t>(count);
  for (size_t i = 0; i < message.msg_iovlen && left > 0; ++i) {
    const iovec& piece = message.msg_iov[i];
    const size_t bytes = std::min(left, piece.iov_len);
    if (!watch.Read(static_cast<const char*>(piece.iov_base), bytes)) return false;
    left -= bytes;
  }
  return true;
}

void DeleteWatch(void* /*tls*/, void* watch, CRYPTO_EX_DATA* /*data*/, int /*index*/,
                 long /*argl*/,  // NOLINT(google-runtime-int)
                 void* /*argp*/) {
  delete static_cast<Watch*>(watch);
}

// Null if there is no memory for it.
Watch* WatchOf(SSL* tls) {
  static const int index = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, DeleteWatch);
  if (void* const known = SSL_get_ex_data(tls, index)) return static_cast<Watch*>(known);
  auto watch = std::make_unique<Watch>(-1);
  return SSL_set_ex_data(tls, index, watch.get()) == 1 ? watch.release() : nullptr;
}

// The function of this name in the libraries that come after the program.
template <typename Function>
Function* Next(const char* name) {
  void* const next = dlsym(RTLD_NEXT, name);
  if (next == nullptr) std::abort();
  return reinterpret_cast<Function*>(next);
}

}  // namespace

void WatchReads(int fd, std::string peer) {
  if (static_cast<size_t>(fd) >= by_number.size()) return;
  std::atomic<Watch*>& place = by_number[static_cast<size_t>(fd)];
  Watch* watch = place.load(std::memory_order_acquire);
  if (watch == nullptr) watch = new Watch(fd);
  watch->Begin(std::move(peer));
  place.store(watch, std::memory_order_release);
}

void StopReads(int fd, ino_t inode) {
  if (Watch* const watch = WatchOf(fd)) watch->Stop(inode);
}

void ForgetHeaders(int64_t bytes, int64_t entries) {
  constexpr int64_t kOwnEntries = 8;  // of gRPC itself, the path and others
  bytes += (entries + kOwnEntries) * FrameCounter::kEntryBytes;
  if (bytes > FrameCounter::kLargeBlockBytes) Watches::Get().ForgetLargeBlock(bytes);
}

int64_t EndedReads() { return Watches::Get().ended; }

}  // namespace blockd::server

// The headers name the parameters otherwise.
// NOLINTBEGIN(readability-inconsistent-declaration-parameter-name)
extern "C" {

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  static auto* const next = blockd::server::Next<ssize_t(int, msghdr*, int)>("recvmsg");
  blockd::server::Watch* const watch = blockd::server::WatchOf(fd);
  if (watch == nullptr) return next(fd, message, flags);
  if (!watch->stopped()) {
    const ssize_t count = next(fd, message, flags);
    const bool reads = count > 0 && (flags & (MSG_PEEK | MSG_ERRQUEUE)) == 0;
    if (!reads || blockd::server::ReadsOn(*watch, *message, count)) return count;
    shutdown(fd, SHUT_RDWR);
  }
  errno = ECONNRESET;
  return -1;
}

int SSL_read(SSL* tls, void* bytes, int most) {
  static auto* const next = blockd::server::Next<int(SSL*, void*, int)>("SSL_read");
  const int count = next(tls, bytes, most);
  if (count <= 0 || SSL_is_server(tls) == 0) return count;
  blockd::server::Watch* const watch = blockd::server::WatchOf(tls);
  const bool reads_on =
      watch == nullptr || watch->Read(static_cast<const char*>(bytes), static_cast<size_t>(count));
  return reads_on ? count : -1;
}

}  // extern "C"
// NOLINTEND(readability-inconsistent-declaration-parameter-name)
