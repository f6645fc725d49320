// Requests in shared memory: what each takes of it, and what its reply says. Internal to the
// client.
//
// A request keeps its memory, which the server reads and writes until it has answered. `in_place`:
// what lies in shared memory is read, and solutions are written, where they lie; else all is
// copied, and nothing outside the request's own memory is written until its reply is taken. One
// thread at a time.
#ifndef BLOCKD_CLIENT_SHM_SHM_REQUEST_H_
#define BLOCKD_CLIENT_SHM_SHM_REQUEST_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockd/client/results.h"
#include "blockd/client/system.h"
#include "blockd/v1/blockd.pb.h"
#include "client/shm/shm_memory.h"
#include "client/wire/wire.h"

namespace blockd::client {

absl::Status StatusOf(const v1::ShmReply& reply, Bytes room);

// Where the columns of a solve lie: in the caller's own shared memory, or in a piece for the call.
// Right-hand sides that the solution would overwrite are copied: the call may be tried again.
class SharedColumns {
 public:
  SharedColumns(const ShmMemory& memory, Bytes rhs, std::span<std::byte> solution, bool in_place);
  uint64_t bytes_to_place() const;
  // In so many bytes at this offset.
  void Place(const ShmMemory& memory, uint64_t offset);
  uint64_t rhs() const { return *here_; }
  uint64_t solution() const { return *there_; }
  uint64_t bytes() const { return rhs_.size(); }
  void TakeSolution() const;

 private:
  Bytes rhs_;
  std::span<std::byte> solution_;
  std::optional<uint64_t> here_, there_;
  const std::byte* copy_from_ = nullptr;
};

// Parts of a matrix that follow one another there, in the same way.
class SharedPart {
 public:
  using Parts = std::array<Bytes, 3>;  // empty ones are none
  SharedPart(const ShmMemory& memory, const Parts& parts);
  uint64_t bytes_to_place() const;
  void Place(const ShmMemory& memory, uint64_t offset);
  uint64_t offset() const { return *here_; }
  uint64_t bytes() const { return bytes_; }

 private:
  Parts parts_;
  uint64_t bytes_ = 0;
  std::optional<uint64_t> here_;
};

struct SharedSolve {
  const std::string* handle = nullptr;
  int64_t num_rhs = 0;
  Bytes rhs;
  std::span<std::byte> solution;
};

// The base of all requests. The functions that make them return nullopt where there is no room.
class SharedRequest {
 public:
  const v1::ShmRequest& request() const { return request_; }

 protected:
  // The reply's message, in `reply_bytes` of room at the beginning of a piece.
  SharedRequest(ShmPiece piece, v1::ShmOperation operation, uint64_t reply_bytes);
  template <typename Message>
  absl::Status TakeMessage(const v1::ShmReply& reply, Message* message) const;

  ShmPiece piece_;
  v1::ShmRequest request_{};
  std::vector<SharedColumns> columns_;
};

class SharedSolveRequest : public SharedRequest {
 public:
  // `request`: of a Solve of `handle`, without its right-hand sides.
  static std::optional<SharedSolveRequest> Make(ShmMemory& memory, const std::string& handle,
                                                const v1::SolveRequest& request, Bytes rhs,
                                                std::span<std::byte> solution, bool in_place);
  // The solution is in its place then.
  absl::StatusOr<SolveResult> Take(const v1::ShmReply& reply) const;

 private:
  using SharedRequest::SharedRequest;
};

class SharedManyRequest : public SharedRequest {
 public:
  static std::optional<SharedManyRequest> Make(ShmMemory& memory,
                                               std::span<const SharedSolve> solves,
                                               const v1::SolveOptions& options, bool in_place);
  absl::Status Take(const v1::ShmReply& answer, v1::SolveManyReply* reply) const;

 private:
  using SharedRequest::SharedRequest;
};

class SharedFactorRequest : public SharedRequest {
 public:
  static std::optional<SharedFactorRequest> Make(ShmMemory& memory,
                                                 const v1::FactorStreamHeader& header,
                                                 std::span<const SystemView> systems);
  absl::Status Take(const v1::ShmReply& answer, v1::FactorReply* reply) const;

 private:
  using SharedRequest::SharedRequest;
};

// FactorSolve, and FactorSolveMany of its systems, one a solve. `message`: the request of gRPC with
// its handles, but without matrices and right-hand sides.
class SharedFactorSolveRequest : public SharedRequest {
 public:
  static std::optional<SharedFactorSolveRequest> Make(ShmMemory& memory,
                                                      const v1::FactorSolveRequest& message,
                                                      std::span<const SystemView> systems,
                                                      std::span<const SharedSolve> solves);
  static std::optional<SharedFactorSolveRequest> Make(ShmMemory& memory,
                                                      const v1::FactorSolveManyRequest& message,
                                                      std::span<const SystemView> systems,
                                                      std::span<const SharedSolve> solves);
  absl::Status Take(const v1::ShmReply& answer, v1::FactorSolveReply* reply) const;
  absl::Status Take(const v1::ShmReply& answer, v1::SolveManyReply* reply) const;

 private:
  using SharedRequest::SharedRequest;
  static std::optional<SharedFactorSolveRequest> MakeWith(ShmMemory& memory,
                                                          v1::ShmOperation operation,
                                                          const std::string& message,
                                                          std::span<const SystemView> systems,
                                                          std::span<const SharedSolve> solves);
};

v1::ShmRequest MakeRelease(const std::string& handle);

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_SHM_SHM_REQUEST_H_
