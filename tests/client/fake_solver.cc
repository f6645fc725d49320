#include "tests/client/fake_solver.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "client/wire.h"

namespace blockd::client {
namespace {

const grpc::Status kNoScript(grpc::StatusCode::UNIMPLEMENTED, "no script");

}  // namespace

FakeSolver::FakeSolver() {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
}

FakeSolver::~FakeSolver() { server_->Shutdown(std::chrono::system_clock::now()); }

std::string FakeSolver::target() const { return absl::StrCat("127.0.0.1:", port_); }

grpc::Status FakeSolver::Factor(grpc::ServerContext*, const v1::FactorRequest* request,
                                v1::FactorReply* reply) {
  return on_factor ? on_factor(*request, reply) : kNoScript;
}

grpc::Status FakeSolver::FactorStream(grpc::ServerContext*, FactorReader* reader,
                                      v1::FactorReply* reply) {
  return on_factor_stream ? on_factor_stream(reader, reply) : kNoScript;
}

grpc::Status FakeSolver::Solve(grpc::ServerContext* context, const v1::SolveRequest* request,
                               v1::SolveReply* reply) {
  return on_solve ? on_solve(context, *request, reply) : kNoScript;
}

grpc::Status FakeSolver::SolveStream(grpc::ServerContext*, SolvePipe* pipe) {
  return on_solve_stream ? on_solve_stream(pipe) : kNoScript;
}

grpc::Status FakeSolver::Release(grpc::ServerContext*, const v1::ReleaseRequest* request,
                                 v1::ReleaseReply* reply) {
  return on_release ? on_release(*request, reply) : kNoScript;
}

grpc::Status UnavailableFor(absl::Duration delay) {
  v1::RetryAfter detail;
  *detail.mutable_delay() = ToProto(delay);
  v1::RpcStatus status;
  status.set_code(grpc::StatusCode::UNAVAILABLE);
  status.add_details()->PackFrom(detail);
  return {grpc::StatusCode::UNAVAILABLE, "the queue is full", status.SerializeAsString()};
}

grpc::Status AnswerWith(const std::string& handle, v1::FactorReply* reply) {
  reply->add_system()->set_handle(handle);
  return grpc::Status::OK;
}

}  // namespace blockd::client
