// The memory of this process.
#ifndef BLOCKD_TESTS_SUPPORT_PEAK_BYTES_H_
#define BLOCKD_TESTS_SUPPORT_PEAK_BYTES_H_

#include <cstdint>
#include <fstream>
#include <string>

namespace blockd::test {

// The most that this process has had in memory since the last call. A client in it is counted too.
inline int64_t PeakBytes() {
  std::ifstream status("/proc/self/status");
  int64_t kib = 0;
  for (std::string word; status >> word;) {
    if (word == "VmHWM:") status >> kib;
  }
  std::ofstream("/proc/self/clear_refs") << 5;  // counts anew, from what it has now
  return kib << 10;
}

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SUPPORT_PEAK_BYTES_H_
