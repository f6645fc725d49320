// ServerCall is one call of gRPC on a completion queue of our own: what it reads, writes and how it
// ends. All kinds of calls, unary ones and streams, derive from it.
//
// The threads of its queue call its On... functions: OnRead in the order of the reads, OnWritten in
// the order of the writes. OnCancel, and OnLook from a thread of its own, may run at the same time
// as these. Read, Greet, Write and Finish may be called from any thread. A call lives until gRPC
// has said that it is over and Finish's operation has ended, whoever else holds it; so each call
// must be finished, cancelled ones too.
#ifndef BLOCKD_SERVER_TRANSPORT_RPC_SERVER_CALL_H_
#define BLOCKD_SERVER_TRANSPORT_RPC_SERVER_CALL_H_

#include <grpcpp/alarm.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/net/watched_reads.h"
#include "server/transport/rpc/call_tracker.h"
#include "server/transport/rpc/waiting_calls.h"

namespace blockd::server {

class CallQueue;
class ServerCall;

// The object that a completion queue gives back for an event.
class Tag {
 public:
  virtual void Complete(bool ok) noexcept = 0;

 protected:
  ~Tag() = default;
};

struct CallLimits {
  absl::Duration request_timeout;  // in which a message comes, of a call that has no other limit
  absl::Duration reply_timeout;    // in which a client takes a reply
};

// The part of a call that gRPC fills when the call arrives.
struct IncomingCall {
  // gRPC says by it that the call is over, cancelled or not.
  class OverTag final : public Tag {
   public:
    void Complete(bool ok) noexcept override;
    // Once there is a call to tell it. It may be over before that.
    void Tell(ServerCall* call);

   private:
    enum class State { kNew, kHasCall, kOver };
    ServerCall* call_ = nullptr;
    std::atomic<State> state_{State::kNew};
  };

  // Its headers are gRPC's to keep until the call is over.
  class Headers {
   public:
    Headers() = default;
    ~Headers() { ForgetHeaders(bytes_, entries_); }
    Headers(const Headers&) = delete;
    Headers& operator=(const Headers&) = delete;
    void Set(int64_t bytes, int64_t entries) {
      bytes_ = bytes;
      entries_ = entries;
    }

   private:
    int64_t bytes_ = 0, entries_ = 0;
  };

  explicit IncomingCall(grpc::CompletionQueue* queue) : queue(queue) {
    context.AsyncNotifyWhenDone(&over);
  }

  grpc::CompletionQueue* const queue;  // of its events
  OverTag over;
  Headers headers;
  grpc::GenericServerContext context;
  grpc::GenericServerAsyncReaderWriter stream{&context};
};

class ServerCall : public std::enable_shared_from_this<ServerCall> {
 public:
  ServerCall(CallTracker* tracker, std::unique_ptr<IncomingCall> incoming);
  virtual ~ServerCall() = default;
  ServerCall(const ServerCall&) = delete;
  ServerCall& operator=(const ServerCall&) = delete;

  // Once, from the queue's thread.
  void Accept(CallQueue* queue);
  // From time to time, from a thread of the transport's own: ends a call that is over a limit.
  // `now` is SteadyNow's.
  void Look(absl::Time now, const CallLimits& limits);
  bool NeedsLook() const { return watched_ || reading_since_ != 0 || writing_since_ != 0; }
  // Ends a call that was taken from those that wait, and that reads or only writes.
  void EndWaiting(bool reads, const absl::Status& status);

  WaitingCalls::Place& place() { return place_; }
  const std::string& peer() const { return peer_; }  // in gRPC's words
  // The same without its port: all callers of one router are one.
  const std::string& host() const { return host_; }
  const grpc::ServerContextBase& context() const { return incoming_->context; }

 protected:
  // The call stands; it is held by a shared_ptr.
  virtual void OnBegin() = 0;
  // message() has come, or none comes any more.
  virtual void OnRead(bool /*ok*/) {}
  virtual void OnWritten(bool /*ok*/) {}
  // The client has gone, or its deadline has passed. Finish is called all the same.
  virtual void OnCancel() = 0;
  // The last thing of a call: it was finished and gRPC has done with it.
  virtual void OnDone() = 0;
  // From another thread than all others, from time to time after WatchMe; `now` is SteadyNow's.
  virtual void OnLook(absl::Time /*now*/) {}
  // Memory is exhausted in a call of ours, or it has waited too long, and OnRead is not called any
  // more: end with this status, if not ended yet.
  virtual void OnFailure(const absl::Status& status) = 0;

