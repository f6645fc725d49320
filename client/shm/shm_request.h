// Requests in shared memory: their messages, their data, and the room for their replies. Internal
// to the client.
//
// A request keeps its memory, which the server reads and writes until it has answered. One thread
// at a time.
#ifndef BLOCKD_CLIENT_SHM_SHM_REQUEST_H_
#define BLOCKD_CLIENT_SHM_SHM_REQUEST_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "blockd/client/system.h"
#include "client/shm/shm_memory.h"
#include "client/wire/wire.h"
#include "google/protobuf/message_lite.h"

namespace blockd::client {

// Data of a request, which have one or two places of their own. Parts that lie in shared memory are
// read, and a solution is written, where they lie; others lie in a copy.
class SharedData {
 public:
  // The columns of a solve.
  static SharedData Columns(Bytes rhs, std::span<std::byte> solution);
  // Appends a matrix.
  static void AddMatrix(const SystemView& system, std::vector<SharedData>* data);

  size_t num_places() const { return has_solution_ ? 2 : 1; }
  // Looks for what lies in the memory already.
  void Find(const ShmMemory& memory);
  uint64_t bytes_to_copy() const;
  // Copies so many bytes to the offset, and says where all of it lies.
  v1::ShmPlace* Put(const ShmMemory& memory, uint64_t offset, v1::ShmPlace* places);
  void TakeSolution() const;

 private:
  using Parts = std::array<Bytes, 3>;  // follow one another there; empty ones are none
  explicit SharedData(const Parts& parts);

  Parts parts_;
  bool has_solution_ = false;
  std::span<std::byte> solution_;
  uint64_t bytes_ = 0;  // of all parts
  std::optional<uint64_t> here_, there_;
  const std::byte* copy_from_ = nullptr;
};

class SharedRequest {
 public:
  // `message`: the call's request of gRPC without its data, which follow in the order of
  // shared_memory.h. nullopt: there is no room. Without `in_place` all of the data are copied, and
  // nothing outside of the request's own memory is written until Take.
  static std::optional<SharedRequest> Make(ShmMemory& memory, v1::ShmOperation operation,
                                           const google::protobuf::MessageLite& message,
                                           std::vector<SharedData> data, bool in_place = true);

  const v1::ShmRequest& request() const { return request_; }
  // Reads the answer as gRPC's reply without its solution. If it is OK, solutions are in their
  // places then.
  absl::Status Take(const v1::ShmReply& answer, google::protobuf::MessageLite* reply) const;

 private:
  SharedRequest(ShmPiece piece, std::vector<SharedData> data)
      : piece_(std::move(piece)), data_(std::move(data)) {}

  ShmPiece piece_;
  v1::ShmRequest request_{};
  std::vector<SharedData> data_;
};

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_SHM_SHM_REQUEST_H_
