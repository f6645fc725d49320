// Whether a server describes its calls to whoever asks.
#ifndef BLOCKD_SERVER_REFLECTION_H_
#define BLOCKD_SERVER_REFLECTION_H_

#include <grpcpp/server_builder.h>

#include <memory>
#include <string>

namespace blockd::server {

// Once for each builder.
void SetReflection(bool serve, grpc::ServerBuilder* builder);

// Makes reflection list the service of this name, whose calls another one answers.
std::unique_ptr<grpc::Service> ReflectedService(const std::string& name);

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_REFLECTION_H_
