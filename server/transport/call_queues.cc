#include "server/transport/call_queues.h"

#include <malloc.h>

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "server/transport/executor.h"

namespace blockd::server {
namespace {

// Calls that may arrive on a queue before its threads have asked for more; gRPC keeps what is
// beyond.
constexpr int kSlots = 64;
// One reads what comes while the other serves. Alone a thread that a flood keeps reading sees too
// few of the calls that are reset at once to end their connection.
constexpr int kThreadsOfAQueue = 2;
// What allocators keep for the next calls goes back to the system once none came for so long.
constexpr absl::Duration kQuiet = absl::Seconds(5);

}  // namespace

// Asks gRPC for the next call.
class CallQueue::Slot final : public Tag {
 public:
  explicit Slot(CallQueue* queue) : queue_(queue) {}
  void Ask() {
    incoming_ = std::make_unique<IncomingCall>();
    auto* const cq = queue_->queue_.get();
    queue_->service_->RequestCall(&incoming_->context, &incoming_->stream, cq, cq, this);
  }
  void Complete(bool ok) noexcept override {
    if (!ok) {  // the server has shut down
      CallQueue* const queue = queue_;
      delete this;
      queue->OnSlotGone();
      return;
    }
    // First of all the call is counted as one, and only then this slot may go.
    queue_->make_call_(std::move(incoming_))->Accept(queue_);
    Ask();
  }

 private:
  CallQueue* const queue_;
  std::unique_ptr<IncomingCall> incoming_;
};

CallQueue::CallQueue(int threads, std::unique_ptr<grpc::ServerCompletionQueue> queue,
                     grpc::AsyncGenericService* service, MakeCall make_call, OnReset on_reset)
    : num_threads_(threads),
      queue_(std::move(queue)),
      service_(service),
      make_call_(std::move(make_call)),
      on_reset_(std::move(on_reset)) {}

CallQueue::~CallQueue() { Stop(); }

void CallQueue::Start() {
  {
    absl::MutexLock lock(&mutex_);
    slots_ = kSlots;
  }
  for (int i = 0; i < kSlots; ++i) (new Slot(this))->Ask();
  for (int i = 0; i < num_threads_; ++i) threads_.emplace_back([this] { Serve(); });
}

void CallQueue::Serve() {
  MarkTransportThread();
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) static_cast<Tag*>(tag)->Complete(ok);
}

void CallQueue::Add(ServerCall* call) {
  absl::MutexLock lock(&mutex_);
  calls_.insert(call);
  came_ = true;
}

void CallQueue::Remove(ServerCall* call) {
  absl::MutexLock lock(&mutex_);
  calls_.erase(call);
}

void CallQueue::LookAtAll(absl::Time now, absl::Duration reply_timeout) {
  std::vector<std::shared_ptr<ServerCall>> calls;
  {
    absl::MutexLock lock(&mutex_);
    for (ServerCall* call : calls_) {
      if (call->NeedsLook()) calls.push_back(call->shared_from_this());
    }
  }
  for (const std::shared_ptr<ServerCall>& call : calls) call->Look(now, reply_timeout);
}

bool CallQueue::WasBusy() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(came_, false) || !calls_.empty();
}

void CallQueue::OnSlotGone() {
  absl::MutexLock lock(&mutex_);
  --slots_;
}

void CallQueue::WaitForLastCall() {
  absl::MutexLock lock(&mutex_);
  const auto gone = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return slots_ == 0; };
  mutex_.Await(absl::Condition(&gone));
}

void CallQueue::Stop() {
  queue_->Shutdown();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) static_cast<Tag*>(tag)->Complete(ok);  // if never started
}

CallQueues::CallQueues(int threads, absl::Duration reply_timeout, absl::Duration look_every,
                       MakeCall make_call, OnReset on_reset, std::function<void()> also)
    : threads_(threads),
      reply_timeout_(reply_timeout),
      look_every_(look_every),
      make_call_(std::move(make_call)),
      on_reset_(std::move(on_reset)),
      also_(std::move(also)) {}

CallQueues::~CallQueues() { Stop(); }

void CallQueues::AddTo(grpc::ServerBuilder* builder) {
  builder->RegisterAsyncGenericService(&service_);
  for (int left = threads_; left > 0; left -= kThreadsOfAQueue) {
    queues_.push_back(std::make_unique<CallQueue>(std::min(left, kThreadsOfAQueue),
                                                  builder->AddCompletionQueue(), &service_,
                                                  make_call_, on_reset_));
  }
}

void CallQueues::Start() {
  for (const auto& queue : queues_) queue->Start();
  looking_ = std::thread([this] {
    MarkTransportThread();
    absl::Time busy = absl::InfiniteFuture();  // when it was last; infinite: its memory is back
    while (!stopping_.WaitForNotificationWithTimeout(look_every_)) {
      also_();
      const absl::Time now = absl::Now();
      for (const auto& queue : queues_) {
        queue->LookAtAll(now, reply_timeout_);
        if (queue->WasBusy()) busy = now;
      }
      if (now - busy < kQuiet) continue;
      malloc_trim(0);
      busy = absl::InfiniteFuture();
    }
  });
}

void CallQueues::WaitForLastCall() {
  for (const auto& queue : queues_) queue->WaitForLastCall();
}

void CallQueues::Stop() {
  if (!stopping_.HasBeenNotified()) stopping_.Notify();
  if (looking_.joinable()) looking_.join();
  queues_.clear();
}

}  // namespace blockd::server
