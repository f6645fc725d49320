#include "server/transport/upload/upload_pace.h"

#include "absl/strings/str_cat.h"

namespace blockd::server {

void UploadPace::Came(absl::Time now) {
  const absl::Duration waited = WaitingFor(now);
  waiting_since_ = absl::InfiniteFuture();
  waited_ += waited;
  silent_ += waited;
}

void UploadPace::Count(int64_t bytes) {
  if (bytes > 0) silent_ = absl::ZeroDuration();
  bytes_ += bytes;
}

void UploadPace::CountElsewhere(int64_t bytes, absl::Time now) {
  if (waiting_since_ != absl::InfiniteFuture()) {
    Came(now);
    Wait(now);
  }
  Count(bytes);
}

absl::Status UploadPace::Check(absl::Time now) const {
  const absl::Duration waiting = WaitingFor(now);
  if (silent_ + waiting >= limits_.idle_timeout) {
    return absl::DeadlineExceededError(absl::StrCat("nothing came for ",
                                                    absl::FormatDuration(limits_.idle_timeout),
                                                    " (--stream_idle_timeout)"));
  }
  if (now - start_ >= limits_.max_duration) {
    return absl::DeadlineExceededError(absl::StrCat("not complete after ",
                                                    absl::FormatDuration(limits_.max_duration),
                                                    " (--max_upload_duration)"));
  }
  const double allowed = absl::ToDoubleSeconds(waited_ + waiting - kGrace);
  if (static_cast<double>(bytes_) < allowed * static_cast<double>(limits_.bytes_per_second)) {
    return absl::DeadlineExceededError(absl::StrCat(
        bytes_, " bytes came in ", absl::FormatDuration(waited_ + waiting), ", slower than ",
        limits_.bytes_per_second, " bytes a second (--min_upload_bytes_per_second)"));
  }
  return absl::OkStatus();
}

}  // namespace blockd::server
