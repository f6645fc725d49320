// The fixture of the integration tests: a server in this process on free ports, stubs that talk to
// it through a socket, and short ways to make requests and to read answers.
#ifndef BLOCKD_TESTS_INTEGRATION_FIXTURE_H_
#define BLOCKD_TESTS_INTEGRATION_FIXTURE_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "blockd/v1/blockd.grpc.pb.h"
#include "engine/problems/problems.h"
#include "server/server.h"
#include "tests/support/backends.h"
#include "tests/support/eventually.h"
#include "tests/support/gated_cpu.h"
#include "tests/support/host_matrix.h"
#include "tests/support/oracle.h"

namespace blockd::test {

v1::SystemSpec SpecOf(const MatrixForm& form);
v1::SystemSpec SpecOf(const HostMatrix& matrix);  // with its palette
v1::SystemData DataOf(const HostMatrix& matrix);
v1::FactorRequest FactorRequestOf(const HostMatrix& matrix, int64_t systems = 1);
std::string BytesOf(const std::vector<double>& values, Scalar scalar = Scalar::kFloat64);
std::vector<double> ValuesOf(const std::string& bytes, Scalar scalar = Scalar::kFloat64);

v1::RpcStatus RpcStatusOf(const grpc::Status& status);

// The typed detail, if the status has one of that type.
template <typename Detail>
std::optional<Detail> DetailOf(const v1::RpcStatus& status) {
  for (const auto& any : status.details()) {
    Detail detail;
    if (any.Is<Detail>() && any.UnpackTo(&detail)) return detail;
  }
  return std::nullopt;
}
template <typename Detail>
std::optional<Detail> DetailOf(const grpc::Status& status) {
  return DetailOf<Detail>(RpcStatusOf(status));
}

// RESOURCE_EXHAUSTED about this limit of the server, with these numbers.
::testing::AssertionResult IsOverLimit(const v1::RpcStatus& status, const std::string& limit,
                                       int64_t asked_bytes, int64_t limit_bytes);
::testing::AssertionResult IsOverLimit(const grpc::Status& status, const std::string& limit,
                                       int64_t asked_bytes, int64_t limit_bytes);
// UNAVAILABLE, with a delay.
::testing::AssertionResult IsRetryLater(const v1::RpcStatus& status);
::testing::AssertionResult IsRetryLater(const grpc::Status& status);
// The status is OK, or the failure says which it is.
::testing::AssertionResult IsOk(const grpc::Status& status);
// INVALID_ARGUMENT about this field.
::testing::AssertionResult IsInvalid(const grpc::Status& status, const std::string& field);
// NOT_FOUND for this reason.
::testing::AssertionResult IsNotFound(const grpc::Status& status,
                                      v1::HandleNotFound::Reason reason);

class IntegrationTest : public ::testing::Test {
 protected:
  // A free port, none for metrics (stopping that takes seconds), a pool of 64 MiB, two threads.
  static server::ServerOptions Options();
  void Start(const server::ServerOptions& options = Options());
  // On this device, or on these; none: on those that the options name.
  void Start(const server::ServerOptions& options, std::unique_ptr<Backend> backend);
  void Start(const server::ServerOptions& options, std::vector<std::unique_ptr<Backend>> devices);
  // On a CPU that gate_ can hold. No Solve runs on the transport's thread, which would be held too.
  void StartGated(server::ServerOptions options = Options());
  void TearDown() override;

  std::shared_ptr<grpc::Channel> NewChannel() const;
  v1::Solver::Stub& stub() { return *stub_; }
  server::Server& server() { return *server_; }

  // Sum of all samples of this name whose labels contain `labels`, from the metrics' text.
  double Metric(const std::string& name, const std::string& labels = "");
  // Requests that the server itself ended so: what a client hears may be its own gRPC.
  int Ended(const std::string& method, const std::string& status);
  int64_t ReservedBytes() { return static_cast<int64_t>(Metric("blockd_budget_reserved_bytes")); }
  int64_t HostBytes() { return static_cast<int64_t>(Metric("blockd_host_budget_reserved_bytes")); }

  // The status by grpc.health.v1.Health/Check: 1 is SERVING, 2 is NOT_SERVING. An empty `service`
  // means the whole server.
  int Health(const std::string& service = "");

  // Calls that expect success.
  std::string Factor(const HostMatrix& matrix);
  v1::FactorReply Factor(const v1::FactorRequest& request, const std::string& caller = "");
  std::vector<double> Solve(const std::string& handle, const std::vector<double>& rhs,
                            int64_t num_rhs = 1, Scalar scalar = Scalar::kFloat64);

  // Calls whose status matters.
  grpc::Status FactorStatus(const v1::FactorRequest& request, v1::FactorReply* reply = nullptr,
                            const std::string& caller = "");
  grpc::Status SolveStatus(const v1::SolveRequest& request, v1::SolveReply* reply = nullptr,
                           const std::string& caller = "");
  grpc::Status ReleaseStatus(const std::vector<std::string>& handles,
                             v1::ReleaseReply* reply = nullptr, const std::string& caller = "");

  // Sends `message` as the one message of a call to "/package.Service/Method", whatever its kind:
  // on the wire they look the same.
  grpc::Status RawCall(const std::string& path, const std::string& message,
                       std::string* reply = nullptr);

  // The server still factors and solves for anybody.
  void ExpectServes();

  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  std::unique_ptr<server::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Solver::Stub> stub_;
};

// A client's context that does not wait for ever.
std::unique_ptr<grpc::ClientContext> NewContext(const std::string& caller = "");
// The server is told of this timeout, and the client waits all the same: what comes back is the
// server's.
std::unique_ptr<grpc::ClientContext> ContextWithServerTimeout(absl::Duration timeout);

// The backward error is at most 4 n eps.
void ExpectSolves(const HostMatrix& matrix, const std::vector<double>& x,
                  const std::vector<double>& b);

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_INTEGRATION_FIXTURE_H_
