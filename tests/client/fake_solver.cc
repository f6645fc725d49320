#include "tests/client/fake_solver.h"

#include <grpcpp/health_check_service_interface.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/wire/wire.h"

namespace blockd::client {
namespace {

const grpc::Status kNoScript(grpc::StatusCode::UNIMPLEMENTED, "no script");

template <typename S, typename... Arguments>
grpc::Status Run(const S& script, Arguments&&... arguments) {
  const auto function = script.Get();
  return function ? function(std::forward<Arguments>(arguments)...) : kNoScript;
}

}  // namespace

FakeSolver::FakeSolver(const std::shared_ptr<grpc::ServerCredentials>& credentials) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(-1);
  builder.AddListeningPort("127.0.0.1:0", credentials, &port_);
  builder.RegisterService(this);
  builder.RegisterService(&admin);
  server_ = builder.BuildAndStart();
}

FakeSolver::~FakeSolver() { Shutdown(); }

void FakeSolver::Shutdown() { server_->Shutdown(std::chrono::system_clock::now()); }

std::string FakeSolver::target() const { return absl::StrCat("127.0.0.1:", port_); }

void FakeSolver::SetServing(bool serving) {
  server_->GetHealthCheckService()->SetServingStatus(serving);
}

void FakeSolver::Called(const char* method, grpc::ServerContext& context) {
  if (const std::string here = route.Get(); !here.empty()) {
    context.AddInitialMetadata("blockd-route", here);
  }
  if (const auto script = on_call.Get()) script(method, context);
}

grpc::Status FakeSolver::Factor(grpc::ServerContext* context, const v1::FactorRequest* request,
                                v1::FactorReply* reply) {
  Called("Factor", *context);
  return Run(on_factor, *request, reply);
}

grpc::Status FakeSolver::FactorStream(grpc::ServerContext* context, FactorReader* reader,
                                      v1::FactorReply* reply) {
  Called("FactorStream", *context);
  if (opens_uploads.Get()) context->AddInitialMetadata("blockd-upload", "open");
  return Run(on_factor_stream, reader, reply);
}

grpc::Status FakeSolver::Solve(grpc::ServerContext* context, const v1::SolveRequest* request,
                               v1::SolveReply* reply) {
  Called("Solve", *context);
  return Run(on_solve, context, *request, reply);
}

grpc::Status FakeSolver::SolveMany(grpc::ServerContext* context,
                                   const v1::SolveManyRequest* request, v1::SolveManyReply* reply) {
  Called("SolveMany", *context);
  return Run(on_solve_many, *request, reply);
}

grpc::Status FakeSolver::SolveStream(grpc::ServerContext* context, SolvePipe* pipe) {
  Called("SolveStream", *context);
  return Run(on_solve_stream, pipe);
}

grpc::Status FakeSolver::Smooth(grpc::ServerContext* context, SmoothPipe* pipe) {
  Called("Smooth", *context);
  return Run(on_smooth, pipe);
}

grpc::Status FakeSolver::Release(grpc::ServerContext* context, const v1::ReleaseRequest* request,
                                 v1::ReleaseReply* reply) {
  Called("Release", *context);
  return Run(on_release, *request, reply);
}

grpc::Status FakeSolver::FactorSolve(grpc::ServerContext* context,
                                     const v1::FactorSolveRequest* request,
                                     v1::FactorSolveReply* reply) {
  Called("FactorSolve", *context);
  return Run(on_factor_solve, *request, reply);
}

grpc::Status FakeSolver::FactorSolveMany(grpc::ServerContext* context,
                                         const v1::FactorSolveManyRequest* request,
                                         v1::SolveManyReply* reply) {
  Called("FactorSolveMany", *context);
  return Run(on_factor_solve_many, *request, reply);
}

grpc::Status FakeSolver::GetFactorization(grpc::ServerContext* context,
                                          const v1::GetFactorizationRequest* request,
                                          v1::FactorizationInfo* reply) {
  Called("GetFactorization", *context);
  return Run(on_get, *request, reply);
}

grpc::Status FakeSolver::ListFactorizations(grpc::ServerContext* context,
                                            const v1::ListFactorizationsRequest* request,
                                            v1::ListFactorizationsReply* reply) {
  Called("ListFactorizations", *context);
  return Run(on_list, *request, reply);
}

