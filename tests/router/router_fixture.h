// Several blockd programs behind a router that is the real one, all on the loopback interface.
//
// $BLOCKD_ENVOY and $BLOCKD_HAPROXY name the routers' programs: `tests/run.sh router` installs
// them. Their configuration is that of deploy/router, but for addresses, ports and paths.
#ifndef BLOCKD_TESTS_ROUTER_ROUTER_FIXTURE_H_
#define BLOCKD_TESTS_ROUTER_ROUTER_FIXTURE_H_

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "blockd/client/solver_client.h"
#include "engine/problems/problems.h"
#include "tests/client/program.h"
#include "tests/support/temp_folder.h"

namespace blockd::test {

// One blockd program, which keeps its name and its ports when it is started again.
class SolverProgram {
 public:
  SolverProgram(int index, const std::string& folder, std::vector<std::string> flags);

  void Start();  // returns when it serves
  void Kill();   // SIGKILL
  // SIGTERM, then its end, which must be in order.
  void Stop();

  int port() const { return port_; }
  std::string address() const;
  std::string epoch() const;  // of the process that runs now
  // Sum of the samples of this name whose labels contain `labels`.
  int64_t Metric(const std::string& name, const std::string& labels = "") const;

 private:
  const std::string name_, port_file_;
  const std::vector<std::string> flags_;
  const int port_, metrics_port_;
  std::unique_ptr<blockctl::RunningProgram> program_;
};

class RouterTest : public ::testing::Test {
 protected:
  void TearDown() override;

  void StartServers(int count, const std::vector<std::string>& flags = {});
  SolverProgram& AddServer(const std::vector<std::string>& flags = {});

  // Each waits until the router finds all servers healthy.
  void StartEnvoy();
  void StartHaproxy();
  // Tells a running Envoy of all servers, as an operator does: by renaming a file.
  void WriteClusters();
  // True if Envoy's health checks find the server healthy now.
  bool FindsHealthy(const SolverProgram& server) const;
  bool FindsAllHealthy() const;
  std::string EnvoyReady() const;  // the first line of what /ready answers

  std::string target() const;  // the router
  client::SolverClient Connect(const client::ClientOptions& options = {}) const;
  // The server that made the handle, by what the servers say of themselves.
  int MakerOf(const client::Factorization& made) const;

  const TempFolder folder_;
  std::vector<std::unique_ptr<SolverProgram>> servers_;
  std::unique_ptr<blockctl::RunningProgram> router_;
  int router_port_ = 0, ready_port_ = 0, admin_port_ = 0;
};

// A port that nothing uses now, and that the kernel gives to no outgoing connection.
int UnusedPort();
client::SystemView View(const problems::Problem& problem);

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_ROUTER_ROUTER_FIXTURE_H_
