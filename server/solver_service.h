// The gRPC service: thin asynchronous handlers over SolverCore.
//
// Every method is registered raw, so that bytes that are no message are refused in our own words,
// and so that matrices and solutions are not copied more than once. No thread waits for a request:
// a handler starts the work and the core's callback finishes the call.
#ifndef BLOCKD_SERVER_SOLVER_SERVICE_H_
#define BLOCKD_SERVER_SOLVER_SERVICE_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "blockd/v1/blockd.grpc.pb.h"
#include "server/call.h"

namespace blockd::server {

namespace internal {

using S = v1::Solver;
using RawHandleMethods = S::WithRawCallbackMethod_Release<
    S::WithRawCallbackMethod_GetFactorization<S::WithRawCallbackMethod_ListFactorizations<
        S::WithRawCallbackMethod_GetServerInfo<S::WithRawCallbackMethod_GetPlan<S::Service>>>>>;
using RawMethods = S::WithRawCallbackMethod_Factor<S::WithRawCallbackMethod_FactorStream<
    S::WithRawCallbackMethod_Solve<S::WithRawCallbackMethod_SolveStream<
        S::WithRawCallbackMethod_FactorSolve<RawHandleMethods>>>>>;

}  // namespace internal

class SolverService final : public internal::RawMethods {
 public:
  using Rpc = grpc::CallbackServerContext;
  using Bytes = grpc::ByteBuffer;
  using Unary = grpc::ServerUnaryReactor;

  // `state` outlives the service.
  explicit SolverService(ServiceState* state) : state_(state) {}

  Unary* Factor(Rpc* rpc, const Bytes* request, Bytes* reply) override;
  grpc::ServerReadReactor<Bytes>* FactorStream(Rpc* rpc, Bytes* reply) override;
  Unary* Solve(Rpc* rpc, const Bytes* request, Bytes* reply) override;
  grpc::ServerBidiReactor<Bytes, Bytes>* SolveStream(Rpc* rpc) override;
  Unary* FactorSolve(Rpc* rpc, const Bytes* request, Bytes* reply) override;
  Unary* Release(Rpc* rpc, const Bytes* request, Bytes* reply) override;
  Unary* GetFactorization(Rpc* rpc, const Bytes* request, Bytes* reply) override;
  Unary* ListFactorizations(Rpc* rpc, const Bytes* request, Bytes* reply) override;
  Unary* GetServerInfo(Rpc* rpc, const Bytes* request, Bytes* reply) override;
  Unary* GetPlan(Rpc* rpc, const Bytes* request, Bytes* reply) override;

 private:
  ServiceState* const state_;
};

}  // namespace blockd::server

#endif  // BLOCKD_SERVER_SOLVER_SERVICE_H_
