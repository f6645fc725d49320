// The C++ client of blockd: factor symmetric positive definite block-tridiagonal matrices on a
// server, keep the factors there, and solve with them.
//
//     auto client = SolverClient::Connect("127.0.0.1:7117");
//     auto factored = client->Factor(MakeSystemView(N, n, diagonal, coupling));
//     auto solved = client->Solve(factored->handle, rhs, x);  // std::vector<double> or std::span
//
// Shapes: matrices as system.h says; right-hand sides and solutions are N*n x d, column-major, of
// the matrix's scalar. d is rhs.size() / (N*n).
// Errors: absl::Status with the server's code and message; errors.h lists them and reads their
// details. No exceptions. What waiting helps (errors.h), and nothing else, is retried with backoff
// until the timeout, within a budget of all calls (backoff.h); a Factor that is retried never
// factors twice. Threads: everything here may be used from any number of threads at once. Memory:
// what is passed in is read until the call returns, and not after. (A stream to a server that stops
// reading in the middle may hold a call for up to 20 seconds after its timeout.) The end: whatever
// is here may go in any order and on any thread, in a callback of SolveAsync too, and a process may
// end while calls are under way. gRPC's threads stay until then.
#ifndef BLOCKD_CLIENT_SOLVER_CLIENT_H_
#define BLOCKD_CLIENT_SOLVER_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "blockd/client/client_options.h"
#include "blockd/client/errors.h"
#include "blockd/client/factor_handle.h"
#include "blockd/client/results.h"
#include "blockd/client/shared_buffer.h"
#include "blockd/client/smooth.h"
#include "blockd/client/solve_session.h"
#include "blockd/client/system.h"
#include "blockd/v1/blockd.pb.h"

namespace blockd::client {

struct FactorResult {
  FactorHandle handle;
  std::optional<double> log_determinant;  // if asked for
  Conditioning conditioning;
  int64_t factor_bytes = 0;  // held on the server's device
  bool found = false;        // the idempotency key was known: nothing was factored
  v1::Cost cost;
};

struct FactorBatchResult {
  struct System {
    absl::Status status;  // of this system alone: one that is not positive definite harms no other
    FactorHandle handle;  // empty unless the status is OK
    std::optional<double> log_determinant;
    Conditioning conditioning;
  };
  std::vector<System> systems;
  int64_t factor_bytes = 0;  // of each
  bool found = false;
  v1::Cost cost;
};

struct RefactorResult {
  std::vector<absl::Status> systems;
  std::vector<std::optional<double>> log_determinants;  // one a system
  std::vector<Conditioning> conditioning;               // one a system
  v1::Cost cost;
};

using SolveDone = std::function<void(absl::StatusOr<SolveResult>)>;

// A value: copies share the connection.
class SolverClient {
 public:
  // `target` is a gRPC name, such as "host:7117" or "unix:/run/blockd.sock". Does not wait for the
  // server; INVALID_ARGUMENT for options that cannot work.
  static absl::StatusOr<SolverClient> Connect(const std::string& target,
                                              const ClientOptions& options = {});
  // Memory that calls need not copy from and to. FAILED_PRECONDITION without
  // ClientOptions::shared_memory_bytes, RESOURCE_EXHAUSTED if there is no such piece left of them.
  absl::StatusOr<SharedBuffer> AllocateShared(int64_t bytes) const;
  // False if there is no connection after `limit`.
  bool WaitUntilConnected(absl::Duration limit) const;

  // Factors and keeps; the handle gives it back when it goes out of scope.
  absl::StatusOr<FactorResult> Factor(const SystemView& system,
                                      const FactorOptions& options = {}) const;
  // K systems of one shape and form in one call.
  absl::StatusOr<FactorBatchResult> FactorBatch(std::span<const SystemView> systems,
                                                const FactorOptions& options = {}) const;
  // New values for held factorizations, which keep their handles. Where a system fails its old
  // factors stay in force, unless FactorOptions::overwrite. `lease` and `pin` are set anew. Those
  // of a batch must be on one server: INVALID_ARGUMENT where their routes differ. One that heals is
  // factored again first where it is lost.
  absl::StatusOr<RefactorResult> Refactor(const Factorization& factorization,
                                          const SystemView& system,
                                          const FactorOptions& options = {}) const;
  absl::StatusOr<RefactorResult> RefactorBatch(std::span<const Factorization> factorizations,
                                               std::span<const SystemView> systems,
                                               const FactorOptions& options = {}) const;

