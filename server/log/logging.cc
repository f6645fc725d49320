#include "server/log/logging.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "server/base/steady_time.h"
#include "server/log/log_buffer.h"
#include "server/log/request_sampler.h"

namespace blockd::server {
namespace {

constexpr size_t kMaxValueBytes = 1024;
constexpr size_t kPunctuationBytes = 16;  // of a field and of the line's end, with room to spare
constexpr std::string_view kLevels[] = {"debug", "info", "warn", "error", "off"};
constexpr int kOff = 4;

std::atomic<bool> g_json{false};
std::atomic<int> g_level{kOff};  // this and worse is written

// The state of logging once it is set up. Never destroyed: other threads may log to the end.
struct Log {
  explicit Log(const LogOptions& options)
      : sampler(std::make_unique<RequestSampler>(options.requests_per_second)),
        buffer(STDERR_FILENO, options.buffer_bytes,
               [this](int64_t dropped) { return Epilogue(dropped); }) {}

  std::string Epilogue(int64_t dropped) const {
    std::string text;
    if (dropped > 0) text = LogLine(LogLevel::kWarn, "dropped").Add("lines", dropped).Text();
    if (const int64_t left_out = sampler->TakeLeftOut(SteadyNow()); left_out > 0) {
      text += LogLine(LogLevel::kInfo, "requests_not_logged").Add("count", left_out).Text();
    }
    return text;
  }

  const std::unique_ptr<RequestSampler> sampler;
  LogBuffer buffer;
};
std::atomic<Log*> g_log{nullptr};

// At most `room` bytes of the value as it is written, with a mark where it was cut.
class CutValue {
 public:
  CutValue(std::string* out, size_t room) : out_(out), end_(out->size() + room) {}
  bool Append(std::string_view piece) {
    if (out_->size() + piece.size() > end_) {
      *out_ += "...";
      return false;
    }
    *out_ += piece;
    return true;
  }

 private:
  std::string* const out_;
  const size_t end_;
};

// Quotes as JSON does, which logfmt readers understand too; a log line never breaks.
void AppendQuoted(std::string* out, std::string_view value) {
  out->push_back('"');
  CutValue cut(out, kMaxValueBytes);
  for (const char& c : value) {
    const auto byte = static_cast<unsigned char>(c);
    bool fits = false;
    if (c == '"' || c == '\\') {
      fits = cut.Append(std::string{'\\', c});
    } else if (byte < 0x20 || byte >= 0x7f) {
      fits = cut.Append(absl::StrCat("\\u00", absl::Hex(byte, absl::kZeroPad2)));
    } else {
      fits = cut.Append({&c, 1});
    }
    if (!fits) break;
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

void SetUpLogging(const LogOptions& options) {
  g_json = options.format == "json";
  if (g_log == nullptr) g_log = new Log(options);
  SetLogLevel(options.level);
}

std::optional<std::string_view> SetLogLevel(std::string_view level) {
  const auto* const found = std::find(std::begin(kLevels), std::end(kLevels), level);
  if (found == std::end(kLevels)) return std::nullopt;
  return kLevels[g_level.exchange(static_cast<int>(found - std::begin(kLevels)))];
}

bool LogEnabled(LogLevel level) { return static_cast<int>(level) >= g_level; }

bool AdmitRequestLine(bool succeeded) {
  const Log* log = g_log;
  return log != nullptr && log->sampler->Admit(succeeded, SteadyNow());
}

bool FlushLog(absl::Duration timeout) {
  Log* log = g_log;
  return log == nullptr || log->buffer.Flush(timeout);
}

LogCounts CountsOfLog() {
  const Log* log = g_log;
  if (log == nullptr) return {};
  return {log->buffer.dropped(), log->sampler->left_out_ever()};
}

LogLine::LogLine(LogLevel level, std::string_view event) : level_(level) {
  text_.reserve(320);
  Add("time", absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::Now(), absl::UTCTimeZone()));
  Add("level", kLevels[static_cast<int>(level)]);
  Add("event", event);
}

// False if the line may have no room for the longest value.
bool LogLine::Key(std::string_view key) {
  if (text_.size() + key.size() + kMaxValueBytes + kPunctuationBytes > kMaxLineBytes) return false;
  if (!g_json) {
    absl::StrAppend(&text_, text_.empty() ? "" : " ", absl::string_view(key.data(), key.size()),
                    "=");
    return true;
  }
  text_ += text_.empty() ? "{" : ",";
  AppendQuoted(&text_, key);
  text_ += ":";
  return true;
}

LogLine& LogLine::Add(std::string_view key, std::string_view value) {
  if (!Key(key)) return *this;
  if (!g_json && value.size() <= kMaxValueBytes && IsPlain(value)) {
    text_ += value;
  } else {
    AppendQuoted(&text_, value);
  }
  return *this;
}

LogLine& LogLine::Add(std::string_view key, int64_t value) {
  if (Key(key)) absl::StrAppend(&text_, value);
  return *this;
}

LogLine& LogLine::AddSeconds(std::string_view key, absl::Duration value) {
  if (Key(key)) absl::StrAppend(&text_, absl::ToDoubleSeconds(value));
  return *this;
}

std::string LogLine::Text() const { return absl::StrCat(text_, g_json ? "}\n" : "\n"); }

void LogLine::Write() {
  if (Log* log = g_log; log != nullptr && LogEnabled(level_)) log->buffer.Append(Text(), true);
}

void LogLine::WriteAlways() {
  if (Log* log = g_log; log != nullptr) log->buffer.Append(Text(), true);
}

void LogLine::WriteOrdinary() {
  if (Log* log = g_log; log != nullptr && LogEnabled(level_)) log->buffer.Append(Text(), false);
}

}  // namespace blockd::server
