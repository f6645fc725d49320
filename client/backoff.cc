#include "blockd/client/backoff.h"

#include <algorithm>
#include <utility>

#include "blockd/client/errors.h"

namespace blockd::client {

Backoff::Backoff(const RetryOptions& options, absl::Time deadline, std::function<double()> uniform)
    : options_(options),
      deadline_(deadline),
      uniform_(std::move(uniform)),
      delay_(options.initial_delay) {}

std::optional<absl::Duration> Backoff::Next(const absl::Status& status, absl::Time now) {
  ++attempts_;
  if (!absl::IsUnavailable(status) || attempts_ >= options_.max_attempts) return std::nullopt;
  // Half of the delay is certain and half is drawn.
  absl::Duration wait = delay_ * (0.5 + 0.5 * uniform_());
  const std::optional<absl::Duration> asked = GetRetryAfter(status);
  if (asked.has_value()) wait = std::max(wait, *asked * (1 + 0.1 * uniform_()));
  delay_ = std::min(delay_ * options_.multiplier, options_.max_delay);
  if (now + wait >= deadline_) return std::nullopt;
  return wait;
}

}  // namespace blockd::client
