// A Solve under way while a test goes on.
#ifndef BLOCKD_TESTS_INTEGRATION_CALLS_PENDING_SOLVE_H_
#define BLOCKD_TESTS_INTEGRATION_CALLS_PENDING_SOLVE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/integration/fixture.h"

namespace blockd::test {

// A request for these right-hand sides, float64.
inline v1::SolveRequest SolveRequestOf(const std::string& handle, const std::vector<double>& rhs,
                                       int64_t num_rhs = 1) {
  v1::SolveRequest request;
  request.set_handle(handle);
  request.set_num_rhs(num_rhs);
  request.set_rhs(BytesOf(rhs));
  return request;
}

// Sent when it is made. One thread at a time.
class PendingSolve {
 public:
  PendingSolve(v1::Solver::Stub& stub, v1::SolveRequest request,
               std::unique_ptr<grpc::ClientContext> context = NewContext())
      : context_(std::move(context)), request_(std::move(request)) {
    stub.async()->Solve(context_.get(), &request_, &reply_, [this](grpc::Status status) {
      status_ = std::move(status);
      done_.Notify();
    });
  }
  ~PendingSolve() { Wait(); }

  void Cancel() { context_->TryCancel(); }
  bool done() const { return done_.HasBeenNotified(); }
  const grpc::Status& Wait() {
    done_.WaitForNotification();
    return status_;
  }
  const v1::SolveReply& reply() const { return reply_; }  // after Wait

 private:
  const std::unique_ptr<grpc::ClientContext> context_;
  const v1::SolveRequest request_;
  v1::SolveReply reply_;
  grpc::Status status_;
  absl::Notification done_;
};

}  // namespace blockd::test

#endif  // BLOCKD_TESTS_INTEGRATION_CALLS_PENDING_SOLVE_H_
