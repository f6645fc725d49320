#include "server/logging.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace blockd::server {
namespace {

std::atomic<bool> g_json{false};

std::shared_ptr<spdlog::logger> MakeLogger() {
  auto logger =
      std::make_shared<spdlog::logger>("blockd", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%v");  // the time is a field like the others
  logger->set_level(spdlog::level::off);
  return logger;
}

spdlog::logger& Logger() {
  static auto& logger = *new std::shared_ptr<spdlog::logger>(MakeLogger());
  return *logger;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

// Quotes as JSON does, which logfmt readers understand too; a log line never breaks.
void AppendQuoted(std::string* out, std::string_view value) {
  out->push_back('"');
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (byte < 0x20 || byte >= 0x7f) {
      absl::StrAppend(out, "\\u00", absl::Hex(byte, absl::kZeroPad2));
    } else {
      out->push_back(c);
    }
  }
  out->push_back('"');
}

bool IsPlain(std::string_view value) {
  if (value.empty()) return false;
  for (const char c : value) {
    if (c <= ' ' || c >= 0x7f || c == '"' || c == '=' || c == '\\') return false;
  }
  return true;
}

}  // namespace

void SetUpLogging(std::string_view level, std::string_view format) {
  g_json = format == "json";
  Logger().set_level(spdlog::level::from_str(std::string(level)));
}

bool LogEnabled(LogLevel level) { return Logger().should_log(ToSpdlog(level)); }

LogLine::LogLine(LogLevel level, std::string_view event) : level_(level) {
  static constexpr std::string_view kNames[] = {"debug", "info", "warn", "error"};
  text_.reserve(320);
  Add("time", absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::Now(), absl::UTCTimeZone()));
  Add("level", kNames[static_cast<int>(level)]);
  Add("event", event);
}

void LogLine::Key(std::string_view key) {
  if (!g_json) {
    absl::StrAppend(&text_, text_.empty() ? "" : " ", absl::string_view(key.data(), key.size()),
                    "=");
    return;
  }
  text_ += text_.empty() ? "{" : ",";
  AppendQuoted(&text_, key);
  text_ += ":";
}

LogLine& LogLine::Add(std::string_view key, std::string_view value) {
  Key(key);
  if (!g_json && IsPlain(value)) {
    text_ += value;
  } else {
    AppendQuoted(&text_, value);
  }
  return *this;
}

LogLine& LogLine::Add(std::string_view key, int64_t value) {
  Key(key);
  absl::StrAppend(&text_, value);
  return *this;
}

LogLine& LogLine::AddSeconds(std::string_view key, absl::Duration value) {
  Key(key);
  absl::StrAppend(&text_, absl::ToDoubleSeconds(value));
  return *this;
}

void LogLine::Write() {
  if (g_json) text_ += "}";
  Logger().log(ToSpdlog(level_), spdlog::string_view_t(text_.data(), text_.size()));
}

}  // namespace blockd::server
