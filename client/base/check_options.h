// Checks that a client's target and options can work. Internal to the client. Pure functions.
#ifndef BLOCKD_CLIENT_BASE_CHECK_OPTIONS_H_
#define BLOCKD_CLIENT_BASE_CHECK_OPTIONS_H_

#include <string>

#include "absl/status/status.h"
#include "blockd/client/client_options.h"

namespace blockd::client {

// INVALID_ARGUMENT, naming the field, if they cannot. The message never shows a token.
absl::Status CheckOptions(const std::string& target, const ClientOptions& options);
// `poll` where it is not negative, else what fits this machine.
absl::Duration PollOf(const ClientOptions& options);
// True if all that is sent to a gRPC target stays on this host. False where that is not certain.
bool StaysOnThisHost(const std::string& target);

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_BASE_CHECK_OPTIONS_H_
