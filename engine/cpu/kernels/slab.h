// Memory that the CPU backend's pool is cut from.
#ifndef BLOCKD_ENGINE_CPU_KERNELS_SLAB_H_
#define BLOCKD_ENGINE_CPU_KERNELS_SLAB_H_

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace blockd::cpu {

// Address space that the pool is cut from.
class Slab {
 public:
  static absl::StatusOr<std::unique_ptr<Slab>> Map(int64_t bytes) {
    void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot map ", bytes, " bytes of memory: ", std::strerror(errno)));
    }
    madvise(base, bytes, MADV_HUGEPAGE);  // where refused, small pages serve
    return std::unique_ptr<Slab>(new Slab(base, bytes));
  }
  ~Slab() { munmap(base_, bytes_); }
  void* base() const { return base_; }

 private:
  Slab(void* base, int64_t bytes) : base_(base), bytes_(bytes) {}
  void* const base_;
  const int64_t bytes_;
};

}  // namespace blockd::cpu

#endif  // BLOCKD_ENGINE_CPU_KERNELS_SLAB_H_
