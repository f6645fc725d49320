#include "client/base/target.h"

#include <arpa/inet.h>
#include <sys/un.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/base/check_options.h"

namespace blockd::client {
namespace {

constexpr size_t kLongestPath = sizeof(sockaddr_un::sun_path) - 1;
constexpr int kMostPort = 65535;

// host:port or [host]:port.
struct Address {
  std::string host, port;
  bool in_brackets = false;
};

std::optional<Address> Split(absl::string_view text) {
  Address address;
  address.in_brackets = absl::ConsumePrefix(&text, "[");
  const size_t end = text.find_first_of(address.in_brackets ? "]" : ":");
  address.host = std::string(text.substr(0, end));
  text.remove_prefix(std::min(end, text.size()));
  if (address.in_brackets && !absl::ConsumePrefix(&text, "]")) return std::nullopt;
  if (!text.empty() && !absl::ConsumePrefix(&text, ":")) return std::nullopt;
  address.port = std::string(text);
  for (const std::string& part : {address.in_brackets ? "" : address.host, address.port}) {
    if (part.find_first_of(":/[]@,") != std::string::npos) return std::nullopt;
  }
  if (address.host.empty()) return std::nullopt;
  return address;
}

bool IsAddress(int family, absl::string_view text) {
  in6_addr parsed;
  const std::string less_zone(text.substr(0, text.find('%')));
  return inet_pton(family, less_zone.c_str(), &parsed) == 1;
}

bool IsPort(const std::string& text) {
  int port = 0;
  return std::ranges::all_of(text, [](char c) { return absl::ascii_isdigit(c); }) &&
         absl::SimpleAtoi(text, &port) && port >= 1 && port <= kMostPort;
}

// Each returns what is wrong; empty: nothing.
std::string WrongAddress(absl::string_view text) {
  const std::optional<Address> address = Split(text);
  if (!address.has_value()) {
    const size_t last = text.rfind(':');
    if (last != absl::string_view::npos && IsAddress(AF_INET6, text.substr(0, last))) {
      return "with an IPv6 address that is not in brackets";
    }
    return absl::StartsWith(text, ":") ? "without a host" : "malformed";
  }
  if (address->in_brackets && !IsAddress(AF_INET6, address->host)) {
    return "with brackets around what is no IPv6 address";
  }
  if (address->port.empty()) return "without a port";
  return IsPort(address->port) ? "" : "with a port that is not 1 to 65535";
}

std::string WrongList(absl::string_view text, int family) {
  for (const absl::string_view each : absl::StrSplit(text, ',')) {
    if (std::string wrong = WrongAddress(each); !wrong.empty()) return wrong;
    if (!IsAddress(family, Split(each)->host)) return "with what is no address of its kind";
  }
  return "";
}

// As gRPC reads it, %XX is one byte.
size_t DecodedSize(absl::string_view path) {
  size_t size = 0;
  for (size_t i = 0; i < path.size(); ++i, ++size) {
    if (path[i] == '%' && i + 2 < path.size() && absl::ascii_isxdigit(path[i + 1]) &&
        absl::ascii_isxdigit(path[i + 2])) {
      i += 2;
    }
  }
  return size;
}

std::string WrongPath(absl::string_view path) {
  if (path.empty()) return "without a path";
  constexpr char kEnds[] = {'#', '?', '\0'};
  if (path.find_first_of(absl::string_view(kEnds, sizeof(kEnds))) != absl::string_view::npos) {
    return "whose path has a #, ? or zero, which ends it: write %23 or %3F";
  }
  const size_t size = DecodedSize(path);
  if (size <= kLongestPath) return "";
  return absl::StrCat("with a path of ", size, " bytes, and ", kLongestPath, " at most");
}

// dns:///host:port and dns://authority/host:port.
absl::string_view LessAuthority(absl::string_view text) {
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, "//")) return text;
  const size_t slash = rest.find('/');
  return slash == absl::string_view::npos ? text : rest.substr(slash + 1);
}

std::string WhyNone(absl::string_view text) {
  if (absl::ConsumePrefix(&text, "unix-abstract:")) return WrongPath(text);
  if (absl::ConsumePrefix(&text, "unix:")) {
    if (absl::ConsumePrefix(&text, "//") && !absl::StartsWith(text, "/")) {
      return "with a host before its path";
    }
    return WrongPath(text);
  }
  const auto is_blank = [](char c) { return absl::ascii_isspace(c) || absl::ascii_iscntrl(c); };
  if (std::ranges::any_of(text, is_blank)) return "with a space or a control character";
  for (const absl::string_view others : {"vsock:", "xds:", "google-c2p:"}) {
    if (absl::StartsWith(text, others)) return "";  // gRPC's own, left to gRPC
  }
  if (absl::ConsumePrefix(&text, "ipv4:")) return WrongList(text, AF_INET);
  if (absl::ConsumePrefix(&text, "ipv6:")) return WrongList(text, AF_INET6);
  if (absl::ConsumePrefix(&text, "dns:")) return WrongAddress(LessAuthority(text));
  const size_t scheme = text.find("://");
  if (scheme != absl::string_view::npos && scheme > 0) {
    return absl::StrCat("with the scheme ", text.substr(0, scheme + 3));
  }
  return WrongAddress(text);
}

// The host that gRPC compares with the entries of no_proxy.
std::string HostOf(absl::string_view target) {
  for (const absl::string_view scheme : {"dns:", "ipv4:", "ipv6:", "xds:", "google-c2p:"}) {
    if (absl::ConsumePrefix(&target, scheme)) break;
  }
  const std::optional<Address> address = Split(LessAuthority(target));
  return address.has_value() ? address->host : "";
}

bool IsExempt(const std::string& host) {
  const char* entries = std::getenv("no_grpc_proxy");
  if (entries == nullptr) entries = std::getenv("no_proxy");
  if (entries == nullptr || host.empty()) return false;
  const std::vector<std::string> each = absl::StrSplit(entries, ',', absl::SkipEmpty());
  return std::ranges::any_of(each, [&](const auto& end) { return absl::EndsWith(host, end); });
}

// host:port of an http://user:password@host:port; empty if gRPC does not take it for a proxy.
std::string ProxyOf(absl::string_view url) {
  if (!absl::ConsumePrefix(&url, "http://")) return "";
  const std::vector<std::string> parts =
      absl::StrSplit(url.substr(0, url.find_first_of("/?#")), '@');
  return parts.size() > 2 ? "" : parts.back();
}

}  // namespace

std::string WrongTarget(std::string_view target) {
  if (target.empty()) return "empty";
  const absl::string_view text(target.data(), target.size());
  const std::string wrong = WhyNone(text);
  return wrong.empty() ? "" : absl::StrCat("\"", text, "\", ", wrong);
}

std::string ProxyNote(const std::string& target) {
  if (StaysOnThisHost(target) || absl::StartsWith(target, "vsock:")) return "";
  for (const char* const name : {"grpc_proxy", "https_proxy", "http_proxy"}) {
    const char* const url = std::getenv(name);
    if (url == nullptr) continue;
    const std::string proxy = ProxyOf(url);
    if (proxy.empty() || IsExempt(HostOf(target))) return "";
    return absl::StrCat(" (through the proxy ", proxy, " that $", name,
                        " names; $no_grpc_proxy exempts hosts)");
  }
  return "";
}

}  // namespace blockd::client
