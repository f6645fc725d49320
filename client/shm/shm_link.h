// The shared-memory session of a connection, opened again where it has ended. Internal to the
// client. Thread-safe.
#ifndef BLOCKD_CLIENT_SHM_SHM_LINK_H_
#define BLOCKD_CLIENT_SHM_SHM_LINK_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "blockd/client/client_options.h"
#include "client/shm/shm_session.h"

namespace blockd::client {

class ShmLink {
 public:
  // How long an asynchronous request waits for a new session.
  static constexpr absl::Duration kOpening = absl::Seconds(1);

  // Opens the first session. `target`: "unix:PATH", the socket of gRPC.
  static absl::StatusOr<std::unique_ptr<ShmLink>> Open(const std::string& target,
                                                       const ClientOptions& options);
  ~ShmLink();
  // The session that there is, as far as is known; null where there is none, or a new one is being
  // opened. Does not wait.
  std::shared_ptr<ShmSession> current() ABSL_LOCKS_EXCLUDED(mutex_);
  // One that has not ended, as far as is known. What ShmSession::Open says, where a new one is
  // needed; DEADLINE_EXCEEDED where another call asks for it for so long.
  absl::StatusOr<std::shared_ptr<ShmSession>> session(absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Does not wait: `done` when the release is answered, however. False, and no `done`, where no
  // session is open, or its memory has no room.
  bool ReleaseLater(const std::string& handle, absl::Time deadline, std::function<void()> done);

 private:
  explicit ShmLink(ShmSession::Options options) : options_(std::move(options)) {}

  const ShmSession::Options options_;
  absl::Mutex mutex_;
  bool opening_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<ShmSession> session_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_SHM_SHM_LINK_H_
