#include "client/session/async_solve.h"

#include <grpcpp/alarm.h>

#include <atomic>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "blockd/client/backoff.h"
#include "client/base/detached_thread.h"
#include "client/base/random.h"
#include "client/calls/healer.h"
#include "client/session/solve_stream.h"
#include "client/shm/shm_link.h"
#include "client/shm/shm_request.h"
#include "client/shm/shm_session.h"
#include "client/wire/requests.h"
#include "client/wire/slice_pool.h"

namespace blockd::client {
namespace {

// Calls `fire` on the thread of `queue` at `time`, unless that was given up before.
class Timer final : public AnswerQueue::Later {
 public:
  static std::shared_ptr<Timer> Start(AnswerQueue& queue, absl::Time time,
                                      std::function<void()> fire) {
    std::shared_ptr<Timer> timer(new Timer(std::move(fire)));
    timer->self_ = timer;
    timer->alarm_.Set(queue.get(), absl::ToChronoTime(time), queue.TagOf(*timer));
    return timer;
  }
  void GiveUp() { alarm_.Cancel(); }

 private:
  explicit Timer(std::function<void()> fire) : fire_(std::move(fire)) {}
  void Come(bool due) override {
    const std::shared_ptr<Timer> self = std::move(self_);
    const std::function<void()> fire = std::move(fire_);
    if (due) fire();
  }

  std::shared_ptr<Timer> self_;
  std::function<void()> fire_;
  grpc::Alarm alarm_;
};

// Kept alive by what it waits for.
class AsyncSolve final : public std::enable_shared_from_this<AsyncSolve>,
                         private AnswerQueue::Later {
 public:
  AsyncSolve(std::shared_ptr<Connection> connection, const Factorization& factorization,
             v1::SolveRequest request, Bytes rhs, std::span<std::byte> solution,
             absl::Time deadline, std::function<void(absl::StatusOr<SolveResult>)> done)
      : connection_(std::move(connection)),
        healer_(factorization.healer),
        large_(static_cast<int64_t>(rhs.size()) > connection_->options().stream_threshold_bytes),
        rhs_(CopyForSending(rhs)),
        solution_(solution),
        deadline_(deadline),
        done_(std::move(done)),
        route_(factorization.route),
        request_(std::move(request)) {}

  void Start() {
    if (absl::Status status = answers().ServeLater(); !status.ok()) return done_(status);
    Begin();
  }

 private:
  AnswerQueue& answers() const { return connection_->answers(); }
  Bytes rhs() const { return std::as_bytes(std::span(rhs_.begin(), rhs_.end())); }

  // With what the factorization stands for now.
  void Begin() {
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

  void Attempt() {
    if (AttemptShared()) return;
    if (large_) return AttemptLarge();
    context_ = std::make_unique<grpc::ClientContext>();
    connection_->Prepare(*context_, deadline_, route_);
    under_way_ = shared_from_this();
    call_ = connection_->Start(*context_, "Solve", SolveMessage(request_, rhs_));
    call_->Finish(&reply_, &status_, answers().TagOf(*this));
  }
  void Come(bool /*ok*/) override {
    const std::shared_ptr<AsyncSolve> self = std::move(under_way_);
    call_.reset();
    if (!status_.ok()) return Failed(connection_->EndOf(ToStatus(status_)));
    done_(ReadSolution(reply_, solution_));
  }

  // By shared memory; false if there is none, or no room in it.
  bool AttemptShared() {
    ShmLink* const link = connection_->shared_memory();
    if (link == nullptr) return false;
    const auto session = link->session(std::min(deadline_, absl::Now() + ShmLink::kOpening));
    if (!session.ok()) {
      const bool may_wait = absl::IsDeadlineExceeded(session.status()) && absl::Now() < deadline_;
      Failed(may_wait ? absl::UnavailableError(session.status().message()) : session.status());
      return true;
    }
    auto made = SharedRequest::Make(*(*session)->memory(), v1::ShmOperation::kSolve, request_,
                                    {SharedData::Columns(rhs(), solution_)});
    if (!made) return false;
    const auto asked = std::make_shared<const SharedRequest>(*std::move(made));
    const auto sent = (*session)->CallLater(
        asked->request(), deadline_,
        [self = shared_from_this(), asked](const absl::StatusOr<v1::ShmReply>& reply) {
          v1::SolveReply solved;
          const absl::Status status = reply.ok() ? asked->Take(*reply, &solved) : reply.status();
          if (!status.ok()) return self->Failed(ToStatusOfAnswer(status));
          self->done_(ToResult(solved));
        });
    if (!sent.ok()) Failed(sent.status());
    return true;
  }

  void AttemptLarge() {
    v1::SolveStreamRequest first;
    first.set_id(1);
    *first.mutable_request() = request_;
    const auto stream = SolveStream::Start(connection_, connection_->bulk(), deadline_, route_);
    const absl::Status sent =
        stream->Send(std::move(first), rhs(), solution_, nullptr,
                     [self = shared_from_this()](absl::StatusOr<SolveResult> result) {
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
    Timer::Start(answers(), absl::Now() + *wait,
                 [self = shared_from_this()] { self->AttemptAgain(); });
  }

  // Where that may wait for a session, or copies much, it has a thread of its own: the ends of
  // others wait for the queue's.
  void AttemptAgain() {
    if (connection_->shared_memory() == nullptr && !large_) return Attempt();
    const absl::Status started = StartDetached([self = shared_from_this()] { self->Attempt(); });
    if (!started.ok()) done_(started);
  }

  // The restoration may take longer than this call has.
  void Heal(const absl::Status& why) {
    const auto over = std::make_shared<std::atomic<bool>>(false);
    std::shared_ptr<Timer> late;
    if (deadline_ != absl::InfiniteFuture()) {
      late = Timer::Start(answers(), deadline_, [self = shared_from_this(), over, why] {
        if (!over->exchange(true)) self->done_(RestoreIsLate(why));
      });
    }
    healer_->Restore(generation_, why,
                     [self = shared_from_this(), over, late](const absl::Status& restored) {
                       if (over->exchange(true)) return;
                       if (late != nullptr) late->GiveUp();
                       if (!restored.ok()) return self->done_(restored);
                       self->Begin();
                     });
  }

  const std::shared_ptr<Connection> connection_;
  const std::shared_ptr<Healer> healer_;
  const bool large_;
  const grpc::Slice rhs_;
  const std::span<std::byte> solution_;
  const absl::Time deadline_;
  const std::function<void(absl::StatusOr<SolveResult>)> done_;
  std::string route_;
  v1::SolveRequest request_;  // without right-hand sides
  int64_t generation_ = 0;
  std::optional<Backoff> backoff_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> call_;
  std::shared_ptr<AsyncSolve> under_way_;
  grpc::ByteBuffer reply_;
  grpc::Status status_;
};

}  // namespace

void StartAsyncSolve(std::shared_ptr<Connection> connection, const Factorization& factorization,
                     v1::SolveRequest request, Bytes rhs, std::span<std::byte> solution,
                     absl::Time deadline, std::function<void(absl::StatusOr<SolveResult>)> done) {
  std::make_shared<AsyncSolve>(std::move(connection), factorization, std::move(request), rhs,
                               solution, deadline, std::move(done))
      ->Start();
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
