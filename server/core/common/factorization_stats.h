// A description of a held factorization. Plain data.
#ifndef BLOCKD_SERVER_CORE_COMMON_FACTORIZATION_STATS_H_
#define BLOCKD_SERVER_CORE_COMMON_FACTORIZATION_STATS_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "blockd/engine/block_tridiagonal.h"
#include "blockd/engine/factorization.h"
#include "server/core/common/handle.h"

namespace blockd::server {

struct FactorizationStats {
  Handle handle;
  BorderedShape shape;
  int64_t held_bytes = 0;
  bool matrix_kept = false;
  Conditioning conditioning;
  double backward_error_bound = 0;  // of Solves without refinement
  bool pinned = false;
  absl::Duration age;         // since it was made or refactored
  absl::Duration idle;        // since its last use
  absl::Duration lease_left;  // zero: none, or over
  int64_t times_solved = 0;   // Solve requests answered
  int64_t rhs_solved = 0;     // right-hand sides answered
  int64_t times_refactored = 0;
  std::string idempotency_key;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_COMMON_FACTORIZATION_STATS_H_
