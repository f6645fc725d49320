#include "tests/fuzz/fake_call.h"

#include <utility>

#include "server/transport/calls/admin_service.h"
#include "server/transport/rpc/serving_threads.h"
#include "tests/fuzz/check.h"

namespace blockd::server {
namespace {

thread_local bool transport_thread = false;

}  // namespace

FakeWire& TheWire() {
  static auto& wire = *new FakeWire;
  return wire;
}

PostedTasks& ThePosted() {
  static auto& tasks = *new PostedTasks;
  return tasks;
}

// ------------------------------------------------------------------------------------- the fakes

void FakeWire::Begin(const std::shared_ptr<ServerCall>& call) {
  *this = FakeWire();
  call_ = call;
  call->Accept(nullptr);
}

void FakeWire::Deliver(const grpc::ByteBuffer& message) {
  *message_ = message;
  std::exchange(read_, nullptr)->Complete(true);
}
void FakeWire::EndReading() { std::exchange(read_, nullptr)->Complete(false); }
void FakeWire::EndWriting(bool ok) { std::exchange(write_, nullptr)->Complete(ok); }
void FakeWire::EndFinishing() {
  if (greet_ != nullptr) std::exchange(greet_, nullptr)->Complete(true);
  std::exchange(finish_, nullptr)->Complete(true);
}
void FakeWire::Over(bool cancelled) {
  is_over_ = true;
  cancelled_ = cancelled;
  over_->Complete(true);
}
void FakeWire::Look(absl::Time now) {
  if (auto call = call_.lock(); call != nullptr && call->NeedsLook()) call->Look(now, {});
}

void PostedTasks::Add(std::shared_ptr<Executor::Task> task) {
  absl::MutexLock lock(&mutex_);
  tasks_.push_back(std::move(task));
}
bool PostedTasks::empty() const {
  absl::MutexLock lock(&mutex_);
  return tasks_.empty();
}
void PostedTasks::RunFirst() {
  std::shared_ptr<Executor::Task> task;
  {
    absl::MutexLock lock(&mutex_);
    if (tasks_.empty()) return;
    task = std::move(tasks_.front());
    tasks_.pop_front();
  }
  task->Run();
}
void PostedTasks::WaitForOne() {
  absl::MutexLock lock(&mutex_);
  const auto has_one = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !tasks_.empty(); };
  mutex_.Await(absl::Condition(&has_one));
}

// ---------------------------------------------------------------------------------- executor.cc

bool IsTransportThread() { return transport_thread; }
void MarkTransportThread() { transport_thread = true; }
bool ServesAlone() { return false; }
Executor::Executor(const char* name, int threads, std::optional<absl::Duration> poll)
    : name_(name),
      is_short_(false),
      patience_(poll.value_or(absl::ZeroDuration())),
      awake_(threads) {}
Executor::~Executor() = default;
void Executor::Post(std::shared_ptr<Task> task) { ThePosted().Add(std::move(task)); }
// The wire is of the fuzzer's thread alone.
void Executor::RunOrPost(bool /*here*/, std::shared_ptr<Task> task) {
  if (IsTransportThread()) return task->Run();
  Post(std::move(task));
}

// ------------------------------------------------------------------------------- server_call.cc

void IncomingCall::OverTag::Complete(bool /*ok*/) noexcept { call_->OnOver(); }
void IncomingCall::OverTag::Tell(ServerCall* call) { call_ = call; }

Tag* ServerCall::Operation::Start() {
  ++call_->left_;
  return this;
}
void ServerCall::Operation::Complete(bool ok) noexcept {
  ServerCall& call = *call_;
  call.Guard([&call, ended = ended_, ok] { (call.*ended)(ok); });
  call.Leave();
}

ServerCall::ServerCall(CallTracker* tracker, std::unique_ptr<IncomingCall> incoming)
    : active_(tracker), incoming_(std::move(incoming)) {}

void ServerCall::Accept(CallQueue* queue) {
  queue_ = queue;
  self_ = shared_from_this();
  TheWire().over_ = &incoming_->over;
  Guard([this] { OnBegin(); });
  incoming_->over.Tell(this);
}

void ServerCall::Look(absl::Time now, const CallLimits& /*limits*/) {
  if (watched_) Guard([&] { OnLook(now); });
}

void ServerCall::Read() {
  FUZZ_CHECK(!finish_called_ && TheWire().read_ == nullptr);
  TheWire().message_ = &message_;
  TheWire().read_ = read_.Start();
}
void ServerCall::OnReadEnded(bool ok) {
  if (ok) message_came_ = true;
  OnRead(ok);
}
void ServerCall::StayWaiting() {}
void ServerCall::SetAsks(bool /*asks*/) {}
void ServerCall::Greet() {
  FUZZ_CHECK(!TheWire().greeted_ && TheWire().written_.empty() && !finish_called_);
  TheWire().greeted_ = true;
  TheWire().greet_ = greet_.Start();
}
void ServerCall::StartClock() { writing_since_ = 1; }

void ServerCall::Write(const grpc::ByteBuffer& message) {
  FUZZ_CHECK(!finish_called_ && TheWire().write_ == nullptr);
  TheWire().written_.push_back(message);
  writing_ = Writing::kYes;
  StartClock();
  TheWire().write_ = write_.Start();
}
void ServerCall::OnWriteEnded(bool ok) {
  writing_since_ = 0;
  const Writing was = writing_.exchange(Writing::kNo);
  Guard([&] { OnWritten(ok); });
  if (was == Writing::kThenFinish) StartFinish();
}
void ServerCall::Finish(const grpc::Status& status) {
  if (finish_called_.exchange(true)) return;
  status_ = status;
  TheWire().status_ = status;
  Writing expected = Writing::kYes;
  if (!writing_.compare_exchange_strong(expected, Writing::kThenFinish)) StartFinish();
}
void ServerCall::FinishAfter(absl::Duration /*wait*/, const grpc::Status& status) {
  Finish(status);
}
void ServerCall::StartFinish() {
  StartClock();
  TheWire().finish_ = finish_.Start();
}
void ServerCall::WriteAndFinish(const grpc::ByteBuffer& message) {
  if (finish_called_.exchange(true)) return;
  FUZZ_CHECK(writing_ == Writing::kNo);
  TheWire().written_.push_back(message);
  TheWire().status_ = grpc::Status::OK;
  TheWire().finish_ = finish_.Start();
}
void ServerCall::OnFinished(bool /*ok*/) {
  writing_since_ = 0;
  Leave();
}
void ServerCall::OnOver() {
  if (TheWire().cancelled_) Guard([this] { OnCancel(); });
  Leave();
}
void ServerCall::Leave() {
  if (--left_ > 0) return;
  const std::shared_ptr<ServerCall> self = std::move(self_);
  OnDone();
}
void ServerCall::RunOutOfMemory() noexcept {
  OnFailure(absl::ResourceExhaustedError("no memory on the host for this call"));
}

// ------------------------------------------------------------------------------ watched_reads.cc

void ForgetHeaders(int64_t /*bytes*/, int64_t /*entries*/) {}

// ------------------------------------------------------------------------------ admin_service.cc

// Nobody is an admin here: ServiceState::admin is null.
std::shared_ptr<ServerCall> AdminService::MakeCall(
    std::unique_ptr<IncomingCall>* /*incoming*/) const {
  return nullptr;
}

}  // namespace blockd::server
