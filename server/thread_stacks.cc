#include "server/thread_stacks.h"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>

namespace blockd::server {

void UseRoomyStacks() {}

}  // namespace blockd::server

// The C library's names of the parameters are reserved.
// NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name)
extern "C" int pthread_attr_setstacksize(pthread_attr_t* attributes, size_t bytes) noexcept {
  using Function = int (*)(pthread_attr_t*, size_t);
  static const Function next =
      reinterpret_cast<Function>(dlsym(RTLD_NEXT, "pthread_attr_setstacksize"));
  return next(attributes, std::max(bytes, blockd::server::kSmallestStack));
}
