// What calls take beside their data, and what they return beside a status.
#ifndef BLOCKD_CLIENT_RESULTS_H_
#define BLOCKD_CLIENT_RESULTS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"
#include "blockd/client/system.h"
#include "blockd/v1/blockd.pb.h"

namespace blockd::client {

// The name of a factorization on the server, and its shape. A plain value: owns nothing.
struct Factorization {
  std::string handle;      // opaque bytes
  int64_t num_blocks = 0;  // N
  int64_t block_size = 0;  // n
  Scalar scalar = Scalar::kFloat64;

  int64_t rows() const { return num_blocks * block_size; }
};

// In all options a timeout of zero stands for ClientOptions::timeout.

struct FactorOptions {
  bool keep_matrix = false;      // residuals and refinement need it; costs the matrix's bytes there
  bool check_finite = false;     // refuse NaN and infinities, saying where
  bool pin = false;              // never evicted, never expired
  bool log_determinant = false;  // of A
  bool overwrite = false;        // Refactor only: in the old factors' memory; a failure loses them
  absl::Duration lease{};        // not evicted for so long after the last use; zero: the server's
  // A Factor whose key the server knows returns what it has. Empty: the client makes one for its
  // own retries. Not for Refactor.
  std::string idempotency_key{};
  absl::Duration timeout{};
  // Called from the calling thread while a stream is sent, with the bytes so far and in all.
  std::function<void(int64_t sent_bytes, int64_t total_bytes)> progress{};
};

struct SolveOptions {
  bool residual = false;      // return the backward error; needs keep_matrix
  int max_refinements = 0;    // at most 10; needs keep_matrix
  bool check_finite = false;  // refuse NaN and infinities in the right-hand sides
  absl::Duration timeout{};
};

struct SolveResult {
  // The largest ||b - A x|| / (||A|| ||x|| + ||b||) of the columns, infinity norms; 0 if not asked
  // for.
  double backward_error = 0;
  int refinements = 0;  // steps of refinement taken
  v1::Cost cost;
};

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_RESULTS_H_
