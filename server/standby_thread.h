// A thread that is there before it has work: when that comes the system may have none left.
#ifndef BLOCKD_SERVER_STANDBY_THREAD_H_
#define BLOCKD_SERVER_STANDBY_THREAD_H_

#include <functional>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "server/core/thread_name.h"

namespace blockd::server {

class StandbyThread {
 public:
  // `name`: as of NameThread.
  explicit StandbyThread(const char* name) {
    thread_ = std::thread([this, name] {
      NameThread(name);
      asked_.WaitForNotification();
      if (work_) work_();
      over_.Notify();
    });
  }
  ~StandbyThread() {  // when its work is over
    if (!asked_.HasBeenNotified()) asked_.Notify();
    thread_.join();
  }
  StandbyThread(const StandbyThread&) = delete;
  StandbyThread& operator=(const StandbyThread&) = delete;

  // Once.
  void Run(std::function<void()> work) {
    work_ = std::move(work);
    asked_.Notify();
  }
  // False if its work is not over by then; it goes on.
  bool EndsWithin(absl::Duration limit) const {
    return over_.WaitForNotificationWithTimeout(limit);
  }

 private:
  std::function<void()> work_;
  absl::Notification asked_, over_;
  std::thread thread_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_STANDBY_THREAD_H_
