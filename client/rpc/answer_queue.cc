#include "client/rpc/answer_queue.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "client/base/detached_thread.h"

namespace blockd::client {
namespace {

std::atomic<int> waiting_threads = 0;

// One thread reads some GB a second; with more queues than some they wake each other.
constexpr int kMostQueues = 4;

}  // namespace

WaitsInGrpc::WaitsInGrpc() { waiting_threads.fetch_add(1, std::memory_order_relaxed); }
WaitsInGrpc::~WaitsInGrpc() { waiting_threads.fetch_sub(1, std::memory_order_relaxed); }
int WaitsInGrpc::count() { return waiting_threads.load(std::memory_order_relaxed); }

int AnswerQueue::count() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 4, 1, kMostQueues);
}

AnswerQueue& AnswerQueue::OfNextConnection() {
  static const auto& queues = *new std::vector<AnswerQueue*>([] {
    std::vector<AnswerQueue*> made(static_cast<size_t>(count()));
    for (AnswerQueue*& queue : made) queue = new AnswerQueue;
    return made;
  }());
  static std::atomic<size_t> next = 0;
  return *queues[next.fetch_add(1, std::memory_order_relaxed) % queues.size()];
}

void* AnswerQueue::TagOf(Awaited& call) { return static_cast<Event*>(&call); }

void* AnswerQueue::TagOf(Later& call) {
  absl::MutexLock lock(&mutex_);
  ++expected_;
  if (!led_) thread_for_later_.Signal();
  return static_cast<Event*>(&call);
}

absl::Status AnswerQueue::ServeLater() {
  absl::MutexLock lock(&mutex_);
  if (serves_later_) return absl::OkStatus();
  const absl::Status started = StartDetached([this] { RunLater(); });
  serves_later_ = started.ok();
  return started;
}

void AnswerQueue::Await(Awaited& call, absl::Duration poll) {
  {
    absl::MutexLock lock(&mutex_);
    if (!call.come_ && led_) {
      waiting_.push_back(&call);
      while (!call.come_ && !call.leads_) call.woken_.Wait(&mutex_);
    }
    if (call.come_) return;
    led_ = true;
  }
  Lead(&call, poll);
  absl::MutexLock lock(&mutex_);
  PassOn();
}

void AnswerQueue::RunLater() {
  for (;;) {
    std::vector<Later*> come;
    {
      absl::MutexLock lock(&mutex_);
      while (later_.empty() && (led_ || expected_ == 0)) thread_for_later_.Wait(&mutex_);
      come.swap(later_);
      if (come.empty()) led_ = true;
    }
    if (come.empty()) {
      Lead(nullptr, absl::ZeroDuration());
      absl::MutexLock lock(&mutex_);
      come.swap(later_);
      PassOn();
    }
    for (Later* const call : come) call->Come(call->ok_);
  }
}

void AnswerQueue::Lead(const Awaited* own, absl::Duration poll) {
  const WaitsInGrpc waits;
  const absl::Time look_until = poll > absl::ZeroDuration() ? absl::Now() + poll : absl::Time();
  for (;;) {
    Event& event = Next(look_until);
    if (&event == own) return;
    const bool awaited = event.awaited_;
    Deliver(event);  // whose owner may destroy it
    if (own == nullptr && !awaited) return;
  }
}

AnswerQueue::Event& AnswerQueue::Next(absl::Time look_until) {
  void* tag = nullptr;
  bool ok = false, come = false;
  // Beside another that sleeps in gRPC it would see nothing.
  while (!come && WaitsInGrpc::count() == 1 && absl::Now() < look_until) {
    come = queue_.AsyncNext(&tag, &ok, gpr_time_0(GPR_CLOCK_MONOTONIC)) ==
           grpc::CompletionQueue::GOT_EVENT;
  }
  if (!come) queue_.Next(&tag, &ok);
  Event& event = *static_cast<Event*>(tag);
  event.ok_ = ok;
  return event;
}

void AnswerQueue::Deliver(Event& event) {
  absl::MutexLock lock(&mutex_);
  if (!event.awaited_) {
    --expected_;
    later_.push_back(&static_cast<Later&>(event));
    thread_for_later_.Signal();
    return;
  }
  Awaited& call = static_cast<Awaited&>(event);
  call.come_ = true;
  const auto at = std::find(waiting_.begin(), waiting_.end(), &call);
  if (at == waiting_.end()) return;  // it will ask
  *at = waiting_.back();
  waiting_.pop_back();
  call.woken_.Signal();
}

void AnswerQueue::PassOn() {
  led_ = false;
  if (!waiting_.empty()) {
    // The last to come has the longest turn.
    Awaited& next = *waiting_.back();
    waiting_.pop_back();
    led_ = true;
    next.leads_ = true;
    next.woken_.Signal();
  } else if (expected_ > 0) {
    thread_for_later_.Signal();
  }
}

}  // namespace blockd::client
