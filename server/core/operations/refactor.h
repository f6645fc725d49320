// Systems that take the place of held ones: what Factor with handles and FactorSolve with handles
// have in common.
#ifndef BLOCKD_SERVER_CORE_OPERATIONS_REFACTOR_H_
#define BLOCKD_SERVER_CORE_OPERATIONS_REFACTOR_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/core/operations/kept_factorization.h"
#include "server/core/shard/shard.h"
#include "server/core/tenants/permit.h"

namespace blockd::server {

// INVALID_ARGUMENT unless the shape, the border's too, is that of what is held; `handle` is the
// path of its field.
absl::Status CheckRefactored(const Factorization& held, const BorderedShape& shape,
                             std::string_view handle);

// Bytes that a new factor needs beyond the memory of the pinned one that it overwrites.
int64_t BytesBeyond(const FactorizationPin& old, const EliminationPlan& plan);

// Bytes that the refactor adds to those pinned or leased, with or without a kept matrix.
int64_t PinnedBeyond(Shard& shard, const FactorizationPin& old, const EliminationPlan& plan,
                     const MatrixForm& form, bool has_matrix, bool pins);

// The state of an old factor that is to be overwritten.
struct Overwritten {
  bool begun = false;     // the handle has no factor until Replace or FailOverwrite
  DeviceBuffer recycled;  // its memory, where it serves the new one
};

// Takes the old factor out of the cache, and its reservation into the permit, which has `reserved`
// bytes for the new factor. Where somebody uses the old one, or it is another one by now, it stays
// until the new one is there, which needs memory of its own: RESOURCE_EXHAUSTED where there is
// none.
absl::StatusOr<Overwritten> BeginOverwrite(Shard& shard, FactorizationPin& old,
                                           const EliminationPlan& plan, int64_t reserved,
                                           Permit& permit);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_OPERATIONS_REFACTOR_H_
