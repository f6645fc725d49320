// Something that the cache keeps in its device's memory, and what its owner is told of it.
#ifndef BLOCKD_SERVER_CORE_CACHE_KEPT_OBJECT_H_
#define BLOCKD_SERVER_CORE_CACHE_KEPT_OBJECT_H_

#include <any>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/time/time.h"
#include "blockd/engine/memory_pool.h"
#include "server/core/common/handle.h"
#include "server/core/tenants/budget.h"

namespace blockd::server {

// Each kind of object derives from it. Several threads may read it.
class KeptObject {
 public:
  // `reservation`: of the memory that it has, as the pool rounds it. It is given back last.
  explicit KeptObject(Reservation reservation) : reservation_(std::move(reservation)) {}
  virtual ~KeptObject() = default;
  KeptObject(const KeptObject&) = delete;
  KeptObject& operator=(const KeptObject&) = delete;

  virtual std::string_view kind() const = 0;  // as errors name it
  virtual int64_t bytes() const = 0;          // of device memory
  // Where these lie, as the pool will have them free; a piece of 0 bytes is none. No two objects
  // that live have the first one.
  virtual std::array<FreePiece, 3> pieces() const = 0;
  virtual std::any Describe() const = 0;  // KeptStats::details

  Reservation& reservation() { return reservation_; }
  int64_t charge() const { return reservation_.bytes(); }

 private:
  Reservation reservation_;
};
using KeptObjectPtr = std::shared_ptr<KeptObject>;

// A description of a held object. Plain data.
struct KeptStats {
  Handle handle;
  int64_t held_bytes = 0;
  bool pinned = false;
  absl::Duration age;         // since it was made or replaced
  absl::Duration idle;        // since its last use
  absl::Duration lease_left;  // zero: none, or over
  int64_t times_solved = 0;   // requests answered
  int64_t rhs_solved = 0;     // right-hand sides answered
  int64_t times_refactored = 0;
  std::string idempotency_key;
  std::any details;  // of its kind's type; of the one before while it is overwritten
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_CACHE_KEPT_OBJECT_H_
