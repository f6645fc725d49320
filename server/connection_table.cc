#include "server/connection_table.h"

#include <sys/stat.h>

namespace blockd::server {
namespace {

ino_t InodeOf(int fd) {
  struct stat file {};
  return fstat(fd, &file) == 0 && S_ISSOCK(file.st_mode) ? file.st_ino : 0;
}

}  // namespace

void ConnectionTable::Add(int fd) { inodes_[fd] = InodeOf(fd); }

int64_t ConnectionTable::Count() {
  absl::erase_if(inodes_, [](const auto& entry) { return InodeOf(entry.first) != entry.second; });
  return AtMost();
}

}  // namespace blockd::server
