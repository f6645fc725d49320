// Host memory that requests under way may hold: their bytes as they came and their solutions.
//
// Thread-safe. The budget outlives what was taken from it.
#ifndef BLOCKD_SERVER_HOST_BUDGET_H_
#define BLOCKD_SERVER_HOST_BUDGET_H_

#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/core/errors.h"

namespace blockd::server {

class HostBudget;

// RAII share of a budget. Movable; empty after a move.
class HostBytes {
 public:
  HostBytes() = default;
  HostBytes(HostBytes&& other) noexcept { *this = std::move(other); }
  HostBytes& operator=(HostBytes&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  inline ~HostBytes();

 private:
  friend class HostBudget;
  HostBudget* budget_ = nullptr;
  int64_t bytes_ = 0;
};

class HostBudget {
 public:
  HostBudget(int64_t limit_bytes, absl::Duration retry_delay)
      : limit_(limit_bytes), retry_delay_(retry_delay) {}

  // Adds `bytes` to what `share` holds. RESOURCE_EXHAUSTED if they can never fit, UNAVAILABLE with
  // a delay if they do not fit now.
  absl::Status Take(int64_t bytes, HostBytes* share) {
    if (bytes > limit_) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the request needs ", bytes,
                       " bytes on the host; --max_inflight_request_bytes is ", limit_, " bytes"));
    }
    if (used_.fetch_add(bytes) > limit_ - bytes) {
      used_.fetch_sub(bytes);
      return RetryAfterError("requests under way fill the host memory that they may use",
                             retry_delay_);
    }
    share->budget_ = this;
    share->bytes_ += bytes;
    return absl::OkStatus();
  }
  int64_t used_bytes() const { return used_; }

 private:
  friend class HostBytes;
  const int64_t limit_;
  const absl::Duration retry_delay_;
  std::atomic<int64_t> used_{0};
};

HostBytes::~HostBytes() {
  if (budget_ != nullptr) budget_->used_ -= bytes_;
}

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_HOST_BUDGET_H_