  absl::StatusOr<SolveResult> Solve(const Factorization& factorization, std::span<const double> rhs,
                                    std::span<double> solution,
                                    const SolveOptions& options = {}) const {
    return SolveBytes(factorization, Scalar::kFloat64, std::as_bytes(rhs),
                      std::as_writable_bytes(solution), options);
  }
  absl::StatusOr<SolveResult> Solve(const Factorization& factorization, std::span<const float> rhs,
                                    std::span<float> solution,
                                    const SolveOptions& options = {}) const {
    return SolveBytes(factorization, Scalar::kFloat32, std::as_bytes(rhs),
                      std::as_writable_bytes(solution), options);
  }
  // Calls `done` once: before this returns where the call cannot begin (wrong arguments, no time,
  // no thread), else on one of the few threads that the process has for this, above the stream
  // threshold on one of gRPC's, with shared memory on the client's one there, and after a
  // restoration perhaps on the healer's. It must not block: others' wait until it returns, though
  // no call that a thread waits for does. `rhs` is copied before this returns; `solution` stays
  // valid until `done`.
  void SolveAsync(const Factorization& factorization, std::span<const double> rhs,
                  std::span<double> solution, const SolveOptions& options, SolveDone done) const {
    SolveBytesAsync(factorization, Scalar::kFloat64, std::as_bytes(rhs),
                    std::as_writable_bytes(solution), options, std::move(done));
  }
  void SolveAsync(const Factorization& factorization, std::span<const float> rhs,
                  std::span<float> solution, const SolveOptions& options, SolveDone done) const {
    SolveBytesAsync(factorization, Scalar::kFloat32, std::as_bytes(rhs),
                    std::as_writable_bytes(solution), options, std::move(done));
  }
  // Many solves in one call: for each factorization, whatever its shape, num_rhs[i] right-hand
  // sides, or one each where `num_rhs` is empty; all of one scalar. `rhs` has those of all solves
  // one after another, and `solution` gets theirs. At most 65536 solves, and what the server takes
  // in one message. A solve that fails fails alone (SolveResult::solves), and its solution is
  // zeros. Those that heal are sent again; behind a router there is a call to each server.
  absl::StatusOr<SolveResult> SolveMany(std::span<const Factorization> factorizations,
                                        std::span<const double> rhs, std::span<double> solution,
                                        const SolveOptions& options = {},
                                        std::span<const int64_t> num_rhs = {}) const {
    return SolveManyBytes(factorizations, Scalar::kFloat64, std::as_bytes(rhs),
                          std::as_writable_bytes(solution), options, num_rhs);
  }
  absl::StatusOr<SolveResult> SolveMany(std::span<const Factorization> factorizations,
                                        std::span<const float> rhs, std::span<float> solution,
                                        const SolveOptions& options = {},
                                        std::span<const int64_t> num_rhs = {}) const {
    return SolveManyBytes(factorizations, Scalar::kFloat32, std::as_bytes(rhs),
                          std::as_writable_bytes(solution), options, num_rhs);
  }
  SolveSession OpenSession() const;

  // Factors, solves, keeps nothing. Of the factor options, check_finite (of the matrix and
  // the right-hand sides) and log_determinant count; the timeout is that of `solve`, for all of it.
  // Above the stream threshold it is a Factor, a Solve and a Release.
  absl::StatusOr<FactorSolveResult> FactorSolve(const SystemView& system,
                                                std::span<const double> rhs,
                                                std::span<double> solution,
                                                const SolveOptions& solve = {},
                                                const FactorOptions& factor = {}) const {
    return FactorSolveBytes(system, Scalar::kFloat64, std::as_bytes(rhs),
                            std::as_writable_bytes(solution), solve, factor);
  }
  absl::StatusOr<FactorSolveResult> FactorSolve(const SystemView& system,
                                                std::span<const float> rhs,
                                                std::span<float> solution,
                                                const SolveOptions& solve = {},
                                                const FactorOptions& factor = {}) const {
    return FactorSolveBytes(system, Scalar::kFloat32, std::as_bytes(rhs),
                            std::as_writable_bytes(solution), solve, factor);
  }

