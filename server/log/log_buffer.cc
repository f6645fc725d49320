#include "server/log/log_buffer.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "server/base/thread_name.h"

namespace blockd::server {

LogBuffer::LogBuffer(int fd, int64_t bytes, Epilogue epilogue)
    : fd_(fd),
      capacity_(static_cast<size_t>(bytes) / 2),
      ordinary_capacity_(capacity_ - std::min<size_t>(capacity_ / 4, size_t{64} << 10)),
      epilogue_(std::move(epilogue)),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  waiting_.reserve(capacity_);
  thread_ = std::thread([this] { Loop(); });
}

LogBuffer::~LogBuffer() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  (void)eventfd_write(stop_.get(), 1);
  thread_.join();
}

void LogBuffer::Append(std::string_view line, bool essential) {
  absl::MutexLock lock(&mutex_);
  if (waiting_.size() + line.size() > (essential ? capacity_ : ordinary_capacity_)) {
    ++dropped_;
    ++unsaid_;
    return;
  }
  waiting_ += line;
}

bool LogBuffer::Flush(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto written = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return waiting_.empty() && !writing_ && unsaid_ == 0;
  };
  return mutex_.AwaitWithTimeout(absl::Condition(&written), timeout);
}

int64_t LogBuffer::dropped() const {
  absl::MutexLock lock(&mutex_);
  return dropped_;
}

void LogBuffer::Loop() {
  NameThread("log");
  const auto asked = [this]()
                         ABSL_NO_THREAD_SAFETY_ANALYSIS { return !waiting_.empty() || stopping_; };
  std::string text;
  text.reserve(capacity_);
  while (true) {
    int64_t unsaid = 0;
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      if (unsaid_ == 0) mutex_.AwaitWithTimeout(absl::Condition(&asked), absl::Seconds(1));
      if (stopping_) return;
      text.clear();
      text.swap(waiting_);
      unsaid = std::exchange(unsaid_, 0);
      writing_ = true;
    }
    const int64_t lost = WriteAll(text);
    if (lost == 0 && WriteAll(epilogue_(unsaid)) == 0) continue;
    absl::MutexLock lock(&mutex_);
    dropped_ += lost;
    unsaid_ += lost + unsaid;
    writing_ = false;
    // Nobody can be written to now. Another try does not follow at once.
    const auto stopped = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return stopping_; };
    if (mutex_.AwaitWithTimeout(absl::Condition(&stopped), absl::Seconds(1))) return;
  }
}

// Whole lines at a time. Returns how many were not written, where the file descriptor takes no more
// or the buffer ends.
int64_t LogBuffer::WriteAll(std::string_view text) {
  while (!text.empty()) {
    // Written only when there is room, so that it does not block; the end need not wait then.
    pollfd watched[] = {{.fd = stop_.get(), .events = POLLIN, .revents = 0},
                        {.fd = fd_, .events = POLLOUT, .revents = 0}};
    if (poll(watched, 2, -1) < 0) continue;
    if (watched[0].revents != 0) break;
    size_t count = std::min(text.size(), kMaxLineBytes);
    if (const size_t end = text.rfind('\n', count - 1); end != std::string_view::npos) {
      count = end + 1;
    }
    const ssize_t written = write(fd_, text.data(), count);
    if (written > 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR && errno != EAGAIN) {
      break;
    }
  }
  return std::count(text.begin(), text.end(), '\n');
}

}  // namespace blockd::server
