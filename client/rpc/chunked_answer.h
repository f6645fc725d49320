// An answer that is a head and then chunks, read to where its bytes belong. Internal to the client.
#ifndef BLOCKD_CLIENT_RPC_CHUNKED_ANSWER_H_
#define BLOCKD_CLIENT_RPC_CHUNKED_ANSWER_H_

#include <grpcpp/client_context.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/rpc/connection.h"

namespace blockd::client {

// INTERNAL: the server's answer has something that it should not.
absl::Status WrongAnswer(const char* what);

// Memory for the bytes of chunks, one piece after another.
class ChunkPlaces {
 public:
  void Add(std::span<std::byte> place) {
    if (!place.empty()) places_.push_back(place);
  }
  // False if there are more bytes than places.
  bool Take(const std::string& chunk);
  bool full() const { return next_ == places_.size(); }

 private:
  std::vector<std::span<std::byte>> places_;  // what is left of each; none is empty before `next_`
  size_t next_ = 0;
};

// Reads a stream to its end. `take_head` checks the head, and may add places. The call's own status
// goes before an answer that is cut short, but not before one that is wrong.
template <typename Reply, typename Stream, typename TakeHead>
absl::Status ReadChunkedAnswer(grpc::ClientContext& context, Stream& stream,
                               const TakeHead& take_head, ChunkPlaces& places) {
  absl::Status read;
  bool has_head = false;
  for (Reply part; read.ok() && stream.Read(&part);) {
    if (part.has_head()) {
      read = has_head ? WrongAnswer("two heads") : take_head(part.head());
      has_head = true;
    } else if (!has_head) {
      read = WrongAnswer("no head");
    } else if (!places.Take(part.chunk())) {
      read = WrongAnswer("more bytes than its head says");
    }
  }
  if (!read.ok()) context.TryCancel();
  const absl::Status finished = ToStatus(stream.Finish());
  if (!read.ok()) return read;
  if (!finished.ok()) return finished;
  return has_head && places.full() ? absl::OkStatus()
                                   : WrongAnswer("fewer bytes than its head says");
}

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_RPC_CHUNKED_ANSWER_H_