  // New values for a held factorization, and a solve with them, in one call: a step of a
  // controller. As a Refactor and a Solve, with the same bits, but where one of the two fails the
  // old factors stay in force, unless FactorOptions::overwrite. Of the factor options,
  // check_finite, log_determinant, accuracy, keep_matrix and overwrite count; lease and pin stay.
  // The timeout is that of `solve`. Above the stream threshold it is a Refactor and a Solve; the
  // matrix is then kept, too, where `solve` needs it.
  absl::StatusOr<FactorSolveResult> RefactorSolve(const Factorization& factorization,
                                                  const SystemView& system,
                                                  std::span<const double> rhs,
                                                  std::span<double> solution,
                                                  const SolveOptions& solve = {},
                                                  const FactorOptions& factor = {}) const {
    return RefactorSolveBytes(factorization, system, Scalar::kFloat64, std::as_bytes(rhs),
                              std::as_writable_bytes(solution), solve, factor);
  }
  absl::StatusOr<FactorSolveResult> RefactorSolve(const Factorization& factorization,
                                                  const SystemView& system,
                                                  std::span<const float> rhs,
                                                  std::span<float> solution,
                                                  const SolveOptions& solve = {},
                                                  const FactorOptions& factor = {}) const {
    return RefactorSolveBytes(factorization, system, Scalar::kFloat32, std::as_bytes(rhs),
                              std::as_writable_bytes(solution), solve, factor);
  }
  // The same for many held factorizations, with a system for each, in one call: systems of one
  // shape and form, as many right-hand sides for each, laid out as SolveMany has them. One that
  // fails fails alone (SolveResult::solves), its solution is zeros, and its old factors stay. Those
  // that heal are sent again; behind a router there is a call to each server. log_determinant does
  // not count. All of it is one message, whose size the server bounds: send palettes, or fewer.
  absl::StatusOr<SolveResult> RefactorSolveMany(std::span<const Factorization> factorizations,
                                                std::span<const SystemView> systems,
                                                std::span<const double> rhs,
                                                std::span<double> solution,
                                                const SolveOptions& solve = {},
                                                const FactorOptions& factor = {}) const {
    return RefactorSolveManyBytes(factorizations, systems, Scalar::kFloat64, std::as_bytes(rhs),
                                  std::as_writable_bytes(solution), solve, factor);
  }
  absl::StatusOr<SolveResult> RefactorSolveMany(std::span<const Factorization> factorizations,
                                                std::span<const SystemView> systems,
                                                std::span<const float> rhs,
                                                std::span<float> solution,
                                                const SolveOptions& solve = {},
                                                const FactorOptions& factor = {}) const {
    return RefactorSolveManyBytes(factorizations, systems, Scalar::kFloat32, std::as_bytes(rhs),
                                  std::as_writable_bytes(solution), solve, factor);
  }

  // Blocks of inv(A): `diagonal` and, for kTridiagonalBlocks, `coupling` have the size of what the
  // options ask for.
  absl::StatusOr<v1::Cost> SelectedInverse(const Factorization& factorization,
                                           std::span<double> diagonal,
                                           std::span<double> coupling = {},
                                           const InverseOptions& options = {},
                                           const InverseBorder<double>& border = {}) const;
  absl::StatusOr<v1::Cost> SelectedInverse(const Factorization& factorization,
                                           std::span<float> diagonal,
                                           std::span<float> coupling = {},
                                           const InverseOptions& options = {},
                                           const InverseBorder<float>& border = {}) const;
  // Samples of N(0, inv(A)), as many as have room: rows() x num_samples, column-major.
  absl::StatusOr<v1::Cost> Sample(const Factorization& factorization, std::span<double> samples,
                                  const SampleOptions& options = {}) const;
  absl::StatusOr<v1::Cost> Sample(const Factorization& factorization, std::span<float> samples,
                                  const SampleOptions& options = {}) const;

  // Smooths K series, `observations` of ny x T x K with NaN for what is missing: means, covariances
  // and what else the options ask for. Nothing is kept but with SmoothOptions::keep.
  absl::StatusOr<SmoothResult> Smooth(const StateSpaceModel& model,
                                      std::span<const double> observations,
                                      const SmoothOptions& options = {}) const;

