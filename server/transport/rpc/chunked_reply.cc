#include "server/transport/rpc/chunked_reply.h"

#include <algorithm>

#include "blockd/v1/blockd.pb.h"

namespace blockd::server {

grpc::ByteBuffer ChunkedReply::Next() {
  if (!has_begun_) {
    has_begun_ = true;
    return head_;
  }
  const int64_t bytes = std::min(kChunkBytes, values_.bytes() - sent_);
  // Any message that is empty: it stands for what is beside the chunk.
  grpc::ByteBuffer chunk =
      SerializeChunk(v1::SampleReply::default_instance(), chunk_field_, values_, sent_, bytes);
  sent_ += bytes;
  return chunk;
}

}  // namespace blockd::server
