// One SolveStream call: requests go out in order, answers come as they finish. Internal to the
// client.
//
// Thread-safe. Lives until the call is over, however many hold it.
#ifndef BLOCKD_CLIENT_SESSION_SOLVE_STREAM_H_
#define BLOCKD_CLIENT_SESSION_SOLVE_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "blockd/client/results.h"
#include "client/rpc/connection.h"
#include "client/wire/wire.h"

namespace blockd::client {

class SolveStream : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // Runs once, on a gRPC thread; must not block.
  using Done = std::function<void(absl::StatusOr<SolveResult>)>;

  static std::shared_ptr<SolveStream> Start(std::shared_ptr<Connection> connection,
                                            grpc::GenericStub& stub, absl::Time deadline,
                                            const std::string& route);

  // Starts one request: `first` has an id of its own, and all but `rhs`. `solution` stays valid
  // until `done`. With a loan, so does `rhs`, and longer: until the loan says so. Without one `rhs`
  // is copied. An error, and no `done`, after the end.
  absl::Status Send(v1::SolveStreamRequest first, Bytes rhs, std::span<std::byte> solution,
                    MemoryLoan* loan, Done done);
  // Starts one frame of so many solves: `first` has an id and all of `many` but what is said here.
  // A copy of `rhs` is sent.
  absl::Status SendFrame(v1::SolveStreamRequest first, size_t solves, Bytes rhs,
                         std::span<std::byte> solution, Done done);
  // Starts one frame of refactors: `first` has an id and all of `refactor`, a handle a solve, but
  // for these bytes.
  absl::Status SendRefactors(v1::SolveStreamRequest first, const grpc::Slice& matrix,
                             const grpc::Slice& rhs, std::span<std::byte> solution, Done done);
  // The request is not wanted any more: its answer, CANCELLED or not, comes as ever. At once if
  // nothing of it was sent. False if it is not outstanding.
  bool CancelRequest(uint64_t id);
  // Nothing is written to its solution after this, and `done` does not run, if it has not yet begun
  // to. May wait for the chunk that is being read.
  void Abandon(uint64_t id);
  // False once nothing more can be sent.
  bool open();
  // No more requests; the stream ends after the last answer.
  void CloseSending();
  // Ends it now: what is unanswered fails with CANCELLED.
  void Cancel();
  // Until nothing more will be written to any solution; false if that was not before `limit`.
  void AwaitEnd();
  bool AwaitEnd(absl::Duration limit);

  void OnWriteDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  struct Pending {
    std::span<std::byte> solution;
    size_t received = 0;     // bytes of `solution`
    bool answered = false;   // the reply came, its chunks are still to come
    bool abandoned = false;  // its solution is not there any more; its answer is read and dropped
    size_t solves = 0;       // of a frame
    SolveResult result;
    Done done;
  };
  struct Outgoing {
    uint64_t id = 0;  // of the request that it is of
    bool first = false;
    grpc::ByteBuffer message;
  };

  explicit SolveStream(std::shared_ptr<Connection> connection)
      : connection_(std::move(connection)) {}
  void WriteNext();
  // Nothing of it was sent.
  bool IsUnsent(uint64_t id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A request that is one message.
  absl::Status SendWhole(uint64_t id, std::unique_ptr<Pending> pending,
                         const grpc::ByteBuffer& message) ABSL_LOCKS_EXCLUDED(mutex_);
  void Enqueue(uint64_t id, std::unique_ptr<Pending> pending, std::vector<Outgoing> messages)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckOpen() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeBack(uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);  // what is not sent
  void Handle(StreamReply& reply);
  void Finish(uint64_t id, absl::StatusOr<SolveResult> result);
  std::byte* Place(uint64_t id, size_t bytes);
  void FailAll(const absl::Status& status);

  const std::shared_ptr<Connection> connection_;
  std::shared_ptr<SolveStream> self_;  // until OnDone
  grpc::ClientContext context_;
  grpc::ByteBuffer read_;
  grpc::ByteBuffer written_;

  absl::Mutex mutex_;
  std::deque<Outgoing> outgoing_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, std::unique_ptr<Pending>> pending_ ABSL_GUARDED_BY(mutex_);
  std::optional<uint64_t> placing_ ABSL_GUARDED_BY(mutex_);  // whose chunk is being read
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;    // no more Send
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;     // WritesDone was started
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;     // nothing more can be read or written
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;  // by us
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);        // how the stream ended
  absl::Status violation_ ABSL_GUARDED_BY(mutex_);  // of the contract by the server
};

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_SESSION_SOLVE_STREAM_H_
