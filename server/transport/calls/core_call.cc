#include "server/transport/calls/core_call.h"

namespace blockd::server {
namespace {

absl::Status NotCarried() { return absl::InternalError("no such request comes this way"); }

}  // namespace

absl::Status CoreCall::Read(int64_t /*lifted*/, std::span<const Handle> /*handles*/) {
  return NotCarried();
}

absl::Status CoreCall::ReadShared(const SharedRequest& /*request*/) { return NotCarried(); }

}  // namespace blockd::server
