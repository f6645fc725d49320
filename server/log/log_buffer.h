// Lines on their way to a file descriptor that somebody may not read.
//
// Append never waits for the reader and takes no memory beyond `bytes`: lines that find no room are
// dropped and counted. One thread writes. Thread-safe.
#ifndef BLOCKD_SERVER_LOG_LOG_BUFFER_H_
#define BLOCKD_SERVER_LOG_LOG_BUFFER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/descriptors.h"

namespace blockd::server {

inline constexpr size_t kMaxLineBytes =
    4096;  // with its end; a pipe takes so many at once, or none

class LogBuffer {
 public:
  // Lines to be written after others: what is to be said about `dropped` lines, which is 0 if none
  // were, and anything else. Asked at least once a second.
  using Epilogue = std::function<std::string(int64_t dropped)>;

  // `fd` is not owned. Half of `bytes` waits while the other half is being written.
  LogBuffer(int fd, int64_t bytes, Epilogue epilogue);
  ~LogBuffer();  // what is not written by then is lost
  LogBuffer(const LogBuffer&) = delete;
  LogBuffer& operator=(const LogBuffer&) = delete;

  // `line` ends with '\n'. Ordinary lines leave the last quarter, 64 KiB at most, to essential
  // ones.
  void Append(std::string_view line, bool essential);
  // Waits until all lines before it are written or dropped; false if they were not in time.
  bool Flush(absl::Duration timeout);

  int64_t dropped() const;  // lines, ever

 private:
  void Loop();
  int64_t WriteAll(std::string_view text);

  const int fd_;
  const size_t capacity_, ordinary_capacity_;
  const Epilogue epilogue_;
  FileDescriptor stop_;  // an eventfd

  mutable absl::Mutex mutex_;
  std::string waiting_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t unsaid_ ABSL_GUARDED_BY(mutex_) = 0;  // dropped since a line said how many

  std::thread thread_;  // the last member: it uses the others
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_LOG_LOG_BUFFER_H_
