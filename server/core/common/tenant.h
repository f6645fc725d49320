// One of those who share the server: what it may have, and what it has.
//
// A Tenant's numbers may be read from any thread. Its use of a resource is changed by that
// resource's Budget alone. Tenants (tenants.h) makes them and keeps each alive for as long as
// somebody refers to it or it has something.
#ifndef BLOCKD_SERVER_CORE_COMMON_TENANT_H_
#define BLOCKD_SERVER_CORE_COMMON_TENANT_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "server/base/token_bucket.h"
#include "server/core/common/tenant_config.h"

namespace blockd::server {

// Resources that tenants share, each with a quota of its own. kPinnedBytes are the bytes of pinned
// and leased factorizations, which kDeviceBytes counts too.
enum class Resource : uint8_t { kDeviceBytes, kPinnedBytes, kHandles, kHostBytes, kQueueSlots };
inline constexpr int kResources = 5;
std::string_view QuotaName(Resource resource);  // as the tenants file says it: "device_bytes"

// Counts of a tenant, or of several together.
struct TenantCounts {
  int64_t answered = 0;    // requests, in any way
  int64_t over_quota = 0;  // of those, refused with QuotaExceeded
  int64_t device_nanoseconds = 0;

  TenantCounts& operator+=(const TenantCounts& other) {
    answered += other.answered;
    over_quota += other.over_quota;
    device_nanoseconds += other.device_nanoseconds;
    return *this;
  }
  TenantCounts operator-(const TenantCounts& other) const {
    return {answered - other.answered, over_quota - other.over_quota,
            device_nanoseconds - other.device_nanoseconds};
  }
};

// The resources that a tenant has now, and its counts.
struct TenantUse {
  std::string name;
  std::array<int64_t, kResources> used{};  // by Resource
  TenantCounts counts{};
};

class Tenant {
 public:
  explicit Tenant(std::string name) : name_(std::move(name)) {
    for (auto& quota : quotas_) quota = -1;
  }
  Tenant(const Tenant&) = delete;
  Tenant& operator=(const Tenant&) = delete;

  const std::string& name() const { return name_; }
  double weight() const { return weight_.load(std::memory_order_relaxed); }
  PriorityClass highest_class() const { return highest_class_.load(std::memory_order_relaxed); }
  // -1: none, the fair share.
  int64_t quota(Resource resource) const { return At(quotas_, resource); }
  int64_t used(Resource resource) const { return At(used_, resource); }
  bool has_anything() const {
    for (const auto& used : used_) {
      if (used.load(std::memory_order_relaxed) != 0) return true;
    }
    return false;
  }

  // A request of its is over.
  void CountAnswer(bool over_quota) {
    requests_answered.fetch_add(1, std::memory_order_relaxed);
    if (over_quota) requests_over_quota.fetch_add(1, std::memory_order_relaxed);
  }
  TenantCounts counts() const {
    return {requests_answered.load(std::memory_order_relaxed),
            requests_over_quota.load(std::memory_order_relaxed),
            device_nanoseconds.load(std::memory_order_relaxed)};
  }

  // Counts since the tenant was made. Any thread may add.
  std::atomic<int64_t> requests_answered{0}, requests_over_quota{0}, device_nanoseconds{0};

  // Both are infinite unless the configuration says otherwise.
  TokenBucket& requests() { return requests_; }
  TokenBucket& upload_bytes() { return upload_bytes_; }

 private:
  friend class Budget;
  friend class Tenants;
  using Numbers = std::array<std::atomic<int64_t>, kResources>;
  static int64_t At(const Numbers& numbers, Resource resource) {
    return numbers[static_cast<size_t>(resource)].load(std::memory_order_relaxed);
  }
  void Use(Resource resource, int64_t change) {
    used_[static_cast<size_t>(resource)].fetch_add(change, std::memory_order_relaxed);
  }

  const std::string name_;
  std::atomic<double> weight_{1};
  std::atomic<PriorityClass> highest_class_{PriorityClass::kInteractive};
  Numbers quotas_{};
  Numbers used_{};
  TokenBucket requests_, upload_bytes_;
};
using TenantPtr = std::shared_ptr<Tenant>;

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_CORE_COMMON_TENANT_H_
