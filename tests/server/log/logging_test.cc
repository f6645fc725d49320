#include "server/log/logging.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace blockd::server {
namespace {

class LoggingTest : public ::testing::Test {
 protected:
  void TearDown() override { SetUpLogging({.level = "off", .format = "logfmt"}); }

  // The text that `write` brings to standard error, without the time.
  template <typename Write>
  static std::string Written(Write write) {
    testing::internal::CaptureStderr();
    write();
    EXPECT_TRUE(FlushLog(absl::Minutes(1)));
    std::string text = testing::internal::GetCapturedStderr();
    const size_t level = text.find(text.starts_with("{") ? ",\"level\"" : " level=");
    return level == std::string::npos ? text : text.substr(level + 1);
  }
  static void WriteOne() {
    LogLine(LogLevel::kWarn, "event")
        .Add("plain", "a-b:c/1.5")
        .Add("empty", "")
        .Add("spaced", "two words")
        .Add("equals", "a=b")
        .Add("quoted", "say \"x\" \\ y")
        .Add("control", std::string("a\nb\x7f\xc3\xa9"))
        .Add("number", int64_t{-42})
        .AddSeconds("took", absl::Milliseconds(1500))
        .Write();
  }
};

TEST_F(LoggingTest, ALineOfLogfmt) {
  SetUpLogging({.level = "info", .format = "logfmt"});
  EXPECT_EQ(Written(WriteOne),
            "level=warn event=event plain=a-b:c/1.5 empty=\"\" spaced=\"two words\" "
            "equals=\"a=b\" quoted=\"say \\\"x\\\" \\\\ y\" "
            "control=\"a\\u000ab\\u007f\\u00c3\\u00a9\" number=-42 took=1.5\n");
}

TEST_F(LoggingTest, ALineOfJson) {
  SetUpLogging({.level = "info", .format = "json"});
  EXPECT_EQ(Written(WriteOne),
            "\"level\":\"warn\",\"event\":\"event\",\"plain\":\"a-b:c/1.5\",\"empty\":\"\","
            "\"spaced\":\"two words\",\"equals\":\"a=b\",\"quoted\":\"say \\\"x\\\" \\\\ y\","
            "\"control\":\"a\\u000ab\\u007f\\u00c3\\u00a9\",\"number\":-42,\"took\":1.5}\n");
}

TEST_F(LoggingTest, ALevelIsSetAtAnyTimeAndSomeLinesAskForNone) {
  SetUpLogging({.level = "info"});
  EXPECT_EQ(SetLogLevel("loud"), std::nullopt);
  EXPECT_EQ(SetLogLevel("off"), "info");
  EXPECT_EQ(Written(WriteOne), "");
  EXPECT_EQ(Written([] { LogLine(LogLevel::kDebug, "audit").WriteAlways(); }),
            "level=debug event=audit\n");
  EXPECT_EQ(SetLogLevel("error"), "off");
  EXPECT_EQ(Written(WriteOne), "");
  EXPECT_EQ(SetLogLevel("warn"), "error");
  EXPECT_NE(Written(WriteOne), "");
}

TEST_F(LoggingTest, ALineBeginsWithItsTime) {
  SetUpLogging({.level = "info", .format = "json"});
  testing::internal::CaptureStderr();
  LogLine(LogLevel::kInfo, "event").Write();
  EXPECT_TRUE(FlushLog(absl::Minutes(1)));
  const std::string text = testing::internal::GetCapturedStderr();
  absl::Time time;
  std::string error;
  ASSERT_TRUE(absl::StartsWith(text, "{\"time\":\"")) << text;
  EXPECT_TRUE(absl::ParseTime(absl::RFC3339_full, text.substr(9, 27), &time, &error)) << text;
  EXPECT_LT(absl::AbsDuration(absl::Now() - time), absl::Hours(1));
}

TEST_F(LoggingTest, ALevelShowsItselfAndWhatIsWorse) {
  const LogLevel levels[] = {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarn, LogLevel::kError};
  const std::string names[] = {"debug", "info", "warn", "error", "off"};
  for (size_t at = 0; at < 5; ++at) {
    SetUpLogging({.level = names[at], .format = "logfmt"});
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(LogEnabled(levels[i]), i >= at);
      const std::string text = Written([&] { LogLine(levels[i], "event").Write(); });
      EXPECT_EQ(text, i >= at ? "level=" + names[i] + " event=event\n" : "") << names[at];
    }
  }
}

TEST_F(LoggingTest, TheLevelChangesWhileItRuns) {
  SetUpLogging({.level = "error", .format = "logfmt"});
  const auto write = [] { LogLine(LogLevel::kInfo, "event").Write(); };
  EXPECT_EQ(Written(write), "");
  SetLogLevel("info");
  EXPECT_EQ(Written(write), "level=info event=event\n");
}

TEST_F(LoggingTest, LongValuesAreCutAndTheLineStaysWhole) {
  for (const char* format : {"logfmt", "json"}) {
    SetUpLogging({.level = "info", .format = format});
    const bool json = std::string_view(format) == "json";
    for (const auto& [byte, kept] : {std::pair{'a', 1024}, {'"', 512}, {'\x01', 170}}) {
      LogLine line(LogLevel::kInfo, "event");
      for (int i = 0; i < 10; ++i) line.Add("name", std::string(100000, byte));
      const std::string text = line.Text();
      EXPECT_LE(text.size(), 4096u);
      EXPECT_GE(text.size(), 3000u);
      EXPECT_TRUE(absl::EndsWith(text, json ? "...\"}\n" : "...\"\n")) << text;
      const std::string written = byte == 'a' ? "a" : byte == '"' ? "\\\"" : "\\u0001";
      std::string value;
      for (int i = 0; i < kept; ++i) value += written;
      EXPECT_TRUE(absl::StrContains(text, "\"" + value + "...\"")) << text;
    }
  }
}

}  // namespace
}  // namespace blockd::server
