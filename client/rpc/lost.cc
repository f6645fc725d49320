#include "client/rpc/lost.h"

#include "blockd/client/errors.h"

namespace blockd::client {

bool IsGone(const absl::Status& status) {
  return absl::IsUnavailable(status) && !GetRetryAfter(status).has_value();
}

bool IsLost(const absl::Status& status) {
  if (IsGone(status) || GetServerDraining(status).has_value()) return true;
  const auto detail = GetHandleNotFound(status);
  if (!detail.has_value()) return false;
  switch (detail->reason()) {
    case v1::HandleNotFound::EVICTED:
    case v1::HandleNotFound::EXPIRED:
    case v1::HandleNotFound::RESTARTED:
    case v1::HandleNotFound::OTHER_SERVER:
    case v1::HandleNotFound::DEVICE_FAILED:
      return true;
    default:
      return false;
  }
}

bool HealsNow(const absl::Status& status, int attempts) {
  return IsLost(status) && (attempts >= 2 || !IsGone(status));
}

}  // namespace blockd::client
