#include "server/transport/call_queue.h"

#include <malloc.h>

#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "server/transport/executor.h"

namespace blockd::server {
namespace {

// Calls that may arrive, for each thread, before one has asked for more; gRPC keeps what is beyond.
constexpr int kSlots = 32;
// What allocators keep for the next calls goes back to the system once none came for so long.
constexpr absl::Duration kQuiet = absl::Seconds(5);

void Take(void* tag, bool ok) { static_cast<Tag*>(tag)->Complete(ok); }

}  // namespace

// Asks gRPC for the next call.
class CallQueue::Slot final : public Tag {
 public:
  explicit Slot(CallQueue* queue) : queue_(queue) {}
  void Ask() {
    incoming_ = std::make_unique<IncomingCall>();
    auto* const cq = queue_->queue_.get();
    queue_->service_.RequestCall(&incoming_->context, &incoming_->stream, cq, cq, this);
  }
  void Complete(bool ok) noexcept override {
    if (!ok) {  // the server has shut down
      CallQueue* const queue = queue_;
      delete this;
      queue->OnSlotGone();
      return;
    }
    // First of all the call is counted as one, and only then this slot may go.
    queue_->options_.make_call(std::move(incoming_))->Accept(queue_);
    Ask();
  }

 private:
  CallQueue* const queue_;
  std::unique_ptr<IncomingCall> incoming_;
};

CallQueue::CallQueue(Options options) : options_(std::move(options)) {}

CallQueue::~CallQueue() { Stop(); }

void CallQueue::AddTo(grpc::ServerBuilder* builder) {
  builder->RegisterAsyncGenericService(&service_);
  queue_ = builder->AddCompletionQueue();
}

void CallQueue::Start() {
  const int slots = kSlots * options_.threads;
  {
    absl::MutexLock lock(&mutex_);
    slots_ = slots;
  }
  for (int i = 0; i < slots; ++i) (new Slot(this))->Ask();
  serving_.emplace(options_.threads, options_.poll, queue_.get(), Take);
  looking_ = std::thread([this] { LookLoop(); });
}

void CallQueue::LookLoop() {
  MarkTransportThread();
  absl::Time busy = absl::InfiniteFuture();  // when it was last; infinite: its memory is back
  while (!stopping_.WaitForNotificationWithTimeout(options_.look_every)) {
    options_.also();
    const absl::Time now = absl::Now();
    LookAtAll(now);
    if (WasBusy()) busy = now;
    if (now - busy < kQuiet) continue;
    malloc_trim(0);
    busy = absl::InfiniteFuture();
  }
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

void CallQueue::LookAtAll(absl::Time now) {
  std::vector<std::shared_ptr<ServerCall>> calls;
  {
    absl::MutexLock lock(&mutex_);
    for (ServerCall* call : calls_) {
      if (call->NeedsLook()) calls.push_back(call->shared_from_this());
    }
  }
  for (const std::shared_ptr<ServerCall>& call : calls) call->Look(now, options_.reply_timeout);
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
  if (!stopping_.HasBeenNotified()) stopping_.Notify();
  if (looking_.joinable()) looking_.join();
  if (queue_ == nullptr) return;
  queue_->Shutdown();
  serving_.reset();
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) Take(tag, ok);  // if never started
  queue_.reset();
}

}  // namespace blockd::server
