#include "server/base/machine_limits.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_split.h"

namespace blockd::server {
namespace {

namespace fs = std::filesystem;

enum class GroupVersion { k1, k2 };

// Calls `look` with the folder of each group with this controller that the process is in, and of
// those around it; a group that a container does not see is not there.
void ForGroups(const std::string& root, const std::string& controller,
               absl::FunctionRef<void(const fs::path&, GroupVersion)> look) {
  const fs::path groups = fs::path(root) / "sys/fs/cgroup";
  const auto walk = [&](const fs::path& mount, const std::string& group, GroupVersion version) {
    for (fs::path at = fs::path(group).relative_path();; at = at.parent_path()) {
      look(mount / at, version);
      if (at.empty()) return;
    }
  };
  // A line is HIERARCHY:CONTROLLERS:GROUP, and for version 2 "0::GROUP".
  std::ifstream file(fs::path(root) / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    if (parts[1].empty()) {
      walk(groups, parts[2], GroupVersion::k2);
      walk(groups / "unified", parts[2], GroupVersion::k2);  // beside version 1
    } else if (std::find(controllers.begin(), controllers.end(), controller) != controllers.end()) {
      walk(groups / controller, parts[2], GroupVersion::k1);
    }
  }
}

double NumberIn(const fs::path& file) {
  double number = 0;
  std::ifstream(file) >> number;
  return number;
}

}  // namespace

int64_t MachineMemoryBytes(const std::string& root) {
  int64_t bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  ForGroups(root, "memory", [&](const fs::path& group, GroupVersion version) {
    // Without a limit the file says "max", or more than any machine has.
    int64_t limit = 0;
    const char* const file = version == GroupVersion::k2 ? "memory.max" : "memory.limit_in_bytes";
    if (std::ifstream(group / file) >> limit && limit > 0) bytes = std::min(bytes, limit);
  });
  for (const auto resource : {RLIMIT_AS, RLIMIT_DATA}) {
    rlimit limit = {};
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) continue;
    bytes = std::min(bytes, static_cast<int64_t>(limit.rlim_cur));
  }
  return bytes;
}

int32_t MachineProcessors(const std::string& root) {
  cpu_set_t allowed;
  double processors = sched_getaffinity(0, sizeof(allowed), &allowed) == 0
                          ? CPU_COUNT(&allowed)
                          : std::thread::hardware_concurrency();
  ForGroups(root, "cpu", [&](const fs::path& group, GroupVersion version) {
    // Microseconds of processors in a period of so many. Without a quota the first is "max", or -1.
    double quota = 0, period = 0;
    if (version == GroupVersion::k2) {
      std::ifstream(group / "cpu.max") >> quota >> period;
    } else {
      quota = NumberIn(group / "cpu.cfs_quota_us");
      period = NumberIn(group / "cpu.cfs_period_us");
    }
    if (quota > 0 && period > 0) processors = std::min(processors, std::ceil(quota / period));
  });
  return std::max(static_cast<int32_t>(processors), 1);
}

}  // namespace blockd::server
