#include "client/base/target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace blockd::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(TargetTest, IsAHostWithAPortOrASocket) {
  const std::string longest(107, 'x');
  for (const std::string& target :
       {std::string("solver:7117"), std::string("solver.example.org.:1"),
        std::string("127.0.0.1:65535"), std::string("[::1]:7117"),
        std::string("[fe80::1%25lo]:7117"), std::string("dns:solver:7117"),
        std::string("dns:///solver:7117"), std::string("dns://8.8.8.8/solver:7117"),
        std::string("ipv4:127.0.0.1:1,10.0.0.1:2"), std::string("ipv6:[::1]:7117"),
        std::string("unix:relative"), std::string("unix:/run/blockd.sock"),
        std::string("unix:///run/blockd.sock"), std::string("unix:/with a space"),
        std::string("unix-abstract:name"), std::string("vsock:2:7117"), "unix:" + longest,
        "unix-abstract:" + longest, "unix:/%41" + longest.substr(2)}) {
    EXPECT_EQ(WrongTarget(target), "") << target;
  }
}

TEST(TargetTest, SaysWhyAnotherIsNone) {
  const std::string too_long(108, 'x');
  const std::pair<std::string, std::string> cases[] = {
      {"", "empty"},
      {"127.0.0.1", "without a port"},
      {"solver", "without a port"},
      {"solver:", "without a port"},
      {"[::1]", "without a port"},
      {"dns:solver", "without a port"},
      {"dns:///solver", "without a port"},
      {"ipv4:127.0.0.1:1,10.0.0.1", "without a port"},
      {":99999", "without a host"},
      {":7117", "without a host"},
      {"solver:99999", "1 to 65535"},
      {"solver:99999999999999999999", "1 to 65535"},
      {"solver:0", "1 to 65535"},
      {"solver:-1", "1 to 65535"},
      {"solver:+1", "1 to 65535"},
      {"solver:https", "1 to 65535"},
      {"::1:7117", "not in brackets"},
      {"fe80::1:2", "not in brackets"},
      {"[solver]:7117", "no IPv6 address"},
      {"[::1", "malformed"},
      {"[::1]7117", "malformed"},
      {"http://solver:7117", "the scheme http://"},
      {"https://solver:7117/", "the scheme https://"},
      {"solver:7117/", "malformed"},
      {"user@solver:7117", "malformed"},
      {"solver:7117,other:7117", "malformed"},
      {" solver:7117", "a space"},
      {"solver:7117\n", "a space"},
      {"ipv4:solver:7117", "no address of its kind"},
      {"ipv6:127.0.0.1:7117", "no address of its kind"},
      {"unix:", "without a path"},
      {"unix:///" + too_long, "109 bytes, and 107 at most"},
      {"unix:" + too_long, "108 bytes, and 107 at most"},
      {"unix-abstract:" + too_long, "108 bytes"},
      {"unix://host/path", "a host before its path"},
      {"unix:/a#b", "%23"},
      {"unix:/a?b", "%3F"},
      {std::string("unix:/a\0b", 9), "zero"}};
  for (const auto& [target, why] : cases) {
    EXPECT_THAT(WrongTarget(target), HasSubstr(why)) << target;
  }
}

// With an environment of its own.
class ProxyNoteTest : public ::testing::Test {
 protected:
  using Environment = std::map<std::string, std::string>;

  ~ProxyNoteTest() override { Set({}); }
  static void Set(const Environment& environment) {
    for (const char* name :
         {"grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy"}) {
      const auto found = environment.find(name);
      if (found == environment.end()) {
        unsetenv(name);
      } else {
        setenv(name, found->second.c_str(), 1);
      }
    }
  }
  static std::string Note(const std::string& target, const Environment& environment) {
    Set(environment);
    return ProxyNote(target);
  }
};

const std::string kFar = "solver.example.org:7117";
const std::string kProxy = "http://proxy:3128";

TEST_F(ProxyNoteTest, NamesTheProxyThatGrpcTakes) {
  EXPECT_THAT(Note(kFar, {{"http_proxy", kProxy}}), HasSubstr("proxy:3128 that $http_proxy"));
  EXPECT_THAT(Note(kFar, {{"http_proxy", kProxy}, {"https_proxy", "http://other:1"}}),
              HasSubstr("other:1 that $https_proxy"));
  EXPECT_THAT(Note(kFar, {{"http_proxy", kProxy}, {"grpc_proxy", "http://other:1"}}),
              HasSubstr("other:1 that $grpc_proxy"));
  EXPECT_THAT(Note(kFar, {{"http_proxy", "http://mallory:secret@proxy:1/x"}}),
              AllOf(HasSubstr("the proxy proxy:1 that"), Not(HasSubstr("secret"))));
  EXPECT_THAT(Note(kFar, {{"http_proxy", kProxy}, {"no_proxy", ",example.com,"}}),
              HasSubstr("$http_proxy"));
  EXPECT_THAT(
      Note(kFar, {{"http_proxy", kProxy}, {"no_proxy", "example.org"}, {"no_grpc_proxy", ""}}),
      HasSubstr("$http_proxy"));
}

TEST_F(ProxyNoteTest, IsEmptyWhereGrpcTakesNone) {
  EXPECT_EQ(Note(kFar, {}), "");
  EXPECT_EQ(Note(kFar, {{"http_proxy", kProxy}, {"grpc_proxy", ""}}), "");
  for (const char* url : {"https://proxy:1", "proxy:3128", "http://a:b@c@proxy:1", "http://"}) {
    EXPECT_EQ(Note(kFar, {{"http_proxy", url}}), "") << url;
  }
  for (const char* exempt : {"example.org", "a,,org", "solver.example.org"}) {
    EXPECT_EQ(Note(kFar, {{"http_proxy", kProxy}, {"no_proxy", exempt}}), "") << exempt;
    EXPECT_EQ(Note("dns:///" + kFar,
                   {{"http_proxy", kProxy}, {"no_proxy", "other"}, {"no_grpc_proxy", exempt}}),
              "")
        << exempt;
  }
  for (const char* here : {"127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "unix:/x"}) {
    EXPECT_EQ(Note(here, {{"http_proxy", kProxy}}), "") << here;
  }
}

}  // namespace
}  // namespace blockd::client
