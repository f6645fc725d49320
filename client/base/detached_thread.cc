#include "client/base/detached_thread.h"

#include <system_error>
#include <thread>
#include <utility>

namespace blockd::client {

absl::Status StartDetached(std::function<void()> run) {
  try {
    std::thread(std::move(run)).detach();
  } catch (const std::system_error&) {
    return absl::ResourceExhaustedError("no thread can be started");
  }
  return absl::OkStatus();
}

}  // namespace blockd::client
