#include "server/transport/rpc/call_queue.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/allocator.h"
#include "server/base/thread_name.h"
#include "server/transport/rpc/executor.h"

namespace blockd::server {
namespace {

// Calls that may arrive, for each thread, before one has asked for more; gRPC keeps what is beyond.
constexpr int kSlots = 32;
// Allocators keep memory for the next messages. Most of it goes back to the system this often, and
// all of it after kQuiet without a message.
constexpr absl::Duration kReturnEvery = absl::Milliseconds(250);
constexpr absl::Duration kQuiet = absl::Seconds(5);

}  // namespace

// Asks gRPC for the next call.
class CallQueue::Slot final : public Tag {
 public:
  Slot(CallQueue* calls, grpc::ServerCompletionQueue* queue) : calls_(calls), queue_(queue) {}
  void Ask() {
    incoming_ = std::make_unique<IncomingCall>(queue_);
    calls_->service_.RequestCall(&incoming_->context, &incoming_->stream, queue_, queue_, this);
  }
  void Complete(bool ok) noexcept override {
    if (!ok) {  // the server has shut down
      CallQueue* const calls = calls_;
      delete this;
      calls->OnSlotGone();
      return;
    }
    // First of all the call is counted as one, and only then this slot may go.
    calls_->options_.make_call(std::move(incoming_))->Accept(calls_);
    Ask();
  }

 private:
  CallQueue* const calls_;
  grpc::ServerCompletionQueue* const queue_;
  std::unique_ptr<IncomingCall> incoming_;
};

CallQueue::CallQueue(Options options)
    : options_(std::move(options)), waiting_(options_.is_identified) {}

CallQueue::~CallQueue() { Stop(); }

void CallQueue::AddTo(grpc::ServerBuilder* builder) {
  builder->RegisterAsyncGenericService(&service_);
  for (int i = 0; i < options_.queues; ++i) queues_.push_back(builder->AddCompletionQueue());
}

void CallQueue::Start() {
  {
    absl::MutexLock lock(&mutex_);
    slots_ = kSlots * options_.threads;
  }
  for (int i = 0; i < options_.queues; ++i) {
    auto* const queue = queues_[static_cast<size_t>(i)].get();
    const int threads = (options_.threads + i) / options_.queues;  // together: all
    for (int k = 0; k < kSlots * threads; ++k) (new Slot(this, queue))->Ask();
    serving_.push_back(std::make_unique<ServingThreads>(
        threads, options_.poll, queue, [this](void* tag, bool ok) { Take(tag, ok); }));
  }
  looking_ = std::thread([this] { LookLoop(); });
}

void CallQueue::Take(void* tag, bool ok) {
  if (!worked_.load(std::memory_order_relaxed)) worked_ = true;
  static_cast<Tag*>(tag)->Complete(ok);
}

void CallQueue::LookLoop() {
  NameThread("calls");
  MarkTransportThread();
  absl::Time busy = absl::InfiniteFuture();  // when it was last; infinite: its memory is back
  absl::Time looked = SteadyNow();
  while (!stopping_.WaitFor(std::min(options_.look_every, kReturnEvery))) {
    const absl::Time now = SteadyNow();
    if (now - looked >= options_.look_every) {
      looked = now;
      options_.also();
      LookAtAll(now);
    }
    for (const WaitingCalls::Taken& taken : waiting_.TakeTooMany()) EndTaken(taken);
    ReturnMostFreeMemory();
    if (worked_.exchange(false)) busy = now;
    if (now - busy < kQuiet) continue;
    ReturnFreeMemory();
    busy = absl::InfiniteFuture();
  }
}

void CallQueue::Add(ServerCall* call) {
  absl::MutexLock lock(&mutex_);
  calls_.insert(call);
}

void CallQueue::Remove(ServerCall* call) {
  absl::MutexLock lock(&mutex_);
  calls_.erase(call);
  waiting_.Remove(call);
}

void CallQueue::LookAtAll(absl::Time now) {
  std::vector<std::shared_ptr<ServerCall>> calls;
  {
    absl::MutexLock lock(&mutex_);
    for (ServerCall* call : calls_) {
      if (call->NeedsLook()) calls.push_back(call->shared_from_this());
    }
  }
  for (const std::shared_ptr<ServerCall>& call : calls) call->Look(now, options_.limits);
}

void CallQueue::EndOneTooMany(const ServerCall& call) { EndTaken(waiting_.TakeOneTooMany(call)); }

void CallQueue::EndTaken(const WaitingCalls::Taken& taken) {
  if (taken.call == nullptr) return;
  taken.call->EndWaiting(
      taken.reads, absl::ResourceExhaustedError(absl::StrCat(
                       "more than ", WaitingCalls::kMost,
                       " calls from this address wait for their caller, this one for longest")));
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
  stopping_.Notify();
  if (looking_.joinable()) looking_.join();
  for (const auto& queue : queues_) queue->Shutdown();
  serving_.clear();
  void* tag = nullptr;
  bool ok = false;
  for (const auto& queue : queues_) {
    while (queue->Next(&tag, &ok)) Take(tag, ok);  // if never started
  }
  queues_.clear();
}

}  // namespace blockd::server
