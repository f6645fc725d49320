#include "server/core/operations/refactor.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/common/errors.h"

namespace blockd::server {

absl::Status CheckRefactored(const Factorization& held, const BorderedShape& shape,
                             std::string_view handle) {
  if (held.bordered_shape() == shape) return absl::OkStatus();
  return InvalidFieldError("spec", ToString(shape),
                           absl::StrCat(ToString(held.bordered_shape()), ", the shape of ",
                                        absl::string_view(handle.data(), handle.size())));
}

int64_t BytesBeyond(const FactorizationPin& old, const EliminationPlan& plan) {
  const int64_t p = old->border().rows();
  return std::max<int64_t>(Shard::FactorCharge(plan, p) - Shard::FactorCharge(old->plan(), p), 0);
}

int64_t PinnedBeyond(Shard& shard, const FactorizationPin& old, const EliminationPlan& plan,
                     const MatrixForm& form, bool has_matrix, bool pins) {
  const int64_t bytes =
      Shard::FactorCharge(plan, form.border_rows) + (has_matrix ? Shard::MatrixCharge(form) : 0);
  return shard.cache().PinnedGrowth(old, bytes, pins);
}

absl::StatusOr<Overwritten> BeginOverwrite(Shard& shard, FactorizationPin& old,
                                           const EliminationPlan& plan, int64_t reserved,
                                           Permit& permit) {
  const int64_t p = old->border().rows();
  const int64_t old_charge = Shard::FactorCharge(old->plan(), p);
  const KeptObjectPtr taken = shard.cache().BeginOverwrite(old);
  if (!taken) {
    absl::Status status = shard.device().Extend(
        permit.tenant, Shard::FactorCharge(plan, p) - reserved, &permit.device);
    if (!status.ok()) return status;
    return Overwritten();
  }
  Overwritten overwritten{.begun = true, .recycled = {}};
  permit.device.Merge(taken->reservation().Split(old_charge));
  std::shared_ptr<Factorization> factorization = static_cast<KeptFactorization&>(*taken).Take();
  const bool same_size = factorization->plan().factor_bytes() == plan.factor_bytes();
  overwritten.recycled = Factorization::Recycle(std::move(factorization));
  if (!same_size) overwritten.recycled.Reset();
  return overwritten;
}

}  // namespace blockd::server
