// How fast something arrives from a client, and when that is too slow. Only the time in which the
// server waits for the client counts against it. Pure: time is an argument. One thread at a time.
#ifndef BLOCKD_SERVER_TRANSPORT_UPLOAD_UPLOAD_PACE_H_
#define BLOCKD_SERVER_TRANSPORT_UPLOAD_UPLOAD_PACE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace blockd::server {

struct UploadLimits {
  absl::Duration idle_timeout;   // without a byte
  int64_t bytes_per_second = 0;  // the least rate, on average; 0: none
  absl::Duration max_duration = absl::InfiniteDuration();
};

class UploadPace {
 public:
  // The time that an upload may make the server wait, in all, beyond the time that its bytes
  // explain at the least rate.
  static constexpr absl::Duration kGrace = absl::Seconds(5);

  UploadPace(const UploadLimits& limits, absl::Time now) : limits_(limits), start_(now) {}

  // The server waits for the next message from now on.
  void Wait(absl::Time now) { waiting_since_ = now; }
  // It has come: the server has something to do.
  void Came(absl::Time now);
  // So many bytes of what is waited for were in it; without any it was no sign of life.
  void Count(int64_t bytes);
  // The same of what came another way, while this one may be waiting.
  void CountElsewhere(int64_t bytes, absl::Time now);
  // DEADLINE_EXCEEDED, naming the flag, once it is too slow.
  absl::Status Check(absl::Time now) const;

 private:
  absl::Duration WaitingFor(absl::Time now) const {
    return waiting_since_ == absl::InfiniteFuture() ? absl::ZeroDuration() : now - waiting_since_;
  }

  UploadLimits limits_;
  absl::Time start_;
  absl::Time waiting_since_ = absl::InfiniteFuture();  // that: does not wait
  absl::Duration waited_;                              // in all
  absl::Duration silent_;                              // since the last byte
  int64_t bytes_ = 0;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_TRANSPORT_UPLOAD_UPLOAD_PACE_H_
