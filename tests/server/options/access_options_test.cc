// The flags that say who may come in.
#include "server/options/access_options.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/options/options.h"

namespace blockd::server {
namespace {

constexpr Entrance kLoopback{"127.0.0.1"}, kOpen{"0.0.0.0"}, kTls{"0.0.0.0", true},
    kMutualTls{"0.0.0.0", true, true}, kUnix{.address = "/s", .is_unix = true};

TEST(AccessOptionsTest, WrongValuesAreNamed) {
  const auto refused = [](const std::function<void(AccessOptions*)>& change) {
    ServerOptions options;
    change(&options.access);
    const absl::Status status = CheckAndComplete(&options);
    EXPECT_TRUE(absl::StrContains(status.message(), ": expected ")) << status;
    return std::string(status.message().substr(0, status.message().find(':')));
  };
  using A = AccessOptions;
  EXPECT_EQ(refused([](A* a) { a->certificate_identity = "ip"; }), "--certificate_identity=ip");
  EXPECT_EQ(refused([](A* a) { a->trust_caller_metadata = "yes"; }), "--trust_caller_metadata=yes");
  EXPECT_EQ(refused([](A* a) { a->reflection = ""; }), "--reflection=");
  EXPECT_EQ(refused([](A* a) { a->tls_min_version = "1.1"; }), "--tls_min_version=1.1");
  EXPECT_EQ(refused([](A* a) { a->tls_watch_interval = absl::ZeroDuration(); }),
            "--tls_watch_interval=0");
  EXPECT_EQ(refused([](A* a) { a->health_port = 65536; }), "--health_port=65536");
  EXPECT_EQ(refused([](A* a) { a->health_port = -2; }), "--health_port=-2");
  EXPECT_EQ(refused([](A* a) { a->unix_socket = std::string(108, 's'); }),
            "--unix_socket=" + std::string(108, 's'));
  for (const char* mode : {"", "66", "00660", "0668", "0770", "-660", "rw-", "1660"}) {
    EXPECT_EQ(refused([&](A* a) { a->unix_socket_mode = mode; }),
              absl::StrCat("--unix_socket_mode=", mode));
  }
  EXPECT_EQ(*ParseSocketMode("0660"), 0660u);
  EXPECT_EQ(*ParseSocketMode("606"), 0606u);
  EXPECT_TRUE(CheckAccess({.unix_socket = std::string(107, 's')}, {kLoopback}).ok());
  EXPECT_TRUE(CheckAccess({}, {kLoopback}).ok());
}

TEST(AccessOptionsTest, MetadataIsTrustedWhereOnlyThisMachineReaches) {
  const AccessOptions by_default;
  EXPECT_TRUE(TrustsCallerMetadata(by_default, kLoopback));
  EXPECT_TRUE(TrustsCallerMetadata(by_default, {"127.0.0.1", true}));
  EXPECT_FALSE(TrustsCallerMetadata(by_default, {"127.0.0.1", true, true}));
  EXPECT_FALSE(TrustsCallerMetadata(by_default, kOpen));
  EXPECT_FALSE(TrustsCallerMetadata(by_default, kTls));
  EXPECT_TRUE(TrustsCallerMetadata(by_default, kUnix));
  for (const Entrance& place : {kLoopback, kOpen, kTls, kMutualTls, kUnix}) {
    EXPECT_TRUE(TrustsCallerMetadata({.trust_caller_metadata = "true"}, place));
    EXPECT_FALSE(TrustsCallerMetadata({.trust_caller_metadata = "false"}, place));
  }
}

TEST(AccessOptionsTest, ReflectionIsForThisMachine) {
  EXPECT_TRUE(ServesReflection({}, {kLoopback, kUnix}));
  EXPECT_FALSE(ServesReflection({}, {kMutualTls, kUnix}));
  EXPECT_TRUE(ServesReflection({.reflection = "true"}, {kMutualTls}));
  EXPECT_FALSE(ServesReflection({.reflection = "false"}, {kLoopback}));
}

TEST(AccessOptionsTest, AServerThatNobodyCouldAskDoesNotStart) {
  const AccessOptions by_default, file{.tenants_file = "f"},
      trusting{.trust_caller_metadata = "true"};
  for (const AccessOptions& access : {by_default, file, trusting}) {
    EXPECT_TRUE(CheckAccess(access, {kLoopback}).ok());
    EXPECT_TRUE(CheckAccess(access, {kMutualTls}).ok());
  }
  EXPECT_TRUE(CheckAccess(trusting, {kOpen, kUnix}).ok());
  EXPECT_TRUE(CheckAccess(file, {kTls, kUnix}).ok());
  for (const auto& [access, place] : std::vector<std::pair<AccessOptions, Entrance>>{
           {by_default, kOpen},
           {by_default, kTls},
           {file, kOpen},  // tokens would be read on the way
           {{.trust_caller_metadata = "false"}, kLoopback},
           {{.trust_caller_metadata = "false"}, kUnix}}) {
    const absl::Status status = CheckAccess(access, {kMutualTls, place});
    EXPECT_TRUE(absl::StrContains(status.message(), "--trust_caller_metadata=true")) << status;
  }
}

TEST(AccessOptionsTest, LoopbackIsAnAddressAndNoName) {
  for (const char* address : {"127.0.0.1", "127.1.2.3", "localhost", "::1", "[::1]"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* address : {"", "0.0.0.0", "::", "10.0.0.1", "127.0.0.1.example", "128.0.0.1",
                              "localhost.example", "::11", "1::1"}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

}  // namespace
}  // namespace blockd::server
