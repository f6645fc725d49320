// The client against a scripted server that keeps what each call sent.
#ifndef BLOCKD_TESTS_CLIENT_CALLS_FIXTURE_H_
#define BLOCKD_TESTS_CLIENT_CALLS_FIXTURE_H_

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "blockd/client/solver_client.h"
#include "tests/client/fake_solver.h"

namespace blockd::client {

// Against a server that answers everything, and keeps what came.
class CallsTest : public ::testing::Test {
 protected:
  static inline const double kDiagonal[] = {4, 5, 6, 7};
  static inline const double kCoupling[] = {1, 2, 3};
  static inline const SystemView kSystem = MakeSystemView(2, 1, kDiagonal, kCoupling);
  static inline const Factorization kHandle{"handle", 2, 1, Scalar::kFloat64};

  struct Call {
    std::string peer, caller;
    absl::Duration remaining;
  };

  CallsTest() {
    fake_.on_call = [this](const std::string& method, const grpc::ServerContext& context) {
      const auto caller = context.client_metadata().find("blockd-caller");
      const Call call{context.peer(),
                      caller == context.client_metadata().end()
                          ? "(none)"
                          : std::string(caller->second.data(), caller->second.size()),
                      absl::FromChrono(context.deadline()) - absl::Now()};
      absl::MutexLock lock(&mutex_);
      last_[method] = call;
    };
    fake_.on_release = [this](const v1::ReleaseRequest& request, v1::ReleaseReply* reply) {
      for (const std::string& handle : request.handle()) released_.Append(handle);
      reply->set_released_bytes(77);
      return grpc::Status::OK;
    };
    fake_.on_factor = [this](const v1::FactorRequest& request, v1::FactorReply* reply) {
      factor_ = request;
      return AnswerFactor(request.system_size(), reply);
    };
    fake_.on_factor_stream = [this](FakeSolver::FactorReader* reader, v1::FactorReply* reply) {
      v1::FactorStreamRequest request;
      EXPECT_TRUE(reader->Read(&request));
      header_ = request.header();
      const int systems = static_cast<int>(request.header().num_systems());
      while (reader->Read(&request)) {
      }
      return AnswerFactor(systems, reply);
    };
    fake_.on_solve = [this](grpc::ServerContext*, const v1::SolveRequest& request,
                            v1::SolveReply* reply) {
      solve_ = request;
      return Answer(request, reply);
    };
    fake_.on_solve_stream = [this](FakeSolver::SolvePipe* pipe) {
      v1::SolveStreamRequest request;
      while (pipe->Read(&request)) {
        solve_ = request.request();
        v1::SolveStreamReply reply;
        reply.set_id(request.id());
        Answer(request.request(), reply.mutable_reply());
        pipe->Write(reply);
      }
      return grpc::Status::OK;
    };
  }
  ~CallsTest() override { fake_.on_call = nullptr; }

  static grpc::Status AnswerFactor(int systems, v1::FactorReply* reply) {
    for (int k = 0; k < systems; ++k) {
      v1::FactoredSystem& system = *reply->add_system();
      system.set_handle(absl::StrCat("h", k));
      system.set_log_determinant(10.5 + k);
      system.set_growth(20 + k);
      system.set_condition_estimate(30 + k);
      system.set_backward_error_bound(40 + k);
      system.set_matrix_kept(k % 2 == 0);
    }
    reply->set_factor_bytes(123);
    *reply->mutable_cost() = SomeCost();
    return grpc::Status::OK;
  }
  // The solution is the right-hand side.
  static grpc::Status Answer(const v1::SolveRequest& request, v1::SolveReply* reply) {
    reply->set_solution(request.rhs());
    reply->set_backward_error(0.125);
    reply->set_backward_error_bound(0.5);
    reply->set_refinements(3);
    *reply->mutable_cost() = SomeCost();
    return grpc::Status::OK;
  }
  static std::string TextOf(const std::vector<double>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)};
  }
  // Every number of a cost is another one.
  static v1::Cost SomeCost() {
    v1::Cost cost;
    cost.set_queue_seconds(1.5);
    cost.set_batch_requests(2);
    cost.set_batch_items(3);
    cost.set_upload_seconds(4.5);
    cost.set_compute_seconds(5.5);
    cost.set_download_seconds(6.5);
    return cost;
  }
  static bool IsSomeCost(const v1::Cost& cost) {
    return cost.SerializeAsString() == SomeCost().SerializeAsString();
  }
  // As AnswerFactor has it for system k.
  static void ExpectConditioning(const Conditioning& conditioning, int k) {
    EXPECT_EQ(conditioning.growth, 20 + k);
    EXPECT_EQ(conditioning.condition_estimate, 30 + k);
    EXPECT_EQ(conditioning.backward_error_bound, 40 + k);
    EXPECT_EQ(conditioning.matrix_kept, k % 2 == 0);
  }
  SolverClient Connect(const ClientOptions& options = {}) const {
    return *SolverClient::Connect(fake_.target(), options);
  }

  // How a method was last called; of one that was not, all empty.
  Call Last(const std::string& method) {
    absl::MutexLock lock(&mutex_);
    const auto call = last_.find(method);
    return call == last_.end() ? Call() : call->second;
  }
  void ForgetCalls() {
    absl::MutexLock lock(&mutex_);
    last_.clear();
  }

  Shared<std::vector<std::string>> released_;
  Shared<v1::FactorRequest> factor_;
  Shared<v1::FactorStreamHeader> header_;
  Shared<v1::SolveRequest> solve_;

 private:
  absl::Mutex mutex_;
  std::map<std::string, Call> last_ ABSL_GUARDED_BY(mutex_);

 protected:
  FakeSolver fake_;  // after what its calls use
};

}  // namespace blockd::client

#endif  // BLOCKD_TESTS_CLIENT_CALLS_FIXTURE_H_
