#include "server/transport/rpc/call_limits.h"

#include <algorithm>

namespace blockd::server {
namespace {

// A message has as long as the longest takes at the least rate, beside the silence that an upload
// may have: how much of it has come is not known.
absl::Duration RequestTimeout(const ServerOptions& options) {
  if (options.min_upload_bytes_per_second == 0) return options.max_upload_duration;
  const absl::Duration takes =
      absl::Seconds(static_cast<double>(options.max_message_bytes) /
                    static_cast<double>(options.min_upload_bytes_per_second));
  return std::min(options.stream_idle_timeout + takes, options.max_upload_duration);
}

}  // namespace

CallLimits CallLimitsOf(const ServerOptions& options) {
  return {.request_timeout = RequestTimeout(options), .reply_timeout = options.reply_timeout};
}

// A fraction of the shortest time that a call is watched for.
absl::Duration LookEvery(const ServerOptions& options) {
  const absl::Duration shortest =
      std::min({options.stream_idle_timeout, options.max_upload_duration, options.reply_timeout});
  return std::clamp(shortest / 8, absl::Milliseconds(5), absl::Seconds(1));
}

}  // namespace blockd::server
