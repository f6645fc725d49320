// The process's file descriptors: owning one, how many there may be, how many there are.
#ifndef BLOCKD_SERVER_BASE_DESCRIPTORS_H_
#define BLOCKD_SERVER_BASE_DESCRIPTORS_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"

namespace blockd::server {

// Owns an open file descriptor, or none (-1). Not thread-safe.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.Release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    Reset(other.Release());
    return *this;
  }
  ~FileDescriptor() { Reset(-1); }

  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset(int fd);

 private:
  int fd_ = -1;
};

// The longest name of a Unix domain socket, in bytes.
inline constexpr size_t kMaxSocketPath = 107;

// Identifies this open socket among all that have or had its number; 0 if it is no socket.
ino_t InodeOf(int fd);

// Raises the soft limit of open descriptors to the hard one.
void RaiseDescriptorLimit();
int64_t DescriptorLimit();  // the soft limit

int64_t OpenDescriptors();  // those open now; -1 if the machine does not say

// How a limit is shared. Connections of gRPC leave some to everything else: files, devices, and the
// connections of the ports beside, which are the one of the metrics and the one of health checks.
int64_t SideConnections(int64_t limit);  // of each
int64_t ReservedDescriptors(int64_t limit);

// FAILED_PRECONDITION, with the least limit that is expected, where there is no room for
// connections beside the descriptors that are open. Before anything is served.
absl::Status CheckDescriptors();

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_BASE_DESCRIPTORS_H_
