#include "server/core/operations/kept_factorization.h"

namespace blockd::server {
namespace {

// As the pool will have it free.
FreePiece PieceOf(const void* data, int64_t bytes) {
  return {static_cast<const std::byte*>(data), MemoryPool::Rounded(bytes)};
}

}  // namespace

std::array<FreePiece, 3> KeptFactorization::pieces() const {
  const Factorization& held = *factorization_;
  const int64_t matrix = held.matrix().bytes(), border = held.border().bytes();
  return {PieceOf(held.data(), held.bytes() - matrix - border),
          PieceOf(held.matrix().data(), matrix), PieceOf(held.border().columns(), border)};
}

std::any KeptFactorization::Describe() const {
  const Factorization& held = *factorization_;
  return FactorizationDetails{.shape = held.bordered_shape(),
                              .matrix_kept = static_cast<bool>(held.matrix()),
                              .conditioning = held.conditioning(),
                              .backward_error_bound = held.backward_error_bound()};
}

FactorizationStats ToFactorizationStats(KeptStats stats) {
  const auto details = std::any_cast<FactorizationDetails>(stats.details);
  return {std::move(stats), details};
}

}  // namespace blockd::server
