// The memory of this process.
#ifndef BLOCKD_TESTS_SUPPORT_PEAK_BYTES_H_
#define BLOCKD_TESTS_SUPPORT_PEAK_BYTES_H_

#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
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

// The memory that `work` takes at its peak: the least of three runs, each without what the one
// before it left in the heap. A sanitizer takes tens of MiB for itself now and then, which counts
// in one of them; the thread sanitizer keeps four bytes beside each.
template <typename Work>
int64_t PeakBytesOf(Work work) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < 3; ++i) {
    malloc_trim(0);
    PeakBytes();
    const int64_t before = PeakBytes();
    work();
    least = std::min(least, PeakBytes() - before);
  }
#ifdef __SANITIZE_THREAD__
  least /= 5;
#endif
  return least;
}

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_SUPPORT_PEAK_BYTES_H_
