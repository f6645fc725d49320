#include "server/base/allocator.h"

#include <malloc.h>

#include <algorithm>

#include "server/base/machine_limits.h"

// From gperftools/malloc_extension_c.h; null without tcmalloc.
extern "C" {
void MallocExtension_ReleaseFreeMemory() __attribute__((weak));
void MallocExtension_ReleaseToSystem(size_t bytes) __attribute__((weak));
int MallocExtension_GetNumericProperty(const char* property, size_t* value) __attribute__((weak));
}

namespace blockd::server {
namespace {

constexpr size_t kPiece = size_t{512} << 10;

}  // namespace

void KeepLargePieces() {
  if (MallocExtension_ReleaseFreeMemory != nullptr) return;  // it keeps them anyway
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  // Each arena keeps the most that its threads ever had at once: so there are not as many as
  // threads, most of which are idle, but enough that those at work do not wait for each other.
  mallopt(M_ARENA_MAX, std::max(2, MachineProcessors()));
}

void ReturnMostFreeMemory() {
  size_t free = 0;
  if (MallocExtension_ReleaseFreeMemory == nullptr) return;
  MallocExtension_GetNumericProperty("tcmalloc.pageheap_free_bytes", &free);
  // In pieces, since whoever needs memory waits for each.
  for (; free > kKeptBytes; free -= std::min(free, kPiece)) MallocExtension_ReleaseToSystem(kPiece);
}

void ReturnFreeMemory() {
  if (MallocExtension_ReleaseFreeMemory != nullptr) {
    MallocExtension_ReleaseFreeMemory();
  } else {
    malloc_trim(0);
  }
}

}  // namespace blockd::server
