// Whether a server describes its calls to whoever asks.
#ifndef BLOCKD_SERVER_REFLECTION_H_
#define BLOCKD_SERVER_REFLECTION_H_

#include <grpcpp/server_builder.h>

namespace blockd::server {

// Once for each builder.
void SetReflection(bool serve, grpc::ServerBuilder* builder);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_REFLECTION_H_
