#include "client/upload/upload_ranges.h"

#include <algorithm>
#include <utility>

namespace blockd::client {

UploadRanges::UploadRanges(int64_t first, int64_t end, int streams)
    : streams_(streams),
      first_share_((end - first) / streams / 4 * 3),
      least_(std::clamp<int64_t>((end - first) / streams, 1, kLeastBytes)),
      front_(first),
      back_(end) {}

int64_t UploadRanges::Share() const { return std::max((back_ - front_) / (2 * streams_), least_); }

UploadRanges::Range UploadRanges::TakeFront() {
  absl::MutexLock lock(&mutex_);
  const int64_t bytes = std::min(Share(), back_ - front_);
  return {std::exchange(front_, front_ + bytes), bytes};
}

UploadRanges::Range UploadRanges::TakeBack() {
  absl::MutexLock lock(&mutex_);
  const int64_t rest = back_ - front_;
  if (joins_ == kMostJoins) return {};
  // The streams that may still join can take all of it.
  const int64_t wanted =
      joins_ < streams_ - 1 ? first_share_ : std::max(Share(), rest / (kMostJoins - joins_));
  const int64_t first = (back_ - std::min(wanted, rest) + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (first >= back_) return {};
  ++joins_;
  return {first, std::exchange(back_, first) - first};
}

}  // namespace blockd::client
