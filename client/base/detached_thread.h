// Threads that nobody waits for. Internal to the client.
#ifndef BLOCKD_CLIENT_BASE_DETACHED_THREAD_H_
#define BLOCKD_CLIENT_BASE_DETACHED_THREAD_H_

#include <functional>

#include "absl/status/status.h"

namespace blockd::client {

// Runs it on a thread of its own. RESOURCE_EXHAUSTED: the system has none left.
absl::Status StartDetached(std::function<void()> run);

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_BASE_DETACHED_THREAD_H_
