// Work that somebody waits for only so long.
#ifndef BLOCKD_SERVER_TIME_LIMIT_H_
#define BLOCKD_SERVER_TIME_LIMIT_H_

#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace blockd::server {

// Runs `work` on a thread of its own. False if it was not over after `limit`; it goes on then, so
// what it uses must outlive it. For the end of a program, which nothing may hold up.
inline bool EndsWithin(absl::Duration limit, std::function<void()> work) {
  auto over = std::make_shared<absl::Notification>();
  std::thread([over, work = std::move(work)] {
    work();
    over->Notify();
  }).detach();
  return over->WaitForNotificationWithTimeout(limit);
}

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TIME_LIMIT_H_
