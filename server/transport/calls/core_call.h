// A request that the core answers, written once for all carriers: how it is read, what it asks, how
// it is answered. transport/calls has a file for each kind.
//
// A carrier (a unary call, a stream, a session of shared memory) has the message parsed; then it
// calls Read; Describe, also where that failed; Place, where data came with the message; then Ask;
// and, once that has answered OK, Reply. Errors of reading are INVALID_ARGUMENT and name the field
// of the message. One thread at a time.
#ifndef BLOCKD_SERVER_TRANSPORT_CALLS_CORE_CALL_H_
#define BLOCKD_SERVER_TRANSPORT_CALLS_CORE_CALL_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockd/v1/blockd.pb.h"
#include "google/protobuf/message.h"
#include "google/protobuf/repeated_field.h"
#include "server/core/common/errors.h"
#include "server/core/solver_core.h"
#include "server/transport/rpc/call.h"
#include "server/transport/wire/shared_data.h"

namespace blockd::server {

// Where a request's data are that its parsed message has not.
struct RequestData {
  int64_t lifted = 0;            // bytes of right-hand sides that Place will tell
  SharedData* shared = nullptr;  // all of the data; null where it does not share memory
  int64_t max_systems = std::numeric_limits<int64_t>::max();  // in shared memory
};

// INVALID_ARGUMENT if a message has data in these fields, though its data lie in shared memory.
inline absl::Status CheckNoData(bool has_data, std::string_view fields) {
  if (!has_data) return absl::OkStatus();
  return InvalidFieldError(fields, "data in the message",
                           "none, because they lie in shared memory");
}

class CoreCall {
 public:
  using Done = absl::AnyInvocable<void(const absl::Status&)>;
  static constexpr int kNoField = 0;
  static constexpr size_t kAnyRoom = std::numeric_limits<size_t>::max();

  virtual ~CoreCall() = default;

  virtual google::protobuf::Message& message() = 0;
  // The field of the message whose bytes, the right-hand sides, are lifted out of it and lie where
  // the solution will be; and the field of the reply that the solution becomes.
  virtual int lifted_field() const { return kNoField; }
  virtual int solution_field() const { return kNoField; }
  // True if it asks for work, which a server that drains refuses.
  virtual bool is_work() const { return true; }
  // True if a thread that serves others may not read such a message, which is null in shared
  // memory; nor one of more bytes.
  virtual bool IsLong(const grpc::ByteBuffer* /*message*/) const { return false; }
  virtual size_t ShortBytes() const { return kShortMessageBytes; }

  virtual absl::Status Read(const RequestData& data) = 0;
  // These once it is read. True if it looks for NaN in all that it brings.
  virtual bool checks_finite() const { return false; }
  v1::PriorityClass priority() const { return priority_; }
  // Tells the log what the request is about, as far as it was read.
  virtual void Describe(CallRecord* record) const = 0;
  // The bytes of its solutions, and what else it takes on the host until it is answered; in shared
  // memory the places say both.
  int64_t bytes() const { return bytes_; }
  int64_t more_bytes() const { return more_bytes_; }
  // The bytes of the message that are data.
  virtual int64_t data_bytes() const { return 0; }
  // The bytes of all right-hand sides, of which so far only some have come, or none.
  virtual absl::StatusOr<int64_t> BytesToCome(SolverCore& /*core*/, const std::string& /*caller*/) {
    return bytes_;
  }
  // The handle, of a request that a later one with the same may replace.
  virtual const Handle* replaceable() const { return nullptr; }
  // Memory for bytes() of solutions; the lifted bytes lie there, or will by the time of Ask.
  virtual void Place(std::span<std::byte> /*values*/) {}

  // `done` is called once. The carrier keeps this until then.
  virtual void Ask(SolverCore& core, const ContextPtr& context, Done done) = 0;
  // These once it has answered OK. Clears solutions that failed, so that the reply says nothing of
  // what there is not.
  virtual const Cost& cost() const = 0;
  // True if the thread that the core answers on replies itself.
  virtual bool replies_here() const { return cost().answers_are_few(); }
  // True if Reply takes too long for a thread that serves others; the bytes that it clears.
  virtual bool has_long_reply() const { return false; }
  virtual size_t BytesToClear() const { return 0; }
  // The reply without its solution. Where it has more than `room` bytes it leaves out the words and
  // the details of failures.
  virtual std::unique_ptr<google::protobuf::Message> Reply(size_t room) = 0;

 protected:
  int64_t bytes_ = 0, more_bytes_ = 0;
  v1::PriorityClass priority_ = v1::PRIORITY_CLASS_UNSPECIFIED;
};

// Leaves out the words and the details of the failures among these.
template <typename Part>
void ClearWords(google::protobuf::RepeatedPtrField<Part>* parts) {
  for (Part& part : *parts) {
    if (!part.has_status()) continue;
    part.mutable_status()->clear_details();
    part.mutable_status()->clear_message();
  }
}

// A call with a message of this type that the core answers with a `CoreReply`.
template <typename Request, typename CoreReply>
class CoreCallWith : public CoreCall {
 public:
  google::protobuf::Message& message() final { return request_; }
  const Cost& cost() const final { return reply_.cost; }

 protected:
  auto Take(Done done) {
    return [this, done = std::move(done)](absl::StatusOr<CoreReply> reply) mutable {
      const absl::Status status = reply.status();
      if (reply.ok()) reply_ = *std::move(reply);
      Done tell = std::move(done);  // which may end this
      tell(status);
    };
  }

  Request request_;
  CoreReply reply_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_CALLS_CORE_CALL_H_
