// One stream of an upload, on a completion queue of its own. Internal to the client.
#ifndef BLOCKD_CLIENT_UPLOAD_UPLOAD_STREAM_H_
#define BLOCKD_CLIENT_UPLOAD_UPLOAD_STREAM_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "blockd/v1/blockd.pb.h"
#include "client/rpc/connection.h"
#include "client/wire/wire.h"

namespace blockd::client {

// Driven by one thread, which also lends its memory; Cancel comes from any. It is finished.
class UploadStream {
 public:
  // Over the connection's `channel`th TCP connection for large transfers.
  UploadStream(const Connection& connection, int channel, absl::Time deadline,
               const std::string& route, grpc::CompletionQueue* queue);
  UploadStream(const UploadStream&) = delete;

  // Sends a message. False once the server has answered or the call is broken.
  bool Write(const grpc::ByteBuffer& message);
  // Looks for so long whether something has come.
  void Poll(absl::Duration limit);
  bool answered() const { return read_done_; }
  // The server lets other streams join; then `route` is that to the server.
  bool open() const { return open_; }
  std::string route() const { return RouteOf(context_); }

  absl::Status Finish(v1::FactorReply* reply, std::string* route);
  void Cancel() { context_.TryCancel(); }

 private:
  // Notes that an operation has ended. The greeting and the read may end in between.
  void Take(void* tag, bool ok);
  bool Await(intptr_t operation);

  grpc::CompletionQueue& queue_;
  grpc::ClientContext context_;
  grpc::ByteBuffer reply_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  bool open_ = false;
  bool read_done_ = false;
  bool read_ok_ = false;
};

// Polls the connection until it has let go of the memory: nobody else does.
void AwaitReturn(MemoryLoan& loan, grpc::CompletionQueue& queue);

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_UPLOAD_UPLOAD_STREAM_H_
