#include "server/descriptors.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace blockd::server {

void FileDescriptor::Reset(int fd) {
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
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

}  // namespace blockd::server
