// Options that calls take beside their data, and results that they return beside a status.
#ifndef BLOCKD_CLIENT_RESULTS_H_
#define BLOCKD_CLIENT_RESULTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "blockd/client/system.h"
#include "blockd/v1/blockd.pb.h"

namespace blockd::client {

class Healer;

// The name of a factorization on the server, and its shape. A plain value: owns nothing there.
struct Factorization {
  std::string handle;      // opaque bytes
  int64_t num_blocks = 0;  // N
  int64_t block_size = 0;  // n
  Scalar scalar = Scalar::kFloat64;
  // Behind a router: which server holds it. Opaque, and goes with every call; empty without one.
  std::string route{};
  // Set where the factorization heals (FactorOptions::restore). Calls with this value, and with
  // copies of it, then use what stands for it at the time, and not the `handle` and `route` here.
  std::shared_ptr<Healer> healer{};
  int64_t arrow_size = 0;  // p

  int64_t rows() const { return num_blocks * block_size + arrow_size; }
};

// In all options a timeout of zero stands for ClientOptions::timeout.

// The accuracy that Solves reach without being asked for refinement: see FactorOptions of the wire
// contract.
enum class Accuracy {
  // A backward error of at most 4 n eps max(1, min(growth, 100) / 4); with keep_matrix 4 n eps.
  kStandard,
  kGuaranteed,  // 4 n eps: the matrix is kept for the systems that need it
};

// Which waiting work the server takes first. Above what the tenant may use it is lowered, not
// refused.
enum class Priority {
  kInteractive,
  kRealtime,  // before all others; the earliest deadline, which is the call's timeout, first
  kBulk,      // after all others
};

// How a factorization comes back that is lost: evicted, expired, on a server that was restarted, is
// shutting down or gone, or behind a router that sends elsewhere. Calls on it then factor it again,
// once for all that wait, each within its own timeout. It heals where `matrix` or `keep_copy` is
// set.
struct RestoreOptions {
  // The matrix again, with the values that it is to have now. Called on a thread of the client's
  // own, one call at a time for each handle; `system` is its index in FactorBatch. An error fails
  // the calls that wait. No call begins after the handle is gone, but one may be under way then:
  // let it own what it uses, or share it.
  std::function<absl::StatusOr<OwnedSystem>(size_t system)> matrix{};
  // The client keeps a copy of its own instead, and renews it with every Refactor.
  bool keep_copy = false;
  // At most so many attempts within any such time, and for one request of a SolveSession; then
  // calls fail with what lost the handle. Those that find no server, or one that drains, do not
  // count.
  int max_restores = 8;
  absl::Duration window = absl::Minutes(1);

  bool heals() const { return keep_copy || matrix != nullptr; }
};

struct RestoreCounters {
  int64_t restores = 0;  // factored again
  int64_t failures = 0;  // factoring again failed
  int64_t refused = 0;   // calls that failed because the limit was reached
  int64_t waited = 0;    // calls that waited for a restoration
};

struct FactorOptions {
  bool keep_matrix = false;      // residuals and refinement need it; costs the matrix's bytes there
  bool check_finite = false;     // refuse NaN and infinities, saying where
  bool pin = false;              // never evicted, never expired
  bool log_determinant = false;  // of A
  Accuracy accuracy = Accuracy::kStandard;
  bool condition_estimate = false;  // of A; costs at most 15 solves
  bool overwrite = false;  // Refactor only: in the old factors' memory; a failure loses them
  absl::Duration lease{};  // not evicted for so long after the last use; zero: the server's
  // A Factor whose key the server knows returns what it has. Empty: the client makes one for its
  // own retries. Not for Refactor.
  std::string idempotency_key{};
  Priority priority = Priority::kInteractive;
  absl::Duration timeout{};
  // Called from the calling thread while a stream is sent, with the bytes so far and in all.
  std::function<void(int64_t sent_bytes, int64_t total_bytes)> progress{};
  RestoreOptions restore{};  // Factor and FactorBatch only
};

struct SolveOptions {
  bool residual = false;      // return the backward error; needs keep_matrix
  int max_refinements = 0;    // at most 10; needs keep_matrix
  bool check_finite = false;  // refuse NaN and infinities in the right-hand sides
  Priority priority = Priority::kInteractive;
  // SolveSession only: the last unanswered request of the session on the same factorization is not
  // wanted any more. It is answered with CANCELLED, or with its solution if that was begun.
  bool replace_last = false;
  absl::Duration timeout{};
};

// The wanted entries of Z = inv(A), the covariance of N(0, inv(A)).
enum class InverseParts {
  kDiagonal,           // its diagonal: n numbers a block
  kDiagonalBlocks,     // Z(i,i): n x n, whole, column-major
  kTridiagonalBlocks,  // and Z(i+1,i): one less
};

// The entries of Z that belong to the border of a system with arrow_size p; empty: not wanted.
template <typename T>
struct InverseBorder {
  std::span<T> border;  // Z of the asked blocks' rows and the border's columns, p columns
  std::span<T> corner;  // of the border: p x p
};

struct InverseOptions {
  InverseParts parts = InverseParts::kDiagonalBlocks;
  int64_t first_block = 0;
  int64_t num_blocks = 0;  // from there; 0: all that follow
  Priority priority = Priority::kInteractive;
  absl::Duration timeout{};
};

// A sample depends on the seed and its number, and has the same bits whatever is drawn with it.
struct SampleOptions {
  uint64_t seed = 0;
  uint64_t first_sample = 0;  // the number of the first one
  Priority priority = Priority::kInteractive;
  absl::Duration timeout{};
};

// How accurate solves with a factorization are.
struct Conditioning {
  double growth = 1;  // how much the inverted blocks magnify rounding errors, >= 1
  std::optional<double> condition_estimate{};  // of A, 1-norm, a lower bound; if asked for
  double backward_error_bound = 0;             // of Solves that measure nothing
  bool matrix_kept = false;                    // asked for, or needed for a guaranteed accuracy
};

// One of many solves.
struct SolveOutcome {
  absl::Status status{};  // of this solve alone
  std::optional<double> backward_error{};
  double backward_error_bound = 0;
  int refinements = 0;
  double growth = 0;  // these two of RefactorSolveMany, as Conditioning has them
  bool matrix_kept = false;
};

struct SolveResult {
  // The largest ||b - A x|| / (||A|| ||x|| + ||b||) of the columns, infinity norms: if it was asked
  // for, or measured because the growth of the factorization puts it at risk.
  std::optional<double> backward_error;
  double backward_error_bound = 0;  // what is promised of it, measured or not
  int refinements = 0;              // the most steps of refinement that a column has taken
  v1::Cost cost;
  // SolveMany and SendMany only: each solve's outcome, in order. The fields above then have the
  // largest value of the solves that succeeded.
  std::vector<SolveOutcome> solves{};

  // The first failure of one of the solves; OK if there is none.
  absl::Status FirstFailure() const {
    for (const SolveOutcome& solve : solves) {
      if (!solve.status.ok()) return solve.status;
    }
    return absl::OkStatus();
  }
};

struct FactorSolveResult {
  std::optional<double> backward_error;  // these three as SolveResult's
  double backward_error_bound = 0;
  int refinements = 0;
  std::optional<double> log_determinant;  // if asked for
  v1::Cost cost;
  double growth = 1;  // these two as Conditioning has them
  bool matrix_kept = false;
};

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_RESULTS_H_
