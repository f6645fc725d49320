// The server's log: one line an event on standard error, logfmt or JSON, its fields in order.
//
// The only place that knows the logging library. Thread-safe after SetUpLogging; before it, and at
// level "off", nothing is written.
#ifndef BLOCKD_SERVER_LOGGING_H_
#define BLOCKD_SERVER_LOGGING_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace blockd::server {

enum class LogLevel { kDebug, kInfo, kWarn, kError };

// `level`: debug, info, warn, error or off. `format`: logfmt or json. As options.cc has checked.
void SetUpLogging(std::string_view level, std::string_view format);
bool LogEnabled(LogLevel level);

// A line under construction; Write ends it.
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

 private:
  void Key(std::string_view key);
  LogLevel level_;
  std::string text_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_LOGGING_H_
