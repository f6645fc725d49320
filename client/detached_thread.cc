#include "client/detached_thread.h"

#include <system_error>
#include <thread>
#include <utility>

namespace blockd::client {

bool StartDetached(std::function<void()> run) {
  try {
    std::thread(std::move(run)).detach();
  } catch (const std::system_error&) {
    return false;
  }
  return true;
}

}  // namespace blockd::client