  // At most one at a time of each, and none after Finish.
  void Read();
  void Greet();  // sends the initial metadata
  void Write(const grpc::ByteBuffer& message);
  // Exactly once; after a write under way. `message` goes before it.
  void Finish(const grpc::Status& status);
  // The same after `wait`, of a call that has written nothing.
  void FinishAfter(absl::Duration wait, const grpc::Status& status);
  void WriteAndFinish(const grpc::ByteBuffer& message);
  void WatchMe() { watched_ = true; }  // it has limits of its own, which OnLook is for
  // A call that reads no more waits as one that does, for as long as it likes. From OnRead, under
  // no lock of the call's: another call may end by it, or this one.
  void StayWaiting();
  // Says whether the caller has brought something that the call is served for: see WaitingCalls. A
  // call that brings much asks from kAskingBytes on.
  static constexpr int64_t kAskingBytes = int64_t{64} << 10;
  void SetAsks(bool asks);

  // Runs a part of the call, and ends the call where memory is exhausted.
  template <typename Part>
  void Guard(Part part) noexcept {
    try {
      part();
    } catch (const std::bad_alloc&) {
      RunOutOfMemory();
    }
  }

  grpc::GenericServerContext* rpc() { return &incoming_->context; }
  grpc::ByteBuffer& message() { return message_; }
  const grpc::ByteBuffer& message() const { return message_; }
  CallTracker* tracker() { return active_.tracker(); }
  bool finish_called() const { return finish_called_; }

 private:
  friend class IncomingCall::OverTag;

  // One kind of operation.
  class Operation final : public Tag {
   public:
    using Ended = void (ServerCall::*)(bool);
    Operation(ServerCall* call, Ended ended) : call_(call), ended_(ended) {}
    Tag* Start();  // the call lives until it is complete
    void Complete(bool ok) noexcept override;

   private:
    ServerCall* const call_;
    const Ended ended_;
  };
  enum class Writing { kNo, kYes, kThenFinish };

  void OnReadEnded(bool ok);
  void OnGreeted(bool /*ok*/) {}
  void OnWriteEnded(bool ok);
  void OnWaited(bool /*ok*/) { StartFinish(); }
  void OnFinished(bool ok);
  void OnOver();
  void StartFinish();
  void RunOutOfMemory() noexcept;
  // An operation, or gRPC itself, has done with the call.
  void Leave();
  void StartClock();  // something is being written
  void StopClock();

  const ActiveCall active_;  // first: it ends last
  const std::unique_ptr<IncomingCall> incoming_;
  const std::string peer_;  // in gRPC's words, which forgets it where the call is cancelled
  const std::string host_;
  grpc::ByteBuffer message_;  // being read, or being handled
  grpc::ByteBuffer reply_;
  grpc::Status status_;
  Operation read_{this, &ServerCall::OnReadEnded};
  Operation greet_{this, &ServerCall::OnGreeted};
  Operation write_{this, &ServerCall::OnWriteEnded};
  Operation wait_{this, &ServerCall::OnWaited};
  Operation finish_{this, &ServerCall::OnFinished};
  std::unique_ptr<grpc::Alarm> alarm_;  // of FinishAfter
  CallQueue* queue_ = nullptr;
  std::shared_ptr<ServerCall> self_;  // while something is left
  std::atomic<int> left_{2};          // the end that gRPC says, Finish's, and operations under way
  std::atomic<Writing> writing_{Writing::kNo};
  std::atomic<bool> finish_called_{false};
  std::atomic<bool> watched_{false};
  std::atomic<bool> message_came_{false};
  std::atomic<int64_t> reading_since_{0};  // nanoseconds; 0: no message is waited for
  std::atomic<int64_t> writing_since_{0};  // the same: nothing is being written
  WaitingCalls::Place place_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_RPC_SERVER_CALL_H_
