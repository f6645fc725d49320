#include "server/identity/small_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace blockd::server {
namespace {

std::optional<std::string> ReadOpenFile(int fd, size_t max_bytes) {
  struct stat about {};
  if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) return std::nullopt;
  std::string text(max_bytes + 1, '\0');
  size_t bytes = 0;
  while (bytes < text.size()) {
    const ssize_t count = read(fd, text.data() + bytes, text.size() - bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return std::nullopt;
    if (count == 0) break;
    bytes += static_cast<size_t>(count);
  }
  text.resize(bytes);
  return text;
}

}  // namespace

std::optional<std::string> ReadSmallFile(const std::string& path, size_t max_bytes) {
  // To open a pipe blocks, too, but for this flag.
  const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  std::optional<std::string> text = ReadOpenFile(fd, max_bytes);
  close(fd);
  return text;
}

}  // namespace blockd::server
