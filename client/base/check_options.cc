#include "client/base/check_options.h"

#include <arpa/inet.h>

#include <algorithm>
#include <string_view>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "blockd/client/errors.h"
#include "client/base/target.h"

namespace blockd::client {
namespace {

constexpr int kMostUploadConnections = 16;
constexpr absl::Duration kLongestPoll = absl::Seconds(1);
constexpr absl::Duration kPoll = absl::Microseconds(200);
constexpr unsigned kFewProcessors = 4;

absl::Status CheckToken(const std::string& target, const ClientOptions& options) {
  if (!std::ranges::all_of(options.token, [](char c) { return absl::ascii_isgraph(c); })) {
    return InvalidFieldError("token", "text with other characters", "visible ASCII");
  }
  if (options.token.empty() || options.tls || StaysOnThisHost(target)) return absl::OkStatus();
  return InvalidFieldError("token", absl::StrCat("given for ", target, " without TLS"),
                           "tls, or a target on this host");
}

}  // namespace

absl::Status CheckOptions(const std::string& target, const ClientOptions& options) {
  if (const std::string wrong = WrongTarget(target); !wrong.empty()) {
    return InvalidFieldError("target", wrong, kTargetForm);
  }
  if (options.timeout <= absl::ZeroDuration()) {
    return InvalidFieldError("timeout", absl::FormatDuration(options.timeout), "more than 0");
  }
  if (options.chunk_bytes < 1) {
    return InvalidFieldError("chunk_bytes", absl::StrCat(options.chunk_bytes), "at least 1");
  }
  if (options.upload_connections < 0 || options.upload_connections > kMostUploadConnections) {
    return InvalidFieldError("upload_connections", absl::StrCat(options.upload_connections),
                             absl::StrCat("0 to ", kMostUploadConnections));
  }
  if (options.shared_memory_bytes < 0) {
    return InvalidFieldError("shared_memory_bytes", absl::StrCat(options.shared_memory_bytes),
                             "0 or more");
  }
  if (options.poll > kLongestPoll) {
    return InvalidFieldError("poll", absl::FormatDuration(options.poll), "at most 1s");
  }
  if (options.retry.max_attempts < 1) {
    return InvalidFieldError("retry.max_attempts", absl::StrCat(options.retry.max_attempts),
                             "at least 1");
  }
  if (!(options.retry.budget_ratio >= 0) || !(options.retry.budget_burst >= 0)) {
    return InvalidFieldError(
        "retry.budget_ratio, retry.budget_burst",
        absl::StrCat(options.retry.budget_ratio, ", ", options.retry.budget_burst), "at least 0");
  }
  return CheckToken(target, options);
}

absl::Duration PollOf(const ClientOptions& options) {
  if (options.poll >= absl::ZeroDuration()) return options.poll;
  return std::thread::hardware_concurrency() < kFewProcessors ? absl::ZeroDuration() : kPoll;
}

bool StaysOnThisHost(const std::string& target) {
  std::string_view name = target;
  if (name.starts_with("unix:") || name.starts_with("unix-abstract:")) return true;
  for (const std::string_view scheme : {"dns:///", "dns:", "ipv4:", "ipv6:"}) {
    if (!name.starts_with(scheme)) continue;
    name.remove_prefix(scheme.size());
    break;
  }
  std::string host;
  if (name.starts_with('[')) {
    const size_t end = name.find(']');
    if (end == std::string_view::npos) return false;
    host = name.substr(1, end - 1);
    name.remove_prefix(end + 1);
  } else {
    host = name.substr(0, name.find(':'));
    name.remove_prefix(host.size());
  }
  // The rest is a port, unless the target names more than one host.
  if (name.starts_with(':')) name.remove_prefix(1);
  const auto is_digit = [](char c) { return absl::ascii_isdigit(c); };
  if (!std::all_of(name.begin(), name.end(), is_digit)) return false;
  in_addr v4;
  in6_addr v6;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  return absl::EqualsIgnoreCase(host, "localhost");
}

}  // namespace blockd::client
