// A caller by shared memory that does what it likes: the rings as bytes, with no rule kept.
//
// One thread at a time.
#ifndef BLOCKD_TESTS_INTEGRATION_SHM_RAW_SHM_H_
#define BLOCKD_TESTS_INTEGRATION_SHM_RAW_SHM_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "blockd/v1/blockd.pb.h"
#include "proto/blockd/v1/shared_memory.h"

namespace blockd::test {

class RawShm {
 public:
  static v1::ShmHello Hello(uint64_t data_bytes = uint64_t{1} << 20, uint32_t slots = 16,
                            const std::string& caller = "");

  // Connects to the server whose socket of gRPC is at `path`.
  explicit RawShm(const std::string& path);
  ~RawShm();
  RawShm(const RawShm&) = delete;
  RawShm& operator=(const RawShm&) = delete;

  bool connected() const { return socket_ >= 0; }
  void SendBytes(const void* bytes, size_t size);
  // A byte and with it a descriptor whose last owner waits when it closes it. False: nobody takes
  // one.
  bool SendLingering();
  static bool MayBeRefusedDescriptors();  // by this system
  // The answer to the hello: OK and mapped, or what it says. UNKNOWN: the socket ended without one.
  v1::RpcStatus TakeWelcome();
  v1::RpcStatus Open(const v1::ShmHello& hello);
  bool HasAnswer() const;  // to the hello, or the end; not taken yet

  v1::ShmHeader& header() { return *reinterpret_cast<v1::ShmHeader*>(base_); }
  const v1::ShmWelcome& welcome() const { return welcome_; }
  std::byte* at(uint64_t offset) { return base_ + offset; }
  uint64_t data() const { return welcome_.data_offset; }
  std::span<std::byte> bytes() { return {base_, welcome_.mapping_bytes}; }
  int memory_fd() const { return memory_; }
  // The same memory at other addresses, as another process would have it. Empty: there is no room.
  std::span<std::byte> MapAgain() const;

  void Put(const v1::ShmRequest& request);   // the next one, published; wakes the server
  void Publish(uint64_t position);           // without an entry
  std::optional<v1::ShmReply> Take();        // the next reply; nullopt: the session has ended
  v1::ShmReply Ask(v1::ShmRequest request);  // code -1: the session has ended
  // The status that came with the request's reply; OK if none came.
  v1::RpcStatus StatusOf(const v1::ShmRequest& request, const v1::ShmReply& reply);
  bool EndsSoon();  // the server ends the session
  void Wake();

  // Lays out a request at `offset` of the data: its places, its message, and just enough room for
  // its reply.
  v1::ShmRequest Request(v1::ShmOperation operation, const google::protobuf::MessageLite& message,
                         const std::vector<v1::ShmPlace>& places, uint64_t id, uint64_t offset);
  // A Solve of one right-hand side of `rows` doubles, in place at `offset` of the data; its request
  // follows.
  v1::ShmRequest Solve(const std::string& handle, int64_t rows, uint64_t id, uint64_t offset = 0);
  v1::ShmRequest Solve(const v1::SolveRequest& message, int64_t rows, uint64_t id,
                       uint64_t offset = 0);
  // Puts a matrix at `offset` of the data. The places of its two parts.
  std::vector<v1::ShmPlace> PutMatrix(const v1::SystemData& matrix, uint64_t offset);
  // A place of the request, in the memory.
  v1::ShmPlace& place(const v1::ShmRequest& request, size_t i) {
    return reinterpret_cast<v1::ShmPlace*>(at(request.places_offset))[i];
  }
  // False: no such message came.
  template <typename Reply>
  bool ReadReply(const v1::ShmRequest& request, const v1::ShmReply& answer, Reply* reply) {
    return answer.code == 0 &&
           reply->ParseFromArray(at(request.reply_offset), static_cast<int>(answer.message_bytes));
  }

 private:
  int socket_ = -1, memory_ = -1;
  std::byte* base_ = nullptr;
  v1::ShmWelcome welcome_{};
  uint64_t put_ = 0, taken_ = 0;
};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_INTEGRATION_SHM_RAW_SHM_H_
