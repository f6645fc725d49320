#include "server/base/descriptors.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace blockd::server {
namespace {

// With which a server that has `open` descriptors open, before it serves, has room for connections.
int64_t LeastDescriptorLimit(int64_t open) {
  constexpr int64_t kServing = 24;  // queues, threads and the first connections
  int64_t limit = open + kServing;
  while (limit - ReservedDescriptors(limit) < open + kServing) ++limit;
  return limit;
}

}  // namespace

void FileDescriptor::Reset(int fd) {
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
}

ino_t InodeOf(int fd) {
  struct stat file {};
  return fstat(fd, &file) == 0 && S_ISSOCK(file.st_mode) ? file.st_ino : 0;
}

void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);  // where it may not be raised it stays
}

int64_t DescriptorLimit() {
  constexpr int64_t kMany = int64_t{1} << 30;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  return limit.rlim_cur > kMany ? kMany : static_cast<int64_t>(limit.rlim_cur);
}

int64_t OpenDescriptors() {
  std::error_code error;
  const std::filesystem::directory_iterator entries("/proc/self/fd", error);
  if (error) return -1;
  return std::distance(begin(entries), end(entries)) - 1;  // one is the iterator's own
}

int64_t SideConnections(int64_t limit) { return std::clamp<int64_t>(limit / 16, 2, 256); }

int64_t ReservedDescriptors(int64_t limit) {
  return std::min<int64_t>(64, limit / 4) + 2 * SideConnections(limit);
}

absl::Status CheckDescriptors() {
  const int64_t limit = DescriptorLimit(), open = OpenDescriptors();
  const int64_t least = LeastDescriptorLimit(open);
  if (limit >= least) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the process may have ", limit, " file descriptors and has ", open,
                   " open before it serves: expected a limit of at least ", least,
                   " (ulimit -n, RLIMIT_NOFILE)"));
}

}  // namespace blockd::server
