// Factorizations as the cache keeps them.
#ifndef BLOCKD_SERVER_CORE_OPERATIONS_KEPT_FACTORIZATION_H_
#define BLOCKD_SERVER_CORE_OPERATIONS_KEPT_FACTORIZATION_H_

#include <any>
#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "blockd/engine/block_tridiagonal.h"
#include "blockd/engine/factorization.h"
#include "blockd/engine/memory_pool.h"
#include "server/core/cache/cache.h"
#include "server/core/cache/kept_object.h"
#include "server/core/tenants/budget.h"

namespace blockd::server {

class KeptFactorization final : public KeptObject {
 public:
  static constexpr std::string_view kKind = "factorization";

  KeptFactorization(Reservation reservation, std::shared_ptr<Factorization> factorization)
      : KeptObject(std::move(reservation)), factorization_(std::move(factorization)) {}

  const std::shared_ptr<Factorization>& factorization() const { return factorization_; }
  // For whoever has it alone.
  std::shared_ptr<Factorization> Take() { return std::move(factorization_); }

  std::string_view kind() const override { return kKind; }
  int64_t bytes() const override { return factorization_->bytes(); }
  std::array<FreePiece, 3> pieces() const override;  // factor, matrix, border
  std::any Describe() const override;                // FactorizationDetails

 private:
  std::shared_ptr<Factorization> factorization_;
};

// Keeps a factorization's memory while in use, as Cache::Pin does.
class FactorizationPin : public Cache::Pin {
 public:
  static constexpr std::string_view kKind = KeptFactorization::kKind;

  FactorizationPin() = default;
  // `pin`: of a KeptFactorization.
  explicit FactorizationPin(Cache::Pin&& pin) : Pin(std::move(pin)) {}

  const std::shared_ptr<Factorization>& factorization() const {
    return static_cast<const KeptFactorization&>(object()).factorization();
  }
  const Factorization& operator*() const { return *factorization(); }
  const Factorization* operator->() const { return factorization().get(); }
};

// Plain data.
struct FactorizationDetails {
  BorderedShape shape;
  bool matrix_kept = false;
  Conditioning conditioning;
  double backward_error_bound = 0;  // of Solves without refinement
};
struct FactorizationStats : KeptStats, FactorizationDetails {};

// `stats`: of a KeptFactorization.
FactorizationStats ToFactorizationStats(KeptStats stats);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_OPERATIONS_KEPT_FACTORIZATION_H_
