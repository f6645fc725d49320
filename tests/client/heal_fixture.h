// A scripted server that loses factorizations, and a client whose handles heal.
#ifndef BLOCKD_TESTS_CLIENT_HEAL_FIXTURE_H_
#define BLOCKD_TESTS_CLIENT_HEAL_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "blockd/client/solver_client.h"
#include "tests/client/fake_solver.h"

namespace blockd::client {

// One equation, a x = b. The server knows the a of each of its handles (Name).
class HealTest : public ::testing::Test {
 protected:
  static inline const double kTwo[] = {2}, kFour[] = {4};
  static SystemView System(const double* a) { return MakeSystemView(1, 1, a, a); }

  // Before what the scripts of derived tests use goes.
  void TearDown() override { fake_.Shutdown(); }

  HealTest() {
    fake_.on_factor = [this](const v1::FactorRequest& request, v1::FactorReply* reply) {
      return RunFactor(request, reply);
    };
    fake_.on_solve = [this](grpc::ServerContext*, const v1::SolveRequest& request,
                            v1::SolveReply* reply) { return Answer(request, reply); };
    fake_.on_release = [this](const v1::ReleaseRequest& request, v1::ReleaseReply*) {
      for (const std::string& handle : request.handle()) released_.Append(handle);
      return grpc::Status::OK;
    };
    fake_.on_solve_stream = [this](FakeSolver::SolvePipe* pipe) {
      v1::SolveStreamRequest request;
      while (pipe->Read(&request)) {
        v1::SolveStreamReply reply;
        reply.set_id(request.id());
        const grpc::Status status = Answer(request.request(), reply.mutable_reply());
        if (status.error_code() == grpc::StatusCode::UNAVAILABLE) return status;
        if (!status.ok()) reply.mutable_status()->ParseFromString(status.error_details());
        pipe->Write(reply);
      }
      return grpc::Status::OK;
    };
  }
  grpc::Status RunFactor(const v1::FactorRequest& request, v1::FactorReply* reply) {
    double a;
    std::memcpy(&a, request.system(0).diagonal().data(), sizeof(a));
    absl::MutexLock lock(&mutex_);
    if (request.options().handle_size() > 0) {
      const std::string& handle = request.options().handle(0);
      if (!held_.contains(handle)) return NotFound(handle, reason_);
      a_[handle] = a;
      return AnswerWith(handle, reply);
    }
    const std::string handle = Name(++factored_);
    keys_.insert(request.options().idempotency_key());
    a_[handle] = a;
    held_.insert(handle);
    if (loses_all_) held_.clear();
    return AnswerWith(handle, reply);
  }
  grpc::Status Answer(const v1::SolveRequest& request, v1::SolveReply* reply) {
    absl::MutexLock lock(&mutex_);
    if (!held_.contains(request.handle())) {
      return lost_as_.ok() ? NotFound(request.handle(), reason_) : lost_as_;
    }
    double b;
    std::memcpy(&b, request.rhs().data(), sizeof(b));
    b /= a_[request.handle()];
    reply->set_solution(&b, sizeof(b));
    return grpc::Status::OK;
  }

  // Forgets every factorization; who asks for one hears this.
  void Lose(v1::HandleNotFound::Reason reason) {
    absl::MutexLock lock(&mutex_);
    held_.clear();
    reason_ = reason;
    lost_as_ = grpc::Status::OK;
  }
  void Lose(const grpc::Status& status) {
    absl::MutexLock lock(&mutex_);
    held_.clear();
    lost_as_ = status;
  }
  // Each is lost as soon as it is made.
  void LoseAll() {
    absl::MutexLock lock(&mutex_);
    loses_all_ = true;
    held_.clear();
  }
  int factored() {
    absl::MutexLock lock(&mutex_);
    return factored_;
  }
  size_t keys() {
    absl::MutexLock lock(&mutex_);
    return keys_.size();
  }

  // The handle of the factorization that was made as this one.
  static constexpr size_t kHandle = 24;
  static std::string Name(int factored) {
    const std::string name = absl::StrCat("h", factored);
    return name + std::string(kHandle - name.size(), '.');
  }

  SolverClient Connect(ClientOptions options = {}) {
    options.retry.initial_delay = absl::Milliseconds(1);
    return *SolverClient::Connect(fake_.target(), options);
  }
  FactorHandle Factor(const SolverClient& client, const RestoreOptions& restore,
                      const double* a = kTwo) {
    auto factored = client.Factor(System(a), {.restore = restore});
    EXPECT_TRUE(factored.ok()) << factored.status();
    return factored.ok() ? std::move(factored->handle) : FactorHandle();
  }
  // The x of a x = 8.
  static absl::StatusOr<double> Solve(const SolverClient& client, const Factorization& handle,
                                      absl::Duration timeout = {}) {
    const std::vector<double> b = {8};
    std::vector<double> x = {0};
    const auto solved = client.Solve(handle, b, x, {.timeout = timeout});
    if (!solved.ok()) return solved.status();
    return x[0];
  }

  Shared<std::vector<std::string>> released_;
  Shared<std::vector<std::pair<std::string, std::string>>> calls_;  // what RouteTest keeps

 private:
  absl::Mutex mutex_;
  int factored_ ABSL_GUARDED_BY(mutex_) = 0;
  bool loses_all_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, double> a_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> held_ ABSL_GUARDED_BY(mutex_), keys_ ABSL_GUARDED_BY(mutex_);
  v1::HandleNotFound::Reason reason_ ABSL_GUARDED_BY(mutex_) = v1::HandleNotFound::NEVER_EXISTED;
  grpc::Status lost_as_ ABSL_GUARDED_BY(mutex_);

 protected:
  FakeSolver fake_;  // ends before what its scripts use
};

}  // namespace blockd::client

#endif  // BLOCKD_TESTS_CLIENT_HEAL_FIXTURE_H_