  // Handles are the opaque bytes of Factorization::handle. The bytes given back.
  // Behind a router, `route` (Factorization::route) says which server; handles of several servers
  // take a call each.
  absl::StatusOr<int64_t> Release(std::span<const std::string> handles,
                                  const std::string& route = {}) const;
  // `route`, if given: as above, and then the route to the server that answered.
  absl::StatusOr<v1::FactorizationInfo> Get(const std::string& handle,
                                            std::string* route = nullptr) const;
  // All of the caller's, page after page. Behind a router: those of any one server, to which
  // `route`, if given, then leads.
  absl::StatusOr<std::vector<v1::FactorizationInfo>> List(std::string* route = nullptr) const;
  absl::StatusOr<v1::ServerInfo> ServerInfo() const;
  // How the server would factor K systems of this shape and solve with d right-hand sides, and how
  // long its device should take. Nothing is sent or run.
  absl::StatusOr<v1::Plan> Plan(int64_t num_blocks, int64_t block_size, Scalar scalar,
                                int64_t num_systems = 1, int64_t num_rhs = 1,
                                int64_t arrow_size = 0) const;
  // OK if the server says that it serves (grpc.health.v1). UNAVAILABLE if it says that it does not.
  absl::Status CheckHealth() const;

  // A handle for a factorization that some other client made, by its name; it releases like any
  // other.
  FactorHandle Adopt(Factorization factorization) const;
  // Waits for handles that went out of scope to be released; false if some were not after `limit`.
  // For the end of a process, which does not wait for them by itself.
  bool AwaitReleases(absl::Duration limit) const;
  RetryCounters retry_counters() const;
  // Sums over all handles of this client that heal (FactorOptions::restore).
  RestoreCounters restore_counters() const;

 private:
  explicit SolverClient(std::shared_ptr<Connection> connection);
  absl::StatusOr<SolveResult> SolveBytes(const Factorization& factorization, Scalar scalar,
                                         std::span<const std::byte> rhs,
                                         std::span<std::byte> solution,
                                         const SolveOptions& options) const;
  absl::StatusOr<SolveResult> SolveManyBytes(std::span<const Factorization> factorizations,
                                             Scalar scalar, std::span<const std::byte> rhs,
                                             std::span<std::byte> solution,
                                             const SolveOptions& options,
                                             std::span<const int64_t> num_rhs) const;
  absl::Status SolveSmall(const Factorization& now, const v1::SolveRequest& request,
                          std::span<const std::byte> rhs, std::span<std::byte> solution,
                          absl::Time deadline, absl::StatusOr<SolveResult>* result) const;
  absl::Status SolveLarge(const Factorization& now, const v1::SolveRequest& request,
                          std::span<const std::byte> rhs, std::span<std::byte> solution,
                          absl::Time deadline, absl::StatusOr<SolveResult>* result) const;
  void SolveBytesAsync(const Factorization& factorization, Scalar scalar,
                       std::span<const std::byte> rhs, std::span<std::byte> solution,
                       const SolveOptions& options, SolveDone done) const;
  absl::StatusOr<FactorSolveResult> FactorSolveBytes(const SystemView& system, Scalar scalar,
                                                     std::span<const std::byte> rhs,
                                                     std::span<std::byte> solution,
                                                     const SolveOptions& solve,
                                                     const FactorOptions& factor) const;
  absl::StatusOr<FactorSolveResult> RefactorSolveBytes(const Factorization& factorization,
                                                       const SystemView& system, Scalar scalar,
                                                       std::span<const std::byte> rhs,
                                                       std::span<std::byte> solution,
                                                       const SolveOptions& solve,
                                                       const FactorOptions& factor) const;
  absl::StatusOr<FactorSolveResult> RefactorThenSolve(const Factorization& factorization,
                                                      const SystemView& system, Scalar scalar,
                                                      std::span<const std::byte> rhs,
                                                      std::span<std::byte> solution,
                                                      const SolveOptions& solve,
                                                      const FactorOptions& factor) const;
  absl::StatusOr<SolveResult> RefactorSolveManyBytes(std::span<const Factorization> factorizations,
                                                     std::span<const SystemView> systems,
                                                     Scalar scalar, std::span<const std::byte> rhs,
                                                     std::span<std::byte> solution,
                                                     const SolveOptions& solve,
                                                     const FactorOptions& factor) const;
  absl::StatusOr<FactorSolveResult> FactorThenSolve(const SystemView& system, Scalar scalar,
                                                    std::span<const std::byte> rhs,
                                                    std::span<std::byte> solution,
                                                    const SolveOptions& solve,
                                                    const FactorOptions& factor) const;

  std::shared_ptr<Connection> connection_;
};

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_SOLVER_CLIENT_H_
