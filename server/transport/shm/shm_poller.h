// A thread that looks at the rings of some sessions.
//
// It looks for a bounded time after the last request, then says in every session that it sleeps,
// looks once more, and sleeps until a session's socket or another thread wakes it. It does nothing
// long itself. Thread-safe.
#ifndef BLOCKD_SERVER_TRANSPORT_SHM_SHM_POLLER_H_
#define BLOCKD_SERVER_TRANSPORT_SHM_SHM_POLLER_H_

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/descriptors.h"
#include "server/transport/shm/shm_session.h"

namespace blockd::server {

class ShmPoller {
 public:
  explicit ShmPoller(absl::Duration poll);
  ~ShmPoller();  // ends its sessions
  ShmPoller(const ShmPoller&) = delete;
  ShmPoller& operator=(const ShmPoller&) = delete;

  void Add(std::shared_ptr<ShmSession> session);
  // Cancels what is under way in all sessions, which stay.
  void CancelAll();

 private:
  using Sessions = std::vector<std::shared_ptr<ShmSession>>;

  void Loop();
  // From an idle poller, which may do the first itself.
  bool TakeSome(bool idle);
  void Sleep();
  // The sockets; waits for one where `timeout` is -1.
  void Look(int timeout);
  void TakeIn();
  void Wake() const;

  const absl::Duration poll_;
  FileDescriptor epoll_, wake_;  // an eventfd that nobody else has
  std::atomic<bool> stop_{false};
  absl::Mutex mutex_;
  Sessions added_ ABSL_GUARDED_BY(mutex_);
  Sessions known_ ABSL_GUARDED_BY(mutex_);  // those of the thread, for others
  Sessions sessions_;                       // of the thread
  std::thread thread_;                      // the last member: it uses the others
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_SHM_SHM_POLLER_H_
