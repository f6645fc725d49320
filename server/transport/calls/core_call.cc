#include "server/transport/calls/core_call.h"

#include "absl/strings/str_cat.h"
#include "server/core/common/errors.h"

namespace blockd::server {

absl::Status CoreCall::ReadShared(const SharedRequest& request) {
  return InvalidFieldError("operation",
                           absl::StrCat(static_cast<uint32_t>(request.slot().operation)),
                           "an operation of shared memory");
}

}  // namespace blockd::server
