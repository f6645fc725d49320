// The messages of an answer that is streamed: a head, then chunks of what it announces. Nothing is
// copied. One thread at a time.
#ifndef BLOCKD_SERVER_TRANSPORT_RPC_CHUNKED_REPLY_H_
#define BLOCKD_SERVER_TRANSPORT_RPC_CHUNKED_REPLY_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "server/transport/rpc/unary_call.h"
#include "server/transport/wire/raw_message.h"

namespace blockd::server {

class ChunkedReply {
 public:
  static constexpr int64_t kChunkBytes = int64_t{1} << 20;

  // `head` is serialized; the chunks are field `chunk_field` of messages that have nothing else.
  ChunkedReply(const grpc::ByteBuffer& head, int chunk_field, Payload values)
      : head_(head), chunk_field_(chunk_field), values_(std::move(values)) {}

  // True if the next message is the last one.
  bool is_last() const {
    return has_begun_ ? values_.bytes() - sent_ <= kChunkBytes : values_.bytes() == 0;
  }
  grpc::ByteBuffer Next();

 private:
  grpc::ByteBuffer head_;
  const int chunk_field_;
  const Payload values_;
  bool has_begun_ = false;
  int64_t sent_ = 0;
};

// A call of one request that is answered with a head and chunks.
template <typename Request>
class ChunkedCallOf : public CoreCallOf<Request, CostReply> {
 public:
  using CoreCallOf<Request, CostReply>::CoreCallOf;

 protected:
  void SucceedInChunks(const google::protobuf::Message& head, int chunk_field, Payload values) {
    EchoIds(*this->record().context(), this->rpc());
    reply_.emplace(SerializeMessage(head), chunk_field, std::move(values));
    WriteNext();
  }

 private:
  bool IsWork() const final { return true; }

  void WriteNext() {
    const bool last = reply_->is_last();
    const grpc::ByteBuffer message = reply_->Next();
    if (!last) return this->Write(message);
    this->record().SetOutcome(absl::OkStatus());
    this->WriteAndFinish(message);
  }
  void OnWritten(bool ok) final {
    ok ? WriteNext() : this->Fail(CancellationOf(*this->record().context()));
  }

  std::optional<ChunkedReply> reply_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_RPC_CHUNKED_REPLY_H_
