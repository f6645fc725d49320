// Every flag of blockd against the field that it sets, its range, and what GetServerInfo shows.
#include "server/options.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/core/byte_size.h"
#include "server/descriptors.h"

namespace blockd::server {
namespace {

// A field as text, as its flag would be written.
using Field = std::function<std::string(const ServerOptions&)>;

Field Text(std::string ServerOptions::*field) {
  return [field](const ServerOptions& o) { return o.*field; };
}
template <typename T>
Field Number(T ServerOptions::*field) {
  return [field](const ServerOptions& o) { return absl::StrCat(o.*field); };
}
Field Size(int64_t ServerOptions::*field) {
  return [field](const ServerOptions& o) { return AbslUnparseFlag(ByteSize{o.*field}); };
}
Field Time(absl::Duration ServerOptions::*field) {
  return [field](const ServerOptions& o) { return absl::FormatDuration(o.*field); };
}
template <typename T>
Field CoreNumber(T CoreLimits::*field) {
  return [field](const ServerOptions& o) { return absl::StrCat(o.core.*field); };
}
Field CoreSize(int64_t CoreLimits::*field) {
  return [field](const ServerOptions& o) { return AbslUnparseFlag(ByteSize{o.core.*field}); };
}
Field CoreTime(absl::Duration CoreLimits::*field) {
  return [field](const ServerOptions& o) { return absl::FormatDuration(o.core.*field); };
}
Field Device(int32_t BackendOptions::*field) {
  return [field](const ServerOptions& o) { return absl::StrCat(o.device.*field); };
}

struct Case {
  Field field;
  std::string value;  // no other flag's, and not the default
};

const std::map<std::string, Case>& Cases() {
  using O = ServerOptions;
  using C = CoreLimits;
  static const auto& cases = *new std::map<std::string, Case>{
      {"address", {Text(&O::address), "127.0.0.2"}},
      {"port", {Number(&O::port), "7001"}},
      {"metrics_address", {Text(&O::metrics_address), "127.0.0.3"}},
      {"metrics_port", {Number(&O::metrics_port), "7002"}},
      {"port_file", {Text(&O::port_file), "ports.txt"}},
      {"server_name", {Text(&O::server_name), "solver-7"}},
      {"tls_cert_file", {Text(&O::tls_cert_file), "cert.pem"}},
      {"tls_key_file", {Text(&O::tls_key_file), "key.pem"}},
      {"tls_client_ca_file", {Text(&O::tls_client_ca_file), "ca.pem"}},
      {"backend", {Text(&O::backend), "cpu"}},
      {"devices", {Text(&O::devices), "0,1"}},
      {"device_memory",
       {[](const O& o) { return AbslUnparseFlag(ByteSize{o.device.memory_bytes}); }, "71MiB"}},
      {"pinned_memory",
       {[](const O& o) { return AbslUnparseFlag(ByteSize{o.device.host_memory_bytes}); }, "83MiB"}},
      {"cpu_threads", {Device(&BackendOptions::cpu_threads), "5"}},
      {"cpu_lanes", {Device(&BackendOptions::cpu_lanes), "7"}},
      {"max_queued_requests", {CoreNumber(&C::max_queued_requests), "2001"}},
      {"tenant_share", {[](const O& o) { return absl::StrCat(o.core.tenant_share); }, "0.625"}},
      {"max_tenants", {CoreNumber(&C::max_tenants), "2021"}},
      {"max_handles", {CoreNumber(&C::max_handles), "2022"}},
      {"solve_reserve", {CoreSize(&C::solve_reserve_bytes), "82KiB"}},
      {"max_shared_batch", {CoreTime(&C::max_shared_batch), "302us"}},
      {"max_batch_requests", {CoreNumber(&C::max_batch_requests), "2002"}},
      {"max_batch_bytes", {CoreSize(&C::max_batch_bytes), "72MiB"}},
      {"max_batch_rhs", {CoreNumber(&C::max_batch_rhs), "2003"}},
      {"max_batch_delay", {CoreTime(&C::max_batch_delay), "301us"}},
      {"max_inline_solve", {CoreTime(&C::max_inline_solve), "42us"}},
      {"poll", {CoreTime(&C::poll), "43us"}},
      {"default_lease", {CoreTime(&C::default_lease), "31s"}},
      {"max_lease", {CoreTime(&C::max_lease), "2h"}},
      {"idle_expiry", {CoreTime(&C::idle_expiry), "3h"}},
      {"retry_delay", {CoreTime(&C::retry_delay), "41ms"}},
      {"tombstones", {CoreNumber(&C::tombstones), "2004"}},
      {"max_systems", {CoreNumber(&C::max_systems), "2005"}},
      {"max_rhs", {CoreNumber(&C::max_rhs), "2006"}},
      {"model_threads", {CoreNumber(&C::model_threads), "18"}},
      {"max_message_bytes", {Size(&O::max_message_bytes), "73MiB"}},
      {"max_inflight_request_bytes", {CoreSize(&C::max_inflight_request_bytes), "74MiB"}},
      {"max_connections", {Number(&O::max_connections), "2010"}},
      {"max_connection_streams", {Number(&O::max_connection_streams), "2007"}},
      {"max_resets_per_second", {Number(&O::max_resets_per_second), "2012"}},
      {"grpc_memory_bytes", {Size(&O::grpc_memory_bytes), "75MiB"}},
      {"serving_threads", {Number(&O::serving_threads), "17"}},
      {"serving_queues", {Number(&O::serving_queues), "3"}},
      {"copy_threads", {Number(&O::copy_threads), "19"}},
      {"stream_idle_timeout", {Time(&O::stream_idle_timeout), "32s"}},
      {"min_upload_bytes_per_second", {Size(&O::min_upload_bytes_per_second), "81KiB"}},
      {"max_upload_duration", {Time(&O::max_upload_duration), "41s"}},
      {"reply_timeout", {Time(&O::reply_timeout), "42s"}},
      {"stream_chunk_bytes", {Size(&O::stream_chunk_bytes), "76KiB"}},
      {"max_stream_requests", {Number(&O::max_stream_requests), "2009"}},
      {"max_stream_bytes", {Size(&O::max_stream_bytes), "77MiB"}},
      {"keepalive_time", {Time(&O::keepalive_time), "33s"}},
      {"keepalive_timeout", {Time(&O::keepalive_timeout), "34s"}},
      {"max_connection_age", {Time(&O::max_connection_age), "38s"}},
      {"max_connection_idle", {Time(&O::max_connection_idle), "39s"}},
      {"handshake_timeout", {Time(&O::handshake_timeout), "40s"}},
      {"min_ping_interval", {Time(&O::min_ping_interval), "35s"}},
      {"http2_frame_bytes", {Size(&O::http2_frame_bytes), "78KiB"}},
      {"http2_window_bytes", {Size(&O::http2_window_bytes), "79MiB"}},
      {"drain_grace", {Time(&O::drain_grace), "37s"}},
      {"drain_timeout", {Time(&O::drain_timeout), "36s"}},
      {"log_level", {Text(&O::log_level), "error"}},
      {"log_format", {Text(&O::log_format), "json"}},
      {"log_buffer_bytes", {Size(&O::log_buffer_bytes), "80KiB"}},
      {"log_requests_per_second", {Number(&O::log_requests_per_second), "2011"}},
  };
  return cases;
}

// The flags that are not shown as limits: where to listen, files, which device, the log.
const std::set<std::string>& NotLimits() {
  static const auto& names = *new std::set<std::string>{
      "address",     "port",          "metrics_address", "metrics_port",       "port_file",
      "server_name", "tls_cert_file", "tls_key_file",    "tls_client_ca_file", "backend",
      "devices",     "device_memory", "cpu_threads",     "cpu_lanes",          "log_level",
      "log_format"};
  return names;
}

void Set(const std::string& flag, const std::string& value) {
  std::string error;
  EXPECT_TRUE(absl::FindCommandLineFlag(flag)->ParseFrom(value, &error)) << flag << ": " << error;
}

TEST(OptionsTest, TheTableHasEveryFlag) {
  std::set<std::string> flags, tested, values;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    for (const char* file : {"server/options.cc", "server/device_options.cc"}) {
      if (absl::EndsWith(flag->Filename(), file)) flags.insert(std::string(name));
    }
  }
  for (const auto& [name, one] : Cases()) {
    tested.insert(name);
    EXPECT_TRUE(values.insert(one.value).second) << one.value << " twice";
    EXPECT_NE(one.field(ServerOptions()), one.value) << name << " by default";
  }
  EXPECT_EQ(flags, tested);
}

TEST(OptionsTest, EveryFlagSetsItsOwnField) {
  const absl::FlagSaver saver;
  for (const auto& [name, one] : Cases()) Set(name, one.value);
  const absl::StatusOr<ServerOptions> options = OptionsFromFlags();
  ASSERT_TRUE(options.ok()) << options.status();
  for (const auto& [name, one] : Cases()) EXPECT_EQ(one.field(*options), one.value) << name;
}

TEST(OptionsTest, FlagsNotSetAreTheDefaults) {
  ServerOptions defaults;
  ASSERT_TRUE(CheckAndComplete(&defaults).ok());
  const absl::StatusOr<ServerOptions> options = OptionsFromFlags();
  ASSERT_TRUE(options.ok()) << options.status();
  for (const auto& [name, one] : Cases()) {
    EXPECT_EQ(one.field(*options), one.field(defaults)) << name;
  }
}

TEST(OptionsTest, AFlagOutOfRangeIsRefusedAsItWasSet) {
  const absl::FlagSaver saver;
  Set("port", "65536");
  EXPECT_EQ(OptionsFromFlags().status(),
            absl::InvalidArgumentError("--port=65536: expected a number from 0 to 65535"));
}

TEST(OptionsTest, GetServerInfoShowsEveryLimitAsItsFlag) {
  const absl::FlagSaver saver;
  for (const auto& [name, one] : Cases()) Set(name, one.value);
  Set("max_shared_memory_bytes", "82MiB");  // not those that fit the machine
  Set("shared_memory_threads", "3");
  std::map<std::string, std::string> shown, expected;
  for (const OptionValue& limit : Limits(*OptionsFromFlags())) {
    if (limit.name == "metadata_bytes") continue;  // a constant
    EXPECT_TRUE(shown.emplace(limit.name, limit.value).second) << limit.name << " twice";
    EXPECT_EQ(limit.help, absl::FindCommandLineFlag(limit.name)->Help());
  }
  for (const auto& [name, one] : Cases()) {
    if (!NotLimits().contains(name)) expected[name] = one.value;
  }
  for (const char* name :
       {"max_shared_memory_bytes", "shared_memory_sessions", "shared_memory_threads"}) {
    expected[name] = absl::FindCommandLineFlag(name)->CurrentValue();
  }
  EXPECT_EQ(shown, expected);
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

// The range of a flag: the first and last value allowed, and the ones beyond.
struct Range {
  std::string flag, below, least, most, above;  // empty: no such value can be written
};

void PrintTo(const Range& range, std::ostream* out) { *out << range.flag; }

class OptionRangeTest : public ::testing::TestWithParam<Range> {};

TEST_P(OptionRangeTest, EndsWhereItSays) {
  const absl::FlagSaver saver;
  const Range& range = GetParam();
  for (const std::string& good : {range.least, range.most}) {
    if (good.empty()) continue;
    Set(range.flag, good);
    EXPECT_TRUE(OptionsFromFlags().ok()) << OptionsFromFlags().status();
  }
  for (const std::string& bad : {range.below, range.above}) {
    if (bad.empty()) continue;
    Set(range.flag, bad);
    const absl::Status status = OptionsFromFlags().status();
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_TRUE(absl::StartsWith(status.message(), absl::StrCat("--", range.flag, "=", bad, ": ")))
        << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "expected")) << status;
    if (range.least.empty() || range.most.empty()) continue;
    EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat(range.least, " to ", range.most)))
        << status;
  }
}

