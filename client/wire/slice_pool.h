// Memory for messages of some hundred KiB. Allocators give blocks of that size back to the system
// as soon as they are free, and each page that is taken again costs more than the copy into it.
#ifndef BLOCKD_CLIENT_WIRE_SLICE_POOL_H_
#define BLOCKD_CLIENT_WIRE_SLICE_POOL_H_

#include <grpcpp/support/slice.h>

#include "client/wire/wire.h"

namespace blockd::client {

// A copy of the bytes for gRPC to send. Large ones lie in memory that the process keeps for the
// next, at most 16 MiB of it. Thread-safe.
grpc::Slice CopyForSending(Bytes bytes);

}  // namespace blockd::client

#endif  // BLOCKD_CLIENT_WIRE_SLICE_POOL_H_
