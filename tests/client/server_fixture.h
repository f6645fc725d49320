// The real server in this process, on free ports.
#ifndef BLOCKD_TESTS_CLIENT_SERVER_FIXTURE_H_
#define BLOCKD_TESTS_CLIENT_SERVER_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "blockd/client/solver_client.h"
#include "engine/problems/problems.h"
#include "server/server.h"
#include "tests/support/gated_cpu.h"

namespace blockd::client {

class ServerTest : public ::testing::Test {
 protected:
  // Without a metrics port, which takes seconds to stop, unless one is asked for.
  void StartServer(int64_t memory_bytes = int64_t{256} << 20, bool metrics = false);
  // On a CPU that the gate can hold.
  void StartServer(std::shared_ptr<test::Gate> gate);
  void TearDown() override;
  std::string target() const { return server_->grpc_target(); }
  std::string metrics_address() const;
  SolverClient Connect(const ClientOptions& options = {}) const;

  std::unique_ptr<server::Server> server_;
};

SystemView View(const problems::Problem& problem);

}  // namespace blockd::client

#endif  // BLOCKD_TESTS_CLIENT_SERVER_FIXTURE_H_
