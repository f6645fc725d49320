#include "blockd/client/backoff.h"

#include <algorithm>
#include <utility>

#include "blockd/client/errors.h"
#include "client/base/retry_budget.h"

namespace blockd::client {

Backoff::Backoff(const RetryOptions& options, absl::Time deadline, std::function<double()> uniform,
                 RetryBudget* budget)
    : options_(options),
      deadline_(deadline),
      uniform_(std::move(uniform)),
      budget_(budget),
      delay_(options.initial_delay) {
  if (budget_ != nullptr) budget_->CountCall();
}

std::optional<absl::Duration> Backoff::Next(const absl::Status& status, absl::Time now) {
  ++attempts_;
  if (!WaitingHelps(status) || attempts_ >= options_.max_attempts) return std::nullopt;
  // Half of the delay is certain and half is drawn.
  absl::Duration wait = delay_ * (0.5 + 0.5 * uniform_());
  delay_ = std::min(delay_ * options_.multiplier, options_.max_delay);
  if (const std::optional<absl::Duration> asked = GetRetryAfter(status); asked.has_value()) {
    const absl::Duration most = std::max(*asked, options_.max_delay);
    wait = std::max(wait, std::min(*asked * growth_, most) * (1 + 0.5 * uniform_()));
    growth_ *= options_.multiplier;
    if (now + wait >= deadline_) wait = *asked;  // better soon than not at all
  }
  if (now + wait >= deadline_) return std::nullopt;
  if (budget_ != nullptr && !budget_->TakeRetry()) return std::nullopt;
  return wait;
}

}  // namespace blockd::client
