// A stream of Solves for a control loop: no set-up a call, several requests in flight, answers as
// they finish.
//
//     SolveSession session = client.OpenSession();
//     while (running) {
//       const auto id = session.Send(handle, rhs, x);          // returns at once
//       ...                                                    // what does not need x
//       if (const auto result = session.Await(*id); !result.ok()) ...
//     }
//
// Each request has a deadline, may be cancelled, and may replace the one before it
// (SolveOptions::replace_last). Answers of all of them must be taken.
//
// Thread-safe: one thread may send while another receives. A session has a connection of its own,
// so that nobody's uploads delay it. The stream opens with the first Send; behind a router there is
// one to each server that holds a factorization of the session. A stream
// that broke stays broken: every unanswered request on it fails with the stream's status; open a
// new session. Not so for a factorization that heals (FactorOptions::restore): it is factored
// again, a new stream is opened, and what was not answered is sent again.
#ifndef BLOCKD_CLIENT_SOLVE_SESSION_H_
#define BLOCKD_CLIENT_SOLVE_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "blockd/client/results.h"
#include "blockd/client/system.h"

namespace blockd::client {

class Connection;

class SolveSession {
 public:
  struct Answer {
    uint64_t id = 0;
    absl::StatusOr<SolveResult> result;
  };

  SolveSession(SolveSession&&) noexcept;
  SolveSession& operator=(SolveSession&&) noexcept;
  // Ends the stream. Cancels what is unanswered, and waits until no solution will be written any
  // more.
  ~SolveSession();

  // Starts one Solve and returns its id. `rhs` (N*n x d, column-major) is copied; `solution`, of
  // the same size, stays valid until the answer was received or the session is gone. The options'
  // timeout is the request's own: the server stops working on it then, and Await and Next answer
  // DEADLINE_EXCEEDED for it. A queue that is full is answered with its RetryAfter; nothing is
  // tried again here. INVALID_ARGUMENT for sizes that do not agree.
  absl::StatusOr<uint64_t> Send(const Factorization& factorization, std::span<const double> rhs,
                                std::span<double> solution, const SolveOptions& options = {}) {
    return SendBytes(factorization, Scalar::kFloat64, std::as_bytes(rhs),
                     std::as_writable_bytes(solution), options);
  }
  absl::StatusOr<uint64_t> Send(const Factorization& factorization, std::span<const float> rhs,
                                std::span<float> solution, const SolveOptions& options = {}) {
    return SendBytes(factorization, Scalar::kFloat32, std::as_bytes(rhs),
                     std::as_writable_bytes(solution), options);
  }

  // Starts many solves as one request, a frame, and returns its one id: as SolverClient::SolveMany
  // takes them, of one server (INVALID_ARGUMENT where the routes differ). Handles are sent once in
  // a session, so that a loop with the same factorizations sends right-hand sides and little else.
  // The answer says of each solve how it ended (SolveResult::solves). A frame does not heal: solves
  // whose factorization is lost fail, and so does a frame whose stream broke;
  // SolverClient::SolveMany heals, and the next frame uses what it has healed. Not with
  // replace_last.
  absl::StatusOr<uint64_t> SendMany(std::span<const Factorization> factorizations,
                                    std::span<const double> rhs, std::span<double> solution,
                                    const SolveOptions& options = {},
                                    std::span<const int64_t> num_rhs = {}) {
    return SendManyBytes(factorizations, Scalar::kFloat64, std::as_bytes(rhs),
                         std::as_writable_bytes(solution), options, num_rhs);
  }
  absl::StatusOr<uint64_t> SendMany(std::span<const Factorization> factorizations,
                                    std::span<const float> rhs, std::span<float> solution,
                                    const SolveOptions& options = {},
                                    std::span<const int64_t> num_rhs = {}) {
    return SendManyBytes(factorizations, Scalar::kFloat32, std::as_bytes(rhs),
                         std::as_writable_bytes(solution), options, num_rhs);
  }

  // Starts a refactor of each and a solve with it as one request, and returns its one id: as
  // SolverClient::RefactorSolveMany takes them, of one server (INVALID_ARGUMENT where the routes
  // differ). The matrices are read before this returns. Unlike other frames it heals as that call
  // does: those that are lost are factored again and sent again, under the same id and within the
  // same timeout, and what is restored later has the new values. A request that is sent before the
  // answer may be solved with the old factors or with the new ones. Not with replace_last.
  absl::StatusOr<uint64_t> SendRefactorMany(std::span<const Factorization> factorizations,
                                            std::span<const SystemView> systems,
                                            std::span<const double> rhs, std::span<double> solution,
                                            const SolveOptions& solve = {},
                                            const FactorOptions& factor = {}) {
    return SendRefactorManyBytes(factorizations, systems, Scalar::kFloat64, std::as_bytes(rhs),
                                 std::as_writable_bytes(solution), solve, factor);
  }
  absl::StatusOr<uint64_t> SendRefactorMany(std::span<const Factorization> factorizations,
                                            std::span<const SystemView> systems,
                                            std::span<const float> rhs, std::span<float> solution,
                                            const SolveOptions& solve = {},
                                            const FactorOptions& factor = {}) {
    return SendRefactorManyBytes(factorizations, systems, Scalar::kFloat32, std::as_bytes(rhs),
                                 std::as_writable_bytes(solution), solve, factor);
  }

  // Waits for the answer to `id` and takes it. DEADLINE_EXCEEDED after `limit`: the request goes on
  // and may be awaited again. NOT_FOUND for an id that is not outstanding.
  absl::StatusOr<SolveResult> Await(uint64_t id, absl::Duration limit = absl::InfiniteDuration());
  // The same for whichever answer came first and has not been taken. FAILED_PRECONDITION if nothing
  // is outstanding.
  absl::StatusOr<Answer> Next(absl::Duration limit = absl::InfiniteDuration());

  // The request is not wanted any more. Its answer, CANCELLED or its solution, comes as ever and
  // must be taken. NOT_FOUND for an id that is not outstanding. Does not wait.
  absl::Status Cancel(uint64_t id);

  int64_t outstanding() const;  // sent and not yet taken

 private:
  friend class SolverClient;
  struct Item;
  struct State;

  explicit SolveSession(std::shared_ptr<Connection> connection);
  absl::StatusOr<uint64_t> SendBytes(const Factorization& factorization, Scalar scalar,
                                     std::span<const std::byte> rhs, std::span<std::byte> solution,
                                     const SolveOptions& options);
  absl::StatusOr<uint64_t> SendManyBytes(std::span<const Factorization> factorizations,
                                         Scalar scalar, std::span<const std::byte> rhs,
                                         std::span<std::byte> solution, const SolveOptions& options,
                                         std::span<const int64_t> num_rhs);
  absl::StatusOr<uint64_t> SendRefactorManyBytes(std::span<const Factorization> factorizations,
                                                 std::span<const SystemView> systems, Scalar scalar,
                                                 std::span<const std::byte> rhs,
                                                 std::span<std::byte> solution,
                                                 const SolveOptions& solve,
                                                 const FactorOptions& factor);
  void End();

  std::shared_ptr<State> state_;
};

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_SOLVE_SESSION_H_
