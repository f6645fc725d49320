#include "server/transport/shm/shm_session.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/steady_time.h"
#include "server/log/logging.h"
#include "server/transport/shm/shm_call.h"

namespace blockd::server {
namespace {

constexpr size_t kWakesAtOnce = 256;  // bytes that wake

}  // namespace

ShmSession::ShmSession(ServiceState* state, ContextPtr context, ShmMapping mapping,
                       Reservation host_bytes, FileDescriptor socket,
                       std::shared_ptr<const void> place)
    : place_(std::move(place)),
      state_(state),
      context_(std::move(context)),
      host_bytes_(std::move(host_bytes)),
      mapping_(std::move(mapping)),
      socket_(std::move(socket)) {}

// -----------------------------------------------------------------------------------------------------
// Requests

bool ShmSession::Take(int most, bool may_run_here) {
  if (ended()) return false;
  const uint64_t end = mapping_.header().requests_end.load(std::memory_order_acquire);
  if (end == taken_) return false;
  if (!CheckCredit()) {
    End("the position of the replies taken goes back, or beyond those sent");
    return true;
  }
  // Unsigned: a position that went back is far ahead.
  const uint64_t waiting = end - taken_;
  if (waiting > mapping_.slots() - (taken_ - replies_taken_)) {
    End(absl::StrCat("more than ", mapping_.slots(),
                     " requests whose replies were not taken, or a position that goes back"));
    return true;
  }
  const auto count = static_cast<int>(std::min<uint64_t>(waiting, static_cast<uint64_t>(most)));
  for (int i = 0; i < count && !ended(); ++i) {
    Begin(CopyOnce(mapping_.request(taken_++)), may_run_here && i == 0);
  }
  return true;
}

// Notes the caller's position among the replies. False, with nothing noted, if it may not have it.
bool ShmSession::CheckCredit() {
  const uint64_t taken = mapping_.header().replies_taken.load(std::memory_order_acquire);
  const uint64_t answered = answered_.load(std::memory_order_acquire);
  if (taken - replies_taken_ > answered - replies_taken_) return false;
  replies_taken_ = taken;
  return true;
}

void ShmSession::Begin(const v1::ShmRequest& request, bool may_run_here) {
  const int64_t timeout = request.timeout_nanoseconds;
  const absl::Time deadline =
      timeout != 0 ? SteadyNow() + absl::Nanoseconds(timeout) : absl::InfiniteFuture();
  const ContextPtr context = ContextOfRequest(*context_, deadline);
  context->may_run_here = may_run_here;
  bool first;
  {
    absl::MutexLock lock(&mutex_);
    first = under_way_.emplace(request.id, context).second;
  }
  if (!first) return End("two requests under way have one id");
  std::make_shared<ShmCall>(shared_from_this(), request, context)->Start();
}

bool ShmSession::FallAsleep() {
  v1::ShmHeader& header = mapping_.header();
  header.server_asleep.store(1, std::memory_order_seq_cst);
  return header.requests_end.load(std::memory_order_seq_cst) != taken_ && !ended();
}

void ShmSession::WakeUp() { mapping_.header().server_asleep.store(0, std::memory_order_relaxed); }

void ShmSession::ReadSocket() {
  char wake[kWakesAtOnce];
  const ssize_t count = recv(socket(), wake, sizeof(wake), MSG_DONTWAIT);
  if (count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR))) return;
  End("");
}

// -----------------------------------------------------------------------------------------------------
// Replies

void ShmSession::Answer(const v1::ShmReply& reply) {
  v1::ShmHeader& header = mapping_.header();
  {
    absl::MutexLock lock(&mutex_);
    under_way_.erase(reply.id);
    if (ended()) return;
    // There is a place: a request is taken only while fewer than `slots` replies are not taken.
    const uint64_t position = answered_.load(std::memory_order_relaxed);
    std::memcpy(&mapping_.reply(position), &reply, sizeof(reply));
    answered_.store(position + 1, std::memory_order_release);
    header.replies_end.store(position + 1, std::memory_order_seq_cst);
  }
  if (header.caller_asleep.load(std::memory_order_seq_cst) == 0) return;
  header.caller_asleep.store(0, std::memory_order_relaxed);
  // Where there is no room for it, there are others that wake.
  const char wake = 0;
  (void)send(socket(), &wake, sizeof(wake), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void ShmSession::Cancel(uint64_t id) {
  ContextPtr context;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = under_way_.find(id);
    if (found == under_way_.end()) return;
    context = found->second;
  }
  state_->core->Cancel(*context);
}

bool ShmSession::AwaitScan(std::shared_ptr<Executor::Task> call) {
  absl::MutexLock lock(&mutex_);
  scans_.push_back(std::move(call));
  return scans_.size() == 1;
}

void ShmSession::EndScan() {
  std::shared_ptr<Executor::Task> next;
  {
    absl::MutexLock lock(&mutex_);
    scans_.pop_front();
    if (!scans_.empty()) next = scans_.front();
  }
  if (next != nullptr) state_->work.Post(std::move(next));
}

void ShmSession::CancelAll() {
  std::vector<ContextPtr> all;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, context] : under_way_) all.push_back(context);
  }
  for (const ContextPtr& context : all) state_->core->Cancel(*context);
}

void ShmSession::End(std::string_view why) {
  {
    absl::MutexLock lock(&mutex_);
    if (ended_.exchange(true)) return;
    char* const reason = mapping_.header().end_reason;
    const size_t bytes = std::min(why.size(), sizeof(v1::ShmHeader::end_reason) - 1);
    std::memcpy(reason, why.data(), bytes);
    reason[bytes] = '\0';
  }
  (void)shutdown(socket(), SHUT_RDWR);
  CancelAll();
  if (why.empty()) return;
  LogLine(LogLevel::kWarn, "shared_memory_session_ended")
      .Add("caller", context_->caller)
      .Add("why", std::string(why))
      .Write();
}

}  // namespace blockd::server
