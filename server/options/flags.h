// The flags of blockd and the limits that GetServerInfo shows: one table, in flags.cc.
//
// The flags library has one set of flags for the process. Thread-safe once main has parsed them.
#ifndef BLOCKD_SERVER_OPTIONS_FLAGS_H_
#define BLOCKD_SERVER_OPTIONS_FLAGS_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/options/options.h"

namespace blockd::server {

// Every option as its flag says it, or as it is by default; not checked.
ServerOptions ReadFlags();

// INVALID_ARGUMENT for the first option beyond its range, naming the flag, its value and the range.
absl::Status CheckRanges(const ServerOptions& options);

// INVALID_ARGUMENT for a flag that earlier versions had: says that its value is fixed now.
absl::Status RefuseFormerFlags(absl::Span<char* const> arguments);

bool HashTokenAsked();  // --hash_token

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_OPTIONS_FLAGS_H_
