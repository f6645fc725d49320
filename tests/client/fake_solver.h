// A server in this process whose answers a test writes: for what a good server does not do on
// demand.
#ifndef BLOCKD_TESTS_CLIENT_FAKE_SOLVER_H_
#define BLOCKD_TESTS_CLIENT_FAKE_SOLVER_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "blockd/v1/blockd.grpc.pb.h"

namespace blockd::client {

// Calls without a script are UNIMPLEMENTED. Scripts are set before the first call and may run on
// any number of threads.
class FakeSolver : public v1::Solver::Service {
 public:
  using FactorReader = grpc::ServerReader<v1::FactorStreamRequest>;
  using SolvePipe = grpc::ServerReaderWriter<v1::SolveStreamReply, v1::SolveStreamRequest>;

  FakeSolver();
  ~FakeSolver() override;
  std::string target() const;

  std::function<grpc::Status(const v1::FactorRequest&, v1::FactorReply*)> on_factor;
  std::function<grpc::Status(FactorReader*, v1::FactorReply*)> on_factor_stream;
  std::function<grpc::Status(grpc::ServerContext*, const v1::SolveRequest&, v1::SolveReply*)>
      on_solve;
  std::function<grpc::Status(SolvePipe*)> on_solve_stream;
  std::function<grpc::Status(const v1::ReleaseRequest&, v1::ReleaseReply*)> on_release;

  grpc::Status Factor(grpc::ServerContext* context, const v1::FactorRequest* request,
                      v1::FactorReply* reply) override;
  grpc::Status FactorStream(grpc::ServerContext* context, FactorReader* reader,
                            v1::FactorReply* reply) override;
  grpc::Status Solve(grpc::ServerContext* context, const v1::SolveRequest* request,
                     v1::SolveReply* reply) override;
  grpc::Status SolveStream(grpc::ServerContext* context, SolvePipe* pipe) override;
  grpc::Status Release(grpc::ServerContext* context, const v1::ReleaseRequest* request,
                       v1::ReleaseReply* reply) override;

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

grpc::Status UnavailableFor(absl::Duration delay);
// One system with this handle.
grpc::Status AnswerWith(const std::string& handle, v1::FactorReply* reply);

}  // namespace blockd::client

#endif  // BLOCKD_TESTS_CLIENT_FAKE_SOLVER_H_
