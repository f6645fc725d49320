#include "server/transport/rpc/call_tracker.h"

#include <utility>
#include <vector>

#include "server/base/steady_time.h"

namespace blockd::server {

void CallTracker::Begin() {
  absl::MutexLock lock(&mutex_);
  ++active_;
}

void CallTracker::End() {
  absl::MutexLock lock(&mutex_);
  --active_;
}

int64_t CallTracker::active() {
  absl::MutexLock lock(&mutex_);
  return active_;
}

void CallTracker::Add(DrainableStream* stream, std::weak_ptr<DrainableStream> weak) {
  absl::MutexLock lock(&mutex_);
  streams_.emplace(stream, std::move(weak));
}

void CallTracker::Remove(DrainableStream* stream) {
  absl::MutexLock lock(&mutex_);
  streams_.erase(stream);
}

void CallTracker::StartDrain() {
  draining_.store(true, std::memory_order_release);
  std::vector<std::shared_ptr<DrainableStream>> streams;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [key, weak] : streams_) {
      if (auto stream = weak.lock()) streams.push_back(std::move(stream));
    }
  }
  for (const auto& stream : streams) stream->OnDrain();
}

bool CallTracker::WaitUntilIdle(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto idle = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return active_ == 0; };
  const absl::Time end = SteadyNow() + timeout;
  while (!mutex_.AwaitWithTimeout(absl::Condition(&idle), end - SteadyNow())) {
    if (SteadyNow() >= end) return false;  // else somebody set the wall's clock
  }
  return true;
}

}  // namespace blockd::server
