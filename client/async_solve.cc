#include "client/async_solve.h"

#include <grpcpp/alarm.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "blockd/client/backoff.h"
#include "client/healer.h"
#include "client/requests.h"
#include "client/shm_link.h"
#include "client/shm_request.h"
#include "client/shm_session.h"
#include "client/solve_stream.h"

namespace blockd::client {
namespace {

// For a new session of shared memory: who sends is not to wait long.
constexpr absl::Duration kOpening = absl::Seconds(1);

// Calls `fire` on a gRPC thread at `time`, unless that was given up before.
class Timer {
 public:
  static std::shared_ptr<Timer> Start(absl::Time time, std::function<void()> fire) {
    std::shared_ptr<Timer> timer(new Timer);
    KeepCallbackThreads();
    timer->self_ = timer;  // the alarm keeps its callback for good, and so must not keep us in it
    timer->fire_ = std::move(fire);
    timer->alarm_.Set(absl::ToChronoTime(time), [raw = timer.get()](bool due) {
      const std::shared_ptr<Timer> self = std::move(raw->self_);
      const std::function<void()> fire = std::move(self->fire_);
      if (due) fire();
    });
    return timer;
  }
  void GiveUp() { alarm_.Cancel(); }

 private:
  Timer() = default;
  std::shared_ptr<Timer> self_;
  std::function<void()> fire_;
  grpc::Alarm alarm_;
};

// Kept alive by the callback that it waits for.
class AsyncSolve : public std::enable_shared_from_this<AsyncSolve> {
 public:
  AsyncSolve(std::shared_ptr<Connection> connection, const Factorization& factorization,
             v1::SolveRequest request, std::span<std::byte> solution, absl::Time deadline,
             std::function<void(absl::StatusOr<SolveResult>)> done)
      : connection_(std::move(connection)),
        healer_(factorization.healer),
        large_(static_cast<int64_t>(request.rhs().size()) >
               connection_->options().stream_threshold_bytes),
        solution_(solution),
        deadline_(deadline),
        done_(std::move(done)),
        route_(factorization.route),
        request_(std::move(request)) {}

  // From the beginning: with what the factorization stands for now.
  void Start() {
    if (healer_ != nullptr) {
      const Healer::Current now = healer_->current();
      generation_ = now.generation;
      route_ = now.factorization.route;
      request_.set_handle(now.factorization.handle);
    }
    backoff_.emplace(connection_->options().retry, deadline_, UniformRandom,
                     connection_->retry_budget());
    Attempt();
  }

 private:
  void Attempt() {
    if (AttemptShared()) return;
    if (large_) return AttemptLarge();
    context_ = std::make_unique<grpc::ClientContext>();
    connection_->Prepare(*context_, deadline_, route_);
    KeepCallbackThreads();
    connection_->stub().async()->Solve(context_.get(), &request_, &reply_,
                                       [self = shared_from_this()](const grpc::Status& status) {
                                         if (!status.ok())
                                           return self->Failed(ToStatusOfAnswer(ToStatus(status)));
                                         self->done_(TakeSolution(self->reply_, self->solution_));
                                       });
  }

  // By shared memory; false if there is none, or no room in it.
  bool AttemptShared() {
    ShmLink* const link = connection_->shared_memory();
    if (link == nullptr) return false;
    const auto session = link->session(std::min(deadline_, absl::Now() + kOpening));
    if (!session.ok()) {
      Failed(session.status());
      return true;
    }
    const std::string& rhs = request_.rhs();
    auto made = SharedSolveRequest::Make(
        *(*session)->memory(), request_.handle(), request_,
        {reinterpret_cast<const std::byte*>(rhs.data()), rhs.size()}, solution_, /*in_place=*/true);
    if (!made) return false;
    const auto asked = std::make_shared<const SharedSolveRequest>(*std::move(made));
    const auto sent = (*session)->CallLater(
        asked->request(), deadline_,
        [self = shared_from_this(), asked](const absl::StatusOr<v1::ShmReply>& reply) {
          absl::StatusOr<SolveResult> result = reply.ok() ? asked->Take(*reply) : reply.status();
          if (!result.ok()) return self->Failed(ToStatusOfAnswer(result.status()));
          self->done_(std::move(result));
        });
    if (!sent.ok()) Failed(sent.status());
    return true;
  }

