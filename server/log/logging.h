// The server's log: one line an event on standard error, logfmt or JSON, its fields in order.
//
// Writing a line never waits for whoever reads it (log_buffer.h). Thread-safe; before SetUpLogging
// nothing is written, and at level "off" nothing but by WriteAlways.
#ifndef BLOCKD_SERVER_LOG_LOGGING_H_
#define BLOCKD_SERVER_LOG_LOGGING_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace blockd::server {

enum class LogLevel { kDebug, kInfo, kWarn, kError };

// As options.cc has checked.
struct LogOptions {
  std::string level = "info";     // debug, info, warn, error or off
  std::string format = "logfmt";  // or json
  int64_t buffer_bytes = int64_t{1} << 20;
  int64_t requests_per_second = 100;
};
// Once. Again, for tests, it keeps the buffer that it made.
void SetUpLogging(const LogOptions& options);
// At any time. The level before; nullopt, and nothing changes, if there is no such level.
std::optional<std::string_view> SetLogLevel(std::string_view level);
bool LogEnabled(LogLevel level);

// True if a finished request gets a line now; see --log_requests_per_second. Requests without a
// line are counted, and a line says how many, once a second at most.
bool AdmitRequestLine(bool succeeded);

// Waits until what was logged is written; false if it was not in time.
bool FlushLog(absl::Duration timeout);

struct LogCounts {
  int64_t lines_dropped = 0;
  int64_t requests_not_logged = 0;
};
LogCounts CountsOfLog();

// A line under construction; Write ends it. A line has 4 KiB at most, and a value 1 KiB: longer
// ones are cut and end with "...", and fields that find no room are left out.
//   LogLine(LogLevel::kInfo, "serving").Add("grpc", address).Write();
class LogLine {
 public:
  LogLine(LogLevel level, std::string_view event);
  LogLine& Add(std::string_view key, std::string_view value);
  LogLine& Add(std::string_view key, const char* value) {
    return Add(key, std::string_view(value));
  }
  LogLine& Add(std::string_view key, int64_t value);
  LogLine& AddSeconds(std::string_view key, absl::Duration value);
  void Write();
  // For lines of which there may be very many: they leave room for the others.
  void WriteOrdinary();
  // Whatever level is logged.
  void WriteAlways();

  // The line that Write would write, with its newline.
  std::string Text() const;

 private:
  bool Key(std::string_view key);
  const LogLevel level_;
  std::string text_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_LOG_LOGGING_H_
