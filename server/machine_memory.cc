#include "server/machine_memory.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

#include "absl/strings/str_split.h"

namespace blockd::server {
namespace {

namespace fs = std::filesystem;

// The limit that `file` of this group, or of one around it, says; a group that a container does not
// see says none. Without a limit the file says "max", or more than any machine has.
int64_t SmallestLimit(const fs::path& mount, const std::string& group, const char* file,
                      int64_t bytes) {
  for (fs::path at = fs::path(group).relative_path();; at = at.parent_path()) {
    int64_t limit = 0;
    if (std::ifstream(mount / at / file) >> limit && limit > 0) bytes = std::min(bytes, limit);
    if (at.empty()) return bytes;
  }
}

}  // namespace

int64_t MachineMemoryBytes(const std::string& root) {
  const fs::path groups = fs::path(root) / "sys/fs/cgroup";
  int64_t bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  // A line is HIERARCHY:CONTROLLERS:GROUP, and for version 2 "0::GROUP".
  std::ifstream file(fs::path(root) / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    if (parts[1].empty()) {
      bytes = SmallestLimit(groups, parts[2], "memory.max", bytes);
      bytes = SmallestLimit(groups / "unified", parts[2], "memory.max", bytes);  // beside version 1
    } else if (std::find(controllers.begin(), controllers.end(), "memory") != controllers.end()) {
      bytes = SmallestLimit(groups / "memory", parts[2], "memory.limit_in_bytes", bytes);
    }
  }
  return bytes;
}

}  // namespace blockd::server
