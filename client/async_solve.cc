#include "client/async_solve.h"

#include <grpcpp/alarm.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "blockd/client/backoff.h"
#include "client/requests.h"

namespace blockd::client {
namespace {

// Kept alive by the callback that it waits for.
class AsyncSolve : public std::enable_shared_from_this<AsyncSolve> {
 public:
  AsyncSolve(std::shared_ptr<Connection> connection, v1::SolveRequest request,
             std::span<std::byte> solution, absl::Time deadline,
             std::function<void(absl::StatusOr<SolveResult>)> done)
      : connection_(std::move(connection)),
        request_(std::move(request)),
        solution_(solution),
        deadline_(deadline),
        done_(std::move(done)),
        backoff_(connection_->options().retry, deadline, UniformRandom) {}

  void Attempt() {
    context_ = std::make_unique<grpc::ClientContext>();
    connection_->Prepare(*context_, deadline_);
    connection_->stub().async()->Solve(
        context_.get(), &request_, &reply_,
        [self = shared_from_this()](const grpc::Status& status) { self->Ended(ToStatus(status)); });
  }

 private:
  void Ended(const absl::Status& status) {
    Connection::EnterCallback();
    if (status.ok()) return done_(TakeSolution(reply_, solution_));
    const auto wait = backoff_.Next(status, absl::Now());
    if (!wait.has_value()) return done_(status);
    // The alarm keeps its callback for good, so the callback must not keep the alarm's owner.
    until_alarm_ = shared_from_this();
    alarm_.Set(absl::ToChronoTime(absl::Now() + *wait), [this](bool) {
      Connection::EnterCallback();
      const std::shared_ptr<AsyncSolve> self = std::move(until_alarm_);
      Attempt();
    });
  }

  const std::shared_ptr<Connection> connection_;
  const v1::SolveRequest request_;
  const std::span<std::byte> solution_;
  const absl::Time deadline_;
  const std::function<void(absl::StatusOr<SolveResult>)> done_;
  Backoff backoff_;
  std::unique_ptr<grpc::ClientContext> context_;
  v1::SolveReply reply_;
  grpc::Alarm alarm_;
  std::shared_ptr<AsyncSolve> until_alarm_;
};

}  // namespace

void StartAsyncSolve(std::shared_ptr<Connection> connection, v1::SolveRequest request,
                     std::span<std::byte> solution, absl::Time deadline,
                     std::function<void(absl::StatusOr<SolveResult>)> done) {
  std::make_shared<AsyncSolve>(std::move(connection), std::move(request), solution, deadline,
                               std::move(done))
      ->Attempt();
}

absl::StatusOr<SolveResult> TakeSolution(v1::SolveReply& reply, std::span<std::byte> solution) {
  const std::string& bytes = reply.solution();
  if (bytes.size() != solution.size()) {
    return absl::InternalError(absl::StrCat("the server sent a solution of ", bytes.size(),
                                            " bytes, expected ", solution.size()));
  }
  std::copy_n(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), solution.data());
  return ToResult(reply);
}

}  // namespace blockd::client
