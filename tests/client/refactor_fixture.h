// A scripted server that refactors and solves, and loses factorizations.
#ifndef BLOCKD_TESTS_CLIENT_REFACTOR_FIXTURE_H_
#define BLOCKD_TESTS_CLIENT_REFACTOR_FIXTURE_H_

#include <functional>
#include <string>
#include <vector>

#include "tests/client/heal_fixture.h"

namespace blockd::client {

// A factorization that was lost is made again with the old values, and refactored then.
class HealingRefactorTest : public HealTest {
 protected:
  HealingRefactorTest() {
    fake_.on_factor_solve = [this](const v1::FactorSolveRequest& request,
                                   v1::FactorSolveReply* reply) {
      return Step(request.handle(), request.system().diagonal(), request.rhs(),
                  reply->mutable_solution());
    };
    fake_.on_factor_solve_many = [this](const v1::FactorSolveManyRequest& request,
                                        v1::SolveManyReply* reply) {
      StepAll(request, reply);
      return grpc::Status::OK;
    };
    fake_.on_solve_stream = [this](FakeSolver::SolvePipe* pipe) {
      v1::SolveStreamRequest request;
      while (pipe->Read(&request)) {
        if (request.has_cancel()) continue;
        frames_.Append(request.refactor());
        v1::SolveStreamReply reply;
        reply.set_id(request.id());
        StepAll(request.refactor(), reply.mutable_many());
        if (const auto meanwhile = meanwhile_.Get()) {
          if (const grpc::Status ends = meanwhile(frames_.Get().size()); !ends.ok()) return ends;
        }
        pipe->Write(reply);
      }
      return grpc::Status::OK;
    };
  }
  void StepAll(const v1::FactorSolveManyRequest& request, v1::SolveManyReply* reply) {
    for (int k = 0; k < request.handle_size(); ++k) {
      std::string solution(8, '\0');
      const size_t at = static_cast<size_t>(k) * 8;
      const grpc::Status status = Step(request.handle(k), request.matrix().substr(at, 8),
                                       request.rhs().substr(at, 8), &solution);
      reply->add_backward_error_bound(0);
      *reply->mutable_solution() += solution;
      if (status.ok()) continue;
      v1::SolveFailure* const failure = reply->add_failure();
      failure->set_solve(static_cast<uint32_t>(k));
      failure->mutable_status()->ParseFromString(status.error_details());
    }
  }
  // The server's work on one handle: a refactor, and a solve.
  grpc::Status Step(const std::string& handle, const std::string& diagonal, const std::string& rhs,
                    std::string* solution) {
    v1::FactorRequest refactor;
    refactor.add_system()->set_diagonal(diagonal);
    refactor.mutable_options()->add_handle(handle);
    v1::FactorReply factored;
    const grpc::Status status = RunFactor(refactor, &factored);
    if (!status.ok()) return status;
    v1::SolveRequest solve;
    solve.set_handle(handle);
    solve.set_rhs(rhs);
    v1::SolveReply solved;
    const grpc::Status answer = Answer(solve, &solved);
    *solution = solved.solution();
    return answer;
  }

  Shared<std::vector<v1::FactorSolveManyRequest>> frames_;
  // Between what a stream's frame does and its answer, with how many frames have come; the stream
  // ends with what it says, if that is an error.
  Shared<std::function<grpc::Status(size_t frames)>> meanwhile_;
};

}  // namespace blockd::client

#endif  // BLOCKD_TESTS_CLIENT_REFACTOR_FIXTURE_H_
