#include "tests/client/server_fixture.h"

#include <utility>
#include <vector>

namespace blockd::client {

void ServerTest::StartServer(int64_t memory_bytes, bool metrics) {
  server::ServerOptions options;
  options.port = 0;
  options.metrics_port = metrics ? 0 : -1;
  options.device.memory_bytes = memory_bytes;
  options.device.cpu_threads = 2;
  options.log_level = "off";
  absl::StatusOr<std::unique_ptr<server::Server>> server = server::Server::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
}

void ServerTest::StartServer(std::shared_ptr<test::Gate> gate) {
  server::ServerOptions options;
  options.port = 0;
  options.metrics_port = -1;
  options.device.memory_bytes = int64_t{64} << 20;
  options.device.cpu_threads = 2;
  options.core.max_batch_delay = absl::Microseconds(1);  // no Solve on the transport's thread
  options.log_level = "off";
  std::vector<std::unique_ptr<Backend>> devices;
  devices.push_back(test::GatedCpu(options.device, std::move(gate)));
  auto server = server::Server::Start(options, std::move(devices));
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
}

void ServerTest::TearDown() {
  if (server_ != nullptr) server_->Drain();
}

std::string ServerTest::metrics_address() const {
  return "127.0.0.1:" + std::to_string(server_->metrics_port());
}

SolverClient ServerTest::Connect(const ClientOptions& options) const {
  return *SolverClient::Connect(target(), options);
}

SystemView View(const problems::Problem& problem) {
  SystemView view = MakeSystemView(problem.num_blocks, problem.block_size, problem.diagonal.data(),
                                   problem.coupling.data());
  if (!problem.diagonal_index.empty()) {
    const int64_t scalars = problem.block_size * problem.block_size;
    view.num_diagonal = static_cast<int64_t>(problem.diagonal.size()) / scalars;
    view.num_coupling = static_cast<int64_t>(problem.coupling.size()) / scalars;
    view.diagonal_index = problem.diagonal_index;
    view.coupling_index = problem.coupling_index;
  }
  return view;
}

}  // namespace blockd::client
