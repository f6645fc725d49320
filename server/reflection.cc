#include "server/reflection.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>

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

}  // namespace

void SetReflection(bool serve, grpc::ServerBuilder* builder) {
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  if (!serve) builder->SetOption(std::make_unique<WithoutReflection>());
}

}  // namespace blockd::server
