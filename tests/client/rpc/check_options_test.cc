#include "client/base/check_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockd/client/errors.h"

namespace blockd::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(CheckOptionsTest, WhatStaysOnThisHost) {
  for (const char* target :
       {"localhost", "localhost:7117", "LocalHost:7117", "127.0.0.1:7117", "127.9.8.7",
        "[::1]:7117", "[::1]", "dns:///localhost:7117", "dns:localhost:1", "ipv4:127.0.0.1:7117",
        "ipv6:[::1]:7117", "unix:/run/blockd.sock", "unix:///run/blockd.sock",
        "unix-abstract:blockd"}) {
    EXPECT_TRUE(StaysOnThisHost(target)) << target;
  }
  for (const char* target : {"",
                             ":7117",
                             "blockd:7117",
                             "10.0.0.1:7117",
                             "0.0.0.0:7117",
                             "[::]:7117",
                             "[fe80::1]:7117",
                             "127.evil.example:7117",
                             "127.0.0.1.evil.example:1",
                             "localhost.evil.example:1",
                             "localhost:1@evil.example:7117",
                             "localhost:7117,evil.example:7117",
                             "localhost/evil.example",
                             "ipv4:127.0.0.1:1,10.0.0.1:1",
                             "dns://evil.example/localhost:7117",
                             "[::1]evil.example:1",
                             "[::1",
                             "xds:///localhost",
                             "vsock:2:1",
                             "2130706433:7117",
                             "0x7f.1:1"}) {
    EXPECT_FALSE(StaysOnThisHost(target)) << target;
  }
}

TEST(CheckOptionsTest, ATokenGoesInPlainTextToThisHostOnly) {
  EXPECT_TRUE(CheckOptions("127.0.0.1:1", {.token = "secret"}).ok());
  EXPECT_TRUE(CheckOptions("solver:1", {.tls = TlsOptions(), .token = "secret"}).ok());
  EXPECT_TRUE(CheckOptions("solver:1", {}).ok());
  const absl::Status status = CheckOptions("solver:1", {.token = "secret"});
  ASSERT_TRUE(GetInvalidField(status).has_value());
  EXPECT_EQ(GetInvalidField(status)->field(), "token");
  EXPECT_THAT(status.ToString(), Not(HasSubstr("secret")));
}

TEST(CheckOptionsTest, ATargetIsOneThatGrpcCanReach) {
  EXPECT_TRUE(CheckOptions("unix:relative", {}).ok());
  const absl::Status status = CheckOptions("127.0.0.1", {});
  ASSERT_TRUE(GetInvalidField(status).has_value());
  EXPECT_EQ(GetInvalidField(status)->field(), "target");
  EXPECT_EQ(status.message(),
            "target is \"127.0.0.1\", without a port, expected host:port, [IPv6 address]:port or "
            "unix:/path");
}

TEST(CheckOptionsTest, APollEnds) {
  EXPECT_TRUE(CheckOptions("solver:1", {.poll = absl::Seconds(1)}).ok());
  const absl::Status status = CheckOptions("solver:1", {.poll = absl::Seconds(2)});
  ASSERT_TRUE(GetInvalidField(status).has_value());
  EXPECT_EQ(GetInvalidField(status)->field(), "poll");
  EXPECT_EQ(PollOf({.poll = absl::Microseconds(7)}), absl::Microseconds(7));
  EXPECT_EQ(PollOf({.poll = absl::ZeroDuration()}), absl::ZeroDuration());
  EXPECT_GE(PollOf({}), absl::ZeroDuration());
}

TEST(CheckOptionsTest, ATokenIsVisibleText) {
  for (const char* token : {"two words", "line\n", "tab\t", "\xc3\xa9", "\x7f"}) {
    const absl::Status status = CheckOptions("127.0.0.1:1", {.token = token});
    ASSERT_TRUE(GetInvalidField(status).has_value()) << token;
    EXPECT_EQ(GetInvalidField(status)->came(), "text with other characters");
  }
}

}  // namespace
}  // namespace blockd::client