grpc::Status FakeSolver::GetServerInfo(grpc::ServerContext* context,
                                       const v1::GetServerInfoRequest*, v1::ServerInfo* reply) {
  Called("GetServerInfo", *context);
  return Run(on_server_info, reply);
}

grpc::Status FakeSolver::GetPlan(grpc::ServerContext* context, const v1::GetPlanRequest* request,
                                 v1::Plan* reply) {
  Called("GetPlan", *context);
  return Run(on_plan, *request, reply);
}

grpc::Status FakeAdmin::ListAllFactorizations(grpc::ServerContext*,
                                              const v1::ListAllFactorizationsRequest* request,
                                              v1::ListAllFactorizationsReply* reply) {
  return Run(on_list, *request, reply);
}

grpc::Status FakeAdmin::Evict(grpc::ServerContext*, const v1::EvictRequest* request,
                              v1::EvictReply* reply) {
  return Run(on_evict, *request, reply);
}

grpc::Status FakeAdmin::Unpin(grpc::ServerContext*, const v1::UnpinRequest* request,
                              v1::UnpinReply* reply) {
  return Run(on_unpin, *request, reply);
}

grpc::Status FakeAdmin::ListTenants(grpc::ServerContext*, const v1::ListTenantsRequest*,
                                    v1::ListTenantsReply* reply) {
  return Run(on_tenants, reply);
}

grpc::Status FakeAdmin::Drain(grpc::ServerContext*, const v1::DrainRequest*,
                              v1::DrainReply* reply) {
  return Run(on_drain, reply);
}

grpc::Status FakeAdmin::SetLogLevel(grpc::ServerContext*, const v1::SetLogLevelRequest* request,
                                    v1::SetLogLevelReply* reply) {
  return Run(on_log_level, *request, reply);
}

grpc::Status FakeAdmin::Reload(grpc::ServerContext*, const v1::ReloadRequest*,
                               v1::ReloadReply* reply) {
  return Run(on_reload, reply);
}

grpc::Status OverQuota(const std::string& quota, absl::Duration delay) {
  v1::QuotaExceeded detail;
  detail.set_quota(quota);
  detail.set_limit(100);
  detail.set_used(100);
  detail.set_asked(1);
  detail.set_tenant("ada");
  v1::RpcStatus status;
  status.set_code(grpc::StatusCode::RESOURCE_EXHAUSTED);
  status.add_details()->PackFrom(detail);
  if (delay != absl::InfiniteDuration()) {
    v1::RetryAfter after;
    *after.mutable_delay() = ToProto(delay);
    status.add_details()->PackFrom(after);
  }
  return {grpc::StatusCode::RESOURCE_EXHAUSTED, "over the quota", status.SerializeAsString()};
}

grpc::Status UnavailableFor(absl::Duration delay) {
  v1::RetryAfter detail;
  *detail.mutable_delay() = ToProto(delay);
  v1::RpcStatus status;
  status.set_code(grpc::StatusCode::UNAVAILABLE);
  status.add_details()->PackFrom(detail);
  return {grpc::StatusCode::UNAVAILABLE, "the queue is full", status.SerializeAsString()};
}

grpc::Status Draining() {
  v1::ServerDraining detail;
  detail.set_server_name("solver-7");
  v1::RetryAfter delay;
  *delay.mutable_delay() = ToProto(absl::Hours(1));  // which nobody waits for who heals
  v1::RpcStatus status;
  status.set_code(grpc::StatusCode::UNAVAILABLE);
  status.add_details()->PackFrom(detail);
  status.add_details()->PackFrom(delay);
  return {grpc::StatusCode::UNAVAILABLE, "draining", status.SerializeAsString()};
}

grpc::Status NotFound(const std::string& handle, v1::HandleNotFound::Reason reason) {
  v1::HandleNotFound detail;
  detail.set_handle(handle);
  detail.set_reason(reason);
  v1::RpcStatus status;
  status.set_code(grpc::StatusCode::NOT_FOUND);
  status.add_details()->PackFrom(detail);
  return {grpc::StatusCode::NOT_FOUND, "not held", status.SerializeAsString()};
}

grpc::Status AnswerWith(const std::string& handle, v1::FactorReply* reply) {
  reply->add_system()->set_handle(handle);
  return grpc::Status::OK;
}

}  // namespace blockd::client
