// A server in this process whose answers a test writes: for what a good server does not do on
// demand.
#ifndef BLOCKD_TESTS_CLIENT_FAKE_SOLVER_H_
#define BLOCKD_TESTS_CLIENT_FAKE_SOLVER_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "blockd/v1/admin.grpc.pb.h"
#include "blockd/v1/blockd.grpc.pb.h"

namespace blockd::client {

// A value that a test's thread and the server's threads share: the thread sanitizer does not see
// gRPC's own synchronization between a call and its answer. Thread-safe.
template <typename T>
class Shared {
 public:
  Shared() = default;
  explicit Shared(T value) : value_(std::move(value)) {}
  ~Shared() { const absl::MutexLock lock(&mutex_); }  // behind what those threads did with it
  Shared& operator=(T value) {
    absl::MutexLock lock(&mutex_);
    value_ = std::move(value);
    return *this;
  }
  T Get() const {
    absl::MutexLock lock(&mutex_);
    return value_;
  }
  // Only for containers; returns how many there are then.
  template <typename Element>
  size_t Append(Element&& element) {
    absl::MutexLock lock(&mutex_);
    value_.push_back(std::forward<Element>(element));
    return value_.size();
  }

 private:
  mutable absl::Mutex mutex_;
  T value_ ABSL_GUARDED_BY(mutex_){};
};

// A function that a test sets and the server's threads call, each call as it is at that moment.
template <typename Signature>
using Script = Shared<std::function<Signature>>;

// The fake solver's other service, scripted in the same way.
class FakeAdmin : public v1::Admin::Service {
 public:
  Script<grpc::Status(const v1::ListAllFactorizationsRequest&, v1::ListAllFactorizationsReply*)>
      on_list;
  Script<grpc::Status(const v1::EvictRequest&, v1::EvictReply*)> on_evict;
  Script<grpc::Status(const v1::UnpinRequest&, v1::UnpinReply*)> on_unpin;
  Script<grpc::Status(v1::ListTenantsReply*)> on_tenants;
  Script<grpc::Status(v1::DrainReply*)> on_drain;
  Script<grpc::Status(const v1::SetLogLevelRequest&, v1::SetLogLevelReply*)> on_log_level;
  Script<grpc::Status(v1::ReloadReply*)> on_reload;

  grpc::Status ListAllFactorizations(grpc::ServerContext* context,
                                     const v1::ListAllFactorizationsRequest* request,
                                     v1::ListAllFactorizationsReply* reply) override;
  grpc::Status Evict(grpc::ServerContext* context, const v1::EvictRequest* request,
                     v1::EvictReply* reply) override;
  grpc::Status Unpin(grpc::ServerContext* context, const v1::UnpinRequest* request,
                     v1::UnpinReply* reply) override;
  grpc::Status ListTenants(grpc::ServerContext* context, const v1::ListTenantsRequest* request,
                           v1::ListTenantsReply* reply) override;
  grpc::Status Drain(grpc::ServerContext* context, const v1::DrainRequest* request,
                     v1::DrainReply* reply) override;
  grpc::Status SetLogLevel(grpc::ServerContext* context, const v1::SetLogLevelRequest* request,
                           v1::SetLogLevelReply* reply) override;
  grpc::Status Reload(grpc::ServerContext* context, const v1::ReloadRequest* request,
                      v1::ReloadReply* reply) override;
};

// Calls without a script are UNIMPLEMENTED. Scripts may run on any number of threads.
class FakeSolver : public v1::Solver::Service {
 public:
  using FactorReader = grpc::ServerReader<v1::FactorStreamRequest>;
  using SolvePipe = grpc::ServerReaderWriter<v1::SolveStreamReply, v1::SolveStreamRequest>;

  using SmoothPipe = grpc::ServerReaderWriter<v1::SmoothReply, v1::SmoothRequest>;

  explicit FakeSolver(const std::shared_ptr<grpc::ServerCredentials>& credentials =
                          grpc::InsecureServerCredentials());
  ~FakeSolver() override;
  // Ends all calls. For tests whose scripts use what goes before this.
  void Shutdown();
  std::string target() const;

