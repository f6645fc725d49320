// A call without gRPC and work without threads: fake_call.cc stands for server_call.cc and
// executor.cc, so that the calls of the transport run with a wire that a fuzz target holds in its
// hands. One call at a time.
#ifndef BLOCKD_TESTS_FUZZ_FAKE_CALL_H_
#define BLOCKD_TESTS_FUZZ_FAKE_CALL_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/transport/rpc/executor.h"
#include "server/transport/rpc/server_call.h"

namespace blockd::server {

// The wire of the call: the operations that the call waits for, and those that it has done.
class FakeWire {
 public:
  // Lets `call` begin. The wire is as new.
  void Begin(const std::shared_ptr<ServerCall>& call);

  bool reading() const { return read_ != nullptr; }
  bool writing() const { return write_ != nullptr; }
  bool finishing() const { return finish_ != nullptr; }
  bool gone() const { return call_.expired(); }
  // Completes what is under way; each only where there is such a thing.
  void Deliver(const grpc::ByteBuffer& message);
  void EndReading();  // the client has no more, or has gone
  void EndWriting(bool ok);
  void EndFinishing();
  // gRPC says that the call is over: once, at any time.
  void Over(bool cancelled);
  bool over() const { return is_over_; }
  void Look(absl::Time now);

  // The messages written since Begin or the last take, in order; that of a WriteAndFinish too.
  std::vector<grpc::ByteBuffer>& written() { return written_; }
  // How it was finished, once it was.
  const std::optional<grpc::Status>& status() const { return status_; }

 private:
  friend class ServerCall;
  std::weak_ptr<ServerCall> call_;
  IncomingCall::OverTag* over_ = nullptr;
  grpc::ByteBuffer* message_ = nullptr;
  Tag *read_ = nullptr, *greet_ = nullptr, *write_ = nullptr, *finish_ = nullptr;
  bool cancelled_ = false, is_over_ = false, greeted_ = false;
  std::vector<grpc::ByteBuffer> written_;
  std::optional<grpc::Status> status_;
};
FakeWire& TheWire();

// The tasks posted to any executor, from any thread.
class PostedTasks {
 public:
  void Add(std::shared_ptr<Executor::Task> task);
  bool empty() const;
  void RunFirst();  // if there is one
  void WaitForOne();

 private:
  mutable absl::Mutex mutex_;
  std::deque<std::shared_ptr<Executor::Task>> tasks_ ABSL_GUARDED_BY(mutex_);
};
PostedTasks& ThePosted();

}  // namespace blockd::server

#endif  // BLOCKD_TESTS_FUZZ_FAKE_CALL_H_
