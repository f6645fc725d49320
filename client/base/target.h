// Where a client connects to, and what lies on the way. Internal to the client and blockctl.
#ifndef BLOCKD_CLIENT_BASE_TARGET_H_
#define BLOCKD_CLIENT_BASE_TARGET_H_

#include <string>
#include <string_view>

namespace blockd::client {

constexpr char kTargetForm[] = "host:port, [IPv6 address]:port or unix:/path";

// The target and why gRPC would dial another one or could never reach it, as `"solver", without a
// port`. Empty: nothing is wrong. Pure.
std::string WrongTarget(std::string_view target);

// Which HTTP proxy the environment puts before the target, for the errors of its calls; empty:
// none. Reads the environment as gRPC 1.51 does when a channel is made. A user and a password are
// left out.
std::string ProxyNote(const std::string& target);

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_BASE_TARGET_H_
