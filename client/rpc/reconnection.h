// Has gRPC connect channels as soon as their server is back. Internal to the client.
//
// gRPC 1.51 finishes a connection only while a call waits on the channel or somebody watches it,
// and calls on a channel that could not connect fail at once. By itself it looks every 5 seconds,
// so a server that was away for a moment would be gone for that long. Thread-safe.
#ifndef BLOCKD_CLIENT_RPC_RECONNECTION_H_
#define BLOCKD_CLIENT_RPC_RECONNECTION_H_

#include <grpcpp/channel.h>

#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace blockd::client {

class Reconnection {
 public:
  ~Reconnection();
  void Add(const std::shared_ptr<grpc::Channel>& channel) ABSL_LOCKS_EXCLUDED(mutex_);
  // A call has found nobody. From now on a thread watches the channels that try to connect, until
  // none does.
  void GoOn() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Watch() ABSL_LOCKS_EXCLUDED(mutex_);
  // The next to be watched; null ends the watch.
  std::shared_ptr<grpc::Channel> Next() ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<grpc::Channel> Unconnected() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::vector<std::weak_ptr<grpc::Channel>> channels_ ABSL_GUARDED_BY(mutex_);
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  bool watching_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_RPC_RECONNECTION_H_
