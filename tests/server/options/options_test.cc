// The flags of blockd: what they set, their ranges, and the limits that GetServerInfo shows.
#include "server/options/options.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/descriptors.h"
#include "server/options/flags.h"

namespace blockd::server {
namespace {

void SetFlag(const std::string& flag, const std::string& value) {
  std::string error;
  EXPECT_TRUE(absl::FindCommandLineFlag(flag)->ParseFrom(value, &error)) << flag << ": " << error;
}

TEST(OptionsTest, FlagsOfEachTypeSetTheirOptions) {
  const absl::FlagSaver saver;
  SetFlag("address", "127.0.0.2");
  SetFlag("port", "7001");
  SetFlag("max_handles", "2022");
  SetFlag("device_memory", "71MiB");
  SetFlag("tenant_share", "0.625");
  SetFlag("idle_expiry", "3h");
  SetFlag("unix_socket", "/tmp/s");
  SetFlag("shared_memory", "true");
  const absl::StatusOr<ServerOptions> options = OptionsFromFlags();
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->address, "127.0.0.2");
  EXPECT_EQ(options->port, 7001);
  EXPECT_EQ(options->core.max_handles, 2022);
  EXPECT_EQ(options->device.memory_bytes, 71 << 20);
  EXPECT_EQ(options->core.tenant_share, 0.625);
  EXPECT_EQ(options->core.idle_expiry, absl::Hours(3));
  EXPECT_EQ(options->access.unix_socket, "/tmp/s");
  EXPECT_TRUE(options->shared_memory.enabled);
}

// A flag that set another one's option would be seen here: every limit has a value of its own.
TEST(OptionsTest, GetServerInfoShowsEveryLimitAsItsFlag) {
  const absl::FlagSaver saver;
  int number = 100;
  std::map<std::string, std::string> expected;
  for (const OptionValue& limit : Limits(ServerOptions())) {
    absl::CommandLineFlag* const flag = absl::FindCommandLineFlag(limit.name);
    if (flag == nullptr) continue;  // a constant
    std::string error;
    if (!flag->ParseFrom(absl::StrCat(++number, "s"), &error) &&
        !flag->ParseFrom(absl::StrCat(number, "MiB"), &error)) {
      EXPECT_TRUE(
          flag->ParseFrom(limit.name == "tenant_share" ? "0.5" : absl::StrCat(number), &error))
          << limit.name << ": " << error;
    }
    expected[limit.name] = flag->CurrentValue();
  }
  EXPECT_GT(expected.size(), 30);
  SetFlag("max_lease", "24h");
  expected["max_lease"] = "24h";
  SetFlag("poll", "43us");
  expected["poll"] = "43us";
  // A server has no more queues than threads.
  SetFlag("serving_queues", "3");
  expected["serving_queues"] = "3";
  const absl::StatusOr<ServerOptions> options = OptionsFromFlags();
  ASSERT_TRUE(options.ok()) << options.status();
  for (const OptionValue& limit : Limits(*options)) {
    const absl::CommandLineFlag* const flag = absl::FindCommandLineFlag(limit.name);
    if (flag == nullptr) continue;
    EXPECT_EQ(limit.value, expected[limit.name]) << limit.name;
    EXPECT_EQ(limit.help, flag->Help());
  }
}

TEST(OptionsTest, FlagsNotSetAreTheDefaults) {
  const ServerOptions defaults, read = ReadFlags();
  const std::vector<OptionValue> expected = Limits(defaults), shown = Limits(read);
  ASSERT_EQ(shown.size(), expected.size());
  for (size_t i = 0; i < shown.size(); ++i) EXPECT_EQ(shown[i].value, expected[i].value);
  EXPECT_EQ(read.address, defaults.address);
  EXPECT_EQ(read.access.reflection, defaults.access.reflection);
}

TEST(OptionsTest, AFormerFlagIsRefusedInWords) {
  const auto refused = [](std::string argument) {
    char* const arguments[] = {argument.data()};
    return RefuseFormerFlags(arguments);
  };
  for (const char* former : {"--retry_delay=5s", "-retry_delay", "--retry_delay"}) {
    EXPECT_EQ(refused(former),
              absl::InvalidArgumentError("--retry_delay is no flag any more: retry_delay is always "
                                         "50ms, as GetServerInfo shows"));
  }
  EXPECT_TRUE(refused("--port=7001").ok());
  EXPECT_TRUE(refused("retry_delay").ok());
}

TEST(OptionsTest, ZeroTakesAnEighthOfTheMachine) {
  ServerOptions options;
  ASSERT_TRUE(CheckAndComplete(&options).ok());
  EXPECT_GT(options.core.max_inflight_request_bytes, 1 << 20);
  EXPECT_EQ(options.grpc_memory_bytes, options.core.max_inflight_request_bytes);
  options.core.max_inflight_request_bytes = 5 << 20;
  options.grpc_memory_bytes = 6 << 20;
  ASSERT_TRUE(CheckAndComplete(&options).ok());
  EXPECT_EQ(options.core.max_inflight_request_bytes, 5 << 20);
  EXPECT_EQ(options.grpc_memory_bytes, 6 << 20);
}

TEST(OptionsTest, ZeroConnectionsAreAsManyAsDescriptorsAndMemoryAllow) {
  ServerOptions options;
  options.grpc_memory_bytes = int64_t{1} << 50;
  ASSERT_TRUE(CheckAndComplete(&options).ok());
  EXPECT_EQ(options.max_connections, DescriptorLimit() - ReservedDescriptors(DescriptorLimit()));
  options.max_connections = 0;
  options.grpc_memory_bytes = 10 << 20;
  ASSERT_TRUE(CheckAndComplete(&options).ok());
  EXPECT_EQ(options.max_connections, 160);
  options.max_connections = 3;
  ASSERT_TRUE(CheckAndComplete(&options).ok());
  EXPECT_EQ(options.max_connections, 3);
}

// The range of a flag of each kind: the first and last value allowed, and the ones beyond.
TEST(OptionsTest, RangesEndWhereTheySay) {
  const struct {
    const char *flag, *below, *least, *most, *above;
  } ranges[] = {
      {"port", "-1", "0", "65535", "65536"},
      {"metrics_port", "-2", "-1", "65535", "65536"},
      {"max_handles", "0", "1", "1073741824", "1073741825"},
      {"max_message_bytes", "4095", "4KiB", "2147483647", "2GiB"},
      {"drain_timeout", "-1ns", "0", "24h", "24h0.000000001s"},
      {"default_lease", "-1ns", "0", "1h", "1h0.000000001s"},
      {"cpu_threads", "-1", "0", "4096", "4097"},
  };
  for (const auto& range : ranges) {
    const absl::FlagSaver saver;
    for (const char* good : {range.least, range.most}) {
      SetFlag(range.flag, good);
      EXPECT_TRUE(OptionsFromFlags().ok()) << OptionsFromFlags().status();
    }
    for (const std::string bad : {range.below, range.above}) {
      SetFlag(range.flag, bad);
      const absl::Status status = OptionsFromFlags().status();
      EXPECT_TRUE(absl::IsInvalidArgument(status));
      EXPECT_TRUE(absl::StartsWith(status.message(),
                                   absl::StrCat("--", range.flag, "=", bad, ": expected")))
          << status;
      EXPECT_TRUE(
          absl::StrContains(status.message(), absl::StrCat(range.least, " to ", range.most)))
          << status;
    }
  }
  for (const char* bad : {"0", "1.5", "nan"}) {
    const absl::FlagSaver saver;
    SetFlag("tenant_share", bad);
    EXPECT_TRUE(absl::IsInvalidArgument(OptionsFromFlags().status())) << bad;
  }
}

TEST(OptionsTest, ThereAreNoMoreQueuesThanThreads) {
  ServerOptions options;
  options.serving_threads = 3;
  options.serving_queues = 5;
  ASSERT_TRUE(CheckAndComplete(&options).ok());
  EXPECT_EQ(options.serving_queues, 3);
}

TEST(OptionsTest, ThereMayBeNoPortWhereThereIsAUnixSocket) {
  ServerOptions options;
  options.port = -1;
  EXPECT_TRUE(absl::StrContains(CheckAndComplete(&options).message(), "--port=-1: expected"));
  options.access.unix_socket = "/run/blockd.sock";
  EXPECT_TRUE(CheckAndComplete(&options).ok());
  ASSERT_EQ(options.entrances().size(), 1u);
  EXPECT_TRUE(options.entrances()[0].is_unix);
  options.address = "0.0.0.0";  // nobody comes in there
  EXPECT_TRUE(CheckAndComplete(&options).ok());
  options.port = 7117;
  EXPECT_TRUE(absl::StrContains(CheckAndComplete(&options).message(), "--address=0.0.0.0: nobody"));
}

TEST(OptionsTest, WordsAreThoseOfAList) {
  const std::pair<std::string, std::vector<std::string>> lists[] = {
      {"backend", {"auto", "cuda", "rocm", "cpu"}},
      {"log_level", {"debug", "info", "warn", "error", "off"}},
      {"log_format", {"logfmt", "json"}}};
  for (const auto& [flag, words] : lists) {
    const absl::FlagSaver saver;
    for (const std::string& word : words) {
      SetFlag(flag, word);
      EXPECT_TRUE(OptionsFromFlags().ok()) << OptionsFromFlags().status();
    }
    for (const std::string& bad : {std::string(), std::string("loud"), words[0] + "x"}) {
      SetFlag(flag, bad);
      EXPECT_EQ(OptionsFromFlags().status(),
                absl::InvalidArgumentError(absl::StrCat("--", flag, "=", bad, ": expected one of ",
                                                        absl::StrJoin(words, ", "))));
    }
  }
}

TEST(OptionsTest, ALeaseByDefaultIsNoLongerThanTheLongest) {
  ServerOptions options;
  options.core.max_lease = absl::Seconds(10);
  options.core.default_lease = absl::Seconds(10);
  EXPECT_TRUE(CheckAndComplete(&options).ok());
  options.core.default_lease = absl::Seconds(11);
  EXPECT_EQ(CheckAndComplete(&options),
            absl::InvalidArgumentError("--default_lease=11s: expected a time from 0 to 10s"));
}

TEST(OptionsTest, TlsFilesComeInPairs) {
  const auto refused = [](const char* cert, const char* key, const char* ca) -> std::string {
    ServerOptions options;
    options.tls_cert_file = cert;
    options.tls_key_file = key;
    options.tls_client_ca_file = ca;
    const absl::Status status = CheckAndComplete(&options);
    return std::string(status.message().substr(0, status.message().find('=')));
  };
  EXPECT_EQ(refused("", "", ""), "");
  EXPECT_EQ(refused("c", "k", ""), "");
  EXPECT_EQ(refused("c", "k", "a"), "");
  EXPECT_EQ(refused("c", "", ""), "--tls_key_file");
  EXPECT_EQ(refused("", "k", ""), "--tls_cert_file");
  EXPECT_EQ(refused("", "", "a"), "--tls_cert_file");
}

TEST(OptionsTest, AServerIsNamedAfterItsHostAndPort) {
  char host[256] = {};
  ASSERT_EQ(gethostname(host, sizeof(host) - 1), 0);
  ServerOptions options;
  options.port = 4711;
  ASSERT_TRUE(CheckAndComplete(&options).ok());
  EXPECT_EQ(options.server_name, absl::StrCat(host, ":4711"));
  options.port = 0;  // of which there may be several on a host
  options.server_name.clear();
  ASSERT_TRUE(CheckAndComplete(&options).ok());
  EXPECT_EQ(options.server_name, absl::StrCat(host, ":pid-", getpid()));
}

TEST(OptionsTest, AServersNameIsOneWord) {
  const auto check = [](const std::string& name) {
    ServerOptions options;
    options.server_name = name;
    return CheckAndComplete(&options);
  };
  EXPECT_TRUE(check(std::string(256, 'x')).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(check(std::string(257, 'x'))));
  EXPECT_EQ(check("two words\n"),
            absl::InvalidArgumentError("--server_name=two words\\n: expected at most 256 "
                                       "characters, none of them blank"));
}

TEST(OptionsTest, AVersionHasThreeNumbers) {
  int major = 0, minor = 0, patch = 0;
  EXPECT_EQ(std::sscanf(Version().c_str(), "%d.%d.%d", &major, &minor, &patch), 3);
}

TEST(SharedMemoryOptionsTest, DefaultsFitTheMachine) {
  ServerOptions options;
  options.core.max_inflight_request_bytes = 64 << 20;
  ASSERT_TRUE(CheckAndComplete(&options).ok());
  EXPECT_FALSE(options.shared_memory.enabled);
  EXPECT_EQ(options.shared_memory.max_bytes, 32 << 20);
  EXPECT_GE(options.shared_memory.threads, 1);
  EXPECT_GE(options.core.poll, absl::ZeroDuration());
}

TEST(SharedMemoryOptionsTest, ItNeedsAUnixSocketOfAShorterPath) {
  ServerOptions options;
  options.shared_memory.enabled = true;
  EXPECT_EQ(CheckAndComplete(&options).code(), absl::StatusCode::kInvalidArgument);
  options.access.unix_socket = std::string(103, 'x');
  EXPECT_TRUE(CheckAndComplete(&options).ok());
  options.access.unix_socket = std::string(104, 'x');
  EXPECT_EQ(CheckAndComplete(&options).code(), absl::StatusCode::kInvalidArgument);
  options.access.unix_socket = "x";
  options.shared_memory.max_sessions = 0;
  EXPECT_EQ(CheckAndComplete(&options).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace blockd::server