  Script<grpc::Status(const v1::FactorRequest&, v1::FactorReply*)> on_factor;
  Script<grpc::Status(FactorReader*, v1::FactorReply*)> on_factor_stream;
  Script<grpc::Status(grpc::ServerContext*, const v1::SolveRequest&, v1::SolveReply*)> on_solve;
  Script<grpc::Status(const v1::SolveManyRequest&, v1::SolveManyReply*)> on_solve_many;
  Script<grpc::Status(SolvePipe*)> on_solve_stream;
  Script<grpc::Status(const v1::ReleaseRequest&, v1::ReleaseReply*)> on_release;
  Script<grpc::Status(const v1::FactorSolveRequest&, v1::FactorSolveReply*)> on_factor_solve;
  Script<grpc::Status(const v1::FactorSolveManyRequest&, v1::SolveManyReply*)> on_factor_solve_many;
  Script<grpc::Status(const v1::GetFactorizationRequest&, v1::FactorizationInfo*)> on_get;
  Script<grpc::Status(const v1::ListFactorizationsRequest&, v1::ListFactorizationsReply*)> on_list;
  Script<grpc::Status(v1::ServerInfo*)> on_server_info;
  Script<grpc::Status(const v1::GetPlanRequest&, v1::Plan*)> on_plan;
  Script<grpc::Status(SmoothPipe*)> on_smooth;
  FakeAdmin admin;
  // Before each of the solver's calls above, with its name: for metadata, deadlines and
  // connections.
  Script<void(const std::string& method, const grpc::ServerContext&)> on_call;
  // The `blockd-route` in the answers' initial metadata, as a router would set it; empty: none.
  Shared<std::string> route;
  // True if the initial metadata of a FactorStream lets others join; sent with the answer unless
  // the script sends it before.
  Shared<bool> opens_uploads;
  // Sets the answer of grpc.health.v1; serving from the start.
  void SetServing(bool serving);

  grpc::Status Factor(grpc::ServerContext* context, const v1::FactorRequest* request,
                      v1::FactorReply* reply) override;
  grpc::Status FactorStream(grpc::ServerContext* context, FactorReader* reader,
                            v1::FactorReply* reply) override;
  grpc::Status Solve(grpc::ServerContext* context, const v1::SolveRequest* request,
                     v1::SolveReply* reply) override;
  grpc::Status SolveMany(grpc::ServerContext* context, const v1::SolveManyRequest* request,
                         v1::SolveManyReply* reply) override;
  grpc::Status SolveStream(grpc::ServerContext* context, SolvePipe* pipe) override;
  grpc::Status Release(grpc::ServerContext* context, const v1::ReleaseRequest* request,
                       v1::ReleaseReply* reply) override;
  grpc::Status FactorSolve(grpc::ServerContext* context, const v1::FactorSolveRequest* request,
                           v1::FactorSolveReply* reply) override;
  grpc::Status FactorSolveMany(grpc::ServerContext* context,
                               const v1::FactorSolveManyRequest* request,
                               v1::SolveManyReply* reply) override;
  grpc::Status GetFactorization(grpc::ServerContext* context,
                                const v1::GetFactorizationRequest* request,
                                v1::FactorizationInfo* reply) override;
  grpc::Status ListFactorizations(grpc::ServerContext* context,
                                  const v1::ListFactorizationsRequest* request,
                                  v1::ListFactorizationsReply* reply) override;
  grpc::Status GetServerInfo(grpc::ServerContext* context, const v1::GetServerInfoRequest* request,
                             v1::ServerInfo* reply) override;
  grpc::Status GetPlan(grpc::ServerContext* context, const v1::GetPlanRequest* request,
                       v1::Plan* reply) override;
  grpc::Status Smooth(grpc::ServerContext* context, SmoothPipe* pipe) override;

 private:
  void Called(const char* method, grpc::ServerContext& context);

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

grpc::Status UnavailableFor(absl::Duration delay);
// RESOURCE_EXHAUSTED with the quota, and a RetryAfter unless the delay is infinite.
grpc::Status OverQuota(const std::string& quota, absl::Duration delay);
grpc::Status Draining();
grpc::Status NotFound(const std::string& handle, v1::HandleNotFound::Reason reason);
// One system with this handle.
grpc::Status AnswerWith(const std::string& handle, v1::FactorReply* reply);

}  // namespace blockd::client

#endif  // BLOCKD_TESTS_CLIENT_FAKE_SOLVER_H_
