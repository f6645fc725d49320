#include "server/reflection.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/support/method_handler.h>

#include <memory>
#include <string>
#include <vector>

namespace blockd::server {
namespace {

// The library gives every builder of a process its plugin, whether it is asked to or not.
class WithoutReflection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    const std::string reflection = grpc::reflection::ProtoServerReflectionPlugin().name();
    std::erase_if(*plugins, [&](const auto& plugin) { return plugin->name() == reflection; });
  }
};

// Reflection lists the services that gRPC knows by a method: this one is called by its name's path,
// without a method's name, which is no method.
class NamedService final : public grpc::Service {
 public:
  explicit NamedService(const std::string& name) : path_("/" + name + "/") {
    AddMethod(new grpc::internal::RpcServiceMethod(path_.c_str(),
                                                   grpc::internal::RpcMethod::NORMAL_RPC,
                                                   new grpc::internal::UnknownMethodHandler("")));
  }

 private:
  const std::string path_;
};

}  // namespace

std::unique_ptr<grpc::Service> ReflectedService(const std::string& name) {
  return std::make_unique<NamedService>(name);
}

void SetReflection(bool serve, grpc::ServerBuilder* builder) {
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  if (!serve) builder->SetOption(std::make_unique<WithoutReflection>());
}

}  // namespace blockd::server