constexpr char kMany[] = "1073741824", kBeyondMany[] = "1073741825";

INSTANTIATE_TEST_SUITE_P(
    Flags, OptionRangeTest,
    ::testing::ValuesIn(std::vector<Range>{
        {"port", "-1", "0", "65535", "65536"},
        {"metrics_port", "-2", "-1", "65535", "65536"},
        {"cpu_threads", "-1", "0", "4096", "4097"},
        {"cpu_lanes", "-1", "0", "4096", "4097"},
        {"device_memory", "", "", "1024TiB", "1125899906842625"},
        {"max_queued_requests", "0", "1", kMany, kBeyondMany},
        {"tenant_share", "0", "", "1", "1.5"},
        {"max_tenants", "0", "1", kMany, kBeyondMany},
        {"max_handles", "0", "1", kMany, kBeyondMany},
        {"solve_reserve", "", "0", "1TiB", "1099511627777"},
        {"max_shared_batch", "-1ns", "0", "10s", "10.000000001s"},
        {"max_batch_requests", "0", "1", kMany, kBeyondMany},
        {"max_batch_bytes", "0", "1", "1TiB", "1099511627777"},
        {"max_batch_rhs", "0", "1", kMany, kBeyondMany},
        {"max_batch_delay", "-1ns", "0", "10s", "10.000000001s"},
        {"max_inline_solve", "-1ns", "0", "1ms", "1.000001ms"},
        {"poll", "", "0", "1s", "1.000000001s"},
        {"default_lease", "-1ns", "0", "1h", "1h0.000000001s"},
        {"max_lease", "-1ns", "0", "inf", ""},
        {"idle_expiry", "999.999us", "1ms", "inf", ""},
        {"retry_delay", "999.999us", "1ms", "10m", "10m0.000000001s"},
        {"tombstones", "-1", "0", kMany, kBeyondMany},
        {"max_systems", "0", "1", kMany, kBeyondMany},
        {"max_rhs", "0", "1", kMany, kBeyondMany},
        {"model_threads", "-1", "0", "256", "257"},
        {"max_message_bytes", "4095", "4KiB", "2147483647", "2GiB"},
        {"pinned_memory", "", "", "1024GiB", "1099511627777"},
        {"max_inflight_request_bytes", "1023", "1KiB", "1024TiB", "1125899906842625"},
        {"max_connections", "-1", "0", kMany, kBeyondMany},
        {"max_connection_streams", "0", "1", kMany, kBeyondMany},
        {"max_resets_per_second", "-1", "0", kMany, kBeyondMany},
        {"grpc_memory_bytes", "1048575", "1MiB", "1024TiB", "1125899906842625"},
        {"serving_threads", "-1", "0", "256", "257"},
        {"serving_queues", "0", "1", "256", "257"},
        {"copy_threads", "-1", "0", "512", "513"},
        {"stream_idle_timeout", "999.999us", "1ms", "24h", "24h0.000000001s"},
        {"min_upload_bytes_per_second", "", "0", "1TiB", "1099511627777"},
        {"max_upload_duration", "999.999us", "1ms", "24h", "24h0.000000001s"},
        {"reply_timeout", "999.999us", "1ms", "24h", "24h0.000000001s"},
        {"stream_chunk_bytes", "1023", "1KiB", "1GiB", "1073741825"},
        {"max_stream_requests", "0", "1", kMany, kBeyondMany},
        {"max_stream_bytes", "1023", "1KiB", "1TiB", "1099511627777"},
        {"keepalive_time", "999.999999ms", "1s", "24h", "24h0.000000001s"},
        {"keepalive_timeout", "999.999us", "1ms", "24h", "24h0.000000001s"},
        {"max_connection_age", "999.999us", "1ms", "inf", ""},
        {"max_connection_idle", "999.999us", "1ms", "inf", ""},
        {"handshake_timeout", "999.999us", "1ms", "24h", "24h0.000000001s"},
        {"min_ping_interval", "999.999us", "1ms", "24h", "24h0.000000001s"},
        {"http2_frame_bytes", "16383", "16KiB", "16383KiB", "16776193"},
        {"http2_window_bytes", "65535", "64KiB", "1GiB", "1073741825"},
        {"drain_grace", "-1ns", "0", "24h", "24h0.000000001s"},
        {"drain_timeout", "-1ns", "0", "24h", "24h0.000000001s"},
        {"log_buffer_bytes", "65535", "64KiB", "1GiB", "1073741825"},
        {"log_requests_per_second", "-1", "0", kMany, kBeyondMany},
    }),
    [](const testing::TestParamInfo<Range>& info) {
      return absl::StrCat(info.param.flag, "_", info.index);
    });

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
      Set(flag, word);
      EXPECT_TRUE(OptionsFromFlags().ok()) << OptionsFromFlags().status();
    }
    for (const std::string& bad : {std::string(), std::string("loud"), words[0] + "x"}) {
      Set(flag, bad);
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

TEST(SharedMemoryOptionsTest, FlagsSetTheirFields) {
  const absl::FlagSaver saver;
  Set("unix_socket", "/tmp/s");
  Set("shared_memory", "true");
  Set("max_shared_memory_bytes", "5MiB");
  Set("shared_memory_sessions", "7");
  Set("shared_memory_threads", "3");
  const absl::StatusOr<ServerOptions> options = OptionsFromFlags();
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_TRUE(options->shared_memory.enabled);
  EXPECT_EQ(options->shared_memory.max_bytes, 5 << 20);
  EXPECT_EQ(options->shared_memory.max_sessions, 7);
  EXPECT_EQ(options->shared_memory.threads, 3);
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