  void AttemptLarge() {
    v1::SolveStreamRequest first;
    first.set_id(1);
    v1::SolveRequest& header = *first.mutable_request();
    header.set_handle(request_.handle());
    header.set_num_rhs(request_.num_rhs());
    *header.mutable_options() = request_.options();
    const std::string& rhs = request_.rhs();
    const auto stream = SolveStream::Start(connection_, connection_->bulk(), deadline_, route_);
    const absl::Status sent = stream->Send(
        std::move(first), {reinterpret_cast<const std::byte*>(rhs.data()), rhs.size()}, solution_,
        nullptr, [self = shared_from_this()](absl::StatusOr<SolveResult> result) {
          if (!result.ok()) return self->Failed(result.status());
          self->done_(std::move(result));
        });
    stream->CloseSending();
    if (!sent.ok()) Failed(sent);
  }

  void Failed(const absl::Status& status) {
    const auto wait = backoff_->Next(status, absl::Now());
    const bool heals = healer_ != nullptr && healer_->Mends(generation_, status);
    if (heals && (!wait.has_value() || HealsNow(status, backoff_->attempts()))) return Heal(status);
    if (!wait.has_value()) return done_(status);
    Timer::Start(absl::Now() + *wait, [self = shared_from_this()] { self->Attempt(); });
  }

  // The restoration may take longer than this call has.
  void Heal(const absl::Status& why) {
    const auto over = std::make_shared<std::atomic<bool>>(false);
    std::shared_ptr<Timer> late;
    if (deadline_ != absl::InfiniteFuture()) {
      late = Timer::Start(deadline_, [self = shared_from_this(), over, why] {
        if (!over->exchange(true)) self->done_(RestoreIsLate(why));
      });
    }
    healer_->Restore(generation_, why,
                     [self = shared_from_this(), over, late](const absl::Status& restored) {
                       if (over->exchange(true)) return;
                       if (late != nullptr) late->GiveUp();
                       if (!restored.ok()) return self->done_(restored);
                       self->Start();
                     });
  }

  const std::shared_ptr<Connection> connection_;
  const std::shared_ptr<Healer> healer_;
  const bool large_;
  const std::span<std::byte> solution_;
  const absl::Time deadline_;
  const std::function<void(absl::StatusOr<SolveResult>)> done_;
  std::string route_;
  v1::SolveRequest request_;
  int64_t generation_ = 0;
  std::optional<Backoff> backoff_;
  std::unique_ptr<grpc::ClientContext> context_;
  v1::SolveReply reply_;
};

}  // namespace

void StartAsyncSolve(std::shared_ptr<Connection> connection, const Factorization& factorization,
                     v1::SolveRequest request, std::span<std::byte> solution, absl::Time deadline,
                     std::function<void(absl::StatusOr<SolveResult>)> done) {
  std::make_shared<AsyncSolve>(std::move(connection), factorization, std::move(request), solution,
                               deadline, std::move(done))
      ->Start();
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

absl::StatusOr<SolveResult> ReadSolution(const grpc::ByteBuffer& reply,
                                         std::span<std::byte> solution) {
  v1::SolveReply rest;
  bool fits = false;
  if (!ParseInto(reply, v1::SolveReply::kSolutionFieldNumber, solution, &fits, &rest)) {
    return absl::InternalError("the server sent no SolveReply");
  }
  if (!fits) {
    return absl::InternalError(absl::StrCat(
        "the server sent a solution of another length, expected ", solution.size(), " bytes"));
  }
  return ToResult(rest);
}

}  // namespace blockd::client
